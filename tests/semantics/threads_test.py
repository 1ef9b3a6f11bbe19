"""A2 of COVERAGE.md, concurrency: calls of an actor on several threads, and its end by a signal."""

import contextlib
import os
import signal
import sys
import threading
import time

import concurrent_actors
import pytest
from concurrent_actors import Threaded, ended
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError


def test_a_constructor_may_be_a_coroutine():
    import asyncio

    class Slow:
        async def __init__(self, value, fails=False):
            await asyncio.sleep(0)
            if fails:
                raise ValueError("no such luck")
            self.value = value

        def get(self):
            return self.value

    slow = ray.remote(Slow)
    assert ray.get(slow.remote(3).get.remote(), timeout=GUARD_S) == 3
    with pytest.raises(ActorDiedError, match="no such luck"):
        ray.get(slow.remote(3, fails=True).get.remote(), timeout=GUARD_S)


def test_max_concurrency_calls_run_on_threads_at_once(gate):
    actor = Threaded.options(max_concurrency=3).remote()
    refs = [actor.enter.remote(i, gate) for i in range(7)]
    assert len(ray.get(gate.arrived.remote(3), timeout=GUARD_S)) == 3
    gate.open.remote()
    assert ray.get(refs, timeout=GUARD_S) == list(range(7))
    most, begun = ray.get(actor.state.remote())
    assert most == 3
    assert sorted(begun) == list(range(7))
    ended(actor)


def test_an_ordinary_actor_runs_one_call_at_a_time(gate):
    actor = Threaded.remote()
    refs = [actor.enter.remote(i, gate) for i in range(5)]
    assert ray.get(gate.arrived.remote(1), timeout=GUARD_S) == [0]
    gate.open.remote()
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.state.remote()) == (1, list(range(5)))
    ended(actor)


def test_calls_of_a_group_begin_in_submission_order():

    @ray.remote
    class One:
        def __init__(self):
            self.begun = []

        def add(self, i):
            self.begun.append(i)

        @ray.method(concurrency_group="other")
        def all(self):
            return self.begun

    actor = One.options(concurrency_groups={"other": 1}).remote()
    ray.get([actor.add.remote(i) for i in range(200)])
    assert ray.get(actor.all.remote()) == list(range(200))
    ended(actor)


def test_an_exception_on_a_thread_fails_its_call_only():
    actor = Threaded.options(max_concurrency=2).remote()
    with pytest.raises(KeyError, match="mine"):
        ray.get(actor.fail.remote())
    assert ray.get(actor.state.remote()) == (0, [])
    ended(actor)


def test_a_thread_may_call_its_own_actor():
    """With only one thread, the inner call would wait forever for that thread."""

    @ray.remote(max_concurrency=2)
    class Recursive:
        def depth(self, n):
            return 0 if n == 0 else 1 + ray.get(ray.get_runtime_context().current_actor.depth.remote(n - 1))

    actor = Recursive.remote()
    assert ray.get(actor.depth.remote(1), timeout=GUARD_S) == 1
    ended(actor)


