"""Actors that the tests share. Workers import this module, so it imports little."""

from __future__ import annotations

import asyncio
import os

import shoal as ray

GUARD_S = 120  # hang guard; an idle machine needs less than a tenth


@ray.remote
class Gate:
    """An actor whose calls wait until a test opens the gate: so tests order events without a clock."""

    def __init__(self):
        self.events: dict[str, asyncio.Event] = {}
        self.come: list = []
        self.comes = asyncio.Event()

    def _add(self, who):
        self.come.append(who)
        self.comes.set()
        self.comes = asyncio.Event()

    def _event(self, name: str) -> asyncio.Event:
        return self.events.setdefault(name, asyncio.Event())

    async def wait(self, name: str = "", then=None):
        await self._event(name).wait()
        return then

    async def open(self, name: str = ""):
        self._event(name).set()

    async def arrive(self, who, name: str = ""):
        """Notes the caller `who`, then waits until the gate `name` opens."""
        self._add(who)
        await self._event(name).wait()

    async def note(self, who):
        self._add(who)

    async def arrived(self, count: int) -> list:
        """Returns the noted callers, once there are `count` of them."""
        while len(self.come) < count:
            await self.comes.wait()
        return list(self.come)

    async def seen(self) -> list:
        return list(self.come)


@ray.remote
class Recorder:
    """An ordinary actor that records the arguments of its calls, in order."""

    def __init__(self, *first):
        self.seen = list(first)

    def add(self, value):
        self.seen.append(value)
        return len(self.seen)

    def all(self):
        return self.seen

    def echo(self, value):
        return value

    def kind(self, value):
        return type(value).__name__

    def pid(self):
        return os.getpid()

    def fail(self, error):
        raise error

    def get(self, refs):
        """Gets the references in a list; a reference that is itself an argument would be resolved."""
        return ray.get(refs)

    def wait_at(self, gate, name="", then=None):
        return ray.get(gate.wait.remote(name, then))

    @ray.method(num_returns=2)
    def pair(self, first=1, second=2):
        return first, second


@ray.remote
class Tries:
    """An actor that counts attempts, and records the pids of their processes."""

    def __init__(self):
        self.pids = []

    def add(self, pid):
        self.pids.append(pid)
        return len(self.pids)

    def all(self):
        return self.pids
