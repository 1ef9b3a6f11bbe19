"""Conversion of optimizer states to and from parameter names: whole, sharded or local, by the state dict settings."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor, Shard

from shoal.exceptions import InvalidArgument
from shoal.fsdp._errors import KeyTypeUnknown
from shoal.fsdp._names import clean
from shoal.fsdp1._full_parameters import copied, rows_of, units_of
from shoal.fsdp1.api import OptimStateKeyType, StateDictType

Given = Iterable[nn.Parameter] | list[dict[str, Any]] | None


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """Returns the name of every parameter without wrappers' parts, in the model's order. Keys are the sharded parameters, which optimizers
    hold."""
    managed: dict[str, nn.Parameter] = {}
    prefixes = {id(m): name for name, m in model.named_modules()}
    for unit in units_of(model):
        prefix = prefixes[id(unit)]
        managed.update({clean(f"{prefix}.{m.name}" if prefix else m.name): m.parameter for m in unit._managed})
    found: dict[nn.Parameter, str] = {}
    for name, p in model.named_parameters():
        found.setdefault(managed.get(clean(name), p), clean(name))
    return found


def _ordered(model: nn.Module, optim: torch.optim.Optimizer | None, optim_input: Given) -> list[nn.Parameter]:
    """Parameters in the order of the optimizer's parameter numbers."""
    if optim is not None:
        groups = optim.param_groups
    else:
        given = list(optim_input) if optim_input is not None else list(names_of(model))
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [p for group in groups for p in group["params"]]


def _name(names: dict[nn.Parameter, str], p: nn.Parameter) -> str:
    if p not in names:
        raise InvalidArgument(
            f"the optimizer has a parameter of shape {tuple(p.shape)} that the model does not have", hint="pass its own model"
        )
    return names[p]


# ---- saving ------------------------------------------------------------------------------------------------------------------------


@torch.inference_mode(False)
@torch.no_grad()
def saved(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    state_dict: dict[str, Any],
    kind: StateDictType,
    *,
    rank0_only: bool,
    offload_to_cpu: bool,
    group: Any = None,
) -> dict[str, Any]:
    """Returns {"state": {name: {key: value}}, "param_groups": [... "params": names]}. Collective for whole values.

    With ``rank0_only`` the other ranks get {}.
    """
    names = names_of(model)
    by_id = [_name(names, p) for p in _ordered(model, optim, None)]
    returns_state = not rank0_only or dist.get_rank(group) == 0
    state: dict[str, Any] = {}
    # in one order on all ranks, because _shown() communicates
    for index, values in sorted(state_dict["state"].items(), key=lambda item: (isinstance(item[0], str), item[0])):
        name = index if isinstance(index, str) else by_id[index]
        shown = {key: _shown(value, kind, offload_to_cpu) for key, value in values.items()}
        if returns_state:
            state[name] = shown
    if not returns_state:
        return {}
    groups = [_with_params(g, [p if isinstance(p, str) else by_id[p] for p in g["params"]]) for g in state_dict["param_groups"]]
    return {"state": state, "param_groups": groups}


