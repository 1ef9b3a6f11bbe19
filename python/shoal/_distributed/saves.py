"""The save beside a training: ``shoal.checkpoint`` registers the functions by which ``shoal.train`` waits for it or leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class SaveControl(NamedTuple):
    """Functions of ``shoal.checkpoint._saving``, which describes them."""

    wait: Callable[[], None]
    finish: Callable[[Callable[[], None]], None]
    abandon: Callable[[], None]
    print_error: Callable[[bool], None]


save_controls: list[SaveControl] = []  # empty until ``shoal.checkpoint`` is imported
