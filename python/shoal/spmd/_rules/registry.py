"""Rules for splitting an operator's tensors so that each device computes its part alone.

A rule gives every dimension of every tensor a label. Dimensions of one label are split alike; a dimension without a label stays whole. If
no output has a label of the inputs, results are summed (or their maximum taken) over it, if the rule allows that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shoal.spmd._layout.array import Array
from shoal.spmd._layout.sharding import Sharding, parts_of

aten = torch.ops.aten
Label = int | str | None
Labels = tuple[Label, ...]


@dataclass
class Plan:
    """``inputs``: labels per tensor argument, in order. ``outputs``: labels per result; None for results that are no tensors."""

    inputs: list[Labels]
    outputs: list[Labels | None]
    out_shapes: list[tuple[int, ...]] = field(default_factory=list)  # for operators that take the size of their result
    combine: str | None = None  # a name in COMBINED, for parts along labels that an output lacks
    size_argument: int | None = None  # position of the result's size (or of its first dimension), which becomes the part's
    nonempty: bool = False  # parts without elements are errors


class Steps:
    """An operator as a sequence of others. ``run`` gets a function that runs an operator on arrays, then ``given``, then the operator's
    arguments. It returns the results as a list."""

    def __init__(self, run: Callable[..., list[Any]], *given: Any):
        self.run, self.given = run, given


# Functions that combine two parts' results, applied in the order of parts.
COMBINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum, "hypot": torch.hypot,
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Number of parts per label, and the part that each device computes."""

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
        """The devices that compute a cell."""
        return [d for d in range(self.num_devices) if all(self.columns[label][d] == i for label, i in cell.items())]

    def position(self, labels: Labels, cell: dict[Label, int]) -> int:
        """The part of ``sharding(labels)`` that belongs to a cell."""
        flat = 0
        for label in labels:
            p = self.parts.get(label, 1) if label is not None else 1
            flat = flat * p + (cell[label] if p > 1 else 0)
        return flat


