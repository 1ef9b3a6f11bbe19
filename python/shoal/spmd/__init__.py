"""One program, one large device (``torch_xla.distributed.spmd``)."""

from __future__ import annotations

from shoal.spmd._engine import replicated_ops
from shoal.spmd._marking import (
    ShardingSpec,
    XLAShard,
    XLAShardedTensor,
    annotate_custom_sharding,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)
from shoal.spmd._mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from shoal.spmd._sharding import ShardingType

__all__ = [
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "replicated_ops",
    "set_global_mesh",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
]
