"""The start of a program (``torch_xla.distributed.xla_multiprocessing``): it runs in this process, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from shoal.exceptions import InvalidArgument


def spawn(fn: Callable[..., Any], args: tuple = (), nprocs: int | None = None, join: bool = True, daemon: bool = False,
          start_method: str = "spawn") -> None:  # fmt: skip
    """Calls ``fn(0, *args)``: the devices belong to one program. Raises InvalidArgument for ``nprocs`` of 2 or more, like torch_xla."""
    if nprocs is not None and nprocs > 1:
        raise InvalidArgument(f"nprocs is {nprocs}, but the program's devices belong to one process", hint="leave nprocs out, or pass 1")
    fn(0, *args)


class MpModelWrapper:
    """Wraps a model: ``to(device)`` moves the model there and returns it."""

    def __init__(self, model: nn.Module):
        self._model = model

    def to(self, device: Any) -> nn.Module:
        return self._model.to(device)
