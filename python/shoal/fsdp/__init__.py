"""Fully sharded training with the interface of ``torch.distributed.fsdp`` (FSDP2): only the import changes.

On one host the parameters lie once, in shared memory; a gather moves nothing. The engine is C++ (``ShardActor``); this package translates
hooks of modules, autograd and optimizers into its words.
"""

from shoal.fsdp._bootstrap import shard_actor_handles
from shoal.fsdp._fully_shard import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
    step_graph,
    write,
)
from shoal.fsdp._graph import StepGraph

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "StepGraph",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "shard_actor_handles",
    "share_comm_ctx",
    "step_graph",
    "write",
]
