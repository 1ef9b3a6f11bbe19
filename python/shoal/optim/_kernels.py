"""The kernels of Adam for each device: those of the CPU, or those of a CUDA device in the order of torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch

from shoal import _native
from shoal.optim._threads import num_threads


class AdamKernels(Protocol):
    def update(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        """Updates rows of these dtypes, and counts their steps up. ``options``: those of a group, and ``grad_scale``."""


class _OfCpu:
    def update(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        _native.adam(dtypes, rows, num_threads=num_threads(), **options)


class _OfCuda:
    def __init__(self, device: torch.device):
        self._device = device
        self._native = _native.DeviceAdam(device.index)

    def update(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        self._native.update(dtypes, rows, stream=torch.cuda.current_stream(self._device).cuda_stream, **options)


@cache
def adam_kernels(device: torch.device) -> AdamKernels:
    """Returns the kernels for parameters on this device. Raises Unimplemented/NoKernels if this build has none for it."""
    return _OfCpu() if device.type == "cpu" else _OfCuda(device)
