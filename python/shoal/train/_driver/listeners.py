"""The functions and objects that a training reports to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.train._changes import Change

Listener = Callable[[dict[str, Any]], None]


class Listeners:
    """Calls each listener with the metrics of each report. Those with methods ``on_begin(config)``, ``on_change(change)`` and
    ``on_end(error)`` get the training's config, its changes of workers and its end, too."""

    def __init__(self, given: Listener | Sequence[Listener] | None):
        self._each = () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)
        for listener in self._each:
            if not callable(listener):
                raise TypeError(f"on_report is a function, a tracker or a list of these, not {type(listener).__name__}")

    def __bool__(self) -> bool:
        return bool(self._each)

    def __call__(self, metrics: dict[str, Any]) -> None:
        for listener in self._each:
            listener(metrics)

    def begin(self, config: Any) -> None:
        self._call("on_begin", config)

    def change(self, change: Change) -> None:
        self._call("on_change", change)

    def end(self, error: BaseException | None) -> None:
        self._call("on_end", error)

    def _call(self, name: str, argument: Any) -> None:
        for listener in self._each:
            method = getattr(listener, name, None)
            if method is not None:
                method(argument)
