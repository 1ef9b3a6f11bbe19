"""Actors and fixtures for tests of compiled graphs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import numpy as np
import pytest
from internals.core import state

import shoal as ray
from shoal.dag import InputNode


@ray.remote
class Stage:
    """An actor that counts its calls."""

    def __init__(self, name=""):
        self.name, self.calls = name, 0

    def through(self, value):
        self.calls += 1
        return value

    def add(self, a, b=0):
        self.calls += 1
        return a + b

    def tag(self, value):
        return f"{value}{self.name}"

    def numbered(self, value):
        self.calls += 1
        return value, self.calls

    def pack(self, *values, **named):
        return values, named

    def fail_if_odd(self, value):
        if value % 2:
            raise KeyError(value)
        return value

    def lock_of(self, value):
        return threading.Lock() if value else None

    def ones(self, count, _=None):
        self.calls += 1
        return np.ones(count)

    def add_in_place(self, tensor):
        tensor += 1
        return tensor

    def wait_at(self, gate, name="", then=None):
        return ray.get(gate.wait.remote(name, then))

    def second_when_open(self, gate, name, value):
        ray.get(gate.wait.remote(name))
        return value

    def arrive(self, gate, who):
        ray.get(gate.arrive.remote(who))
        return who

    def leave(self, value):
        ray.exit_actor()

    def leave_quietly(self, value):
        try:
            ray.exit_actor()
        except SystemExit:
            return value

    def count(self):
        return self.calls

    def pid(self):
        return os.getpid()

    def threads(self):
        return [t.name for t in threading.enumerate()]

    def run_graph(self, other, value):
        """Executes a graph over the actor `other`, or over this actor if that is None."""
        with InputNode() as inp:
            bound = (other or ray.get_runtime_context().current_actor).through.bind(inp)
        self.compiled = bound.experimental_compile()
        return ray.get(self.compiled.execute(value))


@pytest.fixture
def stages():
    """Creates stages that end with the test."""
    made = []

    def make(*names):
        made.extend(Stage.remote(n) for n in names)
        return made[-len(names) :]

    yield make
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def compiled():
    """Compiles a graph that a function builds from the input node. The graph is torn down when the test ends."""
    made = []

    def make(bound, **options):
        with InputNode() as inp:
            made.append(bound(inp).experimental_compile(**options))
        return made[-1]

    yield make
    for graph in made:
        graph.teardown()


def memories_of_the_node():
    folder, out = f"/proc/{state.cluster.pid}/fd", []
    for fd in os.listdir(folder):
        try:
            out.append(os.readlink(f"{folder}/{fd}"))
        except FileNotFoundError:
            pass
    return sorted(m for m in out if m.startswith("/memfd:shoal:"))


def graph_threads(actor):
    return ray.get(actor.threads.remote()).count("shoal-graph")


@ray.remote(max_concurrency=2)
class Threaded:
    def double(self, value):
        return 2 * value

    def leave(self, value):
        ray.exit_actor()

    def leave_quietly(self, value):
        with contextlib.suppress(SystemExit):
            ray.exit_actor()
        return value


@ray.remote
class Async:
    async def double(self, value):
        await asyncio.sleep(0)
        return 2 * value

    def put(self, value):
        return ray.put(value)

    def loop_is_mine(self, value):
        return value, asyncio.get_running_loop() is not None

    async def leave(self, value):
        ray.exit_actor()

    async def leave_quietly(self, value):
        with contextlib.suppress(Exception):
            ray.exit_actor()
        return value
