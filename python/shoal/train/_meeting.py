"""The process group of a training, and the meetings in which its workers make the next one: all waits end when a worker dies."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import shoal.torch  # noqa: F401  it registers the backend
from shoal._distributed import ranks
from shoal.exceptions import Unavailable
from shoal.train._context import _Here

_TRY = timedelta(seconds=1)  # for one attempt to reach a store: torch goes on although its process has ended
_CHECK_S = 0.002  # between two looks for keys
_ATTEMPT_S = 0.02  # between two attempts to reach a store that does not listen


class Guard:
    """Reports the first death of a worker that takes part in the change to a generation, or that trains in it (``begun``)."""

    def __init__(self, generation: int, begun: bool = False):
        self._dead = _Here.driver.lost.remote(_Here.worker, generation, begun)  # the driver makes it ready

    def check(self) -> None:
        """Raises Unavailable if one has died."""
        if self._dead._ref.ready:
            raise Unavailable("another worker has died while this one waited for it", reason="ActorDied")


class GuardedStore(dist.Store):
    """A store whose waits end when a worker dies, those of torch, too. ``store``: has the keys. Its user keeps it: torch holds only the
    part that is not Python."""

    def __init__(self, store: dist.Store, guard: Guard | None):
        super().__init__()
        self._store, self.guard = store, guard

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        timeout = self._store.timeout if timeout is None else timeout
        until = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise dist.DistStoreError(f"{', '.join(keys)} did not come within {timeout.total_seconds():g} s")
            time.sleep(_CHECK_S)  # the store's own wait logs a warning each time that it ends without the keys

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Raises Unavailable if keys are missing and a worker has died: a caller that looks again and again ends, too."""
        found = self._store.check(keys)
        if not found and self.guard is not None:
            self.guard.check()
        return found

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        return self._store.num_keys()

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout


def first_process_group(backend: str) -> GuardedStore:
    """Makes the default process group of the first workers of an elastic training, by their environment. Returns its store."""
    inner, rank, size = next(dist.rendezvous("env://"))
    store = GuardedStore(inner, None if _Here.newcomer else Guard(1, begun=True))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return store


def begin_process_group(own: dist.TCPStore, environment: dict[str, str], backend: str, guard: Guard, limit: timedelta) -> GuardedStore:
    """Makes the default process group of the workers that ``environment`` describes. ``own``: this worker's store, in which all meet if its
    rank becomes 0. ``limit``: its wait for the others. Returns the group's store. Raises Unavailable if one of them dies."""
    os.environ.update(environment)
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    inner = own if rank == 0 else _reach((environment["MASTER_ADDR"], int(environment["MASTER_PORT"])), guard, limit)
    store = GuardedStore(inner, guard)
    store.set(f"shoal/{rank}", "")
    store.wait([f"shoal/{other}" for other in range(size)], limit)
    ranks.forget_names()  # those of the store before: a new worker counts from the begin, too
    c10d.init_process_group(backend, store=store, rank=rank, world_size=size)
    return store


def _reach(address: tuple[str, int], guard: Guard, limit: timedelta) -> dist.TCPStore:
    """Connects to another worker's store, which listens unless that worker is dead."""
    until = time.monotonic() + limit.total_seconds()
    while True:
        guard.check()
        try:
            socket.create_connection(address, 1.0).close()
            store = dist.TCPStore(*address, is_master=False, timeout=_TRY)
            store.set_timeout(limit)
            return store
        except (OSError, dist.DistError):
            if time.monotonic() > until:
                raise
            time.sleep(_ATTEMPT_S)
