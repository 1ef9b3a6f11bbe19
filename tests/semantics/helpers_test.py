"""A2 of COVERAGE.md, helpers: ActorPool and Queue."""

import asyncio
from types import SimpleNamespace

import pytest
from internals.core import session
from launching.leftovers import wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError
from shoal.util import ActorPool
from shoal.util import queue as queues
from shoal.util.queue import Empty, Full, Queue


@pytest.fixture
def actors():
    made = [Recorder.remote() for _ in range(2)]
    yield made
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def queue():
    made = []

    def make(*args, **kwargs):
        made.append(Queue(*args, **kwargs))
        return made[-1]

    yield make
    for q in made:
        q.shutdown(force=True)


def echo(actor, value):
    return actor.echo.remote(value)


def in_queue(q, look):
    """Returns the result of ``look`` for the queue's actor."""
    return ray.get(q.actor.__ray_call__.remote(look), timeout=GUARD_S)


# ---- ActorPool


def test_an_actor_that_died_gets_no_more_calls():
    mortal, other = Recorder.remote(), Recorder.remote()
    pool = ActorPool([other, mortal])  # the pool takes the last actor first
    pool.submit(lambda actor, _: actor.__ray_terminate__.remote(), 0)
    for value in range(3):
        pool.submit(lambda actor, value: actor.echo.remote(value), value)
    with pytest.raises(ActorDiedError):
        pool.get_next()
    assert [pool.get_next() for _ in range(3)] == [0, 1, 2]
    assert pool.pop_idle() == other
    assert pool.pop_idle() is None
    ray.kill(other)


def test_the_modules_have_rays_import_paths():
    from shoal.util.actor_pool import ActorPool as Same

    assert Same is ActorPool is ray.util.ActorPool


def test_map_keeps_the_order_of_the_values(actors):
    assert list(ActorPool(actors).map(echo, range(10))) == list(range(10))


def test_map_unordered_gives_every_result(actors):
    assert sorted(ActorPool(actors).map_unordered(echo, range(10))) == list(range(10))


def test_map_unordered_yields_results_as_they_become_ready(actors, gate):
    results = ActorPool(actors).map_unordered(lambda a, v: a.wait_at.remote(gate, v, v), ["slow", "fast"])
    gate.open.remote("fast")
    assert next(results) == "fast"
    gate.open.remote("slow")
    assert list(results) == ["slow"]


def test_submit_and_get_next(actors):
    pool = ActorPool(actors)
    assert not pool.has_next()
    for i in range(5):
        pool.submit(echo, i)
    taken = []
    while pool.has_next():
        taken.append(pool.get_next())
    assert taken == list(range(5))
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_each_actor_has_one_call_at_a_time(actors, gate):
    pool = ActorPool(actors)
    for i in range(4):
        pool.submit(lambda a, v: a.wait_at.remote(gate, "", v), i)
    assert not pool.has_free()
    assert pool.pop_idle() is None
    gate.open.remote()
    assert [pool.get_next() for _ in range(4)] == list(range(4))
    assert pool.has_free()


def test_get_next_after_get_next_unordered(actors, gate):
    pool = ActorPool(actors)
    for name in ("first", "second"):
        pool.submit(lambda a, v: a.wait_at.remote(gate, v, v), name)
    gate.open.remote("second")
    assert pool.get_next_unordered() == "second"
    with pytest.raises(ValueError, match="not allowed"):
        pool.get_next()
    gate.open.remote("first")
    assert pool.get_next_unordered() == "first"


@pytest.mark.parametrize("take", ["get_next", "get_next_unordered"])
def test_a_timeout_keeps_the_result(actors, gate, take):
    pool = ActorPool(actors)
    pool.submit(lambda a, v: a.wait_at.remote(gate, "", v), "late")
    with pytest.raises(TimeoutError):
        getattr(pool, take)(timeout=0)
    gate.open.remote()
    assert getattr(pool, take)(timeout=GUARD_S) == "late"


@pytest.mark.parametrize("take", ["get_next", "get_next_unordered"])
def test_an_ignored_timeout_skips_the_result(actors, gate, take):
    pool = ActorPool(actors)
    pool.submit(lambda a, v: a.wait_at.remote(gate, "", v), "never taken")
    with pytest.raises(TimeoutError, match="ignored"):
        getattr(pool, take)(timeout=0, ignore_if_timedout=True)
    assert not pool.has_next()
    gate.open.remote()
    pool.submit(echo, "next")
    assert getattr(pool, take)(timeout=GUARD_S) == "next"


