"""The faults of a run as a pure function of its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# How often each kind comes. Deaths: "kill"; "oom", of a worker whose memory grows; "pair", of a worker and of another one so soon that it
# may come during the recovery; "host", of all workers of a host; "cut", of a host whose link is cut until the cluster gives it up. All
# others end no worker: "stop", "head" (its death), "link" (cut for a moment), and a disk that is "full" or "slow" for some reports.
WEIGHTS = {"kill": 58, "oom": 8, "stop": 10, "pair": 10, "head": 6, "full": 4, "slow": 4}
WEIGHTS_OF_HOSTS = {"kill": 42, "host": 24, "oom": 4, "cut": 2, "stop": 6, "head": 6, "link": 10, "full": 3, "slow": 3}
_DEATHS = ("kill", "oom", "pair", "host", "cut")


@dataclass(frozen=True)
class Fault:
    """``after``: the number of reports by two or more workers since the fault before. ``delay_s``: from the last of these reports on.
    ``pick``: the victim's place in the order of ranks, from 0 to 1. ``hold``: how long it lasts, from 0 to 1."""

    kind: str
    after: int
    delay_s: float
    pick: float
    hold: float

    @property
    def kills(self) -> bool:
        return self.kind in _DEATHS

    @property
    def hold_s(self) -> float:
        """The length of a stop or of a cut, or the time between the deaths of a pair."""
        least, most = {"stop": (0.0, 3.0), "link": (0.5, 3.5)}.get(self.kind, (0.0, 0.3))
        return least + self.hold * (most - least)

    @property
    def reports(self) -> int:
        """The number of reports for which the disk is full or slow."""
        return int(20 + 30 * self.hold)

    def victim(self, workers: int) -> int:
        return int(self.pick * workers)


def faults(seed: int, weights: dict[str, int]) -> Iterator[Fault]:
    draws = random.Random(seed)
    while True:
        (kind,) = draws.choices(list(weights), list(weights.values()))
        yield Fault(kind, draws.randint(1, 12), draws.random() * 0.03, draws.random(), draws.random())
