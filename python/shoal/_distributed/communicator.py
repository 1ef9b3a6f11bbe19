"""The communicator of a group of ranks, over shared memory, a network of messages or gloo."""

from __future__ import annotations

import os

import torch.distributed as dist

from shoal import _native
from shoal._core.process import state
from shoal._distributed.process_group import ProcessGroupBackend
from shoal._distributed.ranks import TIMEOUT, TRANSPORT, WARN_AFTER, default_store

__all__ = ["Exchange", "make_communicator"]


class Exchange:
    """Returns what every rank has passed, by a store of all of them, the default process group's if None. Ranks make the same calls with the
    same names."""

    def __init__(self, name: str, world_size: int, rank: int, store: dist.Store | None = None):
        self._store = store or default_store()
        self._name, self._world_size, self._rank = name, world_size, rank
        self._calls = 0

    def __call__(self, name: str, own: bytes) -> list[bytes]:
        self._calls += 1
        prefix = f"shoal/exchange/{self._name}/{name}/{self._calls}"
        self._store.set(f"{prefix}/{self._rank}", own)
        return [self._store.get(f"{prefix}/{r}") for r in range(self._world_size)]


def make_communicator(
    name: str,
    ranks: tuple[int, ...],
    rank: int,
    shares_memory: bool,
    *,
    store: dist.Store | None = None,
    timeout: float = TIMEOUT,
) -> _native.Communicator:
    """Returns a communicator of these ranks, of which this process is ``ranks[rank]``. Every rank calls it, with the same name.

    ``shares_memory``: all of them share memory. Otherwise a network moves the bytes: that of ``SHOAL_TRANSPORT``.
    ``store``: one of all these ranks, by default that of the default process group. ``timeout``: seconds until an operation fails that has
    no limit of its own.
    """
    return _native.Communicator.make(
        state.session,
        name=name,
        rank=rank,
        world_size=len(ranks),
        shares_memory=shares_memory,
        exchange=Exchange(name, len(ranks), rank, store),
        kind=TRANSPORT,
        backend="gloo",
        open_backend=lambda: ProcessGroupBackend(store or default_store(), rank, len(ranks), name, timeout, WARN_AFTER),
        timeout=timeout,
        warn_after=WARN_AFTER,
        spins=len(ranks) <= len(os.sched_getaffinity(0)),
    )