def grid_of(
    plan: Plan, arrays: Sequence[Array], num_devices: int, leaders: Sequence[int], allowed: Callable[[Label], bool], num_fixed: int
) -> Grid:
    """Adopts the arrays' shardings in order, as far as labels, sizes and earlier arrays allow. The first ``num_fixed`` leaders also fix the
    dimensions that are not split."""
    sizes: dict[Label, set[int]] = {}
    for labels, shape in [
        *((ls, a.shape) for ls, a in zip(plan.inputs, arrays, strict=True)),
        *zip(plan.outputs, plan.out_shapes, strict=False),
    ]:
        for label, n in zip(labels or (), shape, strict=True):
            sizes.setdefault(label, set()).add(n)
    grid = Grid({}, {}, num_devices)
    for place, i in enumerate(leaders):
        for label, p, column in zip(plan.inputs[i], arrays[i].sharding.parts, arrays[i].sharding.columns, strict=True):
            if label is None or label in grid.parts or not allowed(label) or (p == 1 and place >= num_fixed):
                continue
            if len(sizes[label]) > 1 and any(n % p for n in sizes[label]):
                continue
            if plan.nonempty and any((p - 1) * -(-n // p) >= n for n in sizes[label]):
                continue
            wider = Grid({**grid.parts, label: p}, {**grid.columns, label: column}, num_devices)
            if Sharding.of_columns(list(wider.parts.values()), list(wider.columns.values()), num_devices) is not None:
                grid = wider
    return grid


# ---- rules: each gets the operator, the arrays, and the operator's arguments -----------------------------------------

Rule = Callable[[Any, list[Array], tuple, dict], "Plan | Steps | None"]
RULES: dict[str, Rule] = {}
READ_FLOATS: set[str] = set()  # operators whose plan depends on float values; other plans hold for any
# Random operators without a rule run whole, because there is one random stream for all layouts.
RANDOM = torch.Tag.nondeterministic_seeded


def rule(*names: str, reads_floats: bool = False) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        if reads_floats:
            READ_FLOATS.update(names)
        return function

    return register


def reads_floats(func: Any) -> bool:
    return func._schema.name.removeprefix("aten::") in READ_FLOATS


def find(func: Any) -> Rule | None:
    if any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
        return None  # out= tensors get their sizes from the operator
    name = func._schema.name.removeprefix("aten::")
    found = RULES.get(name) or RULES.get(name.removesuffix("_")) or RULES.get(name.removesuffix("_copy"))
    if found is None and RANDOM in func.tags:
        return None
    one_by_one = name.startswith("_foreach_") and name not in ("_foreach_norm", "_foreach_max", "_foreach_powsum")
    if found is None and (one_by_one or torch.Tag.pointwise in func.tags):
        return pointwise
    return found


def _dims(dims: Any, rank: int) -> list[int]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    return [d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)]


def argument(func: Any, args: tuple, kwargs: dict, name: str, default: Any = None) -> Any:
    for i, a in enumerate(func._schema.arguments):
        if a.name == name:
            return (
                args[i] if i < len(args) and not a.kwarg_only else kwargs.get(name, a.default_value if a.has_default_value() else default)
            )
    return default


def changed(func: Any, args: tuple, kwargs: dict, **new: Any) -> tuple[tuple, dict]:
    """Returns the arguments of a call, with some replaced by name."""
    names = [a.name for a in func._schema.arguments if not a.kwarg_only]
    by_position = {n: v for n, v in new.items() if n in names[: len(args)]}
    args = tuple(by_position.get(names[i], a) for i, a in enumerate(args))
    return args, {**kwargs, **{n: v for n, v in new.items() if n not in by_position}}


POINTWISE = """clone _to_copy zeros_like ones_like empty_like full_like detach alias lift_fresh fill zero where masked_fill
    _fused_adamw _fused_adam _fused_sgd rsub floor_divide complex polar nan_to_num _prelu_kernel _prelu_kernel_backward
    hardswish hardswish_backward elu_backward leaky_relu_backward softshrink_backward hardshrink_backward hardtanh_backward
    hardsigmoid_backward mish_backward softplus_backward log_sigmoid_forward log_sigmoid_backward rrelu_with_noise_backward"""


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
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "flip", "roll", "glu"),
    *("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax", "_fft_r2c", "_fft_c2r", "_fft_c2c"),
}
REDUCING = {
    *("sum", "nansum", "mean", "prod", "any", "all", "norm", "logsumexp", "var", "std", "var_mean", "std_mean", "count_nonzero"),
    *("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "median", "nanmedian", "mode", "kthvalue"),
}
COMBINE = {
    "sum": "sum", "nansum": "sum", "count_nonzero": "sum", "prod": "prod", "any": "max", "all": "min", "amax": "max", "amin": "min",
}  # fmt: skip


@rule(*REDUCING, *KEEPING)
def along_dims(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return pointwise(func, arrays, args, kwargs) if func._schema.name in ("aten::max", "aten::min") else None
    (a,) = arrays
    rank, name = len(a.shape), func._schema.name.removeprefix("aten::").removesuffix("_")
    dims = argument(func, args, kwargs, "dims", None)
    if dims is None:
        default = -1 if name in ("sort", "topk", "argsort") else None
        dims = argument(func, args, kwargs, "dim", default)
    over = _dims(dims, rank)
    if name in KEEPING:
        over = over or list(range(rank))
        inside = tuple(None if d in over else d for d in range(rank))
        return Plan([inside], [inside] * len(func._schema.returns), nonempty="fft" in name)
    keepdim = bool(argument(func, args, kwargs, "keepdim", False))
    if name in MEANS and any(a.sharding.parts[d] > 1 for d in over) and not a.dtype.is_complex:
        if not (kwargs.get("dtype") or a.dtype).is_floating_point:
            return None  # the operator raises the error
        return Steps(MEANS[name], over, keepdim)
    combine = COMBINE.get(name)
    if name in ("max", "min") and len(func._schema.returns) == 1:
        combine = name
    return _reduced(func, a, over, keepdim, combine)


def _reduced(func: Any, a: Array, over: Sequence[int], keepdim: bool, combine: str | None) -> Plan:
    rank = len(a.shape)
    inputs = tuple(d if d not in over else (f"r{d}" if combine else None) for d in range(rank))
    out = tuple(None if d in over else d for d in range(rank) if keepdim or d not in over)
    empty_is_neutral = combine in (None, "sum", "prod", "hypot") or func._schema.name in ("aten::any", "aten::all")
    return Plan([inputs], [out] * len(func._schema.returns), combine=combine, nonempty=not empty_is_neutral)


def wide(op, x):
    """Converts half precision to float32, for sums of many elements."""
    low = x.dtype in (torch.bfloat16, torch.float16)
    return op(aten._to_copy.default, x, dtype=torch.float32) if low else x


def as_dtype(op, value, dtype):
    return value if value.dtype == dtype else op(aten._to_copy.default, value, dtype=dtype)


def _mean(op, over, kept, a, *args, dtype=None, **kwargs):
    total = op(aten.sum.dim_IntList, wide(op, as_dtype(op, a, dtype or a.dtype)), over, kept)
    return [as_dtype(op, op(aten.div.Tensor, total, math.prod(a.shape[d] for d in over)), dtype or a.dtype)]


def _var_mean(op, over, kept, a, *args, correction=None, **kwargs):
    count, x = math.prod(a.shape[d] for d in over), wide(op, a)
    mean = op(aten.div.Tensor, op(aten.sum.dim_IntList, x, over, True), count)
    centered = op(aten.sub.Tensor, x, mean)
    squares = op(aten.sum.dim_IntList, op(aten.mul.Tensor, centered, centered), over, kept)
    var = op(aten.div.Tensor, squares, float(max(0, count - (1 if correction is None else correction))))
    return [var, mean if kept else op(aten.sum.dim_IntList, mean, over)]


def _in_dtype(values):
    def steps(op, over, kept, a, *args, **kwargs):
        return [as_dtype(op, v, a.dtype) for v in values(op, over, kept, a, *args, **kwargs)]

    return steps


def _roots(values):
    def steps(op, *args, **kwargs):
        var, *rest = values(op, *args, **kwargs)
        return [op(aten.sqrt.default, var), *rest]

    return steps


def _var(op, *args, **kwargs):
    return _var_mean(op, *args, **kwargs)[:1]


MEANS = {
    "mean": _mean, "var": _in_dtype(_var), "var_mean": _in_dtype(_var_mean), "std": _in_dtype(_roots(_var)),
    "std_mean": _in_dtype(_roots(_var_mean)),
}  # fmt: skip


@rule("linalg_vector_norm", reads_floats=True)
def vector_norm(func, arrays, args, kwargs):
    (a,) = arrays
    order = float(argument(func, args, kwargs, "ord"))
    combine = {2.0: "hypot", 1.0: "sum", 0.0: "sum", math.inf: "max", -math.inf: "min"}.get(order)
    over = _dims(argument(func, args, kwargs, "dim"), len(a.shape))
    return _reduced(func, a, over, bool(argument(func, args, kwargs, "keepdim")), combine)


@rule("_foreach_norm")
def foreach_norm(func, arrays, args, kwargs):
    return Steps(_norms)


def _norms(op, tensors, order=2, dtype=None):
    return [op(aten.linalg_vector_norm.default, t, order, dtype=dtype) for t in tensors]


@rule("glu_backward")
def glu_backward(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    labels = tuple(None if d == args[2] % max(rank, 1) else d for d in range(rank))
    return Plan([labels, labels], [labels])


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


def _added_product(op, bias, a, b, *, beta=1, alpha=1):
    product = op(aten.mm.default, a, b)
    product = product if alpha == 1 else op(aten.mul.Tensor, product, alpha)
    return [product if beta == 0 else op(aten.add.Tensor, product, bias, alpha=beta)]


@rule("addmm")
def addmm(func, arrays, args, kwargs):
    bias, a, b = arrays
    if func._schema.name == "aten::addmm" and a.sharding.parts[1] > 1 and a.sharding.columns[1] == b.sharding.columns[0]:
        return Steps(_added_product)  # the summed dimension is split alike: only results are added
    labels = ("m", "n")[2 - len(bias.shape) :]
    out = (arrays[1].shape[0], arrays[2].shape[1])
    labels = tuple(None if n == 1 and o != 1 else label for label, n, o in zip(labels, bias.shape, out[2 - len(bias.shape) :], strict=True))
    return Plan([labels, ("m", None), (None, "n")], [("m", "n")])


@rule("baddbmm", "addbmm", "addmv", "addr")
def added(func, arrays, args, kwargs):
    """The summed dimension is not split, so that the bias is added once."""
    inputs, out = {
        "baddbmm": ([("b", "m", None), ("b", None, "n")], ("b", "m", "n")),
        "addbmm": ([(None, "m", None), (None, None, "n")], ("m", "n")),
        "addmv": ([("m", None), (None,)], ("m",)),
        "addr": ([("m",), ("n",)], ("m", "n")),
    }[func._schema.name.removeprefix("aten::").removesuffix("_")]
    sizes = {label: n for labels, a in zip(inputs, arrays[1:], strict=True) for label, n in zip(labels, a.shape, strict=True)}
    shape = arrays[0].shape
    bias = tuple(label if n == sizes[label] else None for label, n in zip(out[len(out) - len(shape) :], shape, strict=True))
    return Plan([bias, *inputs], [out], nonempty=True)


@rule("dot", "vdot")
def dot(func, arrays, args, kwargs):
    return Plan([("k",), ("k",)], [()], combine="sum")


@rule("mv")
def mv(func, arrays, args, kwargs):
    return Plan([("m", "k"), ("k",)], [("m",)], combine="sum")


# Number of matrix dimensions per result; leading dimensions are a batch.
OF_MATRICES = {
    "triu": (2,), "tril": (2,), "linalg_qr": (2, 2), "linalg_inv_ex": (2, 0), "_linalg_det": (0, 2, 1), "_linalg_slogdet": (0, 0, 2, 1),
    "linalg_cholesky_ex": (2, 0), "cholesky": (2,), "linalg_lu_factor_ex": (2, 1, 0), "linalg_lu": (2, 2, 2), "linalg_matrix_exp": (2,),
    "linalg_eig": (1, 2), "_linalg_eigh": (1, 2), "_linalg_svd": (2, 1, 2), "linalg_solve_triangular": (2,), "cholesky_solve": (2,),
    "cholesky_inverse": (2,),
}  # fmt: skip


@rule(*OF_MATRICES)
def of_matrices(func, arrays, args, kwargs):
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    whole = argument(func, args, kwargs, "compute_uv") is False or argument(func, args, kwargs, "compute_v") is False
    if whole or argument(func, args, kwargs, "mode") == "r" or any(len(a.shape) != len(arrays[0].shape) for a in arrays):
        return None
    batch = tuple(d if all(a.shape[d] == n for a in arrays) else None for d, n in enumerate(arrays[0].shape[:-2]))
    return Plan([(*batch, None, None)] * len(arrays), [(*batch, *(None,) * n) for n in OF_MATRICES[name]])


@rule("linalg_cross")
def cross(func, arrays, args, kwargs):
    plan = pointwise(func, arrays, args, kwargs)
    dim = argument(func, args, kwargs, "dim") % len(plan.outputs[0])
    return replace(
        plan,
        inputs=[tuple(None if d == dim else d for d in labels) for labels in plan.inputs],
        outputs=[tuple(None if d == dim else d for d in plan.outputs[0])],
    )


@rule("cat")
def cat(func, arrays, args, kwargs):
    rank = max(len(a.shape) for a in arrays)
    if any(len(a.shape) != rank for a in arrays):  # torch's legacy empty tensor
        return None
    dim = _dims(argument(func, args, kwargs, "dim", 0), rank)[0]
    labels = tuple(None if d == dim else d for d in range(rank))
    return Plan([labels] * len(arrays), [labels])


@rule("stack")
def stack(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = argument(func, args, kwargs, "dim", 0) % (rank + 1)
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
    labels = tuple(None if d in over else d for d in range(len(shape)))  # a part may have size 1 where the whole does not
    return Plan([labels], [tuple(label for d, label in enumerate(labels) if d not in gone)])


@rule("select")
def select(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = args[1] % rank
    return Plan([tuple(None if d == dim else d for d in range(rank))], [tuple(d for d in range(rank) if d != dim)])


@rule("slice", "narrow", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind")
def along_one(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return None
    rank = len(arrays[0].shape)
    dim = argument(func, args, kwargs, "dim", 0) % rank
    inside = tuple(None if d == dim else d for d in range(rank))
    out = tuple(d for d in range(rank) if d != dim) if func._schema.name.startswith("aten::unbind") else inside
    return Plan([inside], [out])


@rule("diagonal")
def diagonal(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    gone = {argument(func, args, kwargs, "dim1") % rank, argument(func, args, kwargs, "dim2") % rank}
    inside = tuple(None if d in gone else d for d in range(rank))
    return Plan([inside], [(*(d for d in range(rank) if d not in gone), None)])


@rule("unfold")
def unfold(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    inside = tuple(None if d == args[1] % max(rank, 1) else d for d in range(rank))
    return Plan([inside], [(*inside, None)])


@rule("view_as_real")
def view_as_real(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [(*labels, None)])


@rule("view_as_complex")
def view_as_complex(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape) - 1))
    return Plan([(*labels, None)], [labels])


@rule("expand")
def expand(func, arrays, args, kwargs):
    shape, size = arrays[0].shape, args[1]
    new = len(size) - len(shape)
    out_shape = tuple(shape[i - new] if n == -1 else n for i, n in enumerate(size))
    labels = tuple(None if n == 1 else i for i, n in enumerate(shape))
    out = tuple(None if i < new or shape[i - new] == 1 else i - new for i in range(len(size)))
    return Plan([labels], [out], [out_shape], size_argument=1)


@rule("view", "_unsafe_view", "_reshape_alias")
def view(func, arrays, args, kwargs):
    if not isinstance(args[1], (list, tuple)):
        return None  # a view as another dtype
    shape, size = arrays[0].shape, list(args[1])
    total = math.prod(shape)
    if -1 in size:
        known = math.prod(n for n in size if n != -1)
        size[size.index(-1)] = total // known if known else 0
    inside: list[Label] = [None] * len(shape)
    out: list[Label] = [None] * len(size)
    i = j = 0
    while i < len(shape) and j < len(size):  # groups of dimensions with equal numbers of elements
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
