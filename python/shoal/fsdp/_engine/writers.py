"""Calls that precede every write to sharded parameters. Packages above the engine register theirs."""

from __future__ import annotations

from collections.abc import Callable

_calls: list[Callable[[], None]] = []


def before_writes(call: Callable[[], None]) -> None:
    """Registers a call that this rank makes before it opens a write window."""
    _calls.append(call)


def announce() -> None:
    for call in _calls:
        call()
