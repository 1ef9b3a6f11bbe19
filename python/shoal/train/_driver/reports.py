"""The workers' reports, in the driver: each is a barrier, and is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.exceptions import InvalidArgument, ShoalError, Unavailable
from shoal.train._chaos.pace import Metronome

Metrics = dict[str, Any]


class Reports:
    """``members``: by generation, the workers in the order of their ranks. ``ended``: workers whose loop has ended; ``dead``: those whose
    process has ended; ``interrupted``: those that have stopped their step. The caller changes these sets, and then calls ``check``."""

    def __init__(
        self,
        members: dict[int, tuple[int, ...]],
        ended: set[int],
        dead: set[int],
        interrupted: dict[int, int],
        reply: Callable[[Any, Any], None],
        refuse: Callable[[Any, BaseException], None],
        record: Callable[[Metrics], None],
    ):
        self._members, self._ended, self._dead, self._interrupted = members, ended, dead, interrupted
        self._reply, self._refuse, self._recorder = reply, refuse, record
        # By generation and number: reports that wait for other workers, as (worker, call, metrics).
        self._waiting: dict[tuple[int, int], list[tuple[int, Any, Metrics]]] = {}
        self._last = 0  # the number of the last complete report
        self.metronome = Metronome()
        self.undone = 0  # complete reports whose steps the present generation has undone
        # A report that a death has stopped: (generation, number), the rank of its worker, and the metrics.
        self._aside: tuple[tuple[int, int], int, Metrics] | None = None

    @property
    def complete(self) -> int:
        return self._last

    def add(self, call: Any, worker: int, generation: int, number: int, metrics: Metrics) -> None:
        if number <= self._last:  # recorded already: its step runs again
            self._reply(call, None)
            return
        self._waiting.setdefault((generation, number), []).append((worker, call, metrics))
        self.check()

    def check(self) -> None:
        """Completes the reports for which no living worker is missing. Fails reports that wait for a worker whose loop has ended, or that
        is interrupted."""
        for key, calls in list(self._waiting.items()):
            callers = {caller for caller, _, _ in calls}
            missing = {w: rank for rank, w in enumerate(self._members[key[0]]) if w not in callers and w not in self._dead}
            error: ShoalError | None = None
            if not missing:
                self._complete(key)
            elif without := [rank for w, rank in missing.items() if w in self._ended]:
                error = InvalidArgument(
                    f"rank {without[0]} ended its loop without report number {key[1]}", hint="report equally often on every rank"
                )
            elif any(w in self._interrupted for w in missing):
                error = Unavailable(f"report number {key[1]} is dropped, because a worker has died", reason="ActorDied")
            if error is not None:
                for worker, call, metrics in self._waiting.pop(key):
                    self._put_aside(key, self._members[key[0]].index(worker), metrics)
                    self._refuse(call, error)

    def continue_at(self, number: int) -> None:
        """Called after a recovery, with the number of reports that the workers have made. Records a report that a death has stopped, if its
        step counts."""
        self.undone = max(0, self._last - number)
        if self._aside is None:
            return
        (_, reported), _, metrics = self._aside
        if self._last < reported <= number:
            self._record(reported, metrics)
            self._aside = None

    def _put_aside(self, key: tuple[int, int], rank: int, metrics: Metrics) -> None:
        """Keeps the metrics of the lowest rank."""
        if self._aside is None or self._aside[0] != key or rank < self._aside[1]:
            self._aside = key, rank, metrics

    def _complete(self, key: tuple[int, int]) -> None:
        calls, order = self._waiting.pop(key), self._members[key[0]]
        self._record(key[1], min(calls, key=lambda c: order.index(c[0]))[2])
        for _, call, _ in calls:
            self._reply(call, None)

    def _record(self, number: int, metrics: Metrics) -> None:
        self._last = number
        self.metronome.report()
        self._recorder(metrics)
