"""A1 and A2 of COVERAGE.md, streaming generators."""

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError, RayTaskError, WorkerCrashedError


@ray.remote
def numbers(n, fails_at=None):
    for i in range(n):
        if i == fails_at:
            raise KeyError("mine")
        yield i


@ray.remote
class Streams:
    def numbers(self, n, fails_at=None):
        for i in range(n):
            if i == fails_at:
                raise KeyError("mine")
            yield i

    def gated(self, gate, n):
        for i in range(n):
            ray.get(gate.wait.remote(str(i)))
            yield i

    def arrays(self, n):
        for i in range(n):
            yield np.full(200_000, i)

    def refs(self, n):
        for i in range(n):
            yield [ray.put(i)]

    def dies(self, n):
        yield from range(n)
        os._exit(7)

    def no_generator(self):
        return [1, 2]

    def echo(self, value):
        return value


@ray.remote
class AsyncStreams:
    async def numbers(self, n, fails_at=None):
        for i in range(n):
            await asyncio.sleep(0)
            if i == fails_at:
                raise KeyError("mine")
            yield i

    def plain(self, n):
        yield from range(n)


def made(cls):
    actor = cls.remote()
    yield actor
    ray.kill(actor)


@pytest.fixture
def streams():
    yield from made(Streams)


@pytest.fixture
def async_streams():
    yield from made(AsyncStreams)


def items(generator):
    return [ray.get(ref) for ref in generator]


def test_a_generator_is_its_own_value():
    generator = numbers.options(num_returns="streaming").remote(2)
    assert ray.get(generator) is generator
    assert items(generator) == [0, 1]


def test_a_generator_streams_by_default(streams):
    generator = streams.numbers.remote(5)
    assert isinstance(generator, ray.ObjectRefGenerator)
    assert items(generator) == list(range(5))
    assert next(generator, "over") == "over"


def test_a_function_that_is_a_generator(streams):
    assert items(numbers.remote(5)) == list(range(5))
    assert items(numbers.options(num_returns="streaming").remote(0)) == []


def test_items_come_before_the_call_is_over(streams, gate):
    generator = streams.gated.remote(gate, 3)
    for i in range(3):
        assert ray.wait([generator.completed()], timeout=0)[0] == []
        gate.open.remote(str(i))
        assert ray.get(next(generator), timeout=GUARD_S) == i
    with pytest.raises(StopIteration):
        next(generator)
    assert ray.get(generator.completed()) == 3


def test_a_failure_is_the_last_reference(streams):
    generator = streams.numbers.remote(5, fails_at=2)
    assert [ray.get(next(generator)) for _ in range(2)] == [0, 1]
    with pytest.raises(KeyError, match="mine"):
        ray.get(next(generator))
    with pytest.raises(StopIteration):
        next(generator)
    with pytest.raises(RayTaskError):
        ray.get(generator.completed())


def test_a_functions_failure_is_its_last_item(streams):
    with pytest.raises(KeyError, match="mine"):
        items(numbers.remote(3, fails_at=0))


def test_an_actors_death_ends_its_stream_with_an_error(streams):
    generator = streams.dies.remote(2)
    refs = list(generator)
    with pytest.raises(ActorDiedError, match="exited with code 7"):
        ray.get(refs[-1], timeout=GUARD_S)
    assert ray.get(refs[:-1]) == [0, 1]
    assert list(generator) == []


def test_a_streaming_function_that_dies_is_retried(tmp_path):
    @ray.remote
    def dies_once(path):
        yield 1
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(7)
        yield 2

    assert items(dies_once.remote(str(tmp_path / "died"))) == [1, 2]

    @ray.remote(max_retries=0)
    def dies():
        yield 1
        os._exit(7)

    with pytest.raises(WorkerCrashedError):
        items(dies.remote())


def test_streaming_a_non_generator_is_an_error(streams):
    (ref,) = streams.no_generator.options(num_returns="streaming").remote()
    with pytest.raises(TypeError, match="list"):
        ray.get(ref)


def test_a_failed_argument_is_the_only_item(streams):
    (ref,) = streams.numbers.remote(numbers.options(num_returns=1).remote(1))
    with pytest.raises(TypeError):
        ray.get(ref)


def test_large_items_are_arrays_in_shared_memory_and_passed_on(streams):
    refs = list(streams.arrays.remote(3))
    assert [a[0] for a in ray.get(refs)] == [0, 1, 2]
    assert ray.get(streams.echo.remote(refs[2]))[-1] == 2
    assert ray.get(ray.get(streams.echo.remote([refs[1]]))[0])[-1] == 1


def test_async_iteration(streams):
    async def main():
        return [await ref async for ref in streams.numbers.remote(5)]

    assert asyncio.run(main()) == list(range(5))


