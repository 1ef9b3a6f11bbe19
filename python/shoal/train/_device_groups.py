"""Process groups of devices in an elastic training: a death ends waits inside of their kernels, which no other call can interrupt.

Unverified on hardware: the tests' groups only count calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def groups_of_devices() -> list[Any]:
    """The backends for CUDA devices of this process's groups, the latest group first."""
    c10d, found = dist.distributed_c10d, []
    for group in reversed(list(c10d._world.pg_map)):
        with contextlib.suppress(RuntimeError):  # a group of CPUs has no such backend
            found.append(group._get_backend(torch.device("cuda")))
    return found


class AbortOnDeath:
    """Waits in a thread for the report of a death, and aborts the groups of devices then. The program's wait for a device returns, and its
    next collective raises an error. ``wait_for_death``: returns the number of a worker that has died, or None if no answer is needed
    any more; raises if its call of the driver fails. ``before``: called before the abort, which leaves half a sum in gradients."""

    def __init__(
        self,
        wait_for_death: Callable[[], int | None],
        before: Callable[[], None],
        groups: Callable[[], list[Any]] = groups_of_devices,
    ):
        self._wait, self._before, self._groups = wait_for_death, before, groups
        self._lock, self._ended = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="shoal-abort", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._wait() is None:
                return
        except Exception:  # its driver has ended, or this process leaves
            return
        with self._lock:
            if not self._ended:
                self._before()
                abort(self._groups())

    def end(self) -> None:
        """Called before the groups end in another way: a report of a death that comes later then aborts nothing."""
        with self._lock:
            self._ended = True


def abort(groups: list[Any]) -> None:
    """Aborts groups together, because NCCL may wait in one abort for another one (https://github.com/pytorch/pytorch/issues/119797)."""
    first = groups[0] if groups and hasattr(groups[0], "_group_start") else None
    if first is not None:
        first._group_start()
    try:
        for group in groups:
            group.abort()
    finally:
        if first is not None:
            first._group_end()
