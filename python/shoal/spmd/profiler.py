"""Named ranges of a profile (``torch_xla.debug.profiler``), for torch.profiler."""

from __future__ import annotations

import warnings
from typing import Any

from torch.profiler import record_function


class Trace(record_function):
    """A named range of torch.profiler: ``with Trace("name"):``."""

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, str(kwargs) if kwargs else None)


class StepTrace(Trace):
    """A named range that contains one step."""


def start_server(port: int, only_on_master: bool = True) -> None:
    """Warns that there is no profile server."""
    warnings.warn(
        "the profile server is not supported: run steps under torch.profiler.profile(), which shows Trace and StepTrace", stacklevel=2
    )


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """Warns like start_server."""
    start_server(0)


trace = trace_detached
