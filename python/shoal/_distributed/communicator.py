"""The communicator of a group of ranks, over shared memory, a network of messages or gloo."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from shoal import _native
from shoal._core.process import state
from shoal._distributed.process_group import ProcessGroupBackend
from shoal._distributed.ranks import TIMEOUT, WARN_AFTER, default_store, network
from shoal.exceptions import DeadlineExceeded

__all__ = ["Exchange", "form_communicator", "make_communicator"]


class Exchange:
    """Returns what every rank has passed, by a store of all of them; if None, the default process group's. Ranks make the same calls with
    the same names. ``timeout``: seconds to wait for them. ``watch``: called twice a second or more while this rank waits; may raise an
    error, which ends the wait."""

    def __init__(
        self,
        name: str,
        world_size: int,
        rank: int,
        store: dist.Store | None = None,
        timeout: float = TIMEOUT,
        watch: Callable[[], None] | None = None,
    ):
        self._store, self._watch = store or default_store(), watch
        self._name, self._world_size, self._rank, self._timeout = name, world_size, rank, timeout
        self._calls: dict[str, int] = {}

    def __call__(self, name: str, own: bytes) -> list[bytes]:
        self._calls[name] = self._calls.get(name, 0) + 1
        prefix = f"shoal/exchange/{self._name}/{name}/{self._calls[name]}"
        self._store.set(f"{prefix}/{self._rank}", own)
        began = time.monotonic()
        return [self._get(f"{prefix}/{r}", r, began) for r in range(self._world_size)]

    def check(self) -> None:
        """Raises an error if the store knows that one of the ranks is gone, or if the store itself is gone."""
        self._store.check([f"shoal/exchange/{self._name}"])

    def _get(self, key: str, rank: int, began: float) -> bytes:
        warn_at = began + WARN_AFTER
        while not self._store.check([key]):
            if self._watch is not None:
                self._watch()
            with contextlib.suppress(RuntimeError):  # the key is not there yet
                self._store.wait([key], timedelta(seconds=min(0.5, self._timeout)))
            now = time.monotonic()
            if now > warn_at:
                print(f"shoal: warning: rank {self._rank} waits since {now - began:.0f} s for rank {rank} to connect", file=sys.stderr)
                warn_at = now + 6 * WARN_AFTER
            if now - began > self._timeout:
                raise DeadlineExceeded(
                    f"rank {self._rank} waited {now - began:.0f} s for rank {rank} to connect ({self._name})",
                    hint="look at the output of that rank: it may have failed, or it runs no forward",
                )
        return self._store.get(key)


def make_communicator(
    name: str,
    ranks: tuple[int, ...],
    rank: int,
    shares_memory: bool,
    *,
    store: dist.Store | None = None,
    timeout: float = TIMEOUT,
    watch: Callable[[], None] | None = None,
    spins: bool = True,
    device: _native.Device | None = None,
) -> _native.Communicator:
    """Returns a communicator of these ranks, of which this process is ``ranks[rank]``. Every rank calls it, with the same name.

    ``shares_memory``: all of them share memory. Otherwise a network moves the bytes: that of ``SHOAL_TRANSPORT``.
    ``store``: one of all these ranks, by default that of the default process group. ``timeout``: seconds until an operation fails that has
    no limit of its own. ``watch``: see Exchange; gloo's waits do not call it. ``spins``: a waiting rank polls for a moment before it
    sleeps. ``device``: the operations' buffers are memory of it.
    """
    return _native.Communicator.make(
        state.session,
        name=name,
        rank=rank,
        world_size=len(ranks),
        shares_memory=shares_memory,
        exchange=Exchange(name, len(ranks), rank, store, timeout, watch),
        network=network(),
        backend="gloo",
        open_backend=lambda: ProcessGroupBackend(store or default_store(), rank, len(ranks), name, timeout, WARN_AFTER),
        timeout=timeout,
        warn_after=WARN_AFTER,
        spins=spins,
        device=device or _native.Device(transport="", number=0),
    )


def form_communicator(
    name: str,
    ranks: tuple[int, ...],
    rank: int,
    shares: bool,
    *,
    store: dist.Store | None = None,
    timeout: float = TIMEOUT,
    watch: Callable[[], None] | None = None,
    **more: bool,
) -> _native.Communicator:
    """As ``make_communicator``, and waits for all ranks. From then on each rank's death is known to the others. A rank may then leave
    at once, even if its process has the store: no rank needs the store any more to open its communicator."""
    native = make_communicator(name, ranks, rank, shares, store=store, timeout=timeout, watch=watch, **more)
    try:
        if native.transport == "shm":  # a network has connected all ranks by now; in shared memory some may be missing
            Exchange(name, len(ranks), rank, store, timeout, watch)("made", b"")
        native.barrier(("the group is formed", 0, 0.0, False)).wait()
    except BaseException:
        native.leave()
        raise
    return native
