"""FSDP1: ``from shoal.fsdp1 import FullyShardedDataParallel as FSDP`` replaces the import from ``torch.distributed.fsdp``.

A thin layer on ``shoal.fsdp`` with the wrapper, auto-wrapping and state dicts. The engine does sharding, leases, reduction and write
windows.
"""

from __future__ import annotations

import warnings as _warnings

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper

from shoal import fsdp as _fsdp  # noqa: F401  first: where $SHOAL_FSDP is on, its import ends with install()
from shoal.fsdp1.api import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from shoal.fsdp1.fully_sharded_data_parallel import FullyShardedDataParallel
from shoal.fsdp1.sharded_grad_scaler import ShardedGradScaler

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "CheckpointImpl",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedGradScaler",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
]


def __getattr__(name: str):
    if name == "apply_activation_checkpointing_wrapper":
        _warnings.warn(f"{name} is now called apply_activation_checkpointing", FutureWarning, stacklevel=2)
        return apply_activation_checkpointing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
