"""The states that an optimizer has for its parameters, as a step on small tensors shows them."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shoal.exceptions import Unimplemented
from shoal.fsdp._parameters.slices import local_of
from shoal.optim._fused import MASTER, Fused

NEW = "new:"  # the prefix of an array of new values in a step record
_MOST_LETTERS = 18  # a step record has room for so many in a state's name, behind the prefix
_SIZES = (3, 5, 7, 2, 4, 6, 8)  # no two dims are alike, so that a state of another shape shows


@dataclass(frozen=True)
class StatesOf:
    """The states of one parameter. ``sharded``: dtypes by name of those with the parameter's shape. ``on_device``: names of single numbers
    that lie on the parameter's device."""

    sharded: dict[str, torch.dtype]
    on_device: frozenset[str] = field(default_factory=frozenset)


def states_of(optimizer: torch.optim.Optimizer) -> dict[int, StatesOf]:
    """Returns the states by the parameter's id. Raises Unimplemented if one is more than tensors of the parameter's shape and numbers."""
    found: dict[int, StatesOf] = {}
    for group in optimizer.param_groups:
        tried: dict[tuple, StatesOf] = {}
        for p in group["params"]:
            if isinstance(optimizer, Fused):
                names = [*optimizer._keys(group), *([MASTER] if optimizer._has_master(p, group) else [])]
                found[id(p)] = StatesOf(dict.fromkeys(names, optimizer._state_dtype(p, group)))
                continue
            kind = (p.dtype, p.dim(), local_of(p).device)
            if kind not in tried:
                tried[kind] = _try(optimizer, group, *kind)
            found[id(p)] = tried[kind]
    return found


def _try(optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype, num_dims: int, device: torch.device) -> StatesOf:
    """Steps a twin of the optimizer, which has one small parameter."""
    p = nn.Parameter(torch.ones((*_SIZES, *[2] * num_dims)[:num_dims], dtype=dtype, device=device))
    p.grad = torch.zeros_like(p)
    twin: Any = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        changes_inside = _may_change(name) and isinstance(value, (list, dict, set, torch.Tensor))
        vars(twin)[name] = copy.deepcopy(value) if changes_inside else value
    options = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
    twin.state, twin.param_groups = defaultdict(dict), [{**options, "params": [p]}]
    twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    before = _attributes(twin)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            type(twin).step(twin)  # not twin.step, which a scheduler may have replaced by the optimizer's own
    except Exception as error:
        raise _refusal(optimizer, f"a step on a small tensor fails: {type(error).__name__}: {error}") from error
    if others := [key for key in twin.state if key is not p]:
        raise _refusal(optimizer, f"it keeps states beside those of its parameters: {others[0]!r}")
    if changed := sorted(name for name, value in _attributes(twin).items() if before.get(name) != value):
        raise _refusal(optimizer, f"its step changes its attribute {changed[0]}")
    sharded, on_device = {}, []
    for name, value in twin.state[p].items():
        if isinstance(value, torch.Tensor) and value.shape == p.shape and value.layout == torch.strided and p.numel() > 1:
            if len(name) > _MOST_LETTERS:
                raise _refusal(optimizer, f"the name of its state {name} has more than {_MOST_LETTERS} letters")
            sharded[name] = value.dtype
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            if not value.is_cpu:
                on_device.append(name)
        elif isinstance(value, torch.Tensor):
            raise _refusal(optimizer, f"its state {name} has the shape {list(value.shape)}, its parameter {list(p.shape)}")
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            raise _refusal(optimizer, f"its state {name} is a {type(value).__name__}")
    return StatesOf(sharded, frozenset(on_device))


def _may_change(name: str) -> bool:
    """True for an attribute of the optimizer's class: not for torch's, which are private, nor for states and options."""
    return not name.startswith("_") and name not in ("state", "param_groups")


def _attributes(twin: Any) -> dict[str, Any]:
    """Values by which a change of an attribute shows."""
    return {name: (id(t), t._version) if isinstance(t, torch.Tensor) else repr(t) for name, t in vars(twin).items() if _may_change(name)}


def _refusal(optimizer: torch.optim.Optimizer, why: str) -> Unimplemented:
    return Unimplemented(
        f"{type(optimizer).__module__}.{type(optimizer).__name__} cannot be protected: {why}",
        hint="use an optimizer whose states are numbers and tensors of the parameter's shape, such as those of shoal.optim",
    )
