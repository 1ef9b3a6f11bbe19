"""The state of a training, which its driver answers to ``shoal chaos``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Worker:
    """``number``: in the order in which workers were created."""

    number: int
    actor: str
    node: str


@dataclass(frozen=True)
class Status:
    """A training as its driver sees it. ``workers``: by rank. ``steady``: all workers train in this generation. ``reports``: the number of
    complete reports. ``undone``: those whose steps the present generation has undone. ``pause_s`` belongs to the change that has led to
    it, ``died`` has the dead of all changes."""

    generation: int
    steady: bool
    protected: bool
    replicated: bool
    workers: tuple[Worker, ...]
    reports: int = 0
    undone: int = 0
    pause_s: float = 0.0
    died: frozenset[int] = frozenset()


def status_of(membership: Any, setup: Any, places: dict[int, Any], actors: dict[int, str], reports: Any, changes: Sequence[Any]) -> Status:
    """Arguments: parts of a ``Run``. ``actors``: ids by the numbers of workers."""
    m = membership
    return Status(
        m.number,
        m.number > 0 and m.published is None and not m.recovering and not m.ended,
        setup.protected,
        setup.replicated,
        tuple(Worker(w, actors[w], places[w].node) for w in m.members if w in actors and w in places),
        reports.complete,
        reports.undone,
        changes[-1].seconds if changes else 0.0,
        frozenset(w for c in changes for w in c.died),
    )
