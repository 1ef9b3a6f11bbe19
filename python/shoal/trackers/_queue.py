"""A bounded queue, and the thread that carries out its entries."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class BoundedQueue:
    """Runs entries in order in a thread of its own. ``put`` never waits: a full queue drops its oldest entry.

    ``lose``: called with a number of entries and the cause, from either thread; entries that raise count, too. ``slow_after``: seconds that
    one entry may run until ``put`` reports it as hanging. ``first`` and ``last`` run before and behind all entries. If ``first`` raises,
    all other entries are lost.
    """

    def __init__(
        self,
        name: str,
        size: int,
        slow_after: float,
        lose: Callable[[int, str, str], None],
        first: Callable[[], None],
        last: Callable[[], None],
    ):
        self._size, self._slow_after, self._lose = size, slow_after, lose
        self._first, self._last = first, last
        self._entries: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._begin: float | None = None  # when the entry that runs began
        self._running = 0  # the number of entries that run
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, entry: Callable[[], None]) -> None:
        dropped = 0
        with self._changed:
            if self._closing:
                dropped = 1
            else:
                if len(self._entries) >= self._size:
                    self._entries.popleft()
                    dropped = 1
                self._entries.append(entry)
                self._changed.notify()
            closed, begin = self._closing, self._begin
        if dropped:
            self._lose(1, "closed" if closed else "full", "it is closed" if closed else f"its queue of {self._size} entries is full")
        if begin is not None and time.monotonic() - begin > self._slow_after:
            self._lose(0, "slow", f"one entry has run for more than {self._slow_after:g} s")

    def close(self, timeout: float) -> bool:
        """Waits until all entries have run, at most ``timeout`` seconds, and drops what is left. Returns False if something was left."""
        with self._changed:
            first_call, self._closing = not self._closing, True
            self._changed.notify()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        with self._changed:
            left = len(self._entries) + self._running
            self._entries.clear()
        if first_call:
            self._lose(left, "close", f"it has not ended within {timeout:g} s")
        return False

    def _run(self) -> None:
        opened = self._carry_out(self._first, 0)
        while (entry := self._next()) is not None:
            if opened:
                self._carry_out(entry, 1)
            else:
                self._lose(1, "raised", "it could not begin")
        if opened:
            self._carry_out(self._last, 0)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._entries and not self._closing:
                self._changed.wait()
            return self._entries.popleft() if self._entries else None

    def _carry_out(self, entry: Callable[[], None], count: int) -> bool:
        self._begin, self._running = time.monotonic(), count
        try:
            entry()
        except BaseException as error:  # also a tracker's SystemExit
            self._lose(count, "raised", f"{type(error).__name__}: {error}".rstrip("."))
            return False
        finally:
            self._begin, self._running = None, 0
        return True
