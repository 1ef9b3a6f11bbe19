"""torch's DTensor functions on a mesh of device type ``xla``, with marks for placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.spmd._auto import choose_at_first_call
from shoal.spmd._device import DEVICE
from shoal.spmd._marking import XLAShardedTensor, mark_freely, mark_sharding, sharding_for
from shoal.spmd._mesh import Mesh
from shoal.spmd._sharding import Spec, axes_of
from shoal.spmd._tensor import Tensor


class _DimError(InvalidArgument, IndexError):
    """The placement names a dimension that the tensor does not have."""


def convert_to_xla_mesh(mesh: DeviceMesh) -> Mesh:
    """Returns a Mesh of the same devices; its axes have names if the mesh's dimensions do."""
    return Mesh(mesh.mesh.flatten().tolist(), tuple(mesh.mesh.shape), mesh.mesh_dim_names)


def convert_to_xla_partition_spec(rank: int, placements: Sequence[Placement]) -> tuple:
    """Returns a partition spec. Placement i is for axis i of the mesh; entry d of a spec names the axes that split dimension d."""
    axes: list[list[int]] = [[] for _ in range(rank)]
    for axis, p in enumerate(placements):
        if isinstance(p, Shard):
            if not -rank <= p.dim < rank:
                raise _DimError(f"{p} names dimension {p.dim}, but the tensor has {rank}")
            axes[p.dim].append(axis)
        elif not isinstance(p, Replicate):
            raise InvalidArgument(f"placement {p} is not supported on a mesh of type xla", hint="use Shard(dim) or Replicate()")
    return tuple(None if not a else a[0] if len(a) == 1 else tuple(a) for a in axes)


def xla_distribute_tensor(t: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> XLAShardedTensor:
    """``torch.distributed.tensor.distribute_tensor``: a device tensor is marked in place, a host tensor is copied."""
    placements = placements or [Replicate()] * device_mesh.ndim
    spec = convert_to_xla_partition_spec(t.dim(), placements)
    return mark_sharding(t if isinstance(t, Tensor) else t.to(DEVICE), convert_to_xla_mesh(device_mesh), spec)


def auto_policy(name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
    """As ``partition_fn`` of distribute_module, makes the module's first call choose specs (see auto_shard)."""


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """``torch.distributed.tensor.distribute_module``: ``partition_fn`` marks parameters of every module below; without one they are whole.
    With ``auto_policy``, specs are chosen automatically."""
    module.to(DEVICE)
    if partition_fn is auto_policy:
        choose_at_first_call(module, convert_to_xla_mesh(device_mesh))
    for name, m in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, m, device_mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda _, inputs: input_fn(inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda mod, inputs, outputs: output_fn(outputs, device_mesh))
    return module


def placements_of(mesh: Mesh, spec: Spec) -> tuple[Placement, ...]:
    """Returns a placement per axis of the mesh."""
    dim_of = {axis: dim for dim, axes in enumerate(axes_of(mesh, spec)) for axis in axes}
    return tuple(Shard(dim_of[axis]) if axis in dim_of else Replicate() for axis in range(len(mesh.mesh_shape)))


def redistributed(t: XLAShardedTensor, mesh: Mesh, placements: Sequence[Placement]) -> XLAShardedTensor:
    """Returns a copy with these placements."""
    if len(placements) != len(mesh.mesh_shape):
        raise InvalidArgument(f"{len(placements)} placements for a mesh of {len(mesh.mesh_shape)} axes", hint="give one per axis")
    if any(p.is_partial() for p in placements):
        raise Unimplemented("redistribute to Partial is not there", hint="use Shard(dim) or Replicate()")
    spec = convert_to_xla_partition_spec(t.dim(), placements)
    copied = Tensor(t._box).clone()
    mark_freely(copied, sharding_for(mesh, spec, t.dim()))
    return XLAShardedTensor(copied, mesh.mesh_shape, spec, mesh=mesh)
