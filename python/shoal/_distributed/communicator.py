"""The communicator of a group of ranks, over shared memory or gloo."""

from __future__ import annotations

import os

from shoal import _native
from shoal._core.process import state
from shoal._distributed.process_group import ProcessGroupBackend
from shoal._distributed.ranks import TIMEOUT, WARN_AFTER

__all__ = ["make_communicator"]


def make_communicator(name: str, ranks: tuple[int, ...], rank: int, shares_memory: bool) -> _native.Communicator:
    """Returns a communicator of these ranks, of which this process is ``ranks[rank]``. Every rank calls it, with the same name.

    ``shares_memory``: all of them share memory; otherwise gloo moves the bytes.
    """
    return _native.Communicator.make(
        state.session,
        name=name,
        rank=rank,
        world_size=len(ranks),
        shares_memory=shares_memory,
        backend="gloo",
        open_backend=lambda: ProcessGroupBackend(ranks, name, TIMEOUT, WARN_AFTER),
        timeout=TIMEOUT,
        warn_after=WARN_AFTER,
        spins=len(ranks) <= len(os.sched_getaffinity(0)),
    )
