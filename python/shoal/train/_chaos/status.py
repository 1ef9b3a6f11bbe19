"""The state of a training, which its driver answers to ``shoal chaos``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.train._chaos.identity import Process
from shoal.train._chaos.pace import Pace


@dataclass(frozen=True)
class Worker:
    """``number``: in the order in which workers were created."""

    number: int
    node: str
    process: Process


@dataclass(frozen=True)
class Status:
    """A training as its driver sees it. ``elastic``: the number of its workers may change. ``workers``: by rank. ``steady``: all workers
    train in this generation. ``reports``: the number of complete reports. ``undone``: the reports whose steps the present generation has
    undone. ``pause_s``: the pause of the change that led to this generation. ``died``: the dead workers of all changes. ``pace``: the
    reports' pace."""

    generation: int
    steady: bool
    protected: bool
    replicated: bool
    workers: tuple[Worker, ...]
    reports: int = 0
    undone: int = 0
    pause_s: float = 0.0
    died: frozenset[int] = frozenset()
    elastic: bool = True
    pace: Pace = field(default_factory=Pace)


def status_of(membership: Any, scaling: Any, places: dict[int, Any], reports: Any, changes: Sequence[Any]) -> Status:
    """Arguments: parts of a ``Run``. ``places``: those of the workers that live, by their numbers."""
    m = membership
    # The workers of a training of fixed size report no generation: their loops run once all have a place.
    trains = m.number > 0 and m.published is None if scaling.elastic else places.keys() >= set(m.members)
    return Status(
        m.number,
        trains and not m.recovering and not m.ended,
        scaling.protected,
        scaling.replicated,
        tuple(Worker(w, places[w].node, places[w].process) for w in m.members if w in places),
        reports.complete,
        reports.undone,
        changes[-1].seconds if changes else 0.0,
        frozenset(w for c in changes for w in c.died),
        scaling.elastic,
        reports.metronome.pace,
    )
