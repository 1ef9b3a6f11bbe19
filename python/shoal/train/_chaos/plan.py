"""The faults of ``shoal chaos`` as a pure function of their seed, and the workers that each may hit."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.exceptions import InvalidArgument
from shoal.train._chaos.status import Status, Worker

KINDS = ("kill", "stop", "head")
_LONGEST_STOP_S = 5.0
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Fault:
    """``at_s``: seconds from the begin. ``place``: the victim's place among the workers that the fault may hit, in the order of ranks, from
    0 to 1; the head needs none. ``hold_s``: the length of a stop."""

    at_s: float
    kind: str
    place: float
    hold_s: float = 0.0

    def __str__(self) -> str:
        hold = f" for {self.hold_s:.1f} s" if self.hold_s else ""
        if self.kind == "head":
            return f"{self.at_s:8.1f} s  the head"
        return f"{self.at_s:8.1f} s  {self.kind}{hold}, at {self.place:.3f} of the workers"


def sequence(seed: int, per_second: float, seconds: float, kinds: Sequence[str]) -> list[Fault]:
    """Returns the faults of so many seconds, at random times with this mean rate."""
    draws, at, faults = random.Random(seed), 0.0, []
    while (at := at + draws.expovariate(per_second)) < seconds:
        kind, place, hold = draws.choice(kinds), draws.random(), draws.uniform(0.1, _LONGEST_STOP_S)
        faults.append(Fault(at, kind, place, hold if kind == "stop" else 0.0))
    return faults


def targets(status: Status, kind: str) -> list[Worker]:
    """Returns the workers whose fault the training can survive, by rank. If a worker dies, another one has to take over its part. A
    training without protection survives no death, so all of its workers are targets."""
    if kind == "stop" or not status.protected:
        return list(status.workers)
    if len(status.workers) < 2:
        return []
    on = Counter(w.node for w in status.workers)
    return [w for w in status.workers if on[w.node] > 1 or status.replicated]


def possible(status: Status, fault: Fault) -> bool:
    return status.steady and (fault.kind == "head" or victim(status, fault) is not None)


def victim(status: Status, fault: Fault) -> Worker | None:
    found = targets(status, fault.kind)
    return found[int(fault.place * len(found))] if found else None


def seconds_of(text: str) -> float:
    """Returns the seconds of "90", "90s", "10m" or "1h"."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|m|h|)", text)) or not float(found[1]):
        raise InvalidArgument(f"{text!r} is no length of time", hint="write 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def per_second_of(text: str) -> float:
    """Returns the faults per second of "4/min" or "10/h"."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)/(s|min|m|h)", text)) or not float(found[1]):
        raise InvalidArgument(f"{text!r} is no rate", hint="write 4/min or 10/h")
    return float(found[1]) / _SECONDS[found[2]]


def kinds_of(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if wrong := [k for k in kinds if k not in KINDS]:
        raise InvalidArgument(f"there is no fault {wrong[0]!r}", hint=f"the faults are {', '.join(KINDS)}")
    return kinds
