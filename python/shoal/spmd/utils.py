"""``torch_xla.utils``: the parts that scripts use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import checkpoint as _torch


class SampleGenerator:
    """Yields ``data`` ``sample_count`` times."""

    def __init__(self, data: Any, sample_count: int):
        self._data, self._count = data, sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._count)

    def __len__(self) -> int:
        return self._count


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Returns the environment variable as a value of this type; "true" and nonzero numbers are True. ``defval`` if it is not set."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() == "true" or (text.isdecimal() and int(text) != 0) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """True if the environment variable is ON, 1, YES, TRUE or Y."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """Calls torch.utils.checkpoint.checkpoint: the backward pass computes the function again."""
    return _torch.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)


def load(path: Any) -> Any:
    """Loads a file of ``xm.save`` or ``torch_xla.utils.serialization.save``, with its tensors on the host."""
    return torch.load(path, map_location="cpu")
