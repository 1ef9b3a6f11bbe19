"""The steps of a program on the device, in its run's folder (docs/runs.md).

Hooks of all modules and optimizers report them. A program without a folder has none of these hooks. Units of the engine of ``shoal.fsdp``
report their steps themselves.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shoal._core.telemetry import Activity, telemetry, unit_number
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._fsdp.wrapper import SpmdFullyShardedDataParallel

_ROOT = ""
_begun = False
_names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()  # by outermost module: names of units, by id


class _Calls(threading.local):
    """The calls of modules under way in a thread: the number of the unit that each has begun, or None.

    ``units``: those of the outermost module."""

    def __init__(self) -> None:
        self.begun: list[int | None] = []
        self.units: dict[int, str] = {}


_calls = _Calls()


def begin() -> None:
    """Records the program's steps from now on."""
    global _begun
    if not _begun:
        _begun = True
        register_module_forward_pre_hook(_before_forward)
        register_module_forward_hook(_after_forward, always_call=True)
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)


def _before_forward(module: nn.Module, args: Any) -> None:
    number = None
    with contextlib.suppress(Exception):  # attributes of modules may run any code
        if not _calls.begun:
            _calls.units = _units_of(module) if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1 else {}
        name = _calls.units.get(id(module))
        # One unit under way is the whole model. A second one contains this module, whose time then counts as a part of that unit's.
        inner = sum(number is not None for number in _calls.begun) > 1
        if name is not None and not inner and (opened := telemetry(opens=True)) is not None:
            number = unit_number(opened, name)
            opened.begin(Activity.FORWARD, number)
    _calls.begun.append(number)


def _after_forward(module: nn.Module, args: Any, output: Any) -> None:
    number = _calls.begun.pop() if _calls.begun else None
    if number is not None and (opened := telemetry()) is not None:
        opened.end(Activity.FORWARD, number)


def _units_of(module: nn.Module) -> dict[int, str]:
    """Returns the names of a model's units by id. Units are the model itself, and the modules that FSDPv2 wraps. Without wrapped modules,
    the entries of lists of modules are units, or else the model's children. A module has none if it is not on the device, or if the engine
    of ``shoal.fsdp`` runs it."""
    if module not in _names:
        _names[module] = _find_units(module)
    return _names[module]


def _find_units(module: nn.Module) -> dict[int, str]:
    if not any(isinstance(p, Tensor) for p in module.parameters()):
        return {}
    wrappers = [m for m in module.modules() if isinstance(m, SpmdFullyShardedDataParallel)]
    if any(m._unit is not None for m in wrappers):
        return {}
    while isinstance(module, SpmdFullyShardedDataParallel):
        module = module.module
    wrapped = {id(m.module) for m in wrappers}
    lists = {id(c) for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)) for c in m.children()}
    named = {id(m): name.replace("_orig_module.", "").removesuffix("._orig_module") for name, m in module.named_modules()}
    inner = (wrapped - {id(module)}) or lists or {id(c) for c in module.children()}
    return {id(module): _ROOT} | {i: name for i, name in named.items() if i in inner}


def _is_recorded(optimizer: torch.optim.Optimizer) -> bool:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return any(isinstance(p, Tensor) for p in parameters) and not any(hasattr(p, "_shoal_state") for p in parameters)


def _key(optimizer: torch.optim.Optimizer) -> int:
    return id(optimizer) >> 4 & 0x7FFFFFFF


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if _is_recorded(optimizer) and (opened := telemetry(opens=True)) is not None:
        opened.begin(Activity.OPTIMIZER, _key(optimizer))


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _is_recorded(optimizer):
        return
    _calls.begun.clear()  # no hook runs after a forward that KeyboardInterrupt or SystemExit has ended
    if (opened := telemetry()) is not None:
        opened.end_optimizer(_key(optimizer))
