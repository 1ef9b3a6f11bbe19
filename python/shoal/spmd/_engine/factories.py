"""Factory functions on the device, such as ``torch.zeros`` and ``torch.tensor``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from shoal.spmd._engine.operator import operator_of
from shoal.spmd._engine.tensor import on_device
from shoal.spmd._layout import processes
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.processes import world

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def _factory(overload: Any):
    def make(*args, **kwargs):
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        if operator_of(overload).random:
            world().verify_stream(str(overload), kwargs.get("generator"))
        # Inside of torch.tensor and its like the Python key is excluded, and torch fills this memory directly. So they get a plain CPU
        # tensor, which _from_data moves to the device.
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded("Python")
        if processes.controller is not None and not excluded and not operator_of(overload).random:
            return processes.controller.make(overload, args, kwargs)
        created = overload(*args, **kwargs, device="cpu")
        return created if excluded else on_device(created)

    return make


def _from_data(make: Any):
    """Wraps torch.tensor and as_tensor: makes the value on the host, then moves it to the device."""

    @functools.wraps(make)
    def tensor(*args, **kwargs):
        device = kwargs.get("device")
        if device is None or torch.device(device).type != DEVICE.type:
            return make(*args, **kwargs)
        kwargs.pop("device")
        requires_grad = kwargs.pop("requires_grad", False)
        value = make(*args, **kwargs).clone()
        world().verify_tensor(value)
        return on_device(value).requires_grad_(requires_grad)

    return tensor


def _register() -> None:
    names = (
        "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "logspace",
        "full", "zeros", "ones", "rand", "randn", "randint", "randint.low", "randperm", "tril_indices", "triu_indices", "scalar_tensor",
        "rand.generator", "randn.generator", "randint.generator", "randint.low_generator", "randperm.generator",
    )  # fmt: skip
    for name in names:
        packet, _, overload = name.partition(".")
        _library.impl(name, _factory(getattr(getattr(aten, packet), overload or "default")), "PrivateUse1")

    torch.tensor, torch.as_tensor, torch.asarray = map(_from_data, (torch.tensor, torch.as_tensor, torch.asarray))


_register()
