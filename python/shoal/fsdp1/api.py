"""FSDP1's enums and configurations: torch's own classes, so that values of either import are interchangeable.

Two subclasses raise a helpful error for arguments that are often passed and never existed.
"""

from __future__ import annotations

from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from torch.distributed.fsdp import CPUOffload as _CPUOffload
from torch.distributed.fsdp import ShardedStateDictConfig as _ShardedStateDictConfig

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
]


class CPUOffload(_CPUOffload):
    """``CPUOffload(offload_params=True)``: parameters, gradients and the optimizer's step stay on the host."""

    def __new__(cls, *args, **kwargs):
        if "offload_gradients" in kwargs:
            raise TypeError("CPUOffload has no offload_gradients: gradients go with the parameters; write CPUOffload(offload_params=True)")
        return super().__new__(cls)


class ShardedStateDictConfig(_ShardedStateDictConfig):
    """``ShardedStateDictConfig(offload_to_cpu=True)``: every rank keeps its rows, as DTensors."""

    def __new__(cls, *args, **kwargs):
        if "rank0_only" in kwargs:
            raise TypeError(
                "ShardedStateDictConfig has no rank0_only: every rank keeps its own rows; "
                "for one whole state dict on rank 0 take FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
            )
        return super().__new__(cls)
