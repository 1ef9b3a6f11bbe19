"""Streams as queues of pending operations. A clock says, for each stream, which of its operations are before a point.

An operation runs when those before it have run: earlier ones of its stream, and those before the marks that its stream has awaited. Among
the operations that may run, a seed chooses, and how many run at all before the host waits.

A host that waits for another rank, not for its device, gives its device time: ``Helper`` then runs what is pending. Without it, two ranks
would wait for each other, one in a collective and the other one outside of any.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

STREAMS = ("present", "pack", "gather", "reduce", "replicas", "copies", "saves")

# The number of each stream's operations that are before a point. A stream that is missing has none.
Clock = dict[str, int]


def join(clock: Clock, other: Clock) -> None:
    for stream, position in other.items():
        if clock.get(stream, 0) < position:
            clock[stream] = position


@dataclass(eq=False)
class Operation:
    stream: str
    position: int
    name: str
    clock: Clock  # streams and marks order these before it, and itself
    run: Callable[[], None]
    collective: bool
    after: list[Operation] = field(default_factory=list)  # further operations that run before, though no mark orders them
    done: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.stream} {self.position})"


class Queues:
    def __init__(self, seed: int):
        self.lock = threading.RLock()  # the host and its helper
        self.calls = 0  # the host's
        self._random = random.Random(seed)
        self._clocks: dict[str, Clock] = {s: {} for s in STREAMS}
        self._host: Clock = {}  # the host has waited for these
        self._pending: dict[str, deque[Operation]] = {s: deque() for s in STREAMS}
        self._done: Clock = dict.fromkeys(STREAMS, 0)
        self._collectives: deque[Operation] = deque()
        # Some seeds run nothing until the host waits, and most let one stream fall behind the others.
        self._eager = self._random.choice((0.0, 0.02, 0.1, 0.3))
        self._weights = {s: self._random.choice((0.0, 0.1, 1.0)) for s in STREAMS}

    # ---- the host ----

    def clock(self, stream: str) -> Clock:
        """Returns the clock of the next operation of ``stream``."""
        self.calls += 1
        clock = self._clocks[stream]
        join(clock, self._host)
        return clock

    def add(self, stream: str, name: str, run: Callable[[], None], collective: bool = False) -> Operation:
        clock = self.clock(stream)
        clock[stream] = position = clock.get(stream, 0) + 1
        op = Operation(stream, position, name, dict(clock), run, collective)
        with self.lock:
            if collective:
                # All ranks run their collectives in the order of their programs. So no two ranks wait for each other.
                op.after += self._collectives
                self._collectives.append(op)
            self._pending[stream].append(op)
        return op

    def wait(self, stream: str, mark: Clock) -> None:
        """Later operations of ``stream`` are behind the mark."""
        join(self._clocks[stream], mark)

    def host_waits(self, mark: Clock) -> None:
        self.run_before(mark)
        join(self._host, mark)

    # ---- the device ----

    def lag(self) -> None:
        """At any call of the program the device may do some of its work."""
        with self.lock:
            while self._random.random() < self._eager:
                self._run_one([q[0] for s, q in self._pending.items() if q and self._random.random() < self._weights[s]])

    def run_one(self) -> bool:
        """Runs an operation, if there is one."""
        with self.lock:
            return self._run_one([q[0] for q in self._pending.values() if q])

    def _run_one(self, heads: list[Operation]) -> bool:
        ready = [op for op in heads if self._missing(op) is None]
        if ready:
            self._run(self._random.choice(ready))
        return bool(ready)

    def run_before(self, mark: Clock) -> None:
        """Runs what is before the mark, and no more. Streams take turns at random."""
        streams = list(mark)
        self._random.shuffle(streams)
        with self.lock:
            for stream in streams:
                while self._done[stream] < mark[stream]:
                    self._run_with_earlier(self._pending[stream][0])

    def run_all(self) -> None:
        self.run_before({s: self._clocks[s].get(s, 0) for s in STREAMS})

    def run_through(self, op: Operation) -> None:
        self.run_before(op.clock)

    def _run_with_earlier(self, op: Operation) -> None:
        stack = [op]
        while stack:
            earlier = self._missing(stack[-1])
            if earlier is None:
                self._run(stack.pop())
            else:
                stack.append(earlier)

    def _missing(self, op: Operation) -> Operation | None:
        """Returns an operation that has to run before ``op``, which is the first of its stream."""
        for stream, position in op.clock.items():
            if stream != op.stream and self._done[stream] < position:
                return self._pending[stream][0]
        for other in op.after:
            if not other.done:
                return self._pending[other.stream][0]
        return None

    def _run(self, op: Operation) -> None:
        assert self._pending[op.stream].popleft() is op
        if op.collective:
            assert self._collectives.popleft() is op
        self._done[op.stream], op.done = op.position, True
        run, op.run, op.after = op.run, _nothing, []
        run()


class Helper:
    """A thread that runs pending operations while the host makes no call."""

    def __init__(self, queues: Queues, within: Callable[[], AbstractContextManager]):
        self._queues, self._within = queues, within
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._help, daemon=True)
        self._thread.start()

    def _help(self) -> None:
        calls = -1
        while not self._end.wait(0.05):  # the length decides nothing but when a waiting host gets help
            with self._within():
                while calls == self._queues.calls and self._queues.run_one():
                    pass
            calls = self._queues.calls

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def _nothing() -> None:
    pass
