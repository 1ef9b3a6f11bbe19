"""Schedules: the actions of each process in one execution of a graph, and a check that it terminates. Pure functions; no actor is involved.

Each actor makes its calls in one order, equal in all executions: after their inputs, otherwise as bound. For each value and each other
process that needs it there is one channel, used once per execution. A call first reads its inputs, and then writes its result to all
readers. Writes never wait (``_channels.Layout``), so processes wait only for values. A cycle of such waits is a deadlock, and
``find_deadlock`` searches the schedules that will run for one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["DRIVER", "Call", "Channel", "InputKey", "Plan", "Step", "Value", "find_deadlock", "order", "plan"]

DRIVER = ""  # id of the executing process, among the actors' ids

InputKey = tuple[str, int | str | None]  # ("input", position or keyword); None for the whole input
Value = int | InputKey  # the number of a call, for its result, or a part of the input


@dataclass(frozen=True)
class Call:
    """A call of a method. Its number is its position among the graph's calls, in the order of binding."""

    actor: str
    label: str  # for display
    reads: tuple[Value, ...]  # the distinct values in its arguments


@dataclass(frozen=True)
class Channel:
    """The path of one value from one process to another. Its number is its position in the plan."""

    value: Value
    writer: str
    reader: str


@dataclass
class Step:
    """A call in its actor's schedule: the (value, channel) pairs to read first, and the channels for its result."""

    call: int
    reads: list[tuple[Value, int]] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


@dataclass
class Plan:
    channels: list[Channel]
    steps: dict[str, list[Step]]  # by actor
    inputs: dict[InputKey, list[int]]  # channels that the driver writes, in order
    outputs: dict[Value, int]  # channels that the driver reads, in order


def order(calls: list[Call]) -> list[int]:
    """Returns the numbers of all calls, each after the calls that it reads, if possible, and otherwise as bound."""
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
    return out + sorted(missing.keys() - set(out))  # a cycle, which find_deadlock describes


def plan(calls: list[Call], outputs: list[Value]) -> Plan:
    """Plans the actions of each actor in one execution."""
    out = Plan([], {}, {}, {})
    known: dict[tuple[Value, str], int] = {}
    writes = defaultdict(list)  # channels by value

    def channel(value: Value, reader: str) -> int:
        """Adds a channel for a value to a reader and returns its number."""
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
            local = type(value) is int and calls[value].actor == call.actor
            if not local and (value, call.actor) not in known:
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
    """Names the calls that would wait for each other forever if each actor made its calls in this order; "" if there are none."""
    finished: set[int] = set()
    at = dict.fromkeys(orders, 0)

    def missing(actor: str) -> int | None:
        """An unfinished call whose result the actor's next call needs."""
        return next((v for v in calls[orders[actor][at[actor]]].reads if type(v) is int and v not in finished), None)

    moved = True
    while moved:
        moved = False
        for actor, mine in orders.items():
            while at[actor] < len(mine) and missing(actor) is None:
                finished.add(mine[at[actor]])
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
