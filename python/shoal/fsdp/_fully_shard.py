"""``fully_shard``: FSDP2's entry point."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY, RegistryItem
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.utils import _get_root_modules

from shoal import _native
from shoal._core.variables import switch
from shoal._distributed.ranks import default_mesh
from shoal.exceptions import Unimplemented
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.settings import Settings
from shoal.fsdp._engine.sharding import shard
from shoal.fsdp._engine.state import State
from shoal.fsdp._errors import ShardedTwice
from shoal.fsdp._module import sharded_class
from shoal.fsdp._names import unwrapped
from shoal.fsdp._parameters.mesh import DataMesh, data_mesh

_LEASE_GUARD = switch("SHOAL_LEASE_GUARD")

# Functions that each call of fully_shard calls with the first module's class name and the mesh. `_install` adds one that announces the
# mesh.
on_sharded: list[Callable[[str, DataMesh], None]] = []


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | DataMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Any = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008  frozen, and FSDP2's signature
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: Any = None,
    lease_guard: bool | None = None,
) -> Any:
    """Makes ``module`` a unit of fully sharded training. Its parameters, except those of inner units, become ``DTensor``s over ``mesh``.

    They are unsharded while forward and backward run; each rank gets its slices of the mean gradient. Call it bottom-up, then build the
    optimizer and train as before. Returns its argument; each module becomes an ``FSDPModule``. Every rank must call it for the same
    modules in the same order.

    ``module``: a module, or a list of modules whose parameters form one unit.
    ``mesh``: 1-D, placements ``(Shard(0),)``; or 2-D with names, ``(Replicate(), Shard(0))``. Default: all ranks of the process group, on
    CUDA devices if it has NCCL. ``init_process_group("gloo")`` is called if needed. On a CUDA mesh the mesh's process groups gather into
    device memory and reduce there.
    ``reshard_after_forward``: drops the lease between forward and backward. The default None means True, but False for the root. A number
    n, a divisor of the number of shards: between the two, the parameters are sharded over n ranks.
    ``shard_placement_fn``: parameter -> None, ``Shard(dim)`` or ``ShardPlacementResult`` with a mesh. Any dim; uneven shards are allowed.
    ``mp_policy``: compute in ``param_dtype``, reduction in ``reduce_dtype`` (on a CPU mesh sums are fp32). Floating-point inputs are cast
    to ``param_dtype``, outputs to ``output_dtype``. Parameters of one unit may have different dtypes: ``param_dtype_override_fn`` (torch
    2.15) is called once for each parameter, and returns its own dtype, or None for ``param_dtype``. It must answer alike on all ranks.
    Without ``reduce_dtype``, gradients are reduced in ``param_dtype``, since torch 2.15 in the parameter's dtype.
    ``offload_policy``: ``CPUOffloadPolicy`` keeps sharded parameters, gradients and optimizer states in host memory, as a CPU mesh always
    does.
    ``ignored_params``: parameters that stay as they are.
    ``dp_mesh_dims``: the data parallel dims of ``mesh``, when the parameters are DTensors on all of it.
    ``lease_guard``: an access to unsharded parameters without a lease ends the process and names the unit (default: $SHOAL_LEASE_GUARD).

    A parameter shared by modules of several units belongs to the innermost unit around all of them.
    Raises TypeError for arguments of another type, ValueError for scalar parameters and for containers without forward, InvalidArgument
    for a wrong order of calls. NotImplementedError: a missing feature. An error that torch also raises has torch's type and message first.
    Semantics: PyTorch FSDP2 (torch.distributed.fsdp.fully_shard, torch 2.13 to 2.15).
    """
    listed = _checked_modules(module)
    if mesh is not None and not isinstance(mesh, DeviceMesh | DataMesh):
        raise TypeError(f"mesh should be a DeviceMesh, got {type(mesh).__name__}")
    if ignored_params is not None and not isinstance(ignored_params, (set, frozenset)):
        raise TypeError(f"ignored_params should be a set of parameters, got {type(ignored_params).__name__}")
    if shard_placement_fn is not None and not callable(shard_placement_fn):
        raise TypeError(f"shard_placement_fn should be a function of a parameter, got {type(shard_placement_fn).__name__}")
    _check_policy(mp_policy)
    if not isinstance(offload_policy, OffloadPolicy):
        raise TypeError(f"offload_policy should be an OffloadPolicy, got {type(offload_policy).__name__}")
    if type(offload_policy) not in (OffloadPolicy, CPUOffloadPolicy):
        raise Unimplemented(f"{type(offload_policy).__name__} is not in this release", hint="use CPUOffloadPolicy")
    # shoal.fsdp1 passes a DataMesh
    data = mesh if isinstance(mesh, DataMesh) else data_mesh(mesh if mesh is not None else default_mesh(), dp_mesh_dims)
    modules = tuple(_get_root_modules(listed)) if len(listed) > 1 else tuple(listed)
    engine = _native.UnitOptions(lease_guard=_LEASE_GUARD if lease_guard is None else lease_guard)
    reshard = _checked_reshard(reshard_after_forward, data.shards, dp_mesh_dims is not None)
    offload = offload_policy if isinstance(offload_policy, CPUOffloadPolicy) else None
    first = type(unwrapped(modules[0])).__name__
    state = State(modules, data, Settings(mp_policy, reshard, offload, engine))
    shard(state, ignored_params or set(), shard_placement_fn)
    for m in modules:
        for inner in m.modules():  # flags that torch.compile and libraries read
            inner._is_fsdp_managed_module = inner._fsdp_use_orig_params = True
        m._shoal_fsdp_state = state
        m.__dict__.setdefault(STATE_KEY, {})[torch_fully_shard.__wrapped__] = state  # for torch's fully_shard.state(m), in pipeline stages
        m.__dict__.setdefault(REGISTRY_KEY, {})["fully_shard"] = RegistryItem()  # excludes it from torch's replicate
        m.__class__ = sharded_class(type(m))
    state.hook()
    for call in on_sharded:
        call(first, data)
    return module


fully_shard.state = state_of


def _checked_modules(module: nn.Module | list[nn.Module]) -> list[nn.Module]:
    listed = list(module) if isinstance(module, (list, tuple)) else [module]
    for m in listed:
        if not isinstance(m, nn.Module):
            raise TypeError(f"fully_shard takes a module or a list of modules, not a {type(m).__name__}")
        if isinstance(m, (nn.ModuleList, nn.ModuleDict)) and type(m).forward is nn.Module.forward:
            raise ValueError(f"fully_shard does not support containers that do not implement forward: {m}")
        if state_of(m) is not None:
            raise ShardedTwice(
                "Each distinct composable distributed API can only be applied to a module once. fully_shard has already been applied to "
                f"the following module:\n{m}"
            )
    if not listed:
        raise ValueError("fully_shard was called with no module")
    return listed


def _check_policy(policy: Any) -> None:
    if not isinstance(policy, MixedPrecisionPolicy):
        raise TypeError(f"mp_policy should be a MixedPrecisionPolicy, got {type(policy).__name__}")
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = getattr(policy, name)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"mp_policy.{name} should be a torch.dtype such as torch.bfloat16, got {dtype!r}")


def _checked_reshard(requested: bool | int | None, shards: int, spmd: bool) -> bool | int | None:
    if requested is None or isinstance(requested, bool):
        return requested
    if not isinstance(requested, int):
        raise ValueError(f"reshard_after_forward should be a bool or an int representing the group size to reshard to, not {requested}")
    if spmd:
        raise NotImplementedError("reshard_after_forward as int is not yet supported with SPMD mesh (dp_mesh_dims)")
    if requested < 1 or requested > shards or shards % requested != 0:
        raise ValueError(f"If passing reshard_after_forward as an int, it should be a factor of {shards}, not {requested}")
    if requested == 1:
        warnings.warn(
            "reshard_after_forward=1 (int) means resharding parameters to world size 1, instead of reshard_after_forward=True (bool)",
            stacklevel=3,
        )
        return False
    return True if requested == shards else requested
