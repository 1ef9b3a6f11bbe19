"""The parameters of one call of fully_shard: which unit takes each, on which mesh and dim."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import Shard

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import managed, own_parameters, state_of
from shoal.fsdp._engine.unit import Unit
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.mesh import DataMesh, of_mesh_info, post_forward_mesh
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.precision import policy_of
from shoal.fsdp._parameters.views import local_of

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam


def shard(state: StateSeam, ignored: set[nn.Parameter], placement: Callable | None) -> None:
    """Makes the state's units and shards their parameters."""
    for m in (m for top in state.modules for m in top.modules()):
        if names := {name for name, p in m._parameters.items() if p in ignored}:
            state.settings.ignored[m] = names
    if placement is not None and state.data.shard_dim is None:
        raise ValueError(
            "Per-param mesh via shard_placement_fn is not supported with DDPMeshInfo; it requires FSDPMeshInfo (or subclass): "
            "this mesh has no dim that shards"
        )
    originals = _make_units(state, ignored, placement)
    _move_buffers(state)
    donors = _take_tied(state)
    if state.settings.smaller_mesh is not None:
        _reshard_to(state, state.settings.smaller_mesh)
    for u in donors:
        u.build_again()
    for u in state.units:
        u.build([originals.get(p) for p in u.parameters])
    for p, original in originals.items():
        original._shoal_sharded = weakref.ref(p)  # ties the original to the parameter, for modules and optimizers that still hold it


def _make_units(state: StateSeam, ignored: set[nn.Parameter], placement: Callable | None) -> dict[ShardedParameter, nn.Parameter]:
    """Makes a unit per mesh of the parameters. Returns the originals."""
    offload, data_of_state = state.settings.offload, state.data
    home = data_of_state.device if offload is None else torch.device("cpu")  # the device on which sharded tensors lie
    pinned = offload is not None and offload.pin_memory and not data_of_state.in_arena
    originals: dict[ShardedParameter, nn.Parameter] = {}
    meshes: dict[tuple, DataMesh] = {}  # by process groups of the mesh
    for name, (parameter, owners) in own_parameters(state.modules, ignored).items():
        _check(state, name, parameter)
        dim, data = _placed(state, name, parameter, placement)
        known = data if placement is None else meshes.setdefault(data.groups, data)
        if known is not data:
            raise ValueError(
                "Params sharing the same process group must use the same FSDPMeshInfo object, but got different objects: "
                f"{known.mesh} vs {data.mesh} of parameter {name}"
            )
        p = ShardedParameter(name, parameter, owners, data, dim, policy_of(state.settings.policy, name, parameter), home, pinned)
        unit = next((u for u in state.units if u.data is data), None)
        if unit is None:
            unit = Unit(state, data)
            state.units.append(unit)
        unit.parameters.append(p)
        originals[p] = parameter
    if not state.units:
        state.units.append(Unit(state, data_of_state))
    return originals


def _move_buffers(state: StateSeam) -> None:
    """Moves buffers to the compute device, as FSDP2 does. Parameters are gathered there by unsharding."""
    device = state.data.device
    for module in {m for top in state.modules for m in top.modules()}:
        for buffer in module._buffers.values():
            if buffer is not None and not buffer.is_meta and buffer.device != device:
                buffer.data = buffer.to(device)  # .data: other holders keep the same tensor


def _take_tied(state: StateSeam) -> list[Unit]:
    """Moves parameters shared by modules of several inner units to this state, which is around all. Returns the units they left."""
    mine = state.covered()
    donors = []
    for s in {id(s): s for s in map(state_of, (m for top in state.modules for m in top.modules())) if s not in (None, state)}.values():
        theirs = s.covered()
        for u in list(s.units):
            homes = {p: {id(m) for m, _ in p.owners} for p in u.parameters}
            tied = [p for p, home in homes.items() if home <= mine and not home <= theirs]
            for p in tied:
                u.parameters.remove(p)
                state.unit_like(u).parameters.append(p)
            if tied:
                donors.append(u)
    return donors


def _check(state: StateSeam, name: str, parameter: nn.Parameter) -> None:
    if parameter.dim() == 0:
        api = getattr(state.module, "_api_name", "fully_shard")
        raise ValueError(f"{api} doesn't support scalar parameters. Change {clean(name)} to a 1D tensor with numel equal to 1.")
    local = local_of(parameter)
    if not local.is_contiguous():
        raise NotImplementedError(
            f"FSDP does not support non-contiguous parameters yet: param.shape={parameter.shape} param.stride()={parameter.stride()}: "
            f"parameter {name}"
        )
    if parameter.device.type not in ("cpu", "meta", state.data.mesh.device_type):
        raise InvalidArgument(f"parameter {name} is on {parameter.device}, the mesh is of {state.data.mesh.device_type}")


def _placed(state: StateSeam, name: str, parameter: nn.Parameter, placement: Callable | None) -> tuple[int, DataMesh]:
    """Returns dim and mesh of a parameter, from shard_placement_fn if given."""
    result = None if placement is None else placement(parameter)
    data = state.data
    if result is not None and hasattr(result, "mesh_info"):
        data = next((u.data for u in state.units if u.data.info is result.mesh_info), None) or of_mesh_info(result.mesh_info)
        result = result.placement
    if result is None:
        return 0, data
    if not isinstance(result, Shard):
        raise ValueError(f"Invalid shard_placement_fn result: {result}")
    dim = result.dim + parameter.ndim if result.dim < 0 else result.dim
    if not 0 <= dim < parameter.ndim:
        raise AssertionError(f"Shard dim {result.dim} is invalid for {parameter.ndim}D tensor: {parameter.shape}: parameter {name}")
    return dim, data


def _reshard_to(state: StateSeam, size: int) -> None:
    for u in state.units:
        if any(p.on_other_mesh for p in u.parameters):
            raise NotImplementedError("Resharding to smaller mesh is not supported for DTensor parameters yet")
        if any(p.extended for p in u.parameters):
            raise NotImplementedError("reshard_after_forward as a number is not possible with all-gather extensions")
        u.post_forward_mesh = post_forward_mesh(u.data, size)


def check_tied(state: StateSeam, states: list[StateSeam]) -> None:
    """Raises ValueError for a parameter whose unit is not around all modules that have it. ``states``: the units inside ``state``."""
    parameters = (p for top in state.modules for p in top.parameters())
    tied = {q for p in parameters if getattr(p, "_shoal_state", state) not in states and (q := managed(p)) is not None}
    for s in states:
        covered = s.covered()
        tied |= {p for u in s.units for p in u.parameters if not all(id(m) in covered for m, _ in p.owners)}
    for p in tied:
        raise ValueError(
            f"Parameter '{p.name}' is shared with a parameter already managed by another FSDP group. For shared/tied parameters, use "
            "fully_shard([module_a, module_b]) to place them in the same FSDP group, or call fully_shard on a module that contains "
            f"both: Parameter '{p.name}' of {p.state.name} is shared with a module outside"
        )


def inner_modules(state: StateSeam) -> list[nn.Module]:
    """Modules of this unit below its top modules. The program may call one of them directly."""
    found: dict[nn.Module, None] = {}

    def visit(m: nn.Module) -> None:
        for child in m.children():
            if child not in found and state_of(child) is None:
                found[child] = None
                visit(child)

    for m in state.modules:
        visit(m)
    return list(found)
