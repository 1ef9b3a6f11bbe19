"""From a graph of calls to what each process does in one execution, and whether that can come to its end. Pure: no actor is touched.

Each actor makes its calls in one order, the same in every execution: after what they need, and otherwise in the order in which they were
bound. A value goes from the process that makes it to each other process that needs it over a channel of its own, once per execution; a call
reads what it needs before it is made, and writes its result at once to all who want it. Writes never wait (``_channels.capacity``), so the
only waits are for values, and a circle of those is a deadlock: ``find_deadlock`` looks for it in the very schedules that will be run.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["DRIVER", "Call", "Channel", "InputKey", "Plan", "Step", "Value", "find_deadlock", "order", "plan"]

DRIVER = ""  # the process that executes the graph, among the actors' ids

InputKey = tuple[str, int | str | None]  # ("input", position or keyword; None: all of it)
Value = int | InputKey  # a call's result by the call's number, or a part of the input


@dataclass(frozen=True)
class Call:
    """A call of a method. Its number is its position among the graph's calls, which are listed as they were bound."""

    actor: str
    label: str  # for people
    reads: tuple[Value, ...]  # what its arguments are made of; each once


@dataclass(frozen=True)
class Channel:
    """One value's way from one process to another. Its number is its position in the plan."""

    value: Value
    writer: str
    reader: str


@dataclass
class Step:
    """A call as its actor makes it: what it reads first, by value and channel, and the channels to which its result goes."""

    call: int
    reads: list[tuple[Value, int]] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


@dataclass
class Plan:
    channels: list[Channel]
    steps: dict[str, list[Step]]  # by actor
    inputs: dict[InputKey, list[int]]  # what the driver writes, in order
    outputs: dict[Value, int]  # what the driver reads, in order


def order(calls: list[Call]) -> list[int]:
    """The numbers of all calls: each after what it reads, as far as that can be, and otherwise as they were bound."""
    missing = {n: sum(type(v) is int for v in call.reads) for n, call in enumerate(calls)}
    readers = defaultdict(list)
    for n, call in enumerate(calls):
        for value in call.reads:
            if type(value) is int:
                readers[value].append(n)
    ready, out = [n for n, count in missing.items() if not count], []
    while ready:
        n = heapq.heappop(ready)
        out.append(n)
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return out + sorted(missing.keys() - set(out))  # the rest waits for itself: find_deadlock says how


def plan(calls: list[Call], outputs: list[Value]) -> Plan:
    """Plans what each actor does in one execution."""
    out = Plan([], {}, {}, {})
    known: dict[tuple[Value, str], int] = {}
    writes = defaultdict(list)  # channels by value

    def channel(value: Value, reader: str) -> int:
        """The number of the channel that brings it there."""
        number = known[value, reader] = len(out.channels)
        writer = calls[value].actor if type(value) is int else DRIVER
        out.channels.append(Channel(value, writer, reader))
        writes[value].append(number)
        if writer == DRIVER:
            out.inputs.setdefault(value, []).append(number)
        return number

    for n in order(calls):
        call = calls[n]
        step = Step(n)
        for value in call.reads:
            here = type(value) is int and calls[value].actor == call.actor
            if not here and (value, call.actor) not in known:
                step.reads.append((value, channel(value, call.actor)))
        out.steps.setdefault(call.actor, []).append(step)
    for value in outputs:
        if value not in out.outputs:
            out.outputs[value] = channel(value, DRIVER)
    for steps in out.steps.values():
        for step in steps:
            step.writes = writes[step.call]
    return out


def find_deadlock(calls: list[Call], orders: dict[str, list[int]]) -> str:
    """Names the calls that would wait for each other without end if each actor made its calls in this order; empty if all end."""
    done: set[int] = set()
    at = dict.fromkeys(orders, 0)

    def missing(actor: str) -> int | None:
        """A call whose result the actor's next call waits for."""
        return next((v for v in calls[orders[actor][at[actor]]].reads if type(v) is int and v not in done), None)

    moved = True
    while moved:
        moved = False
        for actor, mine in orders.items():
            while at[actor] < len(mine) and missing(actor) is None:
                done.add(mine[at[actor]])
                at[actor] += 1
                moved = True
    stuck = [actor for actor, mine in orders.items() if at[actor] < len(mine)]
    if not stuck:
        return ""
    seen: list[str] = []
    actor = stuck[0]
    while actor not in seen:
        seen.append(actor)
        actor = calls[missing(actor)].actor
    said = []
    for waiting in seen[seen.index(actor) :]:
        wanted = missing(waiting)
        before = orders[calls[wanted].actor][at[calls[wanted].actor]]
        said.append(f"{calls[orders[waiting][at[waiting]]].label} waits for {calls[wanted].label}")
        if before != wanted:
            said[-1] += f", which comes after {calls[before].label}"
    return "; ".join(said)
