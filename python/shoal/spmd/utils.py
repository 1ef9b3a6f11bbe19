"""``torch_xla.utils``: what scripts use of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint as _torch


class SampleGenerator:
    """Yields ``data`` ``sample_count`` times."""

    def __init__(self, data: Any, sample_count: int):
        self._data, self._count = data, sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._count)

    def __len__(self) -> int:
        return self._count


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """torch.utils.checkpoint.checkpoint: the function is computed again in the backward pass."""
    return _torch.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
