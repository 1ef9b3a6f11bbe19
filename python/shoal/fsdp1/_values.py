"""A unit's initial values: materialised from the meta device, and broadcast from the first rank on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shoal.exceptions import InvalidArgument
from shoal.fsdp._errors import NoResetParameters
from shoal.fsdp1._names import is_unit, modules_of


def _own(module: nn.Module, ignored: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    if is_unit(module):
        return
    for prefix, m in modules_of(module):
        if m not in ignored:
            yield prefix, m


def materialize(module: nn.Module, ignored: set[nn.Module], param_init_fn: Callable | None, device: torch.device) -> None:
    """Initialises modules on the meta device, each by ``param_init_fn(m)``, or by ``m.to_empty`` and ``m.reset_parameters``.

    Raises InvalidArgument for a module that stays on the meta device or has no ``reset_parameters``.
    """
    for prefix, m in _own(module, ignored):
        if not _on_meta(m):
            continue
        name = f"{prefix.rstrip('.') or 'the module'} ({type(m).__name__})"
        with torch.no_grad():
            if param_init_fn is not None:
                param_init_fn(m)
            elif callable(getattr(m, "reset_parameters", None)):
                m.to_empty(device=device, recurse=False)
                m.reset_parameters()
            else:
                raise NoResetParameters(
                    f"{type(m).__name__!r} object has no attribute 'reset_parameters': {name} is on the meta device and has no "
                    "reset_parameters()",
                    hint="pass param_init_fn",
                )
        if _on_meta(m):
            raise InvalidArgument(
                f"param_init_fn left {name} on the meta device", hint="call module.to_empty(device=..., recurse=False) in it, then fill it"
            )


def _on_meta(m: nn.Module) -> bool:
    return any(t is not None and t.is_meta for t in [*m._parameters.values(), *m._buffers.values()])


def prepare(module: nn.Module, ignored: set[nn.Module], ignored_parameters: set[nn.Parameter], device: torch.device) -> None:
    """Moves the unit's parameters and buffers to its device, and makes parameters contiguous for sharding by rows."""
    for _, m in _own(module, ignored):
        for p in m._parameters.values():
            if p is not None and p not in ignored_parameters and not isinstance(p, DTensor):
                p.data = p.data.to(device).contiguous()
        for name, buffer in m._buffers.items():
            if buffer is not None and buffer.device != device:
                m._buffers[name] = buffer.to(device)


def broadcast(module: nn.Module, ignored: set[nn.Module], ignored_parameters: set[nn.Parameter], mesh: DeviceMesh) -> None:
    """Broadcasts parameters and buffers from the mesh's first rank. Collective."""
    tensors: dict[torch.Tensor, None] = {}
    for _, m in _own(module, ignored):
        tensors.update(dict.fromkeys(p.data for p in m._parameters.values() if p is not None and p not in ignored_parameters))
        tensors.update(dict.fromkeys(b for b in m._buffers.values() if b is not None))
    with torch.no_grad():
        for t in tensors:
            if isinstance(t, DTensor):
                continue
            whole = t.contiguous()
            for dim in range(mesh.ndim):
                group = mesh.get_group(dim)
                dist.broadcast(whole, src=dist.get_global_rank(group, 0), group=group)
            if whole is not t:
                t.copy_(whole)
