"""The states that an optimizer has for its parameters, as a step on small tensors shows them."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from shoal import _native
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._parameters.precision import engine_dtype
from shoal.fsdp._parameters.slices import local_of
from shoal.optim._fused import MASTER, Fused

NEW = "new:"  # the prefix of an array of new values in a step record
_MOST_LETTERS = 18  # a step record has room for so many in a state's name, behind the prefix
_SIZES = (3, 5, 7, 2, 4, 6, 8)  # no two dims are alike, so that a state of another shape shows
_NUM_STEPS = 2
# Attributes of torch and its schedulers. They are no part of what a class computes.
_OF_TORCH = frozenset(
    ("state", "param_groups", "step", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured", "_opt_called", "_step_count")
)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, ModuleType, torch.dtype, torch.device, torch.Generator)


@dataclass(frozen=True)
class StatesOf:
    """The states of one parameter. ``sharded``: dtypes by name of those with the parameter's shape. ``on_device``: names of single numbers
    that lie on the parameter's device. ``singles``: names of all others."""

    sharded: dict[str, torch.dtype]
    on_device: frozenset[str] = field(default_factory=frozenset)
    singles: frozenset[str] = field(default_factory=frozenset)


def states_of(optimizer: torch.optim.Optimizer) -> dict[int, StatesOf]:
    """Returns the states by the parameter's id. Raises Unimplemented if one is more than tensors of the parameter's shape and numbers."""
    found: dict[int, StatesOf] = {}
    if not isinstance(optimizer, Fused):
        _check_alone(optimizer)
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


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer whose step is torch's own."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _try(optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype, num_dims: int, device: torch.device) -> StatesOf:
    """Steps a twin of the optimizer, which has one small parameter, twice: some states appear in the second step."""
    p = nn.Parameter(torch.ones((*_SIZES, *[2] * num_dims)[:num_dims], dtype=dtype, device=device))
    twin = _twin(optimizer)
    options = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
    twin.state, twin.param_groups = defaultdict(dict), [{**options, "params": [p]}]
    before, versions = _attributes(twin), _versions(optimizer)
    found: dict[str, Any] = {}
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for _ in range(_NUM_STEPS):
                p.grad = torch.ones_like(p)  # not zeros, for which an optimizer may make no state
                type(twin).step(twin)  # not twin.step, which a scheduler may have replaced by the optimizer's own
                found.update(twin.state.get(p) or {})
    except Exception as error:
        raise _refusal(optimizer, f"a step on a small tensor fails: {type(error).__name__}: {error}") from error
    if versions != _versions(optimizer):
        raise _refusal(optimizer, "a step of a copy of it changes the parameters or states of this one")
    if others := [key for key in twin.state if key is not p]:
        raise _refusal(optimizer, f"it keeps states beside those of its parameters: {others[0]!r}")
    after = _attributes(twin)
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        raise _refusal(optimizer, f"its step changes its attribute {changed[0]}")
    sharded, on_device = {}, []
    for name, value in found.items():
        if isinstance(value, torch.Tensor) and value.shape == p.shape and value.layout == torch.strided and p.numel() > 1:
            if len(name) > _MOST_LETTERS:
                raise _refusal(optimizer, f"the name of its state {name} has more than {_MOST_LETTERS} letters")
            _check_dtype(optimizer, name, value.dtype)
            sharded[name] = value.dtype
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            if not value.is_cpu:
                on_device.append(name)
        elif isinstance(value, torch.Tensor):
            raise _refusal(optimizer, f"its state {name} has the shape {list(value.shape)}, its parameter {list(p.shape)}")
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            raise _refusal(optimizer, f"its state {name} is a {type(value).__name__}")
    return StatesOf(sharded, frozenset(on_device), frozenset(found.keys() - sharded.keys()))


def _check_dtype(optimizer: torch.optim.Optimizer, name: str, dtype: torch.dtype) -> None:
    try:
        _native.dtype_number(engine_dtype(dtype))
    except InvalidArgument as error:
        raise _refusal(optimizer, f"a step record has no arrays of {str(dtype)[6:]}, the dtype of its state {name}") from error


def _check_alone(optimizer: torch.optim.Optimizer) -> None:
    """Raises Unimplemented if a step of a twin could step another optimizer, or change the parameters of this one."""
    values = {name: value for name, value in vars(optimizer).items() if _may_change(name)}
    for group in optimizer.param_groups:
        values.update((name, value) for name, value in group.items() if name != "params")
    for name, value in values.items():
        if (what := _holds(value, {id(optimizer)})) is not None:
            raise _refusal(optimizer, f"its attribute {name} has {what}")


def _holds(value: Any, seen: set[int]) -> str | None:
    """Names an optimizer or a parameter that is a part of ``value``; None if it has neither."""
    if isinstance(value, _ATOMS) or id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, torch.optim.Optimizer):
        return "another optimizer"
    if isinstance(value, nn.Parameter):
        return "parameters"
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        parts = list(value)
    elif isinstance(value, MethodType):
        parts = [value.__self__, value.__func__]
    elif isinstance(value, FunctionType):
        parts = [_content_of(cell) for cell in value.__closure__ or ()]
    elif isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    else:
        parts = []
    if isinstance(kept := getattr(value, "__dict__", None), dict):
        parts += kept.values()
    return next((what for part in parts if (what := _holds(part, seen)) is not None), None)


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell's variable has no value yet
        return None


def _twin(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer of the same class, whose attributes are copies: its step changes nothing of the other's."""
    twin: Any = object.__new__(type(optimizer))
    memo = {id(optimizer): twin}  # a method that an attribute binds is then the twin's
    for name, value in vars(optimizer).items():
        vars(twin)[name] = _copied(optimizer, name, value, memo) if _may_change(name) else value
    twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    return twin


def _copied(optimizer: torch.optim.Optimizer, name: str, value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Generator):
        return value.clone_state()
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        if not isinstance(value, (dict, list, set, deque)):
            return value  # such as a process group, which a step uses and does not change
        raise _refusal(optimizer, f"its attribute {name} cannot be copied for a trial: {type(error).__name__}: {error}") from error


def _versions(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """Version counters of the parameters and their states, which each write changes."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return [(t._version, local_of(t)._version) for t in tensors]


def _may_change(name: str) -> bool:
    """True for an attribute of the optimizer's class: not for torch's own, nor for ``step``, which a scheduler replaces."""
    return not name.startswith("_optimizer_") and name not in _OF_TORCH


def _attributes(twin: Any) -> dict[str, Any]:
    """Values by which a change of an attribute shows."""
    return {name: _Content.of(value) for name, value in vars(twin).items() if _may_change(name)}


class _Content(pickle.Pickler):
    """Writes a value's content. A tensor counts by its identity and version, because its values may be large."""

    @classmethod
    def of(cls, value: Any) -> tuple[Any, list[torch.Tensor]]:
        """Content, and the tensors in it, which keep their identities while they are here."""
        stream = io.BytesIO()
        content = cls(stream)
        try:
            content.dump(value)
        except Exception:
            return repr(value), []
        return stream.getvalue(), content._tensors

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self._tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return id(value), value._version
        if isinstance(value, torch.Generator):
            return bytes(value.get_state().tolist())
        return id(value) if isinstance(value, (type, FunctionType, torch.optim.Optimizer)) else None


def _refusal(optimizer: torch.optim.Optimizer, why: str) -> Unimplemented:
    return Unimplemented(
        f"{type(optimizer).__module__}.{type(optimizer).__name__} cannot be protected: {why}",
        hint="use an optimizer whose states are numbers and tensors of the parameter's shape, such as those of shoal.optim",
    )
