"""A2 of COVERAGE.md, concurrency: actors with async methods."""

import pytest
from concurrent_actors import Async, Threaded
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Gate

import shoal as ray
from shoal.exceptions import ActorDiedError, GetTimeoutError, TaskCancelledError


@pytest.fixture
def actor():
    actor = Async.remote()
    yield actor
    ray.kill(actor)


def test_async_calls_interleave_and_begin_in_order(actor):
    refs = [actor.enter.remote(i) for i in range(50)]
    actor.release.remote()
    assert ray.get(refs, timeout=GUARD_S) == list(range(50))
    assert ray.get(actor.seen.remote()) == (50, list(range(50)))


def test_max_concurrency_bounds_async_calls(gate):
    actor = Gate.options(max_concurrency=3).remote()
    refs = [actor.arrive.remote(i) for i in range(2)]
    assert ray.get(actor.arrived.remote(2), timeout=GUARD_S) == [0, 1]
    refs.append(actor.arrive.remote(2))
    beyond = actor.seen.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(beyond, timeout=0.1)
    ray.kill(actor)
    del refs


def test_a_thousand_async_calls_run_at_once_by_default(actor):
    refs = [actor.enter.remote(i) for i in range(999)]
    actor.release.remote()
    ray.get(refs, timeout=GUARD_S)
    assert ray.get(actor.seen.remote())[0] == 999


def test_all_methods_and_the_constructor_run_on_one_loop(actor):
    assert ray.get([actor.one_thread.remote(), actor.sync_one_thread.remote()]) == [True, True]


def test_an_async_failure_fails_its_call_only(actor):
    with pytest.raises(KeyError, match="mine"):
        ray.get(actor.fail.remote())
    with pytest.raises(ray.exceptions.RayTaskError, match="CancelledError"):
        ray.get(actor.cancel.remote())
    assert ray.get(actor.pair.remote()) == [1, 2]


def test_an_async_method_awaits_references(actor, recorder):
    assert ray.get(actor.get_of.remote([recorder.echo.remote(1), ray.put(2)]), timeout=GUARD_S) == [1, 2]
    assert ray.get([actor.through.remote(recorder, "echo", i) for i in range(100)], timeout=GUARD_S) == list(range(100))


def test_an_async_method_can_return_a_reference(actor, recorder, gate):
    for ref in (
        ray.get(actor.submits.remote(recorder, "echo", 1), timeout=GUARD_S),
        ray.get(actor.__ray_call__.remote(lambda _, handle: handle.echo.remote(1), recorder), timeout=GUARD_S),
    ):
        assert isinstance(ref, ray.ObjectRef)
        assert ray.get(ref, timeout=GUARD_S) == 1
    # submits() returns before its reference is ready. An error of the reference does not fail the call of submits().
    waits = ray.get(actor.submits.remote(gate, "wait", "", 2), timeout=GUARD_S)
    fails = ray.get(actor.submits.remote(recorder, "fail", KeyError("mine")), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(waits, timeout=GUARD_S) == 2
    with pytest.raises(KeyError, match="mine"):
        ray.get(fails, timeout=GUARD_S)


def test_returned_coroutines_and_futures_are_awaited(actor):
    assert ray.get([actor.passes.remote(True), actor.passes.remote(False)], timeout=GUARD_S) == [5, 6]


def test_two_async_actors_call_each_other(actor):
    @ray.remote
    class Other:
        async def echo(self, x):
            return x + 1

        async def back(self, handle, me, x):
            return await handle.through.remote(me, "echo", x)

    other = Other.remote()
    assert ray.get(other.back.remote(actor, other, 1), timeout=GUARD_S) == 2
    ray.kill(other)


def test_async_calls_have_contexts_of_their_own(actor):
    refs = [actor.name.options(name=str(i)).remote() for i in range(10)]
    assert ray.get(refs) == [str(i) for i in range(10)]


@pytest.mark.parametrize("way", ["leave", "__ray_terminate__"])
def test_running_async_calls_finish_before_the_actor_ends(actor, gate, way):
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    inside = actor.through.remote(gate, "wait", "", 5)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(getattr(actor, way).remote(), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.seen.remote(), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == 5
    wait_until(lambda: not alive(pid), GUARD_S, "its end")


def test_queued_calls_of_an_ending_async_actor_never_run(gate):
    actor = Async.options(max_concurrency=2).remote()
    inside, left = actor.through.remote(gate, "wait", "", 5), actor.leave_when_open.remote(gate)
    waits = [actor.through.remote(gate, "note", i) for i in range(3)]
    gate.open.remote("leave")
    for ref in (left, *waits):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(inside, timeout=GUARD_S) == 5
    assert ray.get(gate.seen.remote(), timeout=GUARD_S) == ["leave"]


def test_running_calls_of_an_ending_actor_can_be_cancelled(actor, gate):
    inside = actor.through.remote(gate, "arrive", "a")
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.leave.remote(), timeout=GUARD_S)
    ray.cancel(inside)
    with pytest.raises(TaskCancelledError):
        ray.get(inside, timeout=GUARD_S)


def test_a_call_that_waits_for_its_own_actors_exit_fails(actor):
    with pytest.raises(ActorDiedError):
        ray.get(actor.through.remote(actor, "leave"), timeout=GUARD_S)


@pytest.mark.parametrize("cls", [Async, Threaded.options(max_concurrency=2)], ids=["async", "threads"])
def test_no_call_runs_after_the_end_was_reported(cls):
    for actor in [cls.remote() for _ in range(10)]:
        with pytest.raises(ActorDiedError):
            ray.get(actor.leave.remote(), timeout=GUARD_S)
        with pytest.raises(ActorDiedError):
            ray.get(actor.__ray_ready__.remote(), timeout=GUARD_S)


def test_an_async_constructor_error_fails_the_actor():
    @ray.remote
    class Broken:
        def __init__(self):
            raise ValueError("no such luck")

        async def method(self):
            return 1

    with pytest.raises(ActorDiedError, match="no such luck"):
        ray.get(Broken.remote().method.remote(), timeout=GUARD_S)
