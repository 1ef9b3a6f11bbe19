"""The optimizers' kernels for each device: those of the CPU, or those of a CUDA device in the order of torch's current stream.

Where a build has none for its device, torch's fused operators take their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch

from shoal import _native
from shoal.exceptions import Unimplemented
from shoal.optim._threads import num_threads


class Kernels(Protocol):
    """Updates of rows of the same dtypes. ``options``: those of a group, and ``grad_scale``."""

    def adam(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        """Also increments the step of each row."""

    def sgd(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        """``first``, an option: the momentum of these rows becomes the gradient."""


class _OfCpu:
    def adam(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        _native.adam(dtypes, rows, num_threads=num_threads(), **options)

    def sgd(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        _native.sgd(dtypes, rows, num_threads=num_threads(), **options)


class _OfCuda:
    def __init__(self, device: torch.device):
        self._device = device
        self._native = _native.DeviceOptim(device.index)

    def adam(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        self._native.adam(dtypes, rows, stream=self._stream(), **options)

    def sgd(self, dtypes: tuple[str, ...], rows: Sequence[_native.UpdateRow], **options: Any) -> None:
        self._native.sgd(dtypes, rows, stream=self._stream(), **options)

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream


@cache
def kernels_on(device: torch.device) -> Kernels:
    """Returns the kernels for parameters on this device. Raises Unimplemented/NoKernels if this build has none for it."""
    return _OfCpu() if device.type == "cpu" else _OfCuda(device)


def updated_by_torch(device: torch.device, scaled: bool) -> bool:
    """True if torch's fused operators update parameters on this device. ``scaled``: a GradScaler has set its tensors, which the operators
    read on the device."""
    return device.type == "cuda" and (scaled or _lacks_kernels(device))


@cache
def _lacks_kernels(device: torch.device) -> bool:
    """Warns once if this build has no kernels for the device."""
    try:
        kernels_on(device)
    except Unimplemented as error:
        if error.reason != "NoKernels":
            raise
        warnings.warn(
            f"this build of Shoal has no optimizer kernels for {device}, so torch's fused ones update its parameters: {error}", stacklevel=7
        )
        return True
    return False