def test_async_iteration_of_a_failure(streams):
    async def main():
        return [ref async for ref in streams.numbers.remote(5, fails_at=2)]

    *taken, failed = asyncio.run(main())
    assert ray.get(taken) == [0, 1]
    with pytest.raises(KeyError, match="mine"):
        ray.get(failed)


def test_async_generators_of_async_actors(async_streams):
    assert items(async_streams.numbers.remote(5)) == list(range(5))
    assert items(async_streams.plain.remote(3)) == list(range(3))
    assert ray.get(async_streams.numbers.options(num_returns=3).remote(3)) == [0, 1, 2]
    with pytest.raises(KeyError, match="mine"):
        items(async_streams.numbers.remote(2, fails_at=1))


def test_two_streams_of_an_async_actor_at_once(async_streams):
    first, second = async_streams.numbers.remote(50), async_streams.numbers.remote(50)
    pairs = [(ray.get(a), ray.get(b)) for a, b in zip(first, second, strict=True)]
    assert pairs == [(i, i) for i in range(50)]


def test_a_generator_cannot_be_pickled(streams):
    with pytest.raises(TypeError, match="stays"):
        pickle.dumps(streams.numbers.remote(1))


def test_items_keep_the_references_inside_of_them(streams):
    generator = streams.refs.remote(3)
    ray.get(generator.completed())
    lists = [ray.get(ref) for ref in generator]
    assert [ray.get(ref) for (ref,) in lists] == [0, 1, 2]


def test_wait_takes_generators(streams, gate):
    generator, other = streams.gated.remote(gate, 1), numbers.remote(0)
    assert ray.wait([generator, other], timeout=GUARD_S) == ([other], [generator])  # a stream that has ended without items is ready
    assert ray.wait([generator], timeout=0) == ([], [generator])
    there = ray.put(1)
    assert ray.wait([generator, there, other], num_returns=2, timeout=GUARD_S) == ([there, other], [generator])
    gate.open.remote("0")
    assert ray.wait([generator], timeout=GUARD_S) == ([generator], [])
    assert ray.wait([generator], timeout=0) == ([generator], [])  # ready again, because wait() takes no item
    assert items(generator) == [0]
    assert ray.wait([generator], timeout=0) == ([generator], [])
    with pytest.raises(ValueError, match="once"):
        ray.wait([generator, generator])


def test_next_ready_tells_if_next_would_wait(streams, gate):
    generator = streams.gated.remote(gate, 1)
    assert (generator.next_ready(), generator.is_finished()) == (False, False)
    gate.open.remote("0")
    ray.wait([generator], timeout=GUARD_S)
    assert (generator.next_ready(), generator.is_finished()) == (True, False)
    assert ray.get(next(generator)) == 0
    ray.wait([generator], timeout=GUARD_S)
    assert (generator.next_ready(), generator.is_finished()) == (False, True)
    assert next(generator, "over") == "over"
    assert (generator.next_ready(), generator.is_finished()) == (False, True)


def test_a_generator_whose_call_failed_is_ready(streams):
    generator = streams.numbers.remote(1, fails_at=0)
    assert ray.wait([generator], timeout=GUARD_S) == ([generator], [])
    assert (generator.next_ready(), generator.is_finished()) == (True, False)  # the next item is there: it is the failure
    with pytest.raises(KeyError, match="mine"):
        items(generator)


def test_dropped_streams_free_their_items(streams):
    before = held()
    generator = streams.arrays.remote(5)
    taken = ray.get(next(generator))
    ray.get(generator.completed())
    here = held() - before
    assert len(here) >= 4
    del generator
    wait_until(lambda: not held() & here, GUARD_S, "every item's end")
    assert taken[0] == 0


def test_an_unread_generator_runs_to_its_end(streams, gate):
    generator = streams.gated.remote(gate, 3)
    gate.open.remote("0")
    assert ray.get(next(generator), timeout=GUARD_S) == 0
    done = generator.completed()
    del generator
    for k in range(1, 3):
        gate.open.remote(str(k))
    assert ray.get(done, timeout=GUARD_S) == 3


def test_a_retried_stream_yields_no_item_twice(tmp_path):
    @ray.remote
    def dies_once(folder):
        yield 1
        yield 2
        if not os.path.exists(f"{folder}/died"):
            while not os.path.exists(f"{folder}/taken"):
                time.sleep(0.005)
            open(f"{folder}/died", "w").close()
            os._exit(7)
        yield 3

    generator = dies_once.remote(str(tmp_path))
    assert ray.get(next(generator)) == 1
    open(tmp_path / "taken", "w").close()
    assert items(generator) == [2, 3]


