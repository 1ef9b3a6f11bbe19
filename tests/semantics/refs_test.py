"""A3 of COVERAGE.md: put, get, wait; references as values, awaited, as futures and as keys."""

import asyncio
import concurrent.futures
import copy
import gc
import os
import threading
import weakref

import numpy as np
import pytest
from internals.core import refs
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import GetTimeoutError, RayActorError, RayTaskError


@ray.remote
def double(x):
    return 2 * x


@ray.remote
class Blocker:
    def wait(self):
        threading.Event().wait()


# ---- put and get


def test_get_keeps_order_and_takes_duplicates(recorder):
    refs = [recorder.echo.remote(i) for i in range(5)]
    assert ray.get([refs[3], refs[0], refs[3]]) == [3, 0, 3]


def test_get_of_one_reference_that_holds_none():
    assert ray.get(ray.put(None)) is None


def test_get_of_an_empty_list():
    assert ray.get([]) == []


def test_put_refuses_a_reference():
    with pytest.raises(TypeError):
        ray.put(ray.put(1))


def test_get_timeout_error_is_a_timeout_error(gate):
    ref = gate.wait.remote()
    with pytest.raises(GetTimeoutError) as info:
        ray.get(ref, timeout=0)
    assert isinstance(info.value, TimeoutError)
    assert isinstance(info.value, ray.exceptions.RayError)


def test_a_timeout_leaves_the_call_running(gate):
    ref = gate.wait.remote(then="late")
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0)
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) == "late"


def test_a_user_exception_keeps_its_class_and_is_a_ray_task_error(recorder):
    with pytest.raises(ZeroDivisionError) as info:
        ray.get(recorder.fail.remote(ZeroDivisionError("mine")))
    assert isinstance(info.value, RayTaskError)
    assert isinstance(info.value.cause, ZeroDivisionError)


