"""torch's own functions on the logical device: autocast acts as on the CPU, and compiled functions run operator by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, serialization

from shoal.exceptions import Unimplemented
from shoal.spmd._layout import devices
from shoal.spmd._layout.device import DEVICE


def _compile(compile: Callable) -> Callable:
    @functools.wraps(compile)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if not devices.is_spmd():
            return compile(*args, **kwargs)
        # "eager", because torch would import any other backend at once, although functions are not compiled
        runs_eagerly = compile(*args, **{**kwargs, "backend": "eager"})
        devices.run_eagerly()
        return runs_eagerly

    return compiled


_init, _enter, _exit = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__


@functools.wraps(_init)
def _initialized(self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
    if device_type == DEVICE.type and dtype is None:
        dtype = torch.bfloat16  # torch's default for a device type such as this is float16
    _init(self, device_type, dtype, *args, **kwargs)


def _entered(self: torch.autocast) -> Any:
    """Enters autocast, and the CPU's as well, because device tensors lie on the CPU for torch's dispatcher."""
    entered = _enter(self)
    if self.device == DEVICE.type:
        self._of_cpu = torch.autocast("cpu", dtype=self.fast_dtype, enabled=self._enabled, cache_enabled=self._cache_enabled)
        self._of_cpu.__enter__()
    return entered


def _exited(self: torch.autocast, *error: Any) -> Any:
    if self.device == DEVICE.type:
        self._of_cpu.__exit__(*error)
    return _exit(self, *error)


def _refuse(storage: Any, location: str) -> Any:
    if location.startswith(DEVICE.type):
        raise Unimplemented(
            f"torch.load does not place tensors on {location}",
            hint='load with map_location="cpu", then model.load_state_dict or .to(device)',
        )
    return None


def _keeping_ties(apply: Callable) -> Callable:
    """Wraps Module._apply so that tied parameters stay tied: ``model.to(device)`` makes a new parameter for each place of a parameter."""

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
    """Returns the tensor itself: the logical device reads any host memory."""
    return self


torch.compile = _compile(torch.compile)
nn.Module._apply = _keeping_ties(nn.Module._apply)
torch.Tensor.pin_memory = _pin_memory
torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__ = _initialized, _entered, _exited
torch.set_autocast_dtype(DEVICE.type, torch.bfloat16)
serialization.register_package(0, lambda storage: None, _refuse)
