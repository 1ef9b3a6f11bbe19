"""The module that ``import torch_xla`` finds after ``shoal.spmd.install()``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shoal.spmd import runtime
from shoal.spmd import xla_model as _xm

__version__ = "2.9.0+shoal"


def device(index: int | None = None) -> torch.device:
    """The one device that the program sees."""
    return _xm.xla_device()


def devices() -> list[torch.device]:
    return [device()]


def device_count() -> int:
    return runtime.global_device_count()


def real_devices() -> list[str]:
    return [str(a["name"]) for a in runtime.global_runtime_device_attributes()]


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Ends a step, as mark_step does."""
    _xm.mark_step(wait)


def step() -> Any:
    """Returns a context for ``with torch_xla.step():``, whose end ends a step."""
    return _Step()


class _Step(contextlib.ContextDecorator):
    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        sync()


def compile(f: Callable[..., Any] | None = None, full_graph: bool = False, name: str | None = None, **options: Any) -> Any:
    """Returns a function whose calls each end a step; operators run at once. Without ``f`` the result is a decorator, or a ``with`` block
    of one step."""
    return _Step() if f is None else _Step()(f)


def eager_mode(enable: bool) -> None:
    """Does nothing: operators always run at once."""


def is_eager_mode() -> bool:
    """True: operators run at once."""
    return True


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A ``with`` block or a decorator without effect: operators always run at once."""
    yield


def manual_seed(seed: int, device: Any = None) -> None:
    torch.manual_seed(seed)


def launch(fn: Callable[..., Any], args: tuple = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Calls ``fn(0, *args)``: one process runs the program."""
    fn(0, *args)
