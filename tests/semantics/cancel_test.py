"""A1 and A2 of COVERAGE.md, cancellation: of waiting calls, running calls and their nested calls, and its effect on dependent calls."""

import asyncio
import os
import time

import pytest
from cancelled_calls import cancels, is_cancelled, plus_one, stubborn, tells, waits
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import RayTaskError, TaskCancelledError


@ray.remote(num_cpus=0)
def sleeps(gate):
    gate.note.remote(os.getpid())
    time.sleep(1000)


# ---- functions


def test_cancel_drops_a_function_that_waits_for_a_worker():
    ref = plus_one.options(resources={"unobtainium": 1}).remote(1)
    assert ray.wait([ref], timeout=0)[0] == []
    ray.cancel(ref)
    is_cancelled(ref)

    def pending():
        return [r for r in ray._core.process.session().list("actors") if r["state"] == "PENDING"]

    wait_until(lambda: not pending(), GUARD_S, "the end of the wait for a worker that nobody needs")


def test_cancel_fails_a_function_with_pending_arguments_and_its_dependants(gate):
    argument = gate.wait.remote("", 1)
    first, other = plus_one.remote(argument), plus_one.remote(argument)
    dependant = plus_one.remote(first)
    ray.cancel(first)
    is_cancelled(first)
    is_cancelled(dependant)
    gate.open.remote()
    assert ray.get(other, timeout=GUARD_S) == 2


def test_a_method_whose_argument_was_cancelled_fails_likewise(gate, recorder):
    ref = waits.remote(gate)
    called = recorder.echo.remote(ref)
    ray.cancel(ref)
    is_cancelled(called)
    assert ray.get(recorder.echo.remote("goes on"), timeout=GUARD_S) == "goes on"


@pytest.mark.usefixtures("workers_stay")
def test_a_waiting_function_is_interrupted_and_its_process_goes_on(gate):
    ref = waits.remote(gate)
    (pid,) = ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(ref)
    is_cancelled(ref)
    again = waits.remote(gate, "", "again")
    assert ray.get(gate.arrived.remote(2), timeout=GUARD_S) == [pid, pid]
    ray.cancel(again)
    is_cancelled(again)


def test_a_sleeping_function_is_interrupted(gate):
    ref = sleeps.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(ref)
    is_cancelled(ref)


def test_a_function_that_catches_the_interrupt_keeps_its_result(gate):
    ref = stubborn.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(ref)
    assert ray.get(ref, timeout=GUARD_S) == "as it likes"


def test_force_ends_the_process_without_a_retry(gate):
    ref = stubborn.options(max_retries=-1).remote(gate)
    running = waits.remote(gate)
    come = ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    pid = next(c for c in come if c != "stubborn")
    ray.cancel(running, force=True)
    is_cancelled(running)
    wait_until(lambda: not alive(pid), GUARD_S, "the end of the process")
    ray.cancel(ref, force=True)
    is_cancelled(ref)
    assert len(ray.get(gate.seen.remote())) == 2


def test_cancel_of_a_finished_function_has_no_effect():
    ref = plus_one.remote(1)
    assert ray.get(ref, timeout=GUARD_S) == 2
    ray.cancel(ref)
    ray.cancel(ref, force=True)
    assert ray.get(ref) == 2


def test_cancel_of_one_result_cancels_the_whole_call(gate):
    first, second = waits.options(num_returns=2).remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(second)
    is_cancelled(first)
    is_cancelled(second)


def test_cancel_works_in_every_state_of_a_call(gate):
    """Covers calls that are about to begin or to end: no signal may end the worker's process."""

    @ray.remote(num_cpus=1)
    def brief(k):
        return sum(range(k))

    for k in range(150):
        ref = brief.remote(k * 50)
        if k % 3:
            ray.wait([ref], timeout=k % 7 * 0.0003)
        ray.cancel(ref)
        try:
            assert ray.get(ref, timeout=GUARD_S) == sum(range(k * 50))
        except TaskCancelledError:
            pass
    assert ray.get([plus_one.remote(k) for k in range(20)], timeout=GUARD_S) == list(range(1, 21))


# ---- nested calls


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("recursive", [True, False])
def test_nested_calls_of_a_function_are_cancelled_with_it(gate, recursive):
    @ray.remote(num_cpus=0)
    def parent(gate):
        ray.get(tells.remote(gate, "child"))

    ref = parent.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(ref, recursive=recursive)
    is_cancelled(ref)
    gate.open.remote("child") if not recursive else None
    assert ray.get(gate.arrived.remote(2), timeout=GUARD_S) == ["begins", "cancelled" if recursive else "done"]


