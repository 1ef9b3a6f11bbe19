"""Operators on lists of tensors: in one call, or place by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shoal.spmd._engine import execution
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.operator import flatten, operator_of
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._rules import registry


def arrays_of(flat: list[Any], targets: list[torch.Tensor]) -> tuple[list[Any], list[Array]]:
    """Returns the arguments with arrays for tensors, whole ones for host tensors, and the arrays of the targets."""
    n = world().num_devices
    held = {id(a): a._box.array if isinstance(a, Tensor) else Array.whole(a, n) for a in flat if isinstance(a, torch.Tensor)}
    return [held.get(id(a), a) for a in flat], [held[id(t)] for t in targets]


def run_together(func: Any, args: tuple, kwargs: dict, targets: list[torch.Tensor]) -> Any:
    """Runs an operator on lists of tensors in one call. It requires one part of each tensor on this process, and equal shardings at each
    place of the lists. Returns NotImplemented otherwise."""
    if registry.find(func) is not registry.pointwise:
        return NotImplemented
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    if len({len(a) for a in lists}) != 1 or not all(isinstance(t, Tensor) for t in lists[0]):
        return NotImplemented
    like = [t._box.array for t in lists[0]]
    shardings = [a.sharding for a in like]
    held: dict[int, Any] = {id(a): _locals(a, shardings) for a in lists}
    alone = {id(a): list(a._box.array.locals.values()) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}
    if None in held.values() or any(len(v) != 1 for v in alone.values()):
        return NotImplemented
    held |= {key: local for key, (local,) in alone.items()}
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    op = operator_of(func)
    flat, form = flatten(tuple([held.get(id(a), a) for a in args]), {name: held.get(id(a), a) for name, a in kwargs.items()})
    out, _ = execution.called(func, op, flat, form)
    for box in dict.fromkeys([t._box for t in targets if isinstance(t, Tensor)]):
        box.wrote()

    def wrapped(values: list[torch.Tensor]) -> list[Tensor]:
        return [Tensor(Box(Array(a.shape, v.dtype, a.sharding, dict.fromkeys(a.locals, v)))) for v, a in zip(values, like, strict=True)]

    if not op.num_returns:
        return None
    return wrapped(out) if op.num_returns == 1 else tuple(map(wrapped, out))


def _locals(tensors: Sequence[torch.Tensor], shardings: list[Sharding]) -> list[torch.Tensor] | None:
    """Returns this process's parts of the tensors, if it has one part of each and the shardings are these; else None. Zero-dimensional
    tensors may be whole, and on the host."""
    found = []
    for t, sharding in zip(tensors, shardings, strict=True):
        if isinstance(t, Tensor):
            array = t._box.array
            if len(array.locals) != 1 or (array.sharding is not sharding and array.sharding != sharding and t.dim()):
                return None
            found += array.locals.values()
        elif t.dim():
            return None
        else:
            found.append(t)
    return found


def share_memory(targets: list[torch.Tensor]) -> bool:
    """True if a write to one of the tensors may change another."""
    bases = []
    for t in targets:
        if isinstance(t, Tensor):
            box = t._box
            while box.base is not None:
                box = box.base
            bases.append(box)
    return len(set(bases)) < len(bases)


def run_one_by_one(func: Any, args: tuple, kwargs: dict) -> Any:
    """Runs an operator on lists place by place, so that every tensor keeps its sharding."""
    places = max(len(a) for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)))
    outs = []
    for i in range(places):

        def cut(a, at=i):
            return [a[at]] if isinstance(a, (list, tuple)) and len(a) == places else a

        outs.append(dispatch_one(func, tuple(map(cut, args)), {k: cut(v) for k, v in kwargs.items()}))
    if not operator_of(func).num_returns:
        return None
    if operator_of(func).num_returns == 1:
        return [o[0] for o in outs]
    return tuple([o[k][0] for o in outs] for k in range(len(func._schema.returns)))


def dispatch_one(func: Any, args: tuple, kwargs: dict) -> Any:
    targets = operator_of(func).written_by(args, kwargs)
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    flat, form = flatten(args, kwargs)
    inner, written = arrays_of(flat, targets)
    result = execution.run_flat(func, inner, form, written)
    for box in dict.fromkeys(t._box for t in targets if isinstance(t, Tensor)):
        box.wrote()
    return [Tensor(Box(v)) if isinstance(v, Array) else v for v in result.values]
