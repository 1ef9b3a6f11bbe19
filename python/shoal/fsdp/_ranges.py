"""Ranges with the names of units: for torch.profiler, and with ``SHOAL_NVTX=1`` for NVIDIA's tools."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd import profiler
from torch.profiler import record_function

from shoal._core.variables import variable

_NVTX = variable("SHOAL_NVTX", "0") == "1"
_NOTHING = nullcontext()


def recorded() -> bool:
    """True while somebody records ranges. Without a profiler, a range costs only this check."""
    return profiler._is_profiler_enabled or _NVTX


class Range:
    """A range that begins here and ends with ``end``, perhaps on another thread. ``unit``: the unit's name, "" for the root."""

    def __init__(self, what: str, unit: str | None):
        name = f"shoal::{what}" if unit is None else f"shoal::{what} ({unit or 'root'})"
        self._record = record_function(name)
        self._record.__enter__()
        self._nvtx = torch.cuda.nvtx.range_start(name) if _NVTX and torch.cuda.is_initialized() else None

    def end(self) -> None:
        self._record.__exit__(None, None, None)
        if self._nvtx is not None:
            torch.cuda.nvtx.range_end(self._nvtx)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        self.end()


def around(what: str, unit: str | None = None) -> Any:
    """A context manager: a range, or nothing without a profiler."""
    return Range(what, unit) if recorded() else _NOTHING
