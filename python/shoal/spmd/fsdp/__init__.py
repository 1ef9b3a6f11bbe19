"""``SpmdFullyShardedDataParallel`` and its helpers."""

from shoal.spmd._fsdp import SpmdFullyShardedDataParallel, checkpoint_module
from shoal.spmd.fsdp import wrap

__all__ = ["SpmdFullyShardedDataParallel", "checkpoint_module", "wrap"]