def test_nested_calls_of_an_async_method_are_cancelled_with_it(gate):
    @ray.remote
    class Caller:
        async def call(self, gate):
            return await tells.remote(gate, "child")

        async def other(self, gate):
            return await waits.remote(gate, "other", "other")

    caller = Caller.remote()
    other, ref = caller.other.remote(gate), caller.call.remote(gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    ray.cancel(ref)
    is_cancelled(ref)
    assert ray.get(gate.arrived.remote(3), timeout=GUARD_S)[2] == "cancelled"
    gate.open.remote("other")
    assert ray.get(other, timeout=GUARD_S) == "other"  # `other` is the child of a call that was not cancelled
    ray.kill(caller)


# ---- methods


class Busy:
    def __init__(self):
        self.seen = []

    def arrive(self, gate, who):
        ray.get(gate.arrive.remote(who))
        return who

    def add(self, value):
        self.seen.append(value)
        return len(self.seen)

    def all(self):
        return self.seen


@pytest.mark.parametrize("threads", [1, 2])
def test_an_actor_drops_waiting_calls_and_interrupts_running_ones(gate, threads):
    actor = ray.remote(max_concurrency=threads)(Busy).remote()
    running = [actor.arrive.remote(gate, k) for k in range(threads)]
    ray.get(gate.arrived.remote(threads), timeout=GUARD_S)
    waiting = [actor.add.remote(k) for k in range(3)]
    ray.cancel(waiting[1])
    is_cancelled(waiting[1])
    ray.cancel(running[0], recursive=False)
    gate.open.remote()
    assert ray.get(running, timeout=GUARD_S) == list(range(threads))
    assert sorted(ray.get([waiting[0], waiting[2]], timeout=GUARD_S)) == [1, 2]
    assert sorted(ray.get(actor.all.remote())) == [0, 2]
    ray.kill(actor)


def test_nested_calls_are_cancelled_although_the_method_goes_on(gate):
    actor = ray.remote(Busy).remote()
    ref = actor.arrive.remote(gate, 0)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(ref)
    with pytest.raises(RayTaskError, match=r"the call of Gate\.arrive was cancelled"):
        ray.get(ref, timeout=GUARD_S)
    ray.kill(actor)


def test_a_cancelled_call_with_a_pending_argument_blocks_no_other(gate, recorder):
    blocked, behind = recorder.add.remote(gate.wait.remote()), recorder.add.remote("behind")
    assert ray.wait([behind], timeout=0.05)[0] == []
    ray.cancel(blocked)
    is_cancelled(blocked)
    assert ray.get(behind, timeout=GUARD_S) == 1


def test_calls_on_a_pending_actor_are_cancelled():
    actor = Recorder.options(resources={"unobtainium": 1}).remote()
    ref = actor.all.remote()
    ray.cancel(ref)
    is_cancelled(ref)
    ray.kill(actor)


def test_an_async_method_is_cancelled_at_its_await():
    @ray.remote
    class Sees:
        async def forever(self):
            try:
                self.began = True
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.saw = True
                raise

        async def wait_for(self, what):
            while not hasattr(self, what):
                await asyncio.sleep(0.001)

    actor = Sees.remote()
    ref = actor.forever.remote()
    ray.get(actor.wait_for.remote("began"), timeout=GUARD_S)
    ray.cancel(ref)
    is_cancelled(ref)
    ray.get(actor.wait_for.remote("saw"), timeout=GUARD_S)
    ray.kill(actor)


def test_a_queued_async_method_is_cancelled():
    gate = Gate.options(max_concurrency=1).remote()
    ray.get(gate.seen.remote(), timeout=GUARD_S)
    running, waiting = gate.wait.remote(), gate.note.remote("never")
    ray.cancel(waiting)
    is_cancelled(waiting)
    ray.cancel(running)
    is_cancelled(running)
    assert ray.get(gate.seen.remote(), timeout=GUARD_S) == []
    ray.kill(gate)


def test_an_async_methods_own_cancelled_error_is_a_task_error():
    @ray.remote
    class Cancels:
        async def itself(self):
            raise asyncio.CancelledError("its own")

    actor = Cancels.remote()
    with pytest.raises(RayTaskError, match="its own"):
        ray.get(actor.itself.remote(), timeout=GUARD_S)
    ray.kill(actor)


def test_a_cancelled_method_is_not_retried(gate):
    @ray.remote
    class Tries:
        @ray.method(max_task_retries=-1, retry_exceptions=True)
        async def run(self, gate):
            gate.note.remote("one")
            raise ValueError("again")

    actor = Tries.remote()
    ref = actor.run.remote(gate)
    ray.get(gate.arrived.remote(3), timeout=GUARD_S)
    ray.cancel(ref)
    is_cancelled(ref)
    ray.kill(actor)


def test_a_running_method_can_check_is_canceled(gate):
    @ray.remote
    class Looks:
        def run(self, gate):
            context = ray.get_runtime_context()
            assert not context.is_canceled()
            ray.get(gate.arrive.remote("here"))
            end = time.monotonic() + GUARD_S  # the cancellation may arrive after the gate's answer, because it takes another connection
            while not context.is_canceled() and time.monotonic() < end:
                time.sleep(0.001)
            return context.is_canceled()

    actor = Looks.remote()
    ref = actor.run.remote(gate)
    ray.get(gate.arrived.remote(1))
    ray.cancel(ref, recursive=False)
    ray.get(gate.open.remote())
    assert ray.get(ref, timeout=GUARD_S) is True
    ray.kill(actor)


def test_is_canceled_raises_in_async_methods_and_drivers():
    @ray.remote
    class Async:
        async def look(self):
            ray.get_runtime_context().is_canceled()

    with pytest.raises(RuntimeError, match="async"):
        ray.get(Async.remote().look.remote(), timeout=GUARD_S)
    with pytest.warns(UserWarning, match="driver"), pytest.raises(RuntimeError, match="remote functions"):
        ray.get_runtime_context().is_canceled()


def test_force_is_refused_for_methods(gate, recorder):
    ref = recorder.wait_at.remote(gate)
    with pytest.raises(ValueError, match="force=True is not supported for actor tasks"):
        ray.cancel(ref, force=True)
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) is None


