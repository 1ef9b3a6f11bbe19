"""FSDP1's communication hooks, implemented as FSDP2's custom reduce_scatter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


class HookedReduceScatter(ReduceScatter):
    """Calls ``hook(state, gradients, rows)`` with flat tensors over all parameters of a unit. The hook fills ``rows`` with this rank's
    part of the mean."""

    def __init__(self, state: object, hook: Callable):
        self._state, self._hook = state, hook

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        self._hook(self._state, input_tensor, output_tensor)
