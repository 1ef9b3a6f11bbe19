"""Rules for splitting an operator's tensors so that each device computes its part alone.

A rule gives every dimension of every tensor a label. Dimensions of one label are split alike; a dimension without a label stays whole. If
an output lacks a label of the inputs, the parts' results along that label are combined (COMBINED), such as summed, if the rule allows that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.spmd._layout.array import Array
from shoal.spmd._layout.sharding import Sharding, parts_of

Label = int | str | None
Labels = tuple[Label, ...]


@dataclass
class Plan:
    """A rule's result: the labels of an operator's tensors. ``inputs``: labels per tensor argument, in order. ``outputs``: labels per
    result; None for results that are no tensors."""

    inputs: list[Labels]
    outputs: list[Labels | None]
    out_shapes: list[tuple[int, ...]] = field(default_factory=list)  # for operators that take the size of their result
    combine: str | None = None  # a name in COMBINED, for parts along labels that an output lacks
    # position of the argument that states the result's size (or its first dimension), in whose place each part gets its own size
    size_argument: int | None = None
    nonempty: bool = False  # True if the operator fails on a part without elements


class Steps:
    """A rule's result for an operator that runs as a sequence of others. ``run`` gets a function that runs an operator on arrays, then
    ``given``, then the operator's arguments. It returns the results as a list."""

    def __init__(self, run: Callable[..., list[Any]], *given: Any):
        self.run, self.given = run, given


# Functions that combine two parts' results, applied in the order of parts.
COMBINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum, "hypot": torch.hypot,
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """How an operator's work is split: the number of parts per label, and the part that each device computes. A cell has one part of each
    label."""

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
        assert found is not None  # each cell has equally many devices, and so has each combination of some labels' parts
        return found

    def cells(self) -> list[dict[Label, int]]:
        names = list(self.parts)
        return [dict(zip(names, c, strict=True)) for c in itertools.product(*(range(self.parts[n]) for n in names))]

    def devices(self, cell: dict[Label, int]) -> list[int]:
        """The devices that compute a cell."""
        return [d for d in range(self.num_devices) if all(self.columns[label][d] == i for label, i in cell.items())]

    def position(self, labels: Labels, cell: dict[Label, int]) -> int:
        """Returns the position of the cell's part among all parts of ``sharding(labels)``."""
        flat = 0
        for label in labels:
            p = self.parts.get(label, 1) if label is not None else 1
            flat = flat * p + (cell[label] if p > 1 else 0)
        return flat


def grid_of(
    plan: Plan, arrays: Sequence[Array], num_devices: int, leaders: Sequence[int], allowed: Callable[[Label], bool], num_fixed: int
) -> Grid:
    """Returns a grid that takes over the shardings of the arrays in ``leaders``, in this order, as far as labels, sizes and earlier arrays
    allow. The first ``num_fixed`` leaders also keep their whole dimensions whole."""
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


# ---- rules: each gets the operator, the arrays, and the operator's arguments --------------------------------------------------------


Rule = Callable[[Any, list[Array], tuple, dict], "Plan | Steps | None"]
RULES: dict[str, Rule] = {}
READ_FLOATS: set[str] = set()  # operators whose plan depends on float arguments; all other plans hold for any floats
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
        return None  # the operator itself sets the sizes of out= tensors
    name = func._schema.name.removeprefix("aten::")
    found = RULES.get(name) or RULES.get(name.removesuffix("_")) or RULES.get(name.removesuffix("_copy"))
    if found is None and RANDOM in func.tags:
        return None
    one_by_one = name.startswith("_foreach_") and name not in ("_foreach_norm", "_foreach_max", "_foreach_powsum")
    if found is None and (one_by_one or torch.Tag.pointwise in func.tags):
        return pointwise
    return found


def dims_of(dims: Any, rank: int) -> list[int]:
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


# ---- views ---------------------------------------------------------------------------------------------------------------------------


def local_shape(shape: Sequence[int], sharding: Sharding, position: int) -> list[int]:
    return [cut.stop - cut.start for cut in parts_of(shape, sharding)[position]]