def before_the_first_step(optim: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the state dict that an optimizer without state would have before its first step. The optimizer does not change. Collective.

    The state comes from a step with zero gradients and learning rate, as in torch.distributed.checkpoint. Step counts stay zero.
    """
    from torch.distributed.checkpoint.state_dict import _init_optim_state  # late: torch's module may import this one

    while isinstance(getattr(optim, "optimizer", None), torch.optim.Optimizer):  # unwraps Accelerate's optimizer
        optim = optim.optimizer
    if isinstance(optim, torch.optim.LBFGS):  # LBFGS makes no step without a closure
        return optim.state_dict()
    _init_optim_state(optim)
    for values in optim.state.values():
        if "step" in values:
            values["step"] = torch.zeros_like(values["step"]) if torch.is_tensor(values["step"]) else 0
    state_dict = optim.state_dict()
    optim.state.clear()
    return state_dict


def _with_params(group: dict[str, Any], params: list) -> dict[str, Any]:
    """A copy of a group's options, with ``params`` as its parameters."""
    return {**copy.deepcopy({k: v for k, v in group.items() if k != "params"}), "params": params}


def _shown(value: Any, kind: StateDictType, offload_to_cpu: bool) -> Any:
    if isinstance(value, DTensor):
        if kind is StateDictType.FULL_STATE_DICT:
            value = copied(value)
        elif kind is StateDictType.LOCAL_STATE_DICT:
            value = value.to_local()
    if torch.is_tensor(value):
        # a copy of scalars, because optimizers increment step counts in place
        value = value.detach() if value.dim() else value.detach().clone()
        return value.cpu() if offload_to_cpu else value
    return value


# ---- loading -----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer | None,
    state_dict: dict[str, Any] | None,
    kind: StateDictType,
    *,
    rank0_only: bool = False,
    named: bool = False,
    group: Any = None,
    optim_input: Given = None,
) -> dict[str, Any]:
    """Returns the state dict for ``optim.load_state_dict`` on this rank: values sharded as their parameters are, by number (``named``: by
    name).

    ``rank0_only``: only rank 0 has the state dict, and broadcasts it. Raises InvalidArgument for a state dict of another model.
    """
    if rank0_only:
        state_dict = _broadcast(state_dict, group)
    if not isinstance(state_dict, dict) or "state" not in state_dict or "param_groups" not in state_dict:
        raise InvalidArgument(
            '`optim_state_dict` must have the keys "state"to be a valid optimizer state dict, and "param_groups"',
            hint="load what FSDP.optim_state_dict returned",
        )
    names = names_of(model)
    parameters = {name: p for p, name in names.items()}
    numbers = {_name(names, p): i for i, p in enumerate(_ordered(model, optim, optim_input))}
    state = {}
    for name, values in state_dict["state"].items():
        if name not in parameters:
            raise InvalidArgument(f"the state dict has a state of {name}, which the model does not have")
        if name not in numbers:
            continue  # this optimizer does not train the parameter
        loaded = {key: _sharded(value, parameters[name], kind) for key, value in values.items()}
        state[name if named else numbers[name]] = loaded
    groups = []
    for g in state_dict["param_groups"]:
        # in the optimizer's order of parameters
        params = sorted((name for name in g["params"] if name in numbers), key=numbers.__getitem__)
        groups.append(_with_params(g, params if named else [numbers[name] for name in params]))
    return {"state": state, "param_groups": groups}


