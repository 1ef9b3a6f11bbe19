"""The driver's side of workers that wait for others: a wait ends when one of those others dies, or when no death is reported in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Watches:
    """``dead``: the workers whose process has ended. The caller changes this set, and then calls ``died``."""

    def __init__(self, dead: set[int], reply: Callable[[Any, Any], None]):
        self._dead, self._reply = dead, reply
        self._waiting: dict[int, tuple[tuple[int, ...], Any]] = {}  # by worker: the others, and the call that is answered at a death

    def add(self, call: Any, worker: int, others: tuple[int, ...]) -> None:
        """Answers the call once one of ``others`` is dead, or when the same worker calls again."""
        if (before := self._waiting.pop(worker, None)) is not None:
            self._reply(before[1], None)
        if dead := self._dead.intersection(others):
            self._reply(call, min(dead))
        else:
            self._waiting[worker] = others, call

    def died(self, worker: int) -> None:
        for watcher, (others, call) in list(self._waiting.items()):
            if worker in others:
                del self._waiting[watcher]
                self._reply(call, worker)


class Doubts:
    """Waits of workers that an error has stopped, for the report of a death. ``doubt``: called in a thread when the time is over, with the
    worker and the number of its wait."""

    def __init__(self, doubt: Callable[[int, int], None]):
        self._doubt = doubt
        self._number = 0
        self._timers: list[threading.Timer] = []

    def begin(self, worker: int, seconds: float) -> int:
        """Returns the number of this wait."""
        self._number += 1
        timer = threading.Timer(seconds, self._doubt, (worker, self._number))
        timer.daemon = True
        self._timers = [t for t in self._timers if t.is_alive()] + [timer]
        timer.start()
        return self._number

    def close(self) -> None:
        """Ends all waits, and their threads."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