def test_get_of_a_list_raises_the_first_failure_despite_pending_ones(gate, recorder):
    pending = gate.wait.remote()
    with pytest.raises(KeyError, match="mine"):
        ray.get([pending, recorder.fail.remote(KeyError("mine"))], timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(pending, timeout=GUARD_S) is None


# ---- wait


def test_wait_of_an_empty_list():
    assert ray.wait([]) == ([], [])


def test_wait_returns_at_most_num_returns():
    refs = [ray.put(i) for i in range(4)]
    assert ray.wait(refs, num_returns=2) == (refs[:2], refs[2:])


def test_wait_keeps_the_given_order(gate):
    slow, ready = gate.wait.remote(), [ray.put(i) for i in range(3)]
    assert ray.wait([ready[2], slow, ready[0]], num_returns=2) == ([ready[2], ready[0]], [slow])


def test_wait_with_a_timeout_returns_the_ready_ones(gate):
    slow, ready = gate.wait.remote(), ray.put(1)
    assert ray.wait([slow, ready], num_returns=2, timeout=0) == ([ready], [slow])
    assert ray.wait([slow], timeout=0) == ([], [slow])


@pytest.mark.parametrize("copied", [copy.copy, lambda r: r])
def test_wait_refuses_a_reference_twice(copied):
    ref = ray.put(1)
    with pytest.raises(ValueError, match="once"):
        ray.wait([ref, copied(ref)])


@pytest.mark.parametrize("wrong", [None, 1, "ab", (), {}, [1], [None]], ids=repr)
def test_wait_takes_a_list_of_references(wrong):
    with pytest.raises(TypeError):
        ray.wait(wrong)


def test_wait_does_not_take_a_reference_alone():
    with pytest.raises(TypeError):
        ray.wait(ray.put(1))


@pytest.mark.parametrize("count", [0, -1, 2])
def test_wait_refuses_impossible_counts(count):
    with pytest.raises(ValueError, match="num_returns"):
        ray.wait([ray.put(1)], num_returns=count)


def test_references_of_failed_calls_and_dead_actors_become_ready(recorder, gate):
    failed, pending = recorder.fail.remote(ValueError()), gate.wait.remote()
    ray.kill(gate)
    ready, rest = ray.wait([failed, pending], num_returns=2, timeout=GUARD_S)
    assert (len(ready), rest) == (2, [])
    with pytest.raises(RayActorError):
        ray.get(pending)


def test_wait_and_get_in_a_loop_see_every_reference_once(recorder):
    rest, seen = [recorder.echo.remote(i) for i in range(20)], []
    while rest:
        (ready,), rest = ray.wait(rest, timeout=GUARD_S)
        seen.append(ray.get(ready))
    assert sorted(seen) == list(range(20))


# ---- references as values


def test_top_level_references_are_resolved_and_nested_ones_are_not(recorder):
    ref = ray.put("value")
    assert ray.get(recorder.kind.remote(ref)) == "str"
    (inner,) = ray.get(recorder.echo.remote([ref]))
    assert isinstance(inner, ray.ObjectRef)
    assert ray.get(inner) == "value"


def test_copies_of_a_reference_are_equal_and_hash_alike(recorder):
    ref, other = ray.put(1), ray.put(1)
    assert ref != other
    (back,) = ray.get(recorder.echo.remote([ref]))
    assert back is not ref
    assert {back: "found"}[ref] == "found"
    assert len({ref, back, copy.copy(ref), other}) == 2
    assert back.hex() == ref.hex()
    assert ref != "something else"


def test_hex_and_binary_name_a_reference():
    ref = ray.put(1)
    assert ref.hex() == ref.hex() != ray.put(1).hex()
    assert bytes.fromhex(ref.hex()) == ref.binary()


def this_task():
    return ray.get_runtime_context().get_task_id()


@ray.remote
class Tasks:
    def one(self):
        return this_task()

    def two(self):
        return this_task(), this_task()

    def items(self):
        yield this_task()
        yield this_task()

    def raises_once(self):
        self.raised = getattr(self, "raised", -1) + 1
        if not self.raised:
            raise ValueError
        return this_task()

    def whose(self, refs):
        return [ref.task_id() for ref in refs]


def test_a_reference_has_its_calls_task_id(recorder):
    actor = Tasks.remote()
    ref, function = actor.one.remote(), ray.remote(this_task).remote()
    refs = [ref, function, *actor.two.options(num_returns=2).remote(), *actor.items.options(num_returns="streaming").remote()]
    refs.append(actor.raises_once.options(max_task_retries=1, retry_exceptions=True).remote())
    names = [r.task_id() for r in refs]
    assert names == ray.get(refs, timeout=GUARD_S)
    assert len(set(names)) == 5
    assert all(type(name) is ray.TaskID and not name.is_nil() for name in names)
    assert ray.get(actor.whose.remote(refs), timeout=GUARD_S) == names  # the references have the same task ids in another process
    assert [r.task_id() for r in ray.get(recorder.echo.remote(refs), timeout=GUARD_S)] == names
    assert ray.put(1).task_id().is_nil()


def test_threads_that_name_a_reference_at_once_give_it_one_name(gate, recorder, monkeypatch):
    """While the first thread creates an id, the second one asks for it and finishes."""
    ref, named = gate.wait.remote(then="there"), []

    def other():
        named.append(hash(ref))
        named.append(recorder.get.remote([ref]))

    def look_for_a_name(look=refs.new_object_id):
        found = look()
        if not named:
            named.append(None)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return found

    monkeypatch.setattr(refs, "new_object_id", look_for_a_name)
    first = ref.hex()
    monkeypatch.undo()
    _, hashed, got = named
    assert ref.hex() == first
    assert hash(ref) == hashed
    ray.get(gate.open.remote())
    assert ray.get(got, timeout=GUARD_S) == ["there"]
    assert ray.get(recorder.get.remote([ref]), timeout=GUARD_S) == ["there"]


def test_naming_a_pending_reference_does_not_wait_for_it(gate):
    ref = gate.wait.remote(then="value")
    table = {ref: 1, ref.hex(): 2}
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) == "value"
    assert table[ref] == 1


def test_repeated_waits_for_a_pending_call_leak_nothing(recorder):
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocker = Blocker.remote()
    never = [blocker.wait.remote() for _ in range(1000)]
    before = resident()
    for k in range(1000):
        ray.wait([recorder.echo.remote(k), *never])
    assert resident() - before < 20 << 20  # 60 MB, if each wait left something behind for each reference


# ---- await


def test_a_reference_is_awaited(recorder):
    async def main():
        return await recorder.echo.remote("value")

    assert asyncio.run(main()) == "value"


def test_a_reference_that_is_ready_is_awaited_too():
    async def main():
        ref = ray.put(1)
        return [await ref, await ref]

    assert asyncio.run(main()) == [1, 1]


def test_gather_keeps_the_given_order(gate):
    async def main():
        refs = [gate.wait.remote(name, name) for name in "abc"]
        for name in "cba":
            gate.open.remote(name)
        return await asyncio.gather(*refs)

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_asyncio_wait_returns_the_first_completed(gate):
    async def main():
        first, second = (gate.wait.remote(name).as_future() for name in "ab")
        await gate.open.remote("b")
        done, pending = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        result = (done == {second}, pending == {first})
        await gate.open.remote("a")
        await first
        return result

    assert asyncio.run(main()) == (True, True)


