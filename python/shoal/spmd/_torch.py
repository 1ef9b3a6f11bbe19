"""What torch's own functions do on the logical device: autocast acts as on the CPU, and compiled functions run operator by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, serialization

from shoal.exceptions import Unimplemented
from shoal.spmd import runtime
from shoal.spmd._device import DEVICE


def _compile(compile: Callable) -> Callable:
    @functools.wraps(compile)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if not runtime.is_spmd():
            return compile(*args, **kwargs)
        made = compile(*args, **{**kwargs, "backend": "eager"})  # others are imported at once, and would not be called
        runtime.run_eagerly()
        return made

    return compiled


def _of_cpu(function: Callable) -> Callable:
    """Tensors of the device lie on the CPU for torch's dispatcher, which therefore asks for the CPU's autocast."""

    @functools.wraps(function)
    def asked(device_type: Any = None, *args: Any) -> Any:
        if device_type is None:
            return function()
        return function("cpu" if device_type == DEVICE.type else device_type, *args)

    return asked


def _refuse(storage: Any, location: str) -> Any:
    if location.startswith(DEVICE.type):
        raise Unimplemented(
            f"torch.load does not place tensors on {location}",
            hint='load with map_location="cpu", then model.load_state_dict or .to(device)',
        )
    return None


def _keeping_ties(apply: Callable) -> Callable:
    """``model.to(device)`` makes a new parameter for each place of an old one; places that shared one share the new one."""

    @functools.wraps(apply)
    def applied(self: nn.Module, fn: Callable, recurse: bool = True) -> nn.Module:
        places: dict[nn.Parameter, list[tuple[dict, str]]] = {}
        for module in self.modules() if recurse else [self]:
            for name, p in module._parameters.items():
                if p is not None:
                    places.setdefault(p, []).append((module._parameters, name))
        apply(self, fn, recurse)
        for (parameters, first), *others in places.values():
            for of, name in others:
                of[name] = parameters[first]
        return self

    return applied


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """The tensor itself: the logical device reads any memory of the host."""
    return self


torch.compile = _compile(torch.compile)
nn.Module._apply = _keeping_ties(nn.Module._apply)
torch.Tensor.pin_memory = _pin_memory
for _name in ("set_autocast_enabled", "is_autocast_enabled", "set_autocast_dtype", "get_autocast_dtype"):
    setattr(torch, _name, _of_cpu(getattr(torch, _name)))
serialization.register_package(0, lambda storage: None, _refuse)
