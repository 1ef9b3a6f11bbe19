"""A2 of COVERAGE.md, concurrency: groups of threads and of event loops."""

import asyncio
import os
import threading
import time

import pytest
from concurrent_actors import ended
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError, TaskCancelledError


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self):
        self.lock, self.begun = threading.Lock(), []

    @ray.method(concurrency_group="io")
    def io(self, who, gate):
        return ray.get(gate.arrive.remote(who))

    @ray.method(concurrency_group="compute")
    def compute(self, who, gate):
        return ray.get(gate.arrive.remote(who))

    def plain(self):
        return "plain"


def test_groups_have_threads_of_their_own(gate):
    actor = Grouped.remote()
    refs = [actor.io.remote(f"io{i}", gate) for i in range(3)] + [actor.compute.remote(f"compute{i}", gate) for i in range(2)]
    inside = ray.get(gate.arrived.remote(3), timeout=GUARD_S)
    assert sorted(inside) == ["compute0", "io0", "io1"]
    assert ray.get(actor.plain.remote(), timeout=GUARD_S) == "plain"
    assert ray.get(gate.seen.remote()) == inside
    gate.open.remote()
    ray.get(refs, timeout=GUARD_S)
    ended(actor)


def test_options_put_a_call_into_another_group(gate):
    actor = Grouped.remote()
    held = actor.compute.remote("held", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    moved = actor.compute.options(concurrency_group="io").remote("moved", gate)
    assert ray.get(gate.arrived.remote(2), timeout=GUARD_S) == ["held", "moved"]
    gate.open.remote()
    ray.get([held, moved], timeout=GUARD_S)
    ended(actor)


def test_an_unknown_group_is_an_error():
    actor = Grouped.remote()
    with pytest.raises(ValueError, match="no concurrency group gpu"):
        ray.get(actor.plain.options(concurrency_group="gpu").remote(), timeout=GUARD_S)
    ended(actor)


def test_a_method_in_an_undeclared_group_creates_no_actor():
    @ray.remote
    class Undeclared:
        @ray.method(concurrency_group="gpu")
        def method(self):
            pass

    with pytest.raises(ValueError, match="gpu"):
        Undeclared.remote()


@ray.remote(concurrency_groups={"control": 1, "io": 2})
class Lanes:
    def __init__(self):
        self.thread = threading.get_ident()

    async def block(self, path, gate):
        """Blocks the event loop of its group until the file exists."""
        ray.get(gate.note.remote("block"))
        while not os.path.exists(path):
            time.sleep(0.01)
        return threading.get_ident() == self.thread

    @ray.method(concurrency_group="io")
    async def wait(self, gate, who):
        await gate.arrive.remote(who)
        return who

    @ray.method(concurrency_group="io")
    async def items(self, n):
        for i in range(n):
            yield i

    @ray.method(concurrency_group="control")
    async def thread_is_its_own(self):
        return threading.get_ident() != self.thread

    @ray.method(concurrency_group="control")
    async def leave(self):
        ray.exit_actor()


def test_a_blocked_group_of_an_async_actor_blocks_no_other(gate, tmp_path):
    actor = Lanes.remote()
    blocks = actor.block.remote(str(tmp_path / "open"), gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    assert ray.get(actor.thread_is_its_own.remote(), timeout=GUARD_S)
    assert [ray.get(item, timeout=GUARD_S) for item in actor.items.remote(3)] == [0, 1, 2]
    waits = [actor.wait.remote(gate, who) for who in range(3)]
    # block() and two of the three calls of wait(): their group has two slots
    assert len(ray.get(gate.arrived.remote(3), timeout=GUARD_S)) == 3
    ray.cancel(waits[0])
    with pytest.raises(TaskCancelledError):
        ray.get(waits[0], timeout=GUARD_S)
    ray.get(gate.open.remote())
    assert ray.get(waits[1:], timeout=GUARD_S) == [1, 2]
    assert not ray.wait([blocks], timeout=0)[0]
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)


def test_an_async_actor_ends_after_the_calls_of_all_its_groups(gate, tmp_path):
    actor = Lanes.remote()
    blocks = actor.block.remote(str(tmp_path / "open"), gate)
    waits = actor.wait.remote(gate, "wait")
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(actor.leave.remote(), timeout=GUARD_S)  # leave() ends at once, although calls of other groups run
    ray.get(gate.open.remote())
    assert ray.get(waits, timeout=GUARD_S) == "wait"
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(actor.thread_is_its_own.remote(), timeout=GUARD_S)


def test_an_async_actor_out_of_scope_ends_after_all_its_groups(gate, tmp_path):
    actor = Lanes.remote()
    blocks, waits = actor.block.remote(str(tmp_path / "open"), gate), actor.wait.remote(gate, "wait")
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    del actor
    ray.get(gate.open.remote())
    assert ray.get(waits, timeout=GUARD_S) == "wait"
    (tmp_path / "open").touch()
    assert ray.get(blocks, timeout=GUARD_S)


def test_an_async_actor_ends_after_tasks_begun_in_another_group(gate):
    @ray.remote(concurrency_groups={"io": 1}, max_concurrency=1)
    class Drives:
        async def step(self, gate, k):
            await gate.arrive.remote(k, "step")
            return k

        @ray.method(concurrency_group="io")
        async def drive(self, gate):
            me = ray.get_runtime_context().current_actor
            await gate.arrive.remote("drive", "drive")
            steps = [me.step.remote(gate, k) for k in range(5)]
            await gate.arrived.remote(2)
            return steps

    actor = Drives.remote()
    drives = actor.drive.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    del actor
    ray.get(gate.open.remote("drive"))
    steps = ray.get(drives, timeout=GUARD_S)
    ray.get(gate.open.remote("step"))
    assert ray.get(steps, timeout=GUARD_S) == [*range(5)]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_async_actor_ends_after_its_own_calls_with_pending_arguments(gate, is_async):
    @ray.remote
    class Driven:
        def step(self, value):
            return value

        def drive(self, later):
            return ray.get_runtime_context().current_actor.step.remote(later[0])

        if is_async:

            async def tick(self):
                pass

    actor = Driven.options(max_concurrency=2).remote()
    step = ray.get(actor.drive.remote([gate.wait.remote("later", 7)]), timeout=GUARD_S)
    del actor
    for k in range(100):  # by the last of these calls, the actor has processed the release of its last handle
        ray.get(gate.note.remote(k), timeout=GUARD_S)
    ray.get(gate.open.remote("later"))
    assert ray.get(step, timeout=GUARD_S) == 7


class Leaving:
    def step(self, value):
        return value

    def leave(self, gate):
        ray.get(gate.arrive.remote("leaving", "leave"))
        ray.actor.exit_actor()

    def drive(self, gate):
        me = ray.get_runtime_context().current_actor
        me.leave.remote(gate)
        me.step.remote(gate.wait.remote("never"))
        return os.getpid()


class AsyncLeaving(Leaving):
    async def leave(self, gate):
        await gate.arrive.remote("leaving", "leave")
        ray.actor.exit_actor()


@pytest.mark.parametrize("cls", [Leaving, AsyncLeaving])
def test_exit_actor_does_not_wait_for_own_calls_that_cannot_begin(gate, cls):
    actor = ray.remote(cls).options(max_concurrency=2).remote()
    pid = ray.get(actor.drive.remote(gate), timeout=GUARD_S)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    del actor
    for k in range(100):  # by the last of these calls, the actor has processed the release of its last handle
        ray.get(gate.note.remote(k), timeout=GUARD_S)
    ray.get(gate.open.remote("leave"))
    wait_until(lambda: not alive(pid), GUARD_S, "the end of the actor's process")


def test_an_actor_whose_loop_ends_in_its_constructor_fails():
    @ray.remote
    class Interrupts:
        async def __init__(self):
            self.task = asyncio.get_running_loop().create_task(self.interrupt())
            await asyncio.Event().wait()

        async def interrupt(self):
            raise KeyboardInterrupt

    with pytest.raises(ActorDiedError):
        ray.get(Interrupts.remote().__ray_ready__.remote(), timeout=GUARD_S)


def test_groups_of_an_async_actor():
    @ray.remote(concurrency_groups={"io": 1})
    class AsyncGroups:
        def __init__(self):
            self.begun, self.event = [], asyncio.Event()

        @ray.method(concurrency_group="io")
        async def io(self, who):
            self.loop = asyncio.get_running_loop()
            self.begun.append(who)
            await self.event.wait()

        async def seen(self):
            return self.begun

        async def release(self):
            self.loop.call_soon_threadsafe(self.event.set)  # from another thread: each group has an event loop of its own

        async def started(self, count):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)

    actor = AsyncGroups.remote()
    refs = [actor.io.remote(i) for i in range(3)]
    ray.get(actor.started.remote(1), timeout=GUARD_S)
    assert ray.get(actor.seen.remote(), timeout=GUARD_S) == [0]
    ray.get(actor.release.remote(), timeout=GUARD_S)
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.seen.remote()) == [0, 1, 2]
    ended(actor)
