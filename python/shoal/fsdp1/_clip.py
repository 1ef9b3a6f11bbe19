"""The norm of gradients whose rows lie on several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def _norm(tensors: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    norms = [torch.linalg.vector_norm(t, norm_type, dtype=torch.float32) for t in tensors if t.numel()]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float, mesh: DeviceMesh) -> torch.Tensor:
    """Scales gradients in place so that their norm is at most ``max_norm``; returns the norm before (a scalar tensor, in their dtype).

    Norms of rows are combined over the dimensions of the mesh that shard them, in fp32; no gradient travels. Every rank must call it.
    """
    norm_type = float(norm_type)
    grads = list({id(p.grad): p.grad for p in parameters if p.grad is not None}.values())
    rows: dict[tuple, list[torch.Tensor]] = {}  # by the groups over which they are sharded
    for g in grads:
        sharded = tuple(i for i, placement in enumerate(g.placements) if placement.is_shard()) if isinstance(g, DTensor) else ()
        rows.setdefault((g.device_mesh, sharded) if sharded else (mesh, ()), []).append(g.to_local() if isinstance(g, DTensor) else g)
    # In one order on all ranks, and one group more for ranks without any gradient: every rank takes part.
    total = torch.zeros(())
    for over, sharded in sorted({*rows, (mesh, _shard_dims(mesh))}, key=lambda key: str(key)):
        norm = _norm(rows.get((over, sharded), []), norm_type)
        for dim in sharded:
            norm = norm if norm_type == math.inf else norm**norm_type
            dist.all_reduce(norm, op=dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM, group=over.get_group(dim))
            norm = norm if norm_type == math.inf else norm ** (1 / norm_type)
        total = torch.maximum(total, norm) if norm_type == math.inf else (total**norm_type + norm**norm_type) ** (1 / norm_type)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for g in grads:
        local = g.to_local() if isinstance(g, DTensor) else g
        local.mul_(scale.to(local.dtype))
    dtype = grads[0].dtype if grads else total.dtype
    for g in grads:
        dtype = torch.promote_types(dtype, g.dtype)
    return total.to(dtype)


def _shard_dims(mesh: DeviceMesh) -> tuple[int, ...]:
    """The dimensions over which a unit's rows are spread: of a mesh of replicas, the last one."""
    return (mesh.ndim - 1,)
