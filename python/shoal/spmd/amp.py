"""Mixed precision (``torch_xla.amp``): the autocast and the GradScaler of torch, for the logical device."""

from __future__ import annotations

from typing import Any

import torch

from shoal.spmd._layout.device import DEVICE


class autocast(torch.autocast):
    """torch's autocast for the logical device. Inside ``with autocast(xm.xla_device()):`` matrix products and convolutions run in
    ``dtype``, by default bfloat16."""

    def __init__(self, device: Any = None, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None):
        super().__init__(DEVICE.type, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on the logical device."""

    def __init__(self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000,
                 enabled: bool = True, use_zero_grad: bool = False):  # fmt: skip
        super().__init__(DEVICE.type, init_scale, growth_factor, backoff_factor, growth_interval, enabled)


__all__ = ["GradScaler", "autocast"]
