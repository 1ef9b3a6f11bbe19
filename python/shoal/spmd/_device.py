"""The logical device: torch's device type ``xla``, which is torch's slot for a backend in Python under that name."""

from __future__ import annotations

import torch
from torch.utils import backend_registration as backend

torch.utils.rename_privateuse1_backend("xla")


class _Module(backend._DummyBackendModule):
    """``torch.xla``: what torch asks of a device module."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


torch._register_device_module("xla", _Module())
torch._C._acc.register_python_privateuseone_hook(backend._DummyPrivateUse1Hook())
torch._C._acc.register_python_privateuseone_device_guard(backend._DummyDeviceGuard())

DEVICE = torch.device("xla", 0)
