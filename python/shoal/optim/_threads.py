"""The number of threads of an update."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_several = False  # True in a process forked from one with several threads


def num_threads() -> int:
    """Returns ``torch.get_num_threads()``, or 1 in a process forked from one with several threads, where the OpenMP runtime would hang."""
    return 1 if _several else torch.get_num_threads()


def _before_fork() -> None:
    global _counted
    _counted = len(list(Path("/proc/self/task").iterdir()))


def _in_child() -> None:
    global _several
    _several = _several or _counted > 1


_counted = 1
os.register_at_fork(before=_before_fork, after_in_child=_in_child)
