"""The process group of a training, and the meetings in which its workers make the next one: all waits end when a worker dies.

A store is in the process of one worker. If that worker's host is lost without a message to the others, the kernel ends requests to the
store after ``_SILENCE_S``; then the node's report of the loss decides.

Threads of torch call a store, too. Threads of its NCCL group look for keys about every second, and treat any exception as an answer. They
wait for the GIL, which no call here holds while it waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import shoal.torch  # noqa: F401  it registers the backend
from shoal._distributed import ranks
from shoal._objects.values import get
from shoal.exceptions import Unavailable
from shoal.train._device_groups import AbortOnDeath
from shoal.train._sockets import addresses_of, open_fds, peer_of, set_option
from shoal.train._worker import Worker

_TRY = timedelta(seconds=1)  # torch's limit for one attempt to reach a store: it goes on trying although the store's process has ended
_CHECK_S = 0.002  # between two checks for keys
_ATTEMPT_S = 0.02  # between two attempts to reach a store that does not listen
_SILENCE_S = 8  # a host that answers nothing for so long ends requests to its store, as it ends a rank in a protected training
_DOUBT_S = 15.0  # the longest wait for the report of a death that has ended a store: a node counts as dead after some missed heartbeats


class Guard:
    """Reports the first death of a worker that takes part in the change to a generation, or that trains in it (``begun``)."""

    def __init__(self, worker: Worker, generation: int, begun: bool = False):
        self._dead = worker.driver.lost.remote(worker.role.number, generation, begun)  # the driver makes it ready
        self._aborts = AbortOnDeath(lambda: get(self._dead), worker.spoil_step) if begun and worker.scaling.use_gpu else None

    def end(self) -> None:
        """Called when another guard reports deaths from now on, or when this worker knows of one already."""
        if self._aborts is not None:
            self._aborts.end()

    def check(self) -> None:
        """Raises Unavailable if one of the watched workers has died."""
        if self._dead._ref.ready:
            raise Unavailable("another worker has died while this one waited for it", reason="ActorDied")


class GuardedStore(dist.Store):
    """A store whose waits end when a worker dies, also waits of torch. ``store``: has the keys. The caller has to keep this object: torch
    holds only the part that is not Python. ``original``: the store of which this one is a clone."""

    def __init__(self, store: dist.Store, guard: Guard | None, original: GuardedStore | None = None):
        super().__init__()
        self._store, self.guard = store, guard
        self._original = original or self
        _limit_silence(store)
        self._lost: tuple[Exception, float] | None = None  # why the store has no connection any more, and since when
        self._clones: list[GuardedStore] = []

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
        """Raises Unavailable if keys are missing and a worker has died, so that a caller that polls ends, too. A store without a connection
        has no keys; if no death is reported, it raises the connection's error."""
        guard = self._original.guard
        if self._lost is None:
            try:
                if self._store.check(keys):
                    return True
            except dist.DistNetworkError as error:
                if guard is None:
                    raise
                self._lost = error, time.monotonic()
        if guard is not None:
            guard.check()
        if self._lost is not None and time.monotonic() - self._lost[1] > _DOUBT_S:
            raise self._lost[0]
        return False

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        return self._store.num_keys()

    deleteKey, getNumKeys = delete_key, num_keys  # the names by which torch's C++ calls them

    def clone(self) -> GuardedStore:
        """Returns a store with a connection of its own and this store's guard, for another thread. This store keeps the new one."""
        self._clones.append(GuardedStore(self._store.clone(), None, self._original))
        return self._clones[-1]

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout


def _limit_silence(store: dist.Store) -> None:
    """Makes the kernel end this process's connections to a store whose host answers nothing, because a request of torch waits without a
    limit."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return
    with contextlib.suppress(OSError):  # no such host any more
        hosts = set(addresses_of(store.host, store.port))
        for fd in open_fds():
            if (peer := peer_of(fd)) is not None and peer[1] == store.port and peer[0] in hosts:
                set_option(fd, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for an answer lost behind an acknowledged request
                set_option(fd, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
                set_option(fd, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
                set_option(fd, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def first_process_group(worker: Worker, backend: str) -> GuardedStore:
    """Makes the default process group of the first workers of an elastic training, by their environment. Returns its store."""
    inner, rank, size = next(dist.rendezvous("env://"))
    store = GuardedStore(inner, None if worker.role.newcomer else Guard(worker, 1, begun=True))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return store


def begin_process_group(own: dist.TCPStore, environment: dict[str, str], backend: str, guard: Guard, limit: timedelta) -> GuardedStore:
    """Makes the default process group of the workers that ``environment`` describes. ``own``: this worker's store, in which all meet if its
    rank becomes 0. ``limit``: the longest wait for the others. Returns the group's store. Raises Unavailable if one of them dies."""
    os.environ.update(environment)
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    inner = own if rank == 0 else _reach((environment["MASTER_ADDR"], int(environment["MASTER_PORT"])), guard, limit)
    store = GuardedStore(inner, guard)
    store.set(f"shoal/{rank}", "")
    store.wait([f"shoal/{other}" for other in range(size)], limit)
    ranks.forget_names()  # the counts belong to the former store, and new workers count from 1, too
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
