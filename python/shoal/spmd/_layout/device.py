"""The logical device: torch's device type ``xla``. It is ``privateuse1``, torch's type for backends outside of its tree, renamed."""

from __future__ import annotations

import torch
from torch.utils import backend_registration as backend

torch.utils.rename_privateuse1_backend("xla")


class _Stream:
    """A stream of the device. Its waits do nothing: an operator has run, or is recorded, when its call returns."""

    device_type, device_index, stream_id = "xla", 0, 0

    def __init__(self, device: object = None, priority: int = 0):
        pass

    def wait_stream(self, other: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Module(backend._DummyBackendModule):
    """The module ``torch.xla``, with the functions that torch calls on the module of a device type."""

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

    Stream = _Stream

    @staticmethod
    def current_stream(device: object = None) -> _Stream:
        return _Stream()

    @staticmethod
    def stream(stream: _Stream) -> _Stream:
        return stream

    @staticmethod
    def synchronize(device: object = None) -> None:
        pass

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
