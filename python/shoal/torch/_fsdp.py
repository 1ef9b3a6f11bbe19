"""Communication of torch's FSDP2 in memory that is used again from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_api

_Gather = getattr(_fsdp_api, "AllGather", object)
_Scatter = getattr(_fsdp_api, "ReduceScatter", object)


class _Allocates:
    def __init__(self, group: dist.ProcessGroup):
        self._group = group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns a tensor of this size, not initialised, in memory of the process group."""
        backend = self._group._get_backend(device)
        return backend.allocate_tensor(math.prod(size), dtype=dtype, device=device).view(*size)


class AllGather(_Allocates, _Gather):
    """For ``FSDPModule.set_custom_all_gather``."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False):
        return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(_Allocates, _Scatter):
    """For ``FSDPModule.set_custom_reduce_scatter``."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op, async_op: bool = False):
        return dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
