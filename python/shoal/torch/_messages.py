"""Messages between two ranks of a process group, coalesced operations, and barriers that report missing ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from shoal import _native
from shoal.exceptions import ActorDiedError, DeadlineExceeded, InvalidArgument, Unimplemented
from shoal.torch._collectives import Collectives, one
from shoal.torch._errors import as_torch
from shoal.torch._tensors import dense, dtype_of, memory, written
from shoal.torch._work import Work

_TAGS = 32  # channels of a pair of ranks; messages whose tags differ by a multiple of it keep their order


class Messages(Collectives):
    """Sends and receives, ``monitored_barrier``, and torch's coalescing context.

    Messages between two ranks with the same tag keep their order.
    """

    _barriers: int  # number of monitored_barriers in this generation

    def __init__(
        self, native, rank: int, size: int, name: str, store: dist.Store, open_channel: Callable[[int, int], _native.Communicator]
    ):
        super().__init__(native, rank, size, name)
        self._store, self._open_channel = store, open_channel
        self._channels: dict[tuple[int, int], _native.Communicator] = {}  # by peer and tag
        self._met: set[_native.Communicator] = set()  # channels over which a message has come
        self._opening = threading.Lock()  # one thread at a time opens channels

    def send(self, tensors: torch.Tensor | Sequence[torch.Tensor], to: int, tag: int = 0) -> dist.Work:
        """Sends one tensor to rank ``to``, which receives one of the same size, dtype and tag."""
        t = one(tensors)
        if not t.is_cpu:
            return self.elsewhere(t.device).send([t], to, tag)
        source = dense(t)
        native, number = self._channel(to, tag)
        started = native.send(memory(source), number, dtype_of(source), tag, self._later)
        return self._message(to, started, source, native, result=[t], lane=("send", to, tag % _TAGS))

    def recv(self, tensors: torch.Tensor | Sequence[torch.Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receives the next message with this tag of rank ``source``."""
        t = one(tensors)
        if not t.is_cpu:
            return self.elsewhere(t.device).recv([t], source, tag)
        target, back = written(t)
        native, number = self._channel(source, tag)
        started = native.receive(memory(target), number, dtype_of(target), tag, self._later)
        lane = ("recv", source, tag % _TAGS)
        return self._message(source, started, target, native, result=[t], back=back, source=source, lane=lane)

    def recv_anysource(self, tensors: torch.Tensor | Sequence[torch.Tensor], tag: int = 0) -> dist.Work:
        """Raises ``Unimplemented``: a receive names its source."""
        raise as_torch(Unimplemented("a receive from any source is not supported by the backend shoal", hint="pass src= or group_src="))

    def _message(self, peer: int, native: _native.Work, tensor: torch.Tensor, channel: _native.Communicator, **more) -> Work:
        if channel is not self._native and channel not in self._met:
            more["guard"] = lambda: self._meet(peer, native, channel)
        return self.started([native], tensor, **more)

    def _meet(self, peer: int, native: _native.Work, channel: _native.Communicator) -> None:
        """Waits for the first message of a channel. A peer that died before it opened the channel was a member of the group only. So only
        the group reports its death."""
        pause = 20e-6
        while not native.ended():
            if peer in self._native.lost():
                raise ActorDiedError(
                    f"rank {peer} is gone: rank {self._rank} waits for a message of it, or to it",
                    reason="ActorDied",
                    hint=f"look at the output of rank {peer}",
                )
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
        self._met.add(channel)

    def _channel(self, peer: int, tag: int) -> tuple[_native.Communicator, int]:
        """Returns the communicator for messages with this tag, and the peer's rank there. In shared memory, tags have channels of their
        own, since the messages of one channel arrive in order."""
        if tag < 0 or tag >= 2**32:
            raise InvalidArgument(f"the tag {tag} is not between 0 and 2^32")
        at = tag % _TAGS
        if at == 0 or self._native.transport != "shm" or not 0 <= peer < self._size or peer == self._rank:
            return self._native, peer
        with self._opening:
            channel = self._channels.get((peer, at))
            if channel is None:
                channel = self._channels[peer, at] = self._open_channel(peer, at)
        return channel, int(peer > self._rank)

    # ---- coalescing ----

    def _start_coalescing(self, device: torch.device) -> None:
        if torch.device(device).type != "cpu":
            self.elsewhere(torch.device(device))._start_coalescing(device)
            return
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        if torch.device(device).type != "cpu":
            return self.elsewhere(torch.device(device))._end_coalescing(device)
        works, self._coalesced = self._coalesced or [], None
        return self._each(works, [t for w in works for t in w._result])

    # ---- barriers with a report ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until every rank has called it, at most for ``timeout``, by default the group's.

        After that time every rank raises ``DeadlineExceeded``, which names the first missing rank, or with ``wait_all_ranks`` all of them.
        The group stays usable.
        """
        limit = (timeout or self._timeout).total_seconds()
        self._barriers += 1
        at, end = f"shoal/monitored_barrier/{self._barriers}", time.monotonic() + limit
        if self._rank != 0:
            self._store.set(f"{at}/{self._rank}", "here")
            # Rank 0 reports missing ranks at its own time limit, which begins when it calls.
            if not self._arrives(f"{at}/done", end + limit):
                raise _late(f"rank 0 did not call monitored_barrier within {2 * limit:g} s, which rank {self._rank} did")
            if missing := self._store.get(f"{at}/done").decode():
                raise _late(missing)
            return
        missing = []
        for r in range(1, self._size):
            if not self._arrives(f"{at}/{r}", end):
                missing.append(r)
                if not wait_all_ranks:
                    break
        text = ""
        if missing:
            names = ", ".join(map(str, missing))
            text = f"Rank{'s' if len(missing) > 1 else ''} {names} failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
        self._store.set(f"{at}/done", text)
        if text:
            raise _late(text)

    def _arrives(self, key: str, end: float) -> bool:
        """Waits for a key of the store, until a time."""
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, end - time.monotonic())))
        except RuntimeError:
            return bool(self._store.check([key]))
        return True


def _late(text: str) -> Exception:
    return as_torch(DeadlineExceeded(text, reason="Late", hint="look at the output of the missing ranks"))
