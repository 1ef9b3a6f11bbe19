"""A2 of COVERAGE.md, the end by ``exit_actor``, wherever it is called and even if its exception is caught."""

import asyncio
import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError


class Leaves:
    """An actor whose constructor calls its method ``how``, and whose exit handlers write to a file."""

    def __init__(self, path, how="pid"):
        atexit.register(lambda: Path(path).write_text("exit handler"))
        getattr(self, how)()

    def pid(self):
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()

    def caught(self):
        try:
            ray.actor.exit_actor()
        except BaseException:
            return "still here"

    def raises_another(self):
        try:
            ray.actor.exit_actor()
        except BaseException:
            raise ValueError("another") from None

    @ray.method(num_returns=2)
    def pair(self):
        return self.caught(), 2

    def in_thread(self):
        """Calls exit_actor in a thread, and joins it."""
        thread = threading.Thread(target=ray.actor.exit_actor)
        thread.start()
        thread.join()
        return "returned"

    def in_executor(self):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ray.actor.exit_actor)
        return "returned"

    def later(self, gate):
        def leave():
            ray.get(gate.wait.remote())
            ray.actor.exit_actor()

        threading.Thread(target=leave).start()
        return "returned"

    def some(self):
        yield 1
        self.caught()
        yield 2


class LeavesAsync(Leaves):
    """An actor with the methods of Leaves, as coroutines."""

    async def task(self):
        self.left = asyncio.create_task(self.leave_later())
        return "returned"

    async def leave_later(self):
        await asyncio.sleep(0)
        ray.actor.exit_actor()

    async def exits_in_task(self):
        self.left = asyncio.create_task(self.exit_later())
        return "returned"

    async def exit_later(self):
        raise SystemExit(0)

    def begin(self):
        """Starts leave_later(). A plain method, because the constructor cannot await."""
        self.left = asyncio.get_running_loop().create_task(self.leave_later())

    async def dropped(self):
        self.left = asyncio.get_running_loop().run_in_executor(None, ray.actor.exit_actor)
        return "returned"

    async def copied(self):
        await asyncio.to_thread(self.caught)
        return "still here"

    async def waits(self, gate, method):
        await gate.arrive.remote("inside")
        return await gate.wait.remote(method, 5)


KINDS = {"ordinary": (Leaves, {}), "threads": (Leaves, {"max_concurrency": 2}), "async": (LeavesAsync, {})}
EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def make(tmp_path):
    """Creates an actor of a kind. It restarts after any end that is not orderly, and is killed when the test ends."""
    made = []

    def make(kind, *how, **more):
        cls, options = KINDS[kind]
        made.append(ray.remote(cls).options(max_restarts=-1, **options, **more).remote(str(tmp_path / "said"), *how))
        return made[-1]

    yield make
    for actor in made:
        ray.kill(actor)


def row_of(actor):
    (row,) = (r for r in ray._core.process.session().list("actors") if r["id"] == actor._actor_id)
    return row


def is_over(actor, pid, tmp_path):
    wait_until(lambda: not alive(pid), GUARD_S, "its end")
    assert (tmp_path / "said").read_text() == "exit handler"
    with pytest.raises(ActorDiedError):
        ray.get(actor.pid.remote(), timeout=GUARD_S)
    assert row_of(actor)["num_restarts"] == 0


@EACH
@pytest.mark.parametrize("method", ["leave", "caught", "raises_another", "pair"])
def test_a_call_of_exit_actor_fails_even_if_its_exception_is_caught(kind, method, make, tmp_path):
    actor = make(kind)
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(getattr(actor, method).remote(), timeout=GUARD_S)
    is_over(actor, pid, tmp_path)


@EACH
def test_a_generator_can_end_its_actor(kind, make, tmp_path):
    actor = make(kind)
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    *items, failure = actor.some.options(num_returns="streaming").remote()
    assert ray.get(items) == [1, 2]
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(failure, timeout=GUARD_S)
    is_over(actor, pid, tmp_path)


@EACH
@pytest.mark.parametrize("method", ["in_thread", "in_executor"])
def test_a_thread_ends_an_actor_after_the_running_call(kind, method, make, tmp_path):
    actor = make(kind)
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    assert ray.get(getattr(actor, method).remote(), timeout=GUARD_S) == "returned"
    is_over(actor, pid, tmp_path)


@EACH
def test_a_thread_ends_an_idle_actor(kind, make, tmp_path, gate):
    actor = make(kind)
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    assert ray.get(actor.later.remote(gate), timeout=GUARD_S) == "returned"
    assert ray.get(actor.pid.remote(), timeout=GUARD_S) == pid
    gate.open.remote()
    is_over(actor, pid, tmp_path)


@pytest.mark.parametrize("method", ["task", "exits_in_task", "dropped"])
def test_an_unawaited_task_ends_an_async_actor_after_the_running_calls(method, make, tmp_path, gate):
    actor = make("async")
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    inside = actor.waits.remote(gate, "then")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    assert ray.get(getattr(actor, method).remote(), timeout=GUARD_S) == "returned"
    gate.open.remote()
    gate.open.remote("then")
    assert ray.get(inside, timeout=GUARD_S) == 5
    is_over(actor, pid, tmp_path)


def test_an_awaited_thread_can_end_an_async_actor(make, tmp_path):
    actor = make("async")
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.copied.remote(), timeout=GUARD_S)
    is_over(actor, pid, tmp_path)


@EACH
@pytest.mark.parametrize("how", ["leave", "caught", "in_thread"])
def test_a_constructor_can_end_its_actor(kind, how, make, tmp_path):
    actor = make(kind, how)
    with pytest.raises(ActorDiedError):
        ray.get(actor.pid.remote(), timeout=GUARD_S)
    wait_until((tmp_path / "said").exists, GUARD_S, "the exit handler")
    assert row_of(actor)["num_restarts"] == 0


def test_a_task_of_the_constructor_can_end_its_actor(make, tmp_path):
    actor = make("async", "begin")
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S, "its end")
    assert (tmp_path / "said").read_text() == "exit handler"
    assert row_of(actor)["num_restarts"] == 0


@EACH
def test_exit_actor_frees_a_detached_actors_name(kind, make):
    for _ in range(2):
        actor = make(kind, name="leaves", lifetime="detached")
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(actor.caught.remote(), timeout=GUARD_S)
        wait_until(lambda actor=actor: row_of(actor)["state"] == "DEAD", GUARD_S, "its end")
