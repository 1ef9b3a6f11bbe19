"""Tensors of the host among an operator's arguments: those that it accepts, and the error for the others."""

from __future__ import annotations

import sys
from typing import Any

import torch

from shoal.spmd._engine.operator import operator_of
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.processes import world
from shoal.spmd._rules import registry

# The reference count, in dispatch(), of a host tensor that torch's C++ code made for this call. A tensor that the program holds has more.
REFERENCES = 5

# Argument positions that accept host tensors, as in CUDA.
TAKES_HOST = {
    "index": 1, "_unsafe_index": 1, "index_put": 1, "index_put_": 1, "_index_put_impl_": 1, "_unsafe_index_put": 1,
    "_pack_padded_sequence": 1, "_ctc_loss": slice(1, 4),
}  # fmt: skip


def check_devices(func: Any, args: tuple, flat: list[Any], targets: list[torch.Tensor]) -> None:
    """Raises for a host tensor that the program mixes with device tensors. As with CUDA, indices may lie on the host, and zero-dimensional
    tensors for pointwise operators. Tensors that torch's C++ code made are accepted. Raises DivergedError for an accepted tensor
    that differs between processes."""
    for a in flat:
        if isinstance(a, Tensor) or not isinstance(a, torch.Tensor):
            continue
        target = any(a is t for t in targets)
        held = sys.getrefcount(a) > REFERENCES + target or (a._is_view() and sys.getrefcount(a._base) > REFERENCES - 2)
        if held and (target or not _may_lie_on_host(func, args, a)):
            raise of_two_devices(func, a)
        if not target and (held or a.dim()):
            world().verify_tensor(a)


def _may_lie_on_host(func: Any, args: tuple, a: torch.Tensor) -> bool:
    op = operator_of(func)
    if a.dim() == 0 and (op.on_lists or torch.Tag.pointwise in func.tags or op.name.rstrip("_") in _TAKES_NUMBERS):
        return True
    at = TAKES_HOST.get(op.name)
    if at is None or a.is_floating_point() or a.is_complex() or not any(isinstance(b, Tensor) for b in args[:1]):
        return False
    places = args[at] if isinstance(at, slice) else args[at] if isinstance(args[at], (list, tuple)) else [args[at]]
    return any(a is b for b in places)


_TAKES_NUMBERS = {*registry.POINTWISE.split(), "copy", "index_fill", "index_put", "_index_put_impl", "_unsafe_index_put"}


def of_two_devices(func: Any, a: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, xla:0 and {a.device}! "
        f"({func}: move the tensor of shape {tuple(a.shape)} with .to(device))"
    )
