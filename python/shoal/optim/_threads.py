"""How many threads an update may use."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_several = False  # this process is a fork of one that had several threads


def num_threads() -> int:
    """``torch.get_num_threads()``; in a process forked off one with several threads 1, because the OpenMP runtime hangs there otherwise."""
    return 1 if _several else torch.get_num_threads()


def _before_fork() -> None:
    global _counted
    _counted = len(list(Path("/proc/self/task").iterdir()))


def _in_child() -> None:
    global _several
    _several = _several or _counted > 1


_counted = 1
os.register_at_fork(before=_before_fork, after_in_child=_in_child)
