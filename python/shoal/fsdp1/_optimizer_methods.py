"""FSDP1's methods for optimizer states, as functions of a model and its optimizer. They differ in the form of the state and in the ranks
that get it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from shoal.fsdp1 import _optimizer_state, _state_dict
from shoal.fsdp1.api import StateDictType


def optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer, optim_state_dict: dict[str, Any] | None = None, group: Any = None
) -> dict[str, Any]:
    """The optimizer's state by parameter names, in the form of ``state_dict_type``. Every rank must call it.

    Returns {"state": {name: {key: value}}, "param_groups": [{..., "params": [names]}]}; with ``rank0_only`` the other ranks get {}.
    The sharded state of an optimizer that has not stepped has the initial values of its first step, for torch.distributed.checkpoint
    to load into.
    """
    settings = _state_dict.get_state_dict_type(model) or _state_dict.settings_for(StateDictType.FULL_STATE_DICT)
    config = settings.optim_state_dict_config
    if optim_state_dict is None:
        optim_state_dict = optim.state_dict()
        if settings.state_dict_type is StateDictType.SHARDED_STATE_DICT and not optim_state_dict["state"]:
            optim_state_dict = _optimizer_state.before_the_first_step(optim)
    return _optimizer_state.saved(
        model,
        optim,
        optim_state_dict,
        settings.state_dict_type,
        rank0_only=getattr(config, "rank0_only", False),
        offload_to_cpu=config.offload_to_cpu,
        group=group,
    )


def optim_state_dict_to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: dict[str, Any],
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: Any = None,
) -> dict[str, Any]:
    """Converts a result of ``optim_state_dict`` for ``optim.load_state_dict``. A whole state may come from any number of ranks.

    ``load_directly``: also loads it. With ``rank0_only`` rank 0 broadcasts its state; the argument of other ranks is ignored.
    """
    settings = _state_dict.get_state_dict_type(model) or _state_dict.settings_for(StateDictType.FULL_STATE_DICT)
    result = _optimizer_state.to_load(
        model,
        optim,
        optim_state_dict,
        settings.state_dict_type,
        rank0_only=getattr(settings.optim_state_dict_config, "rank0_only", False),
        named=is_named_optimizer,
        group=group,
    )
    if load_directly:
        optim.load_state_dict(result)
    return result


def _warn_deprecated(name: str, instead: str) -> None:
    """Warns the caller of a function of this module, with torch's text."""
    cls = "FullyShardedDataParallel"
    warnings.warn(
        f"``{cls}.{name}``is being deprecated and is replaced by ``{cls}.{instead}``. ``{cls}.{name}`` may be removed after PyTorch 2.2.",
        FutureWarning,
        stacklevel=3,
    )


def full_optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer, optim_input: Any = None, rank0_only: bool = True, group: Any = None
) -> dict[str, Any]:
    """The whole optimizer state by names, on the host; with ``rank0_only`` the other ranks get {}. Every rank must call it."""
    _warn_deprecated("full_optim_state_dict", "optim_state_dict")
    return _optimizer_state.saved(
        model, optim, optim.state_dict(), StateDictType.FULL_STATE_DICT, rank0_only=rank0_only, offload_to_cpu=True, group=group
    )


def sharded_optim_state_dict(model: nn.Module, optim: torch.optim.Optimizer, group: Any = None) -> dict[str, Any]:
    """Returns the optimizer state by names, as DTensors."""
    _warn_deprecated("sharded_optim_state_dict", "optim_state_dict")
    return _optimizer_state.saved(
        model, optim, optim.state_dict(), StateDictType.SHARDED_STATE_DICT, rank0_only=False, offload_to_cpu=False, group=group
    )


def shard_full_optim_state_dict(
    full_optim_state_dict: dict[str, Any], model: nn.Module, optim_input: Any = None, optim: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Converts a whole state, which every rank has, for ``optim.load_state_dict``."""
    _warn_deprecated("shard_full_optim_state_dict", "optim_state_dict_to_load")
    return _optimizer_state.to_load(model, optim, full_optim_state_dict, StateDictType.FULL_STATE_DICT, optim_input=optim_input)


def scatter_full_optim_state_dict(
    full_optim_state_dict: dict[str, Any] | None,
    model: nn.Module,
    optim_input: Any = None,
    optim: torch.optim.Optimizer | None = None,
    group: Any = None,
) -> dict[str, Any]:
    """Converts a whole state, which only rank 0 has, for ``optim.load_state_dict``. Every rank must call it."""
    _warn_deprecated("scatter_full_optim_state_dict", "optim_state_dict_to_load")
    return _optimizer_state.to_load(
        model, optim, full_optim_state_dict, StateDictType.FULL_STATE_DICT, rank0_only=True, group=group, optim_input=optim_input
    )


def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: dict[str, Any], model: nn.Module, optim: torch.optim.Optimizer
) -> dict[str, Any]:
    """Converts a result of ``sharded_optim_state_dict`` for ``optim.load_state_dict``; nothing is flattened."""
    _warn_deprecated("flatten_sharded_optim_state_dict", "optim_state_dict_to_load")
    return _optimizer_state.to_load(model, optim, sharded_optim_state_dict, StateDictType.SHARDED_STATE_DICT)
