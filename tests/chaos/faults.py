"""The faults of a run as a pure function of its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# How often each kind comes. A pair is the death of a worker, and that of another one so soon that it may come during the recovery.
WEIGHTS = {"kill": 70, "stop": 12, "pair": 10, "head": 8}
WEIGHTS_OF_HOSTS = {"kill": 50, "host": 30, "stop": 10, "head": 10}
_DEATHS = ("kill", "pair", "host")


@dataclass(frozen=True)
class Fault:
    """``after``: the number of reports by two or more workers since the fault before. ``delay_s``: from the last of these reports on.
    ``pick``: the victim's place in the order of ranks, from 0 to 1. ``hold_s``: the length of a stop, or the time between the deaths of a
    pair."""

    kind: str
    after: int
    delay_s: float
    pick: float
    hold_s: float

    @property
    def kills(self) -> bool:
        return self.kind in _DEATHS

    def victim(self, workers: int) -> int:
        return int(self.pick * workers)


def faults(seed: int, weights: dict[str, int]) -> Iterator[Fault]:
    draws = random.Random(seed)
    while True:
        (kind,) = draws.choices(list(weights), list(weights.values()))
        yield Fault(kind, draws.randint(1, 12), draws.random() * 0.03, draws.random(), draws.random() * 0.3)
