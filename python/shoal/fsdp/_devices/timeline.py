"""Times of a device's transfers, for the timeline of a step.

On CUDA, events on a transfer's stream measure them. Without streams a transfer lasts from its begin to the end of its backend's work, or
until a thread has waited for it, if the backend does not report that end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_KEPT = 2048  # transfers; a step has a few per unit
_LATE_S = 1.0  # how long a timeline waits for transfers to end; later ones are left out


class Stamps(Protocol):
    def stamp(self) -> Any:
        """Returns the present stream's point of time."""

    def times(self, stamps: Sequence[Any]) -> list[float]:
        """Waits for stamps, and converts them to seconds of ``time.monotonic``."""


class HostStamps:
    def stamp(self) -> float:
        return time.monotonic()

    def times(self, stamps: Sequence[float]) -> list[float]:
        return list(stamps)


class DeviceStamps:
    def __init__(self, device: Any, handle: Any):
        self._device, self._handle = device, handle

    def stamp(self) -> Any:
        event = self._handle.Event(enable_timing=True)
        event.record(self._handle.current_stream(self._device))
        return event

    def times(self, stamps: Sequence[Any]) -> list[float]:
        with self._handle.device(self._device):  # threads that read timelines have another current device
            for event in stamps:
                event.synchronize()
            last = self.stamp()
            last.synchronize()
        now = time.monotonic()
        return [now - event.elapsed_time(last) / 1000 for event in stamps]


@dataclass
class Transfer:
    """``lane``: "gather", "reduce" or "copies". ``issued``: when the host began it. ``model``: the number of its ``Root``; None: it may
    concern several, as a checkpoint's copies do."""

    lane: str
    op: str
    unit: str
    model: int | None
    issued: float
    begin: Any
    end: Any = None
    ended: threading.Event = field(default_factory=threading.Event)


class Timeline:
    """The last transfers of a device, in the order of their calls."""

    def __init__(self, stamps: Stamps):
        self._stamps = stamps
        self._transfers: deque[Transfer] = deque(maxlen=_KEPT)

    def timed(self, lane: str, op: str, unit: str, begin: Callable[[], Any], model: int | None = None) -> Any:
        """Calls ``begin``, which puts a transfer on the present stream, or returns a mark with ``then``."""
        transfer = Transfer(lane, op, unit, model, time.monotonic(), self._stamps.stamp())
        mark = begin()
        then = getattr(mark, "then", None)

        def end() -> None:
            transfer.end = self._stamps.stamp()
            transfer.ended.set()

        if then is None:
            end()
        else:
            then(end)
        self._transfers.append(transfer)
        return mark

    def between(self, begin: float, end: float, model: int | None = None) -> list[tuple[Transfer, float, float]]:
        """The transfers of a model that the host began between these times and that have ended, each with its own times."""
        until = time.monotonic() + _LATE_S
        kept = list(self._transfers)  # another thread may append
        among = [t for t in kept if begin <= t.issued < end and (model is None or t.model in (None, model))]
        found = [t for t in among if t.ended.wait(max(0.0, until - time.monotonic()))]
        times = self._stamps.times([stamp for t in found for stamp in (t.begin, t.end)])
        return [(t, *span) for t, span in zip(found, zip(times[::2], times[1::2], strict=True), strict=True)]
