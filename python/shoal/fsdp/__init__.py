"""Fully sharded training with the interface of ``torch.distributed.fsdp`` (FSDP2): only the import changes.

The ranks of a host share one copy of the parameters, in shared memory, so that a gather moves no bytes. The engine is C++
(``ShardActor``); this package translates hooks of modules, autograd and optimizers into calls of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _shoal_switch import is_on
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

try:
    from torch.distributed.fsdp import DataParallelMeshDims
except ImportError:  # torch before 2.12 lacks it
    DataParallelMeshDims = None

from shoal.fsdp import _memory_record  # noqa: F401  (it registers itself)
from shoal.fsdp._describe import ParameterSharding, ShardingDescription, describe_sharding
from shoal.fsdp._engine.bootstrap import shard_actor_handles
from shoal.fsdp._engine.optimizers import write
from shoal.fsdp._fully_shard import fully_shard
from shoal.fsdp._graph import Memory, StepGraph
from shoal.fsdp._join import join
from shoal.fsdp._later import GradientReductionHandle
from shoal.fsdp._memory import MemoryEstimate, estimate_memory
from shoal.fsdp._module import FSDPModule, UnshardHandle, register_fsdp_forward_method, share_comm_ctx, step_graph
from shoal.fsdp._plan.plan import plan

if TYPE_CHECKING:
    from shoal.fsdp._install import install, is_installed, uninstall

__all__ = [
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "GradientReductionHandle",
    "Memory",
    "MemoryEstimate",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ParameterSharding",
    "ShardingDescription",
    "StepGraph",
    "UnshardHandle",
    "describe_sharding",
    "estimate_memory",
    "fully_shard",
    "install",
    "is_installed",
    "join",
    "plan",
    "register_fsdp_forward_method",
    "shard_actor_handles",
    "share_comm_ctx",
    "step_graph",
    "uninstall",
    "write",
]

_INSTALLATION = ("install", "is_installed", "uninstall")  # in _install, which imports shoal.fsdp1, and so lies above this package


def __getattr__(name: str) -> Any:
    if name not in _INSTALLATION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shoal.fsdp import _install  # late: it imports shoal.fsdp1, whose modules import this package first

    return getattr(_install, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if is_on():
    from shoal.fsdp import _install

    _install.install()
