"""``SpmdFullyShardedDataParallel`` and its helpers."""

from typing import Any

from shoal.exceptions import Unimplemented
from shoal.spmd._fsdp.wrapper import SpmdFullyShardedDataParallel, checkpoint_module
from shoal.spmd.fsdp import wrap


class XlaFullyShardedDataParallel:
    """torch_xla's other FSDP, with one process per device and without SPMD; not supported."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise Unimplemented(
            "XlaFullyShardedDataParallel is not supported",
            hint="use SpmdFullyShardedDataParallel, or shoal.fsdp1.FullyShardedDataParallel with one process per device",
        )


__all__ = ["SpmdFullyShardedDataParallel", "XlaFullyShardedDataParallel", "checkpoint_module", "wrap"]
