"""A1 of COVERAGE.md, remote functions: their scheduling, and the closures that workers keep."""

import functools
import os
import time

import numpy as np
import pytest
from internals.core import FunctionPool, state
from launching.leftovers import wait_until
from semantics_actors import GUARD_S, Tries

import shoal as ray

# ---- scheduling


@ray.remote(num_cpus=0)
class Meeting:
    """An actor whose callers wait until `count` of them are there."""

    def __init__(self, count):
        import asyncio

        self.missing, self.complete = count, asyncio.Event()

    async def come(self):
        self.missing -= 1
        if self.missing == 0:
            self.complete.set()
        await self.complete.wait()


@ray.remote
def meet(meeting):
    ray.get(meeting.come.remote())
    return os.getpid()


def test_tasks_submitted_together_run_concurrently():
    meeting = Meeting.remote(4)
    assert len(set(ray.get([meet.remote(meeting) for _ in range(4)], timeout=GUARD_S))) == 4


@ray.remote
def tree(depth):
    return 1 + sum(ray.get([tree.remote(depth - 1) for _ in range(2)])) if depth else 1


@ray.remote(num_cpus=8)
def all_cpus(depth):
    return 1 + ray.get(all_cpus.remote(depth - 1)) if depth else 1


def test_waiting_tasks_lend_their_cpus():
    """Each call asks for all CPUs, and waits for the next one."""
    assert ray.get(all_cpus.remote(3), timeout=GUARD_S) == 4