def test_asyncio_wait_for_times_out_and_the_reference_stays_valid(gate):
    async def main():
        ref = gate.wait.remote(then="late")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ref, 0.01)
        await gate.open.remote()
        return await ref

    assert asyncio.run(main()) == "late"


def test_repeated_timeouts_leak_nothing(gate):
    async def main():
        ref, given_up = gate.wait.remote(then="late"), []
        for _ in range(1000):
            future = ref.as_future()
            given_up.append(weakref.ref(future))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(future, 0)
        del future
        gc.collect()
        assert sum(each() is not None for each in given_up) < 200
        await gate.open.remote()
        return await ref

    assert asyncio.run(main()) == "late"


def test_awaiting_raises_the_calls_error(recorder):
    async def main():
        with pytest.raises(KeyError, match="mine") as info:
            await recorder.fail.remote(KeyError("mine"))
        return isinstance(info.value, RayTaskError)

    assert asyncio.run(main())


def test_awaiting_a_call_on_an_actor_that_dies_raises(gate):
    async def main():
        ref = gate.wait.remote()
        ray.kill(gate)
        with pytest.raises(RayActorError):
            await ref

    asyncio.run(main())


def test_one_reference_is_awaited_by_several_at_once(gate):
    async def main():
        ref = gate.wait.remote(then=7)
        waiting = [asyncio.ensure_future(wait_for(ref)) for _ in range(5)]
        await asyncio.sleep(0)
        await gate.open.remote()
        return await asyncio.gather(*waiting)

    async def wait_for(ref):
        return await ref

    assert asyncio.run(main()) == [7] * 5


def test_the_loop_goes_on_while_a_reference_is_awaited(gate):
    async def main():
        waiting, turns = asyncio.ensure_future(wait_for(gate.wait.remote())), 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 100:
                gate.open.remote()
        return turns

    async def wait_for(ref):
        return await ref

    assert asyncio.run(main()) >= 100


def test_a_second_event_loop_awaits_references(recorder):
    async def main(x):
        return await recorder.echo.remote(x)

    assert [asyncio.run(main(i)) for i in range(3)] == [0, 1, 2]


def test_a_closed_loop_with_pending_references_causes_no_error(gate):
    async def main():
        gate.wait.remote().as_future()

    asyncio.run(main())
    gate.open.remote()
    assert ray.get(gate.wait.remote(), timeout=GUARD_S) is None


def test_large_arrays_are_awaited_without_a_copy():
    async def main():
        return await ray.put(np.arange(1_000_000))

    array = asyncio.run(main())
    assert array[-1] == 999_999
    assert not array.flags.writeable


# ---- futures


def test_a_future_has_the_value_or_the_error(recorder):
    assert recorder.echo.remote(3).future().result(GUARD_S) == 3
    with pytest.raises(ValueError, match="mine"):
        recorder.fail.remote(ValueError("mine")).future().result(GUARD_S)


def test_many_futures_are_done_in_any_order(gate):
    futures = {gate.wait.remote(str(i), i).future(): i for i in range(20)}
    for i in reversed(range(20)):
        gate.open.remote(str(i))
    for future in concurrent.futures.as_completed(futures, timeout=GUARD_S):
        assert future.result() == futures[future]


def test_a_futures_callback_runs_without_a_waiter(recorder):
    called = threading.Event()
    recorder.echo.remote(1).future().add_done_callback(lambda _: called.set())
    assert called.wait(GUARD_S)


def test_a_callback_may_itself_get_and_call(recorder):
    got, called = [], threading.Event()

    def callback(future):
        got.append(ray.get(recorder.echo.remote(future.result() + 1), timeout=GUARD_S))
        called.set()

    recorder.echo.remote(1).future().add_done_callback(callback)
    assert called.wait(GUARD_S)
    assert got == [2]


def test_a_cancelled_future_leaves_the_call_alone(gate):
    ref = gate.wait.remote(then=5)
    assert ref.future().cancel()
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) == 5


def test_threads_await_and_get_at_once(recorder):
    failures = []

    def getter(k):
        for i in range(30):
            if ray.get(recorder.echo.remote((k, i)), timeout=GUARD_S) != (k, i):
                failures.append((k, i))

    def awaiter(k):
        async def main():
            for i in range(30):
                if await recorder.echo.remote((k, i)) != (k, i):
                    failures.append((k, i))

        asyncio.run(main())

    threads = [threading.Thread(target=f, args=(k,)) for k, f in enumerate([getter, awaiter, getter, awaiter])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
        assert not thread.is_alive()
    assert failures == []


def test_a_functions_result_is_awaited():
    async def main():
        return await asyncio.gather(*[double.remote(i) for i in range(4)])

    assert asyncio.run(main()) == [0, 2, 4, 6]
