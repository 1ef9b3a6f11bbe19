"""torch's DTensor functions on a mesh of device type ``xla``, with marks for placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate

from shoal.spmd._auto.choice import choose_at_first_call
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.mesh import Mesh
from shoal.spmd._layout.placements import convert_to_xla_partition_spec
from shoal.spmd._marks.marking import XLAShardedTensor, mark_sharding


def convert_to_xla_mesh(mesh: DeviceMesh) -> Mesh:
    """Returns a Mesh of the same devices; its axes have names if the mesh's dimensions do."""
    return Mesh(mesh.mesh.flatten().tolist(), tuple(mesh.mesh.shape), mesh.mesh_dim_names)


def xla_distribute_tensor(t: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> XLAShardedTensor:
    """Shoal's ``torch.distributed.tensor.distribute_tensor``: a device tensor is marked in place, a host tensor is copied."""
    placements = placements or [Replicate()] * device_mesh.ndim
    spec = convert_to_xla_partition_spec(t.dim(), placements)
    return mark_sharding(t if isinstance(t, Tensor) else t.to(DEVICE), convert_to_xla_mesh(device_mesh), spec)


def auto_policy(name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
    """Passed as ``partition_fn`` of distribute_module, makes the module's first call choose specs as auto_shard does."""


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Shoal's ``torch.distributed.tensor.distribute_module``: ``partition_fn`` marks parameters of every module below; without one they are
    whole. With ``auto_policy``, specs are chosen automatically."""
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
