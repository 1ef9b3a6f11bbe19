"""The parts of a pause, and their durations."""

from __future__ import annotations

import time


class Phases:
    """A stopwatch: each ``end`` ends the phase that began at the previous ``end``. ``seconds``: by phase, in order."""

    def __init__(self, began: float | None = None):
        self._began = self._at = time.perf_counter() if began is None else began
        self.seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._at
        self._at = now

    def end_in(self, phases: dict[str, float], phase: str) -> None:
        """Ends a phase that has parts: records their durations, and the remaining time under ``phase``."""
        self._at += sum(phases.values())
        for name, seconds in phases.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.end(phase)

    @property
    def total(self) -> float:
        return self._at - self._began