def test_threads_have_contexts_of_their_own(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    refs = [actor.context.options(name=n).remote(gate, n) for n in "ab"]
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    gate.open.remote()
    (a, first), (b, second) = ray.get(refs, timeout=GUARD_S)
    assert (a, b) == ("a", "b")
    assert first != second
    ended(actor)


@pytest.mark.parametrize("way", ["leave", "__ray_terminate__"])
def test_running_threads_finish_before_the_actor_ends(gate, way):
    actor = Threaded.options(max_concurrency=2).remote()
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    inside = actor.enter.remote("a", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(getattr(actor, way).remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.state.remote(), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_queued_calls_of_an_ending_threaded_actor_never_run(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    inside = actor.enter.remote("a", gate)
    left = actor.leave_when_open.remote(gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    waits = [actor.enter.remote(i, gate) for i in range(3)]
    gate.open.remote("leave")
    for ref in (left, *waits):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=GUARD_S)
    assert ray.get(gate.seen.remote(), timeout=GUARD_S) == ["a", "leave"]
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"


def test_sys_exit_lets_running_threads_finish(gate):
    actor = Threaded.options(max_concurrency=2).remote()
    inside = actor.enter.remote("a", gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    left = actor.leave_with.remote(0, gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == "a"
    with pytest.raises(ActorDiedError, match="exited with code 0"):
        ray.get(left, timeout=GUARD_S)


@pytest.mark.parametrize("cls", ["Threaded", "Async"])
def test_sys_exit_with_another_code_crashes_at_once(gate, cls):
    actor = getattr(concurrent_actors, cls).options(max_concurrency=2).remote()
    never = actor.enter.remote("a", gate) if cls == "Threaded" else actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    exits = actor.__ray_call__.remote(lambda self: sys.exit(3))
    for ref in (exits, never):
        with pytest.raises(ActorDiedError, match="exited with code 3"):
            ray.get(ref, timeout=GUARD_S)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_signal_handler_can_end_a_threaded_actor(concurrency):
    @ray.remote
    class Signalled:
        def __init__(self):
            signal.signal(signal.SIGUSR1, lambda *_: ray.exit_actor())

        def pid(self):
            return os.getpid()

    actor = Signalled.options(max_restarts=-1, max_concurrency=concurrency).remote()
    os.kill(ray.get(actor.pid.remote(), timeout=GUARD_S), signal.SIGUSR1)
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)
    assert row_of(actor)["num_restarts"] == 0


class Handled:
    """An argument whose unpickling, on the main thread, installs a SIGUSR1 handler that ends the actor."""

    def __init__(self, *code):
        self.code = code

    def __reduce__(self):
        return _handle, self.code


def _handle(*code):
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(*code) if code else ray.exit_actor())


class Signalled:
    def __init__(self, handled):
        pass

    def pid(self):
        return os.getpid()


@ray.remote
class SignalledAsync(Signalled):
    async def waits(self, gate, who):
        await gate.arrive.remote(who)
        return who


def test_a_signal_handler_ends_an_async_actor_after_running_calls(gate):
    actor = SignalledAsync.options(max_restarts=-1).remote(Handled())
    pid, runs = ray.get(actor.pid.remote(), timeout=GUARD_S), actor.waits.remote(gate, "runs")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    os.kill(pid, signal.SIGUSR1)

    def takes_no_more():
        with contextlib.suppress(ActorDiedError):
            return not ray.get(actor.pid.remote(), timeout=GUARD_S)
        return True

    wait_until(takes_no_more, GUARD_S)
    gate.open.remote()
    assert ray.get(runs, timeout=GUARD_S) == "runs"
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)
    assert row_of(actor)["num_restarts"] == 0


@pytest.mark.parametrize("kind", ["async", "async with groups", "threads"])
def test_a_signal_during_a_thread_handover_loses_no_call(kind):
    class Signals:
        def __init__(self, handled):
            sys.setswitchinterval(GUARD_S)  # the main thread hands the call to a thread, and continues only when that thread waits

        def run(self):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.05)  # time in which the main thread could wrongly refuse the call
            return "ran"

    class SignalsAsync(Signals):
        async def waits(self):
            pass

    groups = {"other": 1} if kind == "async with groups" else {}
    actor = (
        ray.remote(Signals if kind == "threads" else SignalsAsync).options(max_concurrency=2, concurrency_groups=groups).remote(Handled())
    )
    assert ray.get(actor.run.remote(), timeout=GUARD_S) == "ran"
    wait_until(lambda: row_of(actor)["state"] == "DEAD", GUARD_S)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_call_during_the_signal_goes_to_the_next_life(concurrency):
    actor = ray.remote(Signalled).options(max_restarts=-1, max_task_retries=-1, max_concurrency=concurrency).remote(Handled(3))
    for _ in range(4):
        pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
        os.kill(pid, signal.SIGUSR1)
        assert ray.get([actor.pid.remote() for _ in range(3)], timeout=GUARD_S)
        wait_until(lambda pid=pid: not alive(pid), GUARD_S, "the end of its process")


def row_of(actor):
    (row,) = (r for r in ray._core.process.session().list("actors") if r["id"] == actor._actor_id)
    return row


def test_calls_during_an_actors_end_fail():
    @ray.remote
    class Ends:
        async def call(self):
            return 1

        async def leave(self):
            ray.exit_actor()

        def __ray_shutdown__(self):
            threading.Event().wait(0.3)  # further calls arrive in this time

    actor = Ends.remote()
    ray.get(actor.call.remote(), timeout=GUARD_S)
    actor.leave.remote()
    for ref in [actor.call.remote() for _ in range(3000)]:
        with contextlib.suppress(ActorDiedError):
            assert ray.get(ref, timeout=GUARD_S) == 1


@pytest.mark.parametrize("cls", ["Threaded", "Async"])
def test_an_endless_call_keeps_its_actor_until_kill(cls, gate):
    actor = getattr(concurrent_actors, cls).options(max_concurrency=2).remote()
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    never = actor.enter.remote("a", gate) if cls == "Threaded" else actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.leave.remote(), timeout=GUARD_S)
    assert alive(pid)
    assert not ray.wait([never], timeout=0)[0]
    ray.kill(actor)
    with pytest.raises(ActorDiedError):
        ray.get(never, timeout=GUARD_S)
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_a_thousand_calls_on_threads_return():
    actor = Recorder.options(max_concurrency=4).remote()
    assert ray.get([actor.echo.remote(i) for i in range(1000)], timeout=GUARD_S) == list(range(1000))
    assert ray.get(actor.pair.remote()) == [1, 2]
    ended(actor)
