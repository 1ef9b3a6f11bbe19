"""Conversion of parameters and buffers for ``state_dict`` and back: whole, as DTensors, or as this rank's rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shoal.exceptions import InvalidArgument
from shoal.fsdp._errors import OtherConfig, SettingsDiffer
from shoal.fsdp._names import clean
from shoal.fsdp1._full_parameters import first_rank, rows_of, units_of, whole_values
from shoal.fsdp1._names import PREFIX, modules_of
from shoal.fsdp1.api import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from shoal.fsdp1.api import _ShardedStateDictConfig as ShardedStateDictConfig

_CONFIGS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}

# torch's text, which programs filter by
_DEPRECATED = (
    "FSDP.state_dict_type() and FSDP.set_state_dict_type() are being deprecated. Please use APIs, get_state_dict() and set_state_dict(), "
    "which can support different parallelisms, FSDP1, FSDP2, DDP. API doc: https://pytorch.org/docs/stable/distributed.checkpoint.html"
    "#torch.distributed.checkpoint.state_dict.get_state_dict .Tutorial: "
    "https://pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html ."
)


def settings_for(
    state_dict_type: StateDictType, config: StateDictConfig | None = None, optim_config: OptimStateDictConfig | None = None
) -> StateDictSettings:
    """Returns settings in which the default configuration stands for each one left out. Raises TypeError for a configuration of another
    type."""
    if not isinstance(state_dict_type, StateDictType):
        raise TypeError(f"state_dict_type should be a StateDictType, got {state_dict_type!r}")
    settings = []
    names = ("state_dict_config", "optim_state_dict_config")
    for name, given, cls in zip(names, (config, optim_config), _CONFIGS[state_dict_type], strict=True):
        if given is not None and not isinstance(given, cls):
            raise OtherConfig(f"Expected {name} of type {cls} but got {type(given)} with {state_dict_type.name}")
        settings.append(given if given is not None else cls())
    return StateDictSettings(state_dict_type, *settings)


def get_state_dict_type(module: nn.Module) -> StateDictSettings | None:
    """Returns the settings of the units in a tree; None if it has no unit. Raises InvalidArgument if its units differ."""
    found = [u._settings for u in units_of(module)]
    if any(s != found[0] for s in found):
        other = next(s for s in found if s != found[0])
        raise SettingsDiffer(
            f"All FSDP modules must have the same state dict settings.Got {other} and {found[0]}.", hint="set them on the whole model"
        )
    return found[0] if found else None


def set_state_dict_type(
    module: nn.Module,
    state_dict_type: StateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> StateDictSettings:
    """Sets the form of ``state_dict`` and ``optim_state_dict`` for all units in a tree. Returns the previous settings. Deprecated by
    torch, with a FutureWarning."""
    warnings.warn(_DEPRECATED, FutureWarning, stacklevel=2)
    return _set(module, settings_for(state_dict_type, state_dict_config, optim_state_dict_config))


def _set(module: nn.Module, settings: StateDictSettings) -> StateDictSettings:
    units = units_of(module)
    if not units:
        raise InvalidArgument(f"{type(module).__name__} has no FSDP unit", hint="pass the model that FullyShardedDataParallel returned")
    if len({u._settings.state_dict_type for u in units}) > 1:
        raise SettingsDiffer("All FSDP modules should have the same state_dict_type.", hint="set them on the whole model")
    before = units[0]._settings
    for unit in units:
        unit._settings = settings
    return before


@contextmanager
def state_dict_type(
    module: nn.Module,
    state_dict_type: StateDictType,
    state_dict_config: StateDictConfig | None = None,
    optim_state_dict_config: OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """Applies ``set_state_dict_type`` inside a ``with`` block, with its FutureWarning."""
    warnings.warn(_DEPRECATED, FutureWarning, stacklevel=3)  # contextlib's frame is between
    before = _set(module, settings_for(state_dict_type, state_dict_config, optim_state_dict_config))
    try:
        yield
    finally:
        _set(module, before)


# ---- saving ------------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def to_user(unit: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Post-hook of a unit's ``state_dict()``: removes the wrapper's names, converts values by the settings. Collective for whole values."""
    for key in [k for k in state_dict if k.startswith(prefix + PREFIX)]:
        state_dict[prefix + key[len(prefix) + len(PREFIX) :]] = state_dict.pop(key)
    if unit._keep_vars:
        state_dict.update({prefix + m.name: m.parameter for m in unit._managed if prefix + m.name in state_dict})
        return
    settings = unit._settings
    config = settings.state_dict_config
    full = settings.state_dict_type is StateDictType.FULL_STATE_DICT
    returns_state = not full or not config.rank0_only or first_rank(unit)
    whole = whole_values(unit, keep=returns_state, joined=True) if full else {}
    for m in unit._managed:
        key = prefix + m.name
        if key not in state_dict:
            continue
        if not returns_state:
            del state_dict[key]
            continue
        if full:
            state_dict[key] = whole[m.parameter]
        else:
            value = m.parameter.detach()
            state_dict[key] = value.to_local() if settings.state_dict_type is StateDictType.LOCAL_STATE_DICT else value
        if config.offload_to_cpu:
            state_dict[key] = state_dict[key].cpu()
    for names, module in modules_of(unit):
        for name, value in module._buffers.items():
            key = prefix + clean(names + name)
            if value is None or key not in state_dict:
                continue
            if not returns_state:
                del state_dict[key]
            elif settings.state_dict_type is not StateDictType.LOCAL_STATE_DICT:
                state_dict[key] = unit._buffers_of.as_saved(module, name, state_dict[key])
                if config.offload_to_cpu:
                    state_dict[key] = state_dict[key].cpu()


# ---- loading -----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def from_user(unit: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Pre-hook of a unit's ``load_state_dict()``: adds the wrapper's names, and shards whole or local values."""
    for key in [k for k in state_dict if k.startswith(prefix)]:
        state_dict[prefix + PREFIX + key[len(prefix) :]] = state_dict.pop(key)
    local = unit._settings.state_dict_type is StateDictType.LOCAL_STATE_DICT
    for m in unit._managed:
        key = prefix + PREFIX + m.name
        value = state_dict.get(key)
        if not torch.is_tensor(value) and torch.overrides.is_tensor_like(value):  # a tensor that is read from a file when it is used
            value = torch.empty(value.shape, dtype=value.dtype).copy_(value)
        p = m.parameter.detach()
        if not torch.is_tensor(value) or (isinstance(value, DTensor) and value.device_mesh == p.device_mesh):
            continue
        if local and value.shape == p.to_local().shape:
            state_dict[key] = DTensor.from_local(value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
        elif value.shape == p.shape:
            state_dict[key] = rows_of(value.to(p.device), p)
