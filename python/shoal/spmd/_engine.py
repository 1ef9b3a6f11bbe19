"""Runs an operator on arrays: part by part where a rule allows it, otherwise on whole tensors."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.spmd import _rules, runtime
from shoal.spmd._array import Array
from shoal.spmd._rules import Grid, Plan

_replicated: Counter[str] = Counter()
# Without a rule for a reason: the random stream is one, whatever lies where.
RANDOM = torch.Tag.nondeterministic_seeded
# Views whose meaning is a bit of the tensor, which operators below torch's dispatcher do not see.
RESOLVED = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}


def replicated_ops() -> dict[str, int]:
    """Operators that had no rule for sharded tensors, with how often they ran on whole tensors."""
    return dict(_replicated)


def forget_replicated_ops() -> None:
    _replicated.clear()


class Result:
    """``values``: per result an Array, or what is no tensor. ``aliases``: local results are views of local arguments."""

    def __init__(self, values: list[Any], aliases: bool, as_list: bool):
        self.values, self.aliases, self.as_list = values, aliases, as_list


def run(func: Any, args: tuple, kwargs: dict, written: Sequence[Array] = ()) -> Result:
    """``args`` and ``kwargs`` hold Arrays. Arrays in ``written`` are changed in place and stay split as they are."""
    func = RESOLVED.get(func, func)
    flat, tree = tree_flatten((args, kwargs))
    where = [i for i, a in enumerate(flat) if isinstance(a, Array)]
    arrays = [flat[i] for i in where]
    if all(a.sharding.is_replicated for a in arrays):
        return _whole(func, flat, tree, where, arrays)
    plan = _plan(func, arrays, args, kwargs)
    if plan is None:
        return _replicate(func, flat, tree, where, arrays, written)
    targets = [i for i, a in enumerate(arrays) if any(a is w for w in written)]
    by_size = sorted(range(len(arrays)), key=lambda i: -arrays[i].locals[0].numel() * len(arrays[i].locals))
    inside_out = {label for labels in plan.outputs for label in labels or () if label is not None}

    def allowed(label: Any) -> bool:
        return label in inside_out or plan.combine is not None

    grid = _rules.grid_of(
        plan, arrays, runtime.global_runtime_device_count(), [*targets, *(i for i in by_size if i not in targets)], allowed
    )
    if any(grid.sharding(plan.inputs[i]) != arrays[i].sharding for i in targets):
        return _replicate(func, flat, tree, where, arrays, written)
    return _by_parts(func, flat, tree, where, arrays, plan, grid)


def _plan(func: Any, arrays: list[Array], args: tuple, kwargs: dict) -> Plan | None:
    if RANDOM in func.tags:
        return None
    found = _rules.find(func)
    plan = None if found is None else found(func, arrays, args, kwargs)
    if plan is None:
        name = str(func)
        _replicated[name] += 1
        if _replicated[name] == 1:
            warnings.warn(f"shoal.spmd: {name} has no rule for sharded tensors and runs on whole ones", stacklevel=6)
    return plan


def _called(func: Any, flat: list[Any], tree: Any) -> tuple[list[Any], bool]:
    strided = []
    if func._schema.name.startswith("aten::_fused_"):  # these read memory as it lies
        strided = [(i, a) for i, a in enumerate(flat) if isinstance(a, torch.Tensor) and not a.is_contiguous()]
        flat = list(flat)
        for i, a in strided:
            flat[i] = a.contiguous()
    args, kwargs = tree_unflatten(flat, tree)
    try:
        out = func(*args, **kwargs)
    except RuntimeError as error:
        if "view size is not compatible" not in str(error):
            raise
        out = torch.ops.aten.reshape.default(*args, **kwargs)
    for i, a in strided:
        a.copy_(flat[i])
    as_list = isinstance(out, (tuple, list))
    return (list(out) if as_list else [out]), as_list


def _shares(a: Any, b: torch.Tensor) -> bool:
    return isinstance(a, torch.Tensor) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _whole(func: Any, flat: list[Any], tree: Any, where: list[int], arrays: list[Array]) -> Result:
    flat = list(flat)
    for i, a in zip(where, arrays, strict=True):
        flat[i] = a.locals[0]
    values, as_list = _called(func, flat, tree)
    n = runtime.global_runtime_device_count()
    aliases = bool(arrays) and all(_shares(v, arrays[0].locals[0]) for v in values)
    return Result([Array.whole(v, n) if isinstance(v, torch.Tensor) else v for v in values], aliases, as_list)


def _replicate(func: Any, flat: list[Any], tree: Any, where: list[int], arrays: list[Array], written: Sequence[Array]) -> Result:
    whole = [Array.whole(a.gathered(), runtime.global_runtime_device_count()) for a in arrays]
    result = _whole(func, flat, tree, where, whole)
    for a, w in zip(arrays, whole, strict=True):
        if any(a is target for target in written) and not a.sharding.is_replicated:
            a.write(w.locals[0])
    result.aliases = False
    return result


def _by_parts(func: Any, flat: list[Any], tree: Any, where: list[int], arrays: list[Array], plan: Plan, grid: Grid) -> Result:
    lying = [a.resharded(grid.sharding(labels)) for a, labels in zip(arrays, plan.inputs, strict=True)]
    same = all(a is b for a, b in zip(lying, arrays, strict=True))
    cells = grid.cells()
    per_cell: list[list[Any]] = []
    as_list = False
    for cell in cells:
        local = list(flat)
        for i, a, labels in zip(where, lying, plan.inputs, strict=True):
            local[i] = a.locals[grid.position(labels, cell)]
        if plan.size_argument is not None:
            args, kwargs = tree_unflatten(local, tree)
            shape, labels = plan.out_shapes[0], plan.outputs[0] or ()
            size = _rules.local_shape(shape, grid.sharding(labels), grid.position(labels, cell))
            args = (*args[: plan.size_argument], size, *args[plan.size_argument + 1 :])
            local, of = tree_flatten((args, kwargs))
        else:
            of = tree
        values, as_list = _called(func, local, of)
        per_cell.append(values)
    outputs = plan.outputs
    if len(outputs) != len(per_cell[0]):
        outputs = [outputs[0]] * len(per_cell[0])
    results = [_joined([values[i] for values in per_cell], labels, plan, grid, cells) for i, labels in enumerate(outputs)]
    first = lying[0].locals[grid.position(plan.inputs[0], cells[0])]
    return Result(results, same and all(_shares(v, first) for v in per_cell[0]), as_list)


def _joined(values: list[Any], labels: Any, plan: Plan, grid: Grid, cells: list[dict]) -> Any:
    if not isinstance(values[0], torch.Tensor):
        return values[0]
    assert values[0].dim() == len(labels), f"a rule says {labels} of a result of shape {tuple(values[0].shape)}"
    sharding = grid.sharding(labels)
    parts: list[torch.Tensor | None] = [None] * max(1, _count(sharding.parts))
    for value, cell in zip(values, cells, strict=True):
        at = grid.position(labels, cell)
        parts[at] = value if parts[at] is None else parts[at] + value  # in the order of the parts, as ranks do it
    return Array(_shape_of(parts, sharding), values[0].dtype, sharding, parts)


def _count(parts: Sequence[int]) -> int:
    n = 1
    for p in parts:
        n *= p
    return n


def _shape_of(parts: list[torch.Tensor], sharding: Any) -> tuple[int, ...]:
    """Sizes along a dimension add up over the parts that differ in it alone."""
    shape = []
    for dim, p in enumerate(sharding.parts):
        stride = _count(sharding.parts[dim + 1 :])
        shape.append(sum(parts[i * stride].shape[dim] for i in range(p)))
    return tuple(shape)