@pytest.mark.parametrize("by_others", [False, True])
def test_a_method_is_retried_after_a_refused_force(gate, by_others):
    @ray.remote
    class Tries:
        tries = 0

        @ray.method(max_task_retries=1, retry_exceptions=True)
        def run(self, gate):
            self.tries += 1
            ray.get(gate.arrive.remote(self.tries))
            if self.tries == 1:
                raise ValueError("again")
            return self.tries

    actor = Tries.remote()
    ref = actor.run.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ValueError, match="force=True is not supported for actor tasks"):
        ray.get(cancels.remote([ref], force=True), timeout=GUARD_S) if by_others else ray.cancel(ref, force=True)
    ray.get(gate.open.remote())
    assert ray.get(ref, timeout=GUARD_S) == 2
    ray.kill(actor)


# ---- generators


def test_a_generator_ends_with_its_cancellation(gate):
    @ray.remote(num_cpus=0)
    def numbers(gate):
        yield from range(2)
        ray.get(gate.arrive.remote("two"))
        yield 2

    generator = numbers.remote(gate)
    assert [ray.get(next(generator), timeout=GUARD_S) for _ in range(2)] == [0, 1]
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(generator)
    is_cancelled(next(generator))
    with pytest.raises(StopIteration):
        next(generator)
    is_cancelled(generator.completed())


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_methods_generator_ends_at_its_next_item(gate, concurrency):
    @ray.remote(max_concurrency=concurrency)
    class Numbers:
        def endless(self, gate):
            yield 0
            ray.get(gate.arrive.remote("one"))
            while True:
                yield 1

    actor = Numbers.remote()
    generator = actor.endless.remote(gate)
    assert ray.get(next(generator), timeout=GUARD_S) == 0
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.cancel(generator)
    gate.open.remote()
    is_cancelled(generator.completed())
    ray.kill(actor)


def test_an_async_generator_ends_with_its_cancellation():
    @ray.remote
    class Streams:
        async def numbers(self):
            yield 0
            await asyncio.sleep(1000)

    actor = Streams.remote()
    generator = actor.numbers.remote()
    assert ray.get(next(generator), timeout=GUARD_S) == 0
    ray.cancel(generator)
    is_cancelled(next(generator))
    ray.kill(actor)


# ---- no calls


def test_cancel_refuses_a_non_call(recorder):
    with pytest.raises(TypeError, match="kill"):
        ray.cancel(recorder)
    put = ray.put(1)
    ray.cancel(put)
    assert ray.get(put) == 1