def test_map_drops_earlier_submissions(actors, gate):
    pool = ActorPool(actors)
    pool.submit(lambda a, v: a.wait_at.remote(gate, "", v), "dropped")
    pool.submit(lambda a, v: a.fail.remote(KeyError(v)), "dropped")
    results = pool.map(echo, range(3))
    gate.open.remote()
    assert list(results) == [0, 1, 2]


def test_map_drops_results_skipped_by_an_unordered_get(actors, gate):
    pool = ActorPool(actors)
    for name in ("passed over", "taken"):
        pool.submit(lambda a, v: a.wait_at.remote(gate, v, v), name)
    gate.open.remote("taken")
    assert pool.get_next_unordered() == "taken"
    results = pool.map(echo, range(3))
    gate.open.remote("passed over")
    assert list(results) == [0, 1, 2]


def test_a_failure_is_raised_by_get_next_and_the_actor_is_reused(actors):
    pool = ActorPool(actors[:1])
    pool.submit(lambda a, v: a.fail.remote(KeyError(v)), "mine")
    pool.submit(echo, 1)
    with pytest.raises(KeyError, match="mine"):
        pool.get_next()
    assert pool.get_next() == 1


def test_push_and_pop_idle(actors):
    pool = ActorPool(actors[:1])
    assert pool.pop_idle() == actors[0]
    assert pool.pop_idle() is None
    pool.submit(echo, "waits for an actor")
    pool.push(actors[1])
    assert pool.get_next() == "waits for an actor"
    with pytest.raises(ValueError, match="already belongs"):
        pool.push(actors[1])


# ---- Queue


def test_first_in_first_out(queue):
    q = queue()
    assert q.empty()
    for i in range(5):
        q.put(i)
    assert (len(q), q.size(), q.qsize()) == (5, 5, 5)
    assert [q.get() for _ in range(5)] == list(range(5))


def test_a_call_of_a_pool_may_have_several_results(actors):
    pool = ActorPool(actors)
    for n in range(4):
        pool.submit(lambda actor, value: actor.echo.options(num_returns=2).remote([value, value + 1]), n)
    assert [pool.get_next() for _ in range(4)] == [[n, n + 1] for n in range(4)]


def test_queue_errors_derive_from_pythons_queue_errors():
    import queue as standard

    empty = Queue()
    with pytest.raises(standard.Empty):
        empty.get_nowait()
    assert issubclass(Full, standard.Full)
    empty.shutdown(force=True)


def test_full_and_empty_without_blocking(queue):
    q = queue(2)
    with pytest.raises(Empty):
        q.get_nowait()
    with pytest.raises(Empty):
        q.get(block=False)
    q.put_nowait(1)
    q.put(2, block=False)
    assert q.full()
    with pytest.raises(Full):
        q.put_nowait(3)
    assert [q.get_nowait(), q.get_nowait()] == [1, 2]


def test_full_and_empty_after_a_timeout(queue):
    q = queue(1)
    with pytest.raises(Empty):
        q.get(timeout=0.01)
    q.put(1)
    with pytest.raises(Full):
        q.put(2, timeout=0.01)
    assert q.get(timeout=GUARD_S) == 1


@pytest.mark.parametrize("call", [lambda q: q.get(timeout=-1), lambda q: q.put(1, timeout=-1)], ids=["get", "put"])
def test_a_negative_timeout_of_a_queue(queue, call):
    with pytest.raises(ValueError, match="non-negative"):
        call(queue())


def test_batches_are_put_and_taken_atomically(queue):
    q = queue(3)
    q.put_nowait_batch([1, 2])
    with pytest.raises(Full):
        q.put_nowait_batch([3, 4])
    q.put_nowait_batch(x for x in [3])
    with pytest.raises(Empty):
        q.get_nowait_batch(4)
    assert q.get_nowait_batch(3) == [1, 2, 3]
    assert q.get_nowait_batch(0) == []
    with pytest.raises(TypeError):
        q.put_nowait_batch(5)
    with pytest.raises(TypeError):
        q.get_nowait_batch("5")
    with pytest.raises(ValueError, match="nonnegative"):
        q.get_nowait_batch(-1)


