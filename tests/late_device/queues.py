"""Streams as queues of pending operations. A clock says, for each stream, how many of its operations are before a point.

An operation runs when those before it have run: earlier ones of its stream, and those before the marks that its stream has awaited. Among
the operations that may run, a seed chooses, and how many run at all before the host waits.

A collective waits for the other ranks. So no rank runs one by chance of its own: all ranks draw from the seed, when the program issues a
collective, up to which earlier one they run now. They issue collectives in one order, so no two of them wait for each other, and a seed
decides the whole order of a program in which ranks do the same. In others, a host may wait for another rank's host, and that one for a
collective. ``Helper`` then runs what is pending.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

STREAMS = ("present", "pack", "gather", "reduce", "replicas", "copies", "saves")
PRESENT, PACK, GATHER, REDUCE, REPLICAS, COPIES, SAVES = _ALL = range(len(STREAMS))

# By stream: the number of its operations that are before a point.
Clock = list[int]
START: Clock = [0] * len(STREAMS)


def join(clock: Clock, other: Clock) -> None:
    for stream in _ALL:
        if clock[stream] < other[stream]:
            clock[stream] = other[stream]


@dataclass(eq=False, slots=True)
class Operation:
    stream: int
    position: int
    name: str
    clock: Clock  # streams and marks order these before it, and itself
    run: Callable[[], None]
    collective: bool
    after: list[Operation] = field(default_factory=list)  # further operations that run before, though no mark orders them
    done: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({STREAMS[self.stream]} {self.position})"


class Queues:
    """``rank``: chooses among this rank's operations; the order of collectives depends on the seed alone. ``eager``: how likely the device
    works at a call of the program, in place of the seed's choice."""

    def __init__(self, seed: int, rank: int = 0, eager: float | None = None):
        self.lock = threading.RLock()  # the host and its helper
        self.calls = 0  # the host's
        self._random, self._shared = random.Random(100 * seed + rank), random.Random(seed)
        self._clocks: list[Clock] = [START.copy() for _ in STREAMS]
        self._host: Clock = START.copy()  # the host has waited for these
        self._behind_host = [True] * len(STREAMS)  # the stream's clock contains the host's
        self._pending: list[deque[Operation]] = [deque() for _ in STREAMS]
        self._done: Clock = START.copy()
        self._collectives: deque[Operation] = deque()
        self._issued = 0  # collectives
        # Some seeds run nothing until the host waits, and most let one stream fall behind the others.
        chosen = self._random.choice((0.0, 0.02, 0.1, 0.3))
        self._eager = chosen if eager is None else eager
        self._weights = [self._random.choice((0.0, 0.1, 1.0)) for _ in STREAMS]
        self._shared_eager = self._shared.choice((0.0, 0.1, 0.5, 1.0))

    # ---- the host ----

    def clock(self, stream: int) -> Clock:
        """Returns the clock of the next operation of ``stream``."""
        self.calls += 1
        clock = self._clocks[stream]
        if not self._behind_host[stream]:
            join(clock, self._host)
            self._behind_host[stream] = True
        return clock

    def add(self, stream: int, name: str, run: Callable[[], None], collective: bool = False) -> Operation:
        clock = self.clock(stream)
        clock[stream] = position = clock[stream] + 1
        op = Operation(stream, position, name, clock.copy(), run, collective)
        with self.lock:
            if collective:
                # All ranks run their collectives in the order of their programs. So no two ranks wait for each other.
                if self._collectives:
                    op.after.append(self._collectives[-1])
                self._collectives.append(op)
                self._issued += 1
            self._pending[stream].append(op)
        return op

    def wait(self, stream: int, mark: Clock) -> None:
        """Later operations of ``stream`` are behind the mark."""
        join(self._clocks[stream], mark)

    def host_waits(self, mark: Clock) -> None:
        self.run_before(mark)
        join(self._host, mark)
        self._behind_host = [False] * len(STREAMS)

    # ---- the device ----

    def hurries(self) -> bool:
        """At any call of the program the device may do some of its work: ``lag``."""
        return self._random.random() < self._eager

    def lag(self) -> None:
        with self.lock:
            while True:
                heads = [q[0] for q, weight in zip(self._pending, self._weights, strict=True) if q and self._random.random() < weight]
                self._run_one([op for op in heads if not op.collective])
                if not self.hurries():
                    return

    def due_collective(self) -> Operation | None:
        """Returns the collective that all ranks run now, behind the issue of another one. Their numbers of collectives are the same, also
        where some have run more of them."""
        if self._shared.random() >= self._shared_eager:
            return None
        upto = self._issued - self._shared.choice((0, 1, 1, 2, 4))
        pending = len(self._collectives) - (self._issued - upto)
        return self._collectives[pending - 1] if pending > 0 else None

    def run_one(self) -> bool:
        """Runs an operation, if there is one."""
        with self.lock:
            return self._run_one([q[0] for q in self._pending if q])

    def _run_one(self, heads: list[Operation]) -> bool:
        ready = [op for op in heads if self._missing(op) is None]
        if ready:
            self._run(self._random.choice(ready))
        return bool(ready)

    def run_before(self, mark: Clock) -> None:
        """Runs what is before the mark, and no more. Streams take turns at random."""
        done, streams = self._done, [stream for stream in _ALL if self._done[stream] < mark[stream]]
        if len(streams) > 1:
            self._random.shuffle(streams)
        with self.lock:
            for stream in streams:
                while done[stream] < mark[stream]:
                    self._run_with_earlier(self._pending[stream][0])

    def run_all(self) -> None:
        self.run_before([self._clocks[s][s] for s in _ALL])

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
        done, clock = self._done, op.clock
        for stream in _ALL:
            if done[stream] < clock[stream] and stream != op.stream:
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
