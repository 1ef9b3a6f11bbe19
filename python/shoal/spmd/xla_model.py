"""The logical device and what scripts do once per step (``torch_xla.core.xla_model``)."""

from __future__ import annotations

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


def mark_step(wait: bool = False) -> None:
    """Nothing waits for it: operators run at once."""


def wait_device_ops(devices: Any = ()) -> None:
    """Operators run at once."""


def optimizer_step(optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: dict | None = None) -> Any:
    return optimizer.step(**(optimizer_args or {}))


def master_print(*args: Any, **kwargs: Any) -> None:
    print(*args, **kwargs)


def send_cpu_data_to_device(data: Any, device: Any, input_sharding: Any = None) -> Any:
    """Copies of host tensors on the device, split as ``input_sharding`` (a ShardingSpec) says."""
    from shoal.spmd.parallel_loader import _placed

    return _placed(data, input_sharding)
