"""``torch_xla.utils.utils``: what scripts use of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class SampleGenerator:
    """Yields ``data`` ``sample_count`` times."""

    def __init__(self, data: Any, sample_count: int):
        self._data, self._count = data, sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._count)

    def __len__(self) -> int:
        return self._count
