"""A program sees its devices as one large device (``torch_xla.distributed.spmd``)."""

from __future__ import annotations

from shoal.spmd import runtime
from shoal.spmd._auto.choice import auto_shard
from shoal.spmd._auto.costs import Machine
from shoal.spmd._auto.distribute import auto_policy, xla_distribute_module, xla_distribute_tensor
from shoal.spmd._auto.plan import ShardingPlan
from shoal.spmd._controller.timeline import timeline
from shoal.spmd._engine.execution import replicated_ops
from shoal.spmd._layout import torch_functions as _torch_functions  # noqa: F401  adds the device to torch's functions
from shoal.spmd._layout.devices import is_switched_on as _is_switched_on
from shoal.spmd._layout.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from shoal.spmd._layout.sharding import ShardingType
from shoal.spmd._layout.traffic import communicated
from shoal.spmd._marks.explain import Explanation, explain
from shoal.spmd._marks.manual import disable_manual_sharding, enable_manual_sharding
from shoal.spmd._marks.marking import (
    MarkShardingFunction,
    ShardingSpec,
    XLAShard,
    XLAShardedTensor,
    annotate_custom_sharding,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)
from shoal.spmd._marks.patched import (
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from shoal.spmd._names import stored as _stored  # noqa: F401  the classes' old places, for pickles
from shoal.spmd._names.hybrid_mesh import HybridMesh
from shoal.spmd._names.install import install

__all__ = [
    "Explanation",
    "HybridMesh",
    "Machine",
    "MarkShardingFunction",
    "Mesh",
    "ShardingPlan",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "auto_policy",
    "auto_shard",
    "clear_sharding",
    "communicated",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "explain",
    "get_1d_mesh",
    "get_global_mesh",
    "install",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "replicated_ops",
    "set_global_mesh",
    "shard_as",
    "timeline",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]

if _is_switched_on():
    runtime.use_spmd()
