"""The logical device and what scripts do once per step (``torch_xla.core.xla_model``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from shoal.spmd import runtime
from shoal.spmd._device import DEVICE


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The one device that the program sees."""
    return DEVICE


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    return [str(DEVICE)] if runtime.is_spmd() else [f"xla:{i}" for i in range(runtime.global_runtime_device_count())]


def xla_device_hw(device: Any) -> str:
    return "CPU"


def is_master_ordinal(local: bool = True) -> bool:
    return True


def get_local_ordinal() -> int:
    return 0


def get_ordinal() -> int:
    return 0


def xrt_world_size() -> int:
    return 1


_closures: list[tuple[Callable[..., Any], tuple]] = []


def add_step_closure(closure: Callable[..., Any], args: tuple = (), run_async: bool = False) -> None:
    """Runs it at the next step's end (``mark_step`` or ``torch_xla.sync``), in the order of the calls."""
    _closures.append((closure, args))


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """The end of a step. Operators have run already; closures run now."""
    waiting, _closures[:] = _closures[:], []
    for closure, args in waiting:
        closure(*args)


def wait_device_ops(devices: Any = ()) -> None:
    """Operators run at once."""


def optimizer_step(optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: dict | None = None) -> Any:
    return optimizer.step(**(optimizer_args or {}))


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Prints to ``fd`` (default: stdout)."""
    print(*args, file=fd or sys.stdout, flush=flush)


def set_rng_state(seed: int, device: Any = None) -> None:
    torch.manual_seed(seed)


def send_cpu_data_to_device(data: Any, device: Any, input_sharding: Any = None) -> Any:
    """Copies of host tensors on the device, split as ``input_sharding`` (a ShardingSpec) says."""
    from shoal.spmd.parallel_loader import _placed

    return _placed(data, input_sharding)
