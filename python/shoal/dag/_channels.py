"""Values in transit through a graph. Small ones lie in a channel (``python/native/transport/channel.cc``), large ones in separate shared
memory of the node, which the reader maps and releases."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal import _native
from shoal._core import serialize
from shoal._core.process import state
from shoal._objects.refs import new_object_id
from shoal.exceptions import InvalidArgument, RayChannelTimeoutError, TaskError

__all__ = ["Layout", "Outgoing", "Packed", "Raised"]

_MAX_CAPACITY = 1 << 30  # same as in runtime/shm/ring.h
_DEFAULT_LIMIT = 1_000_000  # Ray's default
_DEFAULT_MEMORY = 256 << 20  # approximate bytes of all channels, reserved by the node, though few pages are touched
_OVERHEAD = 96  # bytes per record
_PER_BUFFER = 72
_CHECK_S = 0.05  # interval of the checks whether the graph has ended
_SMALLEST = 256  # lowest limit, which fits a reference to a value in separate memory


@dataclass(frozen=True)
class Layout:
    """The description of the memory of a graph's channels, by which each process of the graph opens it."""

    name: str
    count: int
    capacity: int  # bytes of each channel
    limit: int  # bytes of the largest record

    @staticmethod
    def default_limit(count: int, in_flight: int) -> int:
        return max(_SMALLEST, min(_DEFAULT_LIMIT, _DEFAULT_MEMORY // (2 * count * (in_flight + 1)) - _OVERHEAD))

    @staticmethod
    def for_limit(name: str, count: int, limit: int, in_flight: int) -> Layout:
        """Returns a layout in which writes never wait. A channel has room for a value of the maximum size from each execution in flight,
        and for one more: a value that does not fit before the ring's end begins at its start. An eighth of the channel may still have
        values that were read. Pages are allocated on use."""
        limit = max(limit, _SMALLEST)
        capacity = 1 << 16
        while capacity - capacity // 8 < (limit + _OVERHEAD) * (in_flight + 1):
            capacity *= 2
        if capacity > _MAX_CAPACITY:
            raise InvalidArgument(
                f"{in_flight} executions at once with {limit} bytes each need channels of {capacity} bytes; there are {_MAX_CAPACITY}",
                hint="choose a smaller _buffer_size_bytes: larger values then travel in separate shared memory",
            )
        return Layout(name, count, capacity, limit)

    def open(self) -> _native.Channels:
        return _native.Channels(state.session, self.name, self.count, self.capacity)


class Raised:
    """A packed exception of a method, in place of its result and of all dependent results."""

    __slots__ = ("buffers", "head")

    def __init__(self, head: bytes, buffers: list):
        self.head, self.buffers = head, buffers

    @classmethod
    def from_error(cls, error: BaseException, where: str) -> Raised:
        return cls(*serialize.dump_exception(error, where))

    def error(self) -> BaseException:
        error = serialize.loads(self.head, self.buffers)
        return error.as_instance_of_cause() if isinstance(error, TaskError) else error


class Packed:
    """A pickled value from a channel; plain values, such as numbers, arrive as they are. A value in separate memory is released when it is
    loaded or no longer wanted."""

    __slots__ = ("_buffers", "_elsewhere", "_head", "_raised")

    def __init__(self, head: bytes, buffers: list, raised: bool, elsewhere: bool):
        self._head, self._buffers, self._raised, self._elsewhere = head, buffers, raised, elsewhere

    def load(self, ended: Callable[[], None], end: float | None = None) -> Any:
        """Returns the value, or a Raised if it cannot be loaded here. ``ended`` raises once the graph has ended, because the writer may
        then have released a value in separate memory. RayChannelTimeoutError at ``end`` (time.monotonic)."""
        failure = self._fetch(ended, end) if self._elsewhere else None
        if failure is not None:
            return Raised.from_error(failure, "loading a value")
        try:
            return Raised(self._head, self._buffers) if self._raised else serialize.loads(self._head, self._buffers)
        except Exception as error:
            return Raised.from_error(error, "loading a value")

    def _fetch(self, ended: Callable[[], None], end: float | None) -> Exception | None:
        ended()
        object_id, owner = self._head.decode().split()
        ref = state.session.fetch(object_id, owner)
        while not state.session.wait_all([ref], _CHECK_S if end is None else min(_CHECK_S, max(0.0, end - time.monotonic()))):
            ended()
            if end is not None and time.monotonic() >= end:
                raise RayChannelTimeoutError("the value did not arrive within the timeout")
        if ref.failed:
            ended()
        try:
            head, buffers = ref.value()
        except Exception as error:
            return error
        self._head, self._buffers, self._elsewhere = head, buffers, False
        state.session.drop(object_id)
        return None

    def __del__(self):
        if self._elsewhere:
            with contextlib.suppress(Exception):  # the session is closed and has released all
                state.session.drop(self._head.decode().split()[0])


class Outgoing:
    """Writes values to channels, in the order of the calls."""

    def __init__(self, limit: int, in_flight: int):
        self._limit = limit
        self._elsewhere: deque[str] = deque(maxlen=in_flight)  # ids of values that may be unread

    def send(self, senders: list[_native.Sender], value: Any) -> None:
        for write in self.writes(senders, value):
            write()

    def writes(self, senders: list[_native.Sender], value: Any) -> list[Callable[[], Any]]:
        """Returns one function per channel, which writes the value. If the value cannot be pickled, this raises, and nothing is written."""
        if type(value) is Raised:
            return self._packed(senders, value.head, value.buffers, True)
        if senders and senders[0].takes(value):
            return [partial(s.write, value) for s in senders]
        return self._packed(senders, *serialize.dumps(value), False)

    def _packed(self, senders: list[_native.Sender], head: bytes, buffers: list, raised: bool) -> list[Callable[[], Any]]:
        bytes_ = len(head) + sum(memoryview(b).nbytes + _PER_BUFFER for b in buffers) + _OVERHEAD
        if bytes_ <= self._limit:
            return [partial(s.write_pickle, head, buffers, raised) for s in senders]
        session = state.session
        ref, out = session.put(head, buffers), []
        for sender in senders:  # one memory, with an id for each reader to release
            object_id = new_object_id()
            session.give(ref, object_id)
            self._elsewhere.append(object_id)
            out.append(partial(sender.write_elsewhere, f"{object_id} {session.worker}".encode(), raised))
        return out

    def end(self) -> None:
        """Releases the values in separate memory, because the readers are gone."""
        with contextlib.suppress(Exception):
            for object_id in self._elsewhere:
                state.session.drop(object_id)
        self._elsewhere.clear()