def _sharded(value: Any, p: nn.Parameter, kind: StateDictType) -> Any:
    """Returns a loaded value in private memory, sharded as its parameter is."""
    if not torch.is_tensor(value):
        return value
    if isinstance(value, ShardedTensor):
        return _of_sharded_tensor(value, p)
    value = value.detach()
    if value.dim() == 0 or not isinstance(p, DTensor) or (isinstance(value, DTensor) and value.device_mesh == p.device_mesh):
        return value.clone()
    if kind is StateDictType.LOCAL_STATE_DICT and value.shape == p.to_local().shape:
        return DTensor.from_local(value.clone(), p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
    if value.shape == p.shape:
        return rows_of(value.to(p.device), p).clone()
    return value.clone()


def _of_sharded_tensor(value: ShardedTensor, p: nn.Parameter) -> torch.Tensor:
    """Converts a ShardedTensor from torch.distributed.checkpoint's loader to the parameter's sharding. If its own sharding differs, this
    is collective: an all_reduce assembles the whole tensor."""
    metadata = value.metadata()
    bounds = {s.placement.rank(): (s.shard_offsets, s.shard_sizes) for s in metadata.shards_metadata if s.shard_sizes[0] > 0}
    if isinstance(p, DTensor) and p.placements == (Shard(0),) and value.size() == p.shape:
        rest = list(p.shape[1:])
        cuts, wanted = 0, {}
        for rank, rows in zip(p.device_mesh.mesh.tolist(), torch.arange(p.shape[0]).chunk(p.device_mesh.size()), strict=False):
            wanted[rank] = ([cuts] + [0] * len(rest), [len(rows), *rest])
            cuts += len(rows)
        if {rank: (list(offsets), list(sizes)) for rank, (offsets, sizes) in bounds.items()} == wanted:
            local = value.local_shards()[0].tensor if value.local_shards() else p.to_local().new_empty((0, *rest))
            rows = local.detach().to(p.device, metadata.tensor_properties.dtype).clone()
            return DTensor.from_local(rows, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
    whole = torch.zeros(value.size(), dtype=metadata.tensor_properties.dtype, device=p.device)
    for shard in value.local_shards():
        at = tuple(slice(o, o + n) for o, n in zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True))
        whole[at] = shard.tensor.detach().to(p.device)
    dist.all_reduce(whole, group=value._process_group)
    return rows_of(whole, p).clone() if isinstance(p, DTensor) and whole.shape == p.shape else whole


def _broadcast(state_dict: dict[str, Any] | None, group: Any) -> dict[str, Any]:
    """Broadcasts rank 0's state dict, tensor by tensor."""
    first = dist.get_global_rank(group, 0) if group is not None else 0
    mine = dist.get_rank(group) == 0
    tensors: list[torch.Tensor] = []

    def outline(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: outline(v) for k, v in value.items()}
        if torch.is_tensor(value) and value.dim() > 0:
            tensors.append(value)
            return _Outline(value.shape, value.dtype)
        return value

    what = [outline(state_dict) if mine else None]
    dist.broadcast_object_list(what, src=first, group=group)
    waiting = iter(tensors)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: filled(v) for k, v in value.items()}
        if isinstance(value, _Outline):
            tensor = next(waiting).contiguous() if mine else torch.empty(value.shape, dtype=value.dtype)
            dist.broadcast(tensor, src=first, group=group)
            return tensor
        return value

    return filled(what[0])


class _Outline:
    """The shape and dtype of a tensor, in its place in a state dict: the tensor itself is broadcast later."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype):
        self.shape, self.dtype = shape, dtype


# ---- names and numbers -------------------------------------------------------------------------------------------------------------


def rekey_optim_state_dict(
    optim_state_dict: dict[str, Any],
    optim_state_key_type: OptimStateKeyType,
    model: nn.Module,
    optim_input: Given = None,
    optim: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """Converts a whole optimizer state from numbers (of an unwrapped model's optimizer) to names, or the reverse.

    Raises ValueError for a mixture of keys.
    """
    if optim_state_key_type not in (OptimStateKeyType.PARAM_NAME, OptimStateKeyType.PARAM_ID):
        raise KeyTypeUnknown(f"Expected optim_state_key_type to be PARAM_NAME or PARAM_ID, got {optim_state_key_type}")
    kinds = {type(key) for key in optim_state_dict["state"]}
    if kinds - {str} and kinds - {int}:
        raise InvalidArgument(
            f"Invalid parameter keys: {optim_state_dict['state'].keys()}", hint="they should be all names or all numbers of parameters"
        )
    to_names = optim_state_key_type is OptimStateKeyType.PARAM_NAME
    if kinds == {str if to_names else int}:
        return optim_state_dict
    names = names_of(model)
    pairs = [(i, _name(names, p)) for i, p in enumerate(_ordered(model, optim, optim_input))]
    new = dict(pairs) if to_names else {name: i for i, name in pairs}
    return {
        "state": {new[key]: values for key, values in optim_state_dict["state"].items()},
        "param_groups": [_with_params(g, sorted(new[p] for p in g["params"])) for g in optim_state_dict["param_groups"]],
    }
