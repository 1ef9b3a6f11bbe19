"""Strides of operators' results, as plain tensors have them."""

from __future__ import annotations

from typing import Any

import torch

from shoal.spmd._engine.box import contiguous_strides, known_strides
from shoal.spmd._engine.operator import Form, Operator, unflatten
from shoal.spmd._engine.tensor import Tensor

_strides: dict[tuple, list[tuple[int, ...] | None]] = {}
_IN_KEY = {int, bool, str, torch.dtype, torch.layout, torch.memory_format}
# Operators whose results are contiguous for any arguments.
_CONTIGUOUS_RESULTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "dot", "embedding", "embedding_dense_backward", "nll_loss_forward"}


def strides_of(func: Any, flat: list[Any], form: Form) -> list[tuple[int, ...] | None]:
    """Strides of an operator's results, as plain tensors have them; None for contiguous results and other values. By the strides torch
    decides whether reshape and contiguous copy, and which formulas autograd uses."""
    key: list[Any] = [func, form]
    for a in flat:
        if isinstance(a, Tensor):
            box = a._box
            array = box._array
            key += (array.shape, array.dtype, box.strides)
        elif isinstance(a, torch.Tensor):
            key += (a.shape, a.dtype, a.stride())
        else:
            kind = type(a)
            key += (kind, a) if kind in _IN_KEY else (kind,)
    of = tuple(key)
    found = _strides.get(of)
    if found is None:
        if len(_strides) > _MOST_STRIDES:
            _strides.clear()
        found = _strides[of] = _strides_without_values(func, flat, form)
    return found


_MOST_STRIDES = 1 << 14


def _strides_without_values(func: Any, flat: list[Any], form: Form) -> list[tuple[int, ...] | None]:
    meta = torch.device("meta")

    def without_value(a: Any) -> Any:
        if isinstance(a, torch.device):
            return meta
        if not isinstance(a, torch.Tensor):
            return a
        strides = a._box.strides if isinstance(a, Tensor) else a.stride()
        shape = a._box._array.shape if isinstance(a, Tensor) else a.shape
        return torch.empty_strided(shape, contiguous_strides(shape) if strides is None else strides, dtype=a.dtype, device=meta)

    args, kwargs = unflatten([without_value(a) for a in flat], form)
    try:
        out = func(*args, **kwargs)
    except Exception:  # no kernel without values, or a view that plain memory does not allow
        return [None] * max(1, len(func._schema.returns))
    outs = out if isinstance(out, (list, tuple)) else [out]
    return [known_strides(o) if isinstance(o, torch.Tensor) else None for o in outs]


def lies_by_shape(op: Operator, tensors: list[Tensor], kwargs: dict) -> bool:
    """True if the results of an operator that is no view are certainly contiguous."""
    if kwargs.get("memory_format") is None:
        for t in tensors:
            if t._box.strides is not None:
                return op.name in _CONTIGUOUS_RESULTS
        return not op.strides_given
    return False