def test_a_late_reader_gets_all_items(streams):
    generator = numbers.remote(3000)
    ray.wait([generator.completed()], timeout=GUARD_S)
    assert items(generator) == list(range(3000))


def test_threads_that_share_a_stream_get_each_item_once(streams):
    count, taken = 2000, []
    generator = streams.numbers.remote(count)

    def take():
        for ref in generator:
            taken.append(ref)

    threads = [threading.Thread(target=take) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
    finally:
        sys.setswitchinterval(before)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(ray.get(taken)) == list(range(count))


# ---- readers that are gone or slow


class Endless:
    """An actor whose streams yield until their reader is gone."""

    def __init__(self):
        self.ended = threading.Event()

    def numbers(self):
        try:
            for i in itertools.count():
                yield i
                time.sleep(0.005)
        finally:
            self.ended.set()

    def kept(self):
        self.generator = self.numbers()  # the stream has to end although the actor refers to its generator
        return self.generator

    def has_ended(self):
        return self.ended.wait(GUARD_S)


class AsyncEndless:
    def __init__(self):
        self.ended = asyncio.Event()

    async def numbers(self):
        try:
            for i in itertools.count():
                yield i
                await asyncio.sleep(0.005)
        finally:
            self.ended.set()

    def plain(self):
        try:
            for i in itertools.count():
                yield i
                time.sleep(0.005)
        finally:
            self.ended.set()

    def kept(self):
        self.generator = self.numbers()
        return self.generator

    async def has_ended(self):
        return await self.ended.wait()


@ray.remote
class Caller:
    def pid(self):
        return os.getpid()

    def take_one(self, actor, method):
        self.items = getattr(actor, method).options(num_returns="streaming").remote()
        return ray.get(next(self.items))

    def take_later(self, actor, count):
        """Makes the call, then stops this process. After a SIGCONT it reads the stream."""
        ray.get(actor.ready.remote())  # opens the connection to the actor
        items = actor.plain.remote(count)
        os.kill(os.getpid(), signal.SIGSTOP)
        return sum(len(ray.get(ref)) for ref in items)


@pytest.mark.parametrize(
    ("cls", "method", "options"),
    [
        (Endless, "numbers", {}),
        (Endless, "numbers", {"max_concurrency": 2}),
        (AsyncEndless, "numbers", {}),
        (AsyncEndless, "plain", {}),
        (Endless, "kept", {}),
        (AsyncEndless, "kept", {}),
    ],
    ids=["one at a time", "threads", "async", "in the loop", "kept", "kept by an async one"],
)
def test_a_generator_ends_with_its_readers_process(cls, method, options):
    actor, caller = ray.remote(cls).options(**options).remote(), Caller.remote()
    assert ray.get(caller.take_one.remote(actor, method), timeout=GUARD_S) == 0
    ray.kill(caller)
    assert ray.get(actor.has_ended.remote(), timeout=GUARD_S)  # the generator's ``finally`` has run, and the actor goes on
    ray.kill(actor)


def test_a_generator_cancelled_between_two_items_is_closed():
    actor = ray.remote(AsyncEndless).remote()
    generator = actor.numbers.remote()
    assert ray.get(next(generator), timeout=GUARD_S) == 0
    ray.cancel(generator)
    assert ray.get(actor.has_ended.remote(), timeout=GUARD_S)
    ray.kill(actor)


def test_a_stopped_reader_blocks_no_other_caller_of_an_async_actor():
    @ray.remote
    class Plain:
        def __init__(self):
            self.begun = asyncio.Event()

        async def ready(self):
            pass

        def plain(self, count):
            self.begun.set()
            for _ in range(count):
                yield bytes(50_000)  # all items together are twenty times the send window

        async def has_begun(self):
            await self.begun.wait()

    actor, caller = Plain.remote(), Caller.remote()
    pid = ray.get(caller.pid.remote(), timeout=GUARD_S)
    taken = caller.take_later.remote(actor, 400)
    try:
        ray.get(actor.has_begun.remote(), timeout=GUARD_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            _go_on(pid)
    assert ray.get(taken, timeout=GUARD_S) == 400 * 50_000
    for one in (actor, caller):
        ray.kill(one)


def _go_on(pid):
    """Waits until the process has stopped, then lets it continue."""
    wait_until(lambda: _state(pid) in "TX", GUARD_S, "that it stands still")
    os.kill(pid, signal.SIGCONT)


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def held():
    """The inodes of the large values that this process holds unread."""
    there = [_target(f"/proc/self/fd/{e}") for e in os.listdir("/proc/self/fd")]
    return {inode for name, inode in there if "shoal:value" in name}


def _target(path):
    try:
        return os.readlink(path), os.stat(path).st_ino
    except OSError:
        return "", 0