def test_the_async_variants(queue):
    async def main(q):
        getting = asyncio.ensure_future(q.get_async())
        await q.put_async("first")
        await q.put_async("second")
        with pytest.raises(Full):
            await q.put_async("third", block=False)
        with pytest.raises(Full):
            await q.put_async("third", timeout=0.01)
        got = [await getting, await q.get_async()]
        with pytest.raises(Empty):
            await q.get_async(block=False)
        return got

    assert asyncio.run(main(queue(1))) == ["first", "second"]


def test_a_queue_is_a_value_and_consumers_wait(queue):
    @ray.remote
    def consume(q, count):
        return [q.get() for _ in range(count)]

    q = queue()
    consuming = consume.remote(q, 3)
    for i in range(3):
        q.put(i)
    assert ray.get(consuming, timeout=GUARD_S) == [0, 1, 2]


@pytest.mark.parametrize("call", [lambda q: q.get(), lambda q: q.get(timeout=GUARD_S)])
def test_a_consumer_that_died_takes_no_item(queue, call):
    @ray.remote(num_cpus=0)
    class Consumer:
        def consume(self, q):
            return call(q)

    q = queue()
    dead, alive = Consumer.remote(), Consumer.remote()
    taking = dead.consume.remote(q)
    wait_until(lambda: in_queue(q, lambda self: len(self._getters)) == 1, GUARD_S, "the consumer's wait")
    ray.kill(dead)
    with pytest.raises(ActorDiedError):
        ray.get(taking, timeout=GUARD_S)
    wait_until(lambda: not in_queue(q, lambda self: session().has_caller(*self._getters.values())), GUARD_S, "the consumer's death")
    taking = alive.consume.remote(q)
    q.put("kept")
    assert ray.get(taking, timeout=GUARD_S) == "kept"
    ray.kill(alive)


def test_a_cancelled_get_takes_no_item(queue):
    q = queue()
    waiting = q.actor.get.remote()
    wait_until(lambda: in_queue(q, lambda self: len(self._getters)) == 1, GUARD_S, "the wait")
    ray.cancel(waiting)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(waiting, timeout=GUARD_S)
    q.put("kept")
    assert q.get(timeout=GUARD_S) == "kept"


@pytest.fixture
def queue_actor(monkeypatch):
    """The queue's actor without a process of its own."""
    monkeypatch.setattr(queues, "current_call", lambda: SimpleNamespace(incoming=None))
    monkeypatch.setattr(queues, "session", lambda: SimpleNamespace(has_caller=lambda call: True))
    return queues._QueueActor(0)


def test_an_item_goes_back_if_its_call_is_cancelled_before_it_answers(queue_actor):
    async def main():
        getting = asyncio.ensure_future(queue_actor.get())
        await asyncio.sleep(0)
        queue_actor.put_nowait("kept")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        return queue_actor.get_nowait()

    assert asyncio.run(main()) == "kept"


def test_an_item_that_comes_with_the_timeout_counts(queue_actor, monkeypatch):
    async def wait_for(future, timeout):
        queue_actor.put_nowait("kept")
        raise asyncio.TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    assert asyncio.run(queue_actor.get(timeout=1)) == "kept"


def test_calls_that_end_by_their_timeout_leave_no_entry(queue):
    q = queue(1)
    with pytest.raises(Empty):
        q.get(timeout=0.01)
    q.put("only")
    with pytest.raises(Full):
        q.put("late", timeout=0.01)
    assert in_queue(q, lambda self: (len(self._getters), len(self._putters))) == (0, 0)
    assert q.get() == "only"


def test_a_bounded_queue_holds_its_producer_back(queue):
    @ray.remote
    def produce(q):
        for i in range(10):
            q.put(i)

    q = queue(1)
    producing = produce.remote(q)
    assert [q.get(timeout=GUARD_S) for _ in range(10)] == list(range(10))
    ray.get(producing, timeout=GUARD_S)


def test_options_of_a_queues_actor(queue):
    assert queue(actor_options={"num_cpus": 0.5, "max_concurrency": 10}).empty()


@pytest.mark.parametrize("force", [False, True])
def test_a_queue_is_shut_down(queue, force):
    q = queue()
    q.put(1)
    actor = q.actor
    q.shutdown(force=force)
    q.shutdown(force=force)
    with pytest.raises(ActorDiedError):
        ray.get(actor.qsize.remote(), timeout=GUARD_S)
