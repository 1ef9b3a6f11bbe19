"""How an operator's tensors may be split so that each device computes its part alone.

A rule gives every dimension of every tensor a label. Dimensions of one label are split alike; a dimension without a label stays whole. A
label of inputs that no output has is summed over (or the maximum taken) behind the operator, where the rule allows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.spmd._array import Array, parts_of
from shoal.spmd._sharding import Sharding

aten = torch.ops.aten
Label = int | str | None
Labels = tuple[Label, ...]


@dataclass
class Plan:
    """``inputs``: per tensor argument in order. ``outputs``: per result; results that are no tensors have None."""

    inputs: list[Labels]
    outputs: list[Labels | None]
    out_shapes: list[tuple[int, ...]] = field(default_factory=list)  # for operators that are given the size of their result
    combine: str | None = None  # "sum": of parts along labels that outputs do not have
    size_argument: int | None = None  # position of the result's size, which is the local one for a part


@dataclass(frozen=True)
class Grid:
    """Parts per label, and for each device the part that it computes."""

    parts: dict[Label, int]
    columns: dict[Label, tuple[int, ...]]
    num_devices: int

    def sharding(self, labels: Labels) -> Sharding:
        zeros = (0,) * self.num_devices
        found = Sharding.of_columns(
            [self.parts.get(label, 1) if label is not None else 1 for label in labels],
            [self.columns.get(label, zeros) if label is not None else zeros for label in labels],
            self.num_devices,
        )
        assert found is not None  # a projection of a valid grid
        return found

    def cells(self) -> list[dict[Label, int]]:
        names = list(self.parts)
        return [dict(zip(names, c, strict=True)) for c in itertools.product(*(range(self.parts[n]) for n in names))]

    def devices(self, cell: dict[Label, int]) -> list[int]:
        """Those that compute a cell."""
        return [d for d in range(self.num_devices) if all(self.columns[label][d] == i for label, i in cell.items())]

    def position(self, labels: Labels, cell: dict[Label, int]) -> int:
        """Which of the parts of ``sharding(labels)`` belongs to a cell."""
        flat = 0
        for label in labels:
            p = self.parts.get(label, 1) if label is not None else 1
            flat = flat * p + (cell[label] if p > 1 else 0)
        return flat


def grid_of(plan: Plan, arrays: Sequence[Array], num_devices: int, leaders: Sequence[int], allowed: Callable[[Label], bool]) -> Grid:
    """Takes over how the arrays are split, the first ones first, as far as labels, sizes and other arrays allow."""
    sizes: dict[Label, set[int]] = {}
    for labels, shape in [
        *((ls, a.shape) for ls, a in zip(plan.inputs, arrays, strict=True)),
        *zip(plan.outputs, plan.out_shapes, strict=False),
    ]:
        for label, n in zip(labels or (), shape, strict=True):
            sizes.setdefault(label, set()).add(n)
    grid = Grid({}, {}, num_devices)
    for i in leaders:
        for label, p, column in zip(plan.inputs[i], arrays[i].sharding.parts, arrays[i].sharding.columns, strict=True):
            if p == 1 or label is None or label in grid.parts or not allowed(label):
                continue
            if len(sizes[label]) > 1 and any(n % p for n in sizes[label]):
                continue
            wider = Grid({**grid.parts, label: p}, {**grid.columns, label: column}, num_devices)
            if Sharding.of_columns(list(wider.parts.values()), list(wider.columns.values()), num_devices) is not None:
                grid = wider
    return grid


# ---- rules: each gets the arrays, the arguments, and the positions of the arrays among them -----------------------------------------

Rule = Callable[[Any, list[Array], tuple, dict], "Plan | None"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def find(func: Any) -> Rule | None:
    name = func._schema.name.removeprefix("aten::")
    found = RULES.get(name) or RULES.get(name.removesuffix("_"))
    one_by_one = name.startswith("_foreach_") and name not in ("_foreach_norm", "_foreach_max", "_foreach_powsum")
    if found is None and (one_by_one or torch.Tag.pointwise in func.tags):
        return pointwise
    has_out = any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    return found if found is pointwise or not has_out else None


def _dims(dims: Any, rank: int) -> list[int]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    return [d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)]


def _argument(func: Any, args: tuple, kwargs: dict, name: str, default: Any = None) -> Any:
    for i, a in enumerate(func._schema.arguments):
        if a.name == name:
            return (
                args[i] if i < len(args) and not a.kwarg_only else kwargs.get(name, a.default_value if a.has_default_value() else default)
            )
    return default


POINTWISE = """clone _to_copy zeros_like ones_like empty_like full_like detach alias lift_fresh fill zero where masked_fill
    _fused_adamw _fused_adam _fused_sgd"""


@rule(*POINTWISE.split())
def pointwise(func, arrays, args, kwargs):
    out = torch.broadcast_shapes(*(a.shape for a in arrays))
    rank = len(out)
    labels = [
        tuple(None if n == 1 and out[rank - len(a.shape) + i] != 1 else rank - len(a.shape) + i for i, n in enumerate(a.shape))
        for a in arrays
    ]
    return Plan(labels, [tuple(range(rank))] * max(1, len(func._schema.returns)))


KEEPING = {
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "flip", "roll"),
    *("softmax", "log_softmax", "_softmax", "_log_softmax"),
}
REDUCING = {
    *("sum", "nansum", "mean", "prod", "any", "all", "norm", "linalg_vector_norm", "logsumexp", "var", "std", "var_mean", "std_mean"),
    *("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "median", "mode", "kthvalue"),
}


@rule(*REDUCING, *KEEPING)
def along_dims(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return pointwise(func, arrays, args, kwargs) if func._schema.name in ("aten::max", "aten::min") else None
    (a,) = arrays
    rank, name = len(a.shape), func._schema.name.removeprefix("aten::").removesuffix("_")
    keeps = name in KEEPING
    dims = _argument(func, args, kwargs, "dims", None)
    if dims is None:
        default = -1 if name in ("sort", "topk", "argsort") else None
        dims = _argument(func, args, kwargs, "dim", default)
    over = _dims(dims, rank)
    if not over and keeps:
        over = list(range(rank))
    keepdim = bool(_argument(func, args, kwargs, "keepdim", False))
    combine = "sum" if name in ("sum", "nansum") and a.dtype.is_floating_point else None
    inputs = tuple(d if d not in over else (f"r{d}" if combine else None) for d in range(rank))
    if keeps:
        out: Labels = tuple(None if d in over else d for d in range(rank))
    else:
        out = tuple(None if d in over else d for d in range(rank) if keepdim or d not in over)
    return Plan([inputs], [out] * len(func._schema.returns), combine=combine)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(func, arrays, args, kwargs):
    rank, dim = len(arrays[0].shape), args[2]
    labels = tuple(None if d == dim % max(rank, 1) else d for d in range(rank))
    return Plan([labels, labels], [labels])


@rule("mm")
def mm(func, arrays, args, kwargs):
    return Plan([("m", "k"), ("k", "n")], [("m", "n")], combine="sum")


@rule("bmm")
def bmm(func, arrays, args, kwargs):
    return Plan([("b", "m", "k"), ("b", "k", "n")], [("b", "m", "n")], combine="sum")


@rule("addmm")
def addmm(func, arrays, args, kwargs):
    bias = arrays[0]
    labels = ("m", "n")[2 - len(bias.shape) :]
    out = (arrays[1].shape[0], arrays[2].shape[1])
    labels = tuple(None if n == 1 and o != 1 else label for label, n, o in zip(labels, bias.shape, out[2 - len(bias.shape) :], strict=True))
    return Plan([labels, ("m", None), (None, "n")], [("m", "n")])


@rule("dot", "vdot")
def dot(func, arrays, args, kwargs):
    return Plan([("k",), ("k",)], [()], combine="sum")


@rule("mv")
def mv(func, arrays, args, kwargs):
    return Plan([("m", "k"), ("k",)], [("m",)], combine="sum")


@rule("embedding")
def embedding(func, arrays, args, kwargs):
    rank = len(arrays[1].shape)
    return Plan([(None, "w"), tuple(range(rank))], [(*range(rank), "w")])


@rule("native_layer_norm")
def layer_norm(func, arrays, args, kwargs):
    rank, normed = len(arrays[0].shape), len(args[1])
    labels = tuple(d if d < rank - normed else None for d in range(rank))
    return Plan([labels, *((None,) * len(a.shape) for a in arrays[1:])], [labels, labels, labels])


@rule("convolution")
def convolution(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    rest = (None,) * (rank - 2)
    return Plan([("n", None, *rest), *((None,) * len(a.shape) for a in arrays[1:])], [("n", None, *rest)])


@rule("cat")
def cat(func, arrays, args, kwargs):
    rank = max(len(a.shape) for a in arrays)
    if any(len(a.shape) != rank for a in arrays):  # an empty one of torch's old kind
        return None
    dim = _dims(_argument(func, args, kwargs, "dim", 0), rank)[0]
    labels = tuple(None if d == dim else d for d in range(rank))
    return Plan([labels] * len(arrays), [labels])


@rule("stack")
def stack(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = _argument(func, args, kwargs, "dim", 0) % (rank + 1)
    labels = tuple(range(rank))
    return Plan([labels] * len(arrays), [(*labels[:dim], None, *labels[dim:])])


# ---- views ---------------------------------------------------------------------------------------------------------------------------


@rule("t")
def transposed(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [labels[::-1]])


@rule("transpose")
def transpose(func, arrays, args, kwargs):
    labels = list(range(len(arrays[0].shape)))
    out = list(labels)
    if labels:
        i, j = (d % len(labels) for d in args[1:3])
        out[i], out[j] = out[j], out[i]
    return Plan([tuple(labels)], [tuple(out)])


@rule("permute")
def permute(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [tuple(labels[d] for d in args[1])])


@rule("unsqueeze")
def unsqueeze(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = args[1] % (rank + 1)
    labels = tuple(range(rank))
    return Plan([labels], [(*labels[:dim], None, *labels[dim:])])


@rule("squeeze")
def squeeze(func, arrays, args, kwargs):
    shape = arrays[0].shape
    over = set() if len(args) > 1 and args[1] == [] else set(_dims(args[1] if len(args) > 1 else None, len(shape)))
    gone = {d for d in over if shape[d] == 1}
    labels = tuple(None if d in over else d for d in range(len(shape)))  # a part may be of size 1 where the whole is not
    return Plan([labels], [tuple(label for d, label in enumerate(labels) if d not in gone)])


@rule("select")
def select(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = args[1] % rank
    return Plan([tuple(None if d == dim else d for d in range(rank))], [tuple(d for d in range(rank) if d != dim)])


@rule("slice", "narrow", "split", "split_with_sizes", "unbind", "index_select", "gather")
def along_one(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return None
    rank = len(arrays[0].shape)
    dim = _argument(func, args, kwargs, "dim", 0) % rank
    inside = tuple(None if d == dim else d for d in range(rank))
    out = tuple(d for d in range(rank) if d != dim) if func._schema.name == "aten::unbind" else inside
    return Plan([inside], [out])


@rule("expand")
def expand(func, arrays, args, kwargs):
    shape, size = arrays[0].shape, args[1]
    new = len(size) - len(shape)
    out_shape = tuple(shape[i - new] if n == -1 else n for i, n in enumerate(size))
    labels = tuple(None if n == 1 else i for i, n in enumerate(shape))
    out = tuple(None if i < new or shape[i - new] == 1 else i - new for i in range(len(size)))
    return Plan([labels], [out], [out_shape], size_argument=1)


@rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(func, arrays, args, kwargs):
    if not isinstance(args[1], (list, tuple)):
        return None  # of another dtype
    shape, size = arrays[0].shape, list(args[1])
    total = math.prod(shape)
    if -1 in size:
        known = math.prod(n for n in size if n != -1)
        size[size.index(-1)] = total // known if known else 0
    inside: list[Label] = [None] * len(shape)
    out: list[Label] = [None] * len(size)
    i = j = 0
    while i < len(shape) and j < len(size):  # groups of dimensions of the same number of elements
        if shape[i] == 1 or size[j] == 1:
            i, j = (i + 1, j) if shape[i] == 1 else (i, j + 1)
            continue
        a, b, begin_i, begin_j = shape[i], size[j], i, j
        while a != b:
            if a < b:
                i += 1
                if i == len(shape):
                    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)
                a *= shape[i]
            else:
                j += 1
                if j == len(size):
                    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)
                b *= size[j]
        inside[begin_i] = out[begin_j] = begin_i  # the first of a group is the most significant
        i, j = i + 1, j + 1
    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)


def local_shape(shape: Sequence[int], sharding: Sharding, position: int) -> list[int]:
    return [cut.stop - cut.start for cut in parts_of(shape, sharding)[position]]
