"""The pace of a training's reports, by which ``shoal chaos`` measures a pause."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_USUAL = 64  # intervals whose median is the usual one
_KEPT = 1000  # long intervals


@dataclass(frozen=True)
class Pace:
    """The intervals between complete reports, in seconds. ``now``: the driver's clock. ``usual``: the median of the last intervals; `None`
    before the second report. ``longest``: (end, interval) of each interval that is longer than all later ones."""

    now: float = 0.0
    usual: float | None = None
    longest: tuple[tuple[float, float], ...] = ()

    def pause_since(self, before: Pace) -> float | None:
        """Returns by how much the longest interval that has ended since ``before`` exceeds the usual one of that time; `None` if too few
        reports have come."""
        found = [interval for end, interval in self.longest if end > before.now]
        usual = self.usual if before.usual is None else before.usual
        return None if usual is None or not found else max(0.0, max(found) - usual)


class Metronome:
    """Measures the pace of reports. ``clock``: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._last: float | None = None
        self._recent: deque[float] = deque(maxlen=_USUAL)
        self._longest: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def report(self) -> None:
        now, last = self._clock(), self._last
        self._last = now
        if last is None:
            return
        interval = now - last
        self._recent.append(interval)
        while self._longest and self._longest[-1][1] <= interval:
            self._longest.pop()
        self._longest.append((now, interval))

    @property
    def pace(self) -> Pace:
        usual = statistics.median(self._recent) if self._recent else None
        return Pace(self._clock(), usual, tuple(self._longest))