def patient(monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", 10.0 * GUARD_S)
    monkeypatch.setattr(FunctionPool, "NEEDED_S", 0.1)


@ray.remote(num_cpus=8)
def leaves_behind(calls, gate, tries):
    """Makes calls that wait at the gate, and returns before they have run. It returns the references of two of them."""
    for k in range(calls):
        notes.remote(gate.wait.remote("", k), tries)
    return [passes_on.options(num_cpus=8).remote(gate.wait.remote("", "a")), gate.wait.remote("", "b")]


@ray.remote(num_cpus=8)
def notes(k, tries):
    ray.get(tries.add.remote(k))


@pytest.mark.parametrize("max_calls", [0, 1])
def test_open_calls_of_a_returned_function_run_and_its_worker_stays(gate, tries, max_calls, monkeypatch):
    """The function's worker reports again and again that it has open calls. Meanwhile other calls use its CPUs."""
    patient(monkeypatch)
    one, other = ray.get(leaves_behind.options(max_calls=max_calls).remote(5, gate, tries), timeout=GUARD_S)
    needed = lambda: [leaving for leaving in state.functions._leaving if leaving.needed]  # noqa: E731
    wait_until(needed, GUARD_S, "that the worker says that it is needed")
    assert ray.get(passes_on.options(num_cpus=8).remote(1), timeout=GUARD_S) == 1
    gate.open.remote()
    assert ray.get([one, other], timeout=GUARD_S) == ["a", "b"]
    wait_until(lambda: len(ray.get(tries.all.remote(), timeout=GUARD_S)) == 5, GUARD_S, "all of them")
    wait_until(lambda: not state.functions._leaving, GUARD_S, "the end of the worker")


@pytest.mark.parametrize("max_calls", [0, 1])
def test_open_calls_of_a_nested_function_run_and_both_workers_stay(gate, tries, max_calls, monkeypatch):
    """The outer function's worker has no open call of its own; the inner one's has all of them."""
    patient(monkeypatch)
    inner = leaves_behind.options(max_calls=max_calls, num_cpus=1)

    @ray.remote(num_cpus=8, max_calls=max_calls)
    def outer(gate, tries):
        FunctionPool.NEEDED_S = 0.1
        return ray.get(inner.remote(5, gate, tries))

    refs = ray.get(outer.remote(gate, tries), timeout=GUARD_S)
    needed = lambda: [leaving for leaving in state.functions._leaving if leaving.needed]  # noqa: E731
    wait_until(needed, GUARD_S, "that the worker says that it is needed")
    assert ray.get(passes_on.options(num_cpus=8).remote(1), timeout=GUARD_S) == 1
    gate.open.remote()
    assert ray.get(refs, timeout=GUARD_S) == ["a", "b"]
    wait_until(lambda: len(ray.get(tries.all.remote(), timeout=GUARD_S)) == 5, GUARD_S, "all of them")
    wait_until(lambda: not state.functions._leaving, GUARD_S, "the end of the workers")


@ray.remote
class Fails:
    def __init__(self):
        self.calls = 0

    @ray.method(max_task_retries=2)
    def until_the_third(self):
        self.calls += 1
        if self.calls < 3:
            raise ValueError(self.calls)
        return self.calls


def test_a_worker_with_an_open_call_stays_between_retries():
    @ray.remote(num_cpus=0, max_calls=1)
    def begins(actor):
        return [actor.until_the_third.options(max_task_retries=2, retry_exceptions=True).remote()]

    for _ in range(5):
        actor = Fails.remote()
        (ref,) = ray.get(begins.remote(actor), timeout=GUARD_S)
        assert ray.get(ref, timeout=GUARD_S) == 3


@pytest.mark.parametrize("kind", ["a list", "a generator", "an object", "a chain"])
def test_a_pending_reference_that_a_function_returned_becomes_ready(gate, kind):
    @ray.remote(num_cpus=0, max_calls=1)
    def as_list(gate):
        return [passes_on.options(num_cpus=0).remote(gate.wait.remote("", 7))]

    @ray.remote(num_cpus=0, max_calls=1)
    def as_items(gate):
        yield as_list.remote(gate)

    @ray.remote(num_cpus=0, max_calls=1)
    def as_object(gate):
        return ray.put([as_list.remote(gate)])

    @ray.remote(num_cpus=0, max_calls=1)
    def as_chain(n, gate):
        return as_chain.remote(n - 1, gate) if n else as_list.remote(gate)

    call = {"a list": as_list, "a generator": as_items, "an object": as_object, "a chain": as_chain}[kind]
    value = call.remote(*([3] if kind == "a chain" else []), gate)
    value = next(value) if kind == "a generator" else value
    opened = False
    while not isinstance(value, int):
        if isinstance(value, list):
            (value,) = value
        elif not opened and not ray.wait([value], timeout=1.0)[0]:
            opened = gate.open.remote() is not None
        else:
            value = ray.get(value, timeout=GUARD_S)
    assert value == 7


def test_trees_of_tasks_finish():
    assert ray.get(tree.remote(3), timeout=GUARD_S) == 15


@ray.remote
def passes_on(value):
    return value


def test_a_chain_of_references_needs_one_worker():
    ref = passes_on.options(num_cpus=8).remote(1)
    for _ in range(20):
        ref = passes_on.options(num_cpus=8).remote(ref)
    assert ray.get(ref, timeout=GUARD_S) == 1


@ray.remote
def takes_a_while():
    time.sleep(0.05)


@pytest.mark.parametrize("other", ["an actor", "a function"])
def test_a_long_queue_of_functions_does_not_block_other_requests(other):
    """The workers that run the queue give up their CPUs one by one."""
    queue = [takes_a_while.remote() for _ in range(4000)]
    ray.get(queue[0], timeout=GUARD_S)
    if other == "an actor":
        actor = Tries.options(num_cpus=8).remote()
        ray.get(actor.all.remote(), timeout=GUARD_S)
        ray.kill(actor)
    else:
        ray.get(passes_on.options(num_cpus=8).remote(1), timeout=GUARD_S)
    rest = ray.wait(queue, num_returns=len(queue), timeout=0)[1]
    for ref in rest:  # cancels the rest, so that later tests find free CPUs
        ray.cancel(ref)
    assert rest != []
    for ref in queue:
        ray.cancel(ref)


def test_a_quick_task_does_not_wait_behind_a_long_one(tries):
    gate = Meeting.remote(2)
    long = meet.remote(gate)
    assert ray.get([passes_on.remote(k) for k in range(50)], timeout=GUARD_S) == list(range(50))
    ray.get([gate.come.remote(), long], timeout=GUARD_S)


# ---- closures


def test_small_captured_arrays_are_writable():
    """Arguments and large captured arrays are read-only; small captured arrays are writable."""
    few, many = np.zeros(4), np.zeros(4000)

    @ray.remote
    def add(given):
        few[0] += 1
        return few[0], many.flags.writeable, given.flags.writeable

    @ray.remote
    class Adds:
        kept = np.zeros(4)

        def add(self):
            self.kept[0] += 1
            return self.kept[0]

    assert ray.get(add.remote(few), timeout=GUARD_S) == (1, False, False)
    assert ray.get(Adds.remote().add.remote(), timeout=GUARD_S) == 1
    assert ray.get(Adds.options(max_restarts=1).remote().add.remote(), timeout=GUARD_S) == 1


def _noting(large):
    """A remote function that captures a list, and an array of ``large`` numbers."""
    seen, around = [], np.zeros(large)

    @ray.remote
    def note(x):
        seen.append(x)
        return x, list(seen), os.getpid(), around.size

    return note


def expect_one_closure_per_worker(calls):
    """Checks results of ``note`` in their order: each call saw the values that earlier calls noted in its worker, and no others."""
    before = {}
    for x, seen, pid, _ in calls:
        before.setdefault(pid, []).append(x)
        assert seen == before[pid]


@ray.remote(num_cpus=0)
def _notes(function, copies):
    return [ray.get(f.remote(k)) for k, f in enumerate([function, *copies])]


@pytest.mark.parametrize("large", [0, 4000, 100_000])
def test_functions_of_one_factory_share_nothing_with_equal_pickles(large):
    left, right = _noting(large), _noting(large)
    named = left.options(name="named")  # the same closure under another name
    of_left, of_right = [], []
    for k in range(4):
        of_left.append(ray.get(left.remote(f"left {k}"), timeout=GUARD_S))
        of_right.append(ray.get(right.remote(f"right {k}"), timeout=GUARD_S))
        of_left.append(ray.get(named.remote(f"named {k}"), timeout=GUARD_S))
    expect_one_closure_per_worker(of_left)
    expect_one_closure_per_worker(of_right)
    assert {size for *_, size in of_left + of_right} == {large}
    assert len({pid for _, _, pid, _ in of_left}) < len(of_left)


def test_a_redefined_function_starts_with_a_new_closure():
    notes = []
    for k in range(3):
        note = _noting(0)
        notes.append(ray.get(note.remote(k), timeout=GUARD_S)[1])
    assert notes == [[0], [1], [2]]


def test_copies_of_a_function_are_the_same_function():
    note = _noting(0)
    copies = [ray.cloudpickle.loads(ray.cloudpickle.dumps(f)) for f in (note.options(), note)]
    expect_one_closure_per_worker(ray.get(_notes.remote(note, copies), timeout=GUARD_S))


def test_actors_of_one_factory_share_nothing():
    def make(value):
        seen = []

        @ray.remote
        class Notes:
            def note(self):
                seen.append(value)
                return list(seen)

        return Notes

    one, two = make(1), make(2)
    assert ray.get([a.remote().note.remote() for a in (one, two, one)], timeout=GUARD_S) == [[1], [2], [1]]


def test_remote_refuses_a_non_function_with_a_message():
    with pytest.raises(TypeError, match=r"a remote function is a function, not functools\.partial"):
        ray.remote(functools.partial(max, 1))
