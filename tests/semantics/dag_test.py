"""Static graphs over actors (``shoal.dag``), executed directly and compiled."""

import _thread
import asyncio
import copy
import gc
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
from graphs import Async, Threaded, memories_of_the_node
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.dag import InputNode, MultiOutputNode
from shoal.exceptions import (
    ActorDiedError,
    RayCgraphCapacityExceeded,
    RayChannelTimeoutError,
)

# ---- uncompiled


def test_a_graph_of_actors_and_functions_is_executed(recorder):
    @ray.remote
    def double(value):
        return 2 * value

    with InputNode() as inp:
        node = double.bind(recorder.echo.bind(inp))
    assert ray.get(node.execute(4)) == 8
    assert ray.get(node.execute(5)) == 10


def test_a_node_with_several_readers_is_executed_once(recorder):
    with InputNode() as inp:
        node = recorder.add.bind(inp)
        outputs = MultiOutputNode([recorder.echo.bind(node), recorder.echo.bind(node), node])
    refs = outputs.execute("x")
    assert ray.get(refs) == [1, 1, 1]
    assert ray.get(recorder.all.remote()) == ["x"]


def test_an_input_has_parts(stages):
    (a,) = stages("a")
    with InputNode() as inp:
        node = a.pack.bind(inp[0], inp[1], k=inp.x)
    assert ray.get(node.execute(1, 2, x=3)) == ((1, 2), {"k": 3})
    with InputNode() as inp:
        node = a.pack.bind(inp["one"], inp["two"])
    assert ray.get(node.execute({"one": 1, "two": 2})) == ((1, 2), {})


def test_a_graph_that_contains_itself_is_not_executed(stages):
    (a,) = stages("a")
    with InputNode() as inp:
        given = [inp]
        node = a.pack.bind(given)
    given.append(node)
    with pytest.raises(ValueError, match="depends on its own result"):
        node.execute(1)


# ---- compiled


# fmt: off
VALUES = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, 2**200, 1.5, float("inf"), b"", b"\0x" * 100, "", "snow \u2603", "\ud800",
    (1, "two"), [1, [2]], {"k": None}, {1, 2}, range(3), 1j, b"x" * 2_000_000, "x" * 2_000_000,
]


# fmt: on


@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:20])
def test_values_round_trip_unchanged(stages, compiled, value):
    (a,) = stages("a")
    got = ray.get(compiled(lambda inp: a.through.bind(inp)).execute(value))
    assert got == value
    assert type(got) is type(value)


def test_a_chain_is_executed_repeatedly(stages, compiled):
    a, b, c = stages("a", "b", "c")
    graph = compiled(lambda inp: c.tag.bind(b.tag.bind(a.tag.bind(inp))))
    assert [ray.get(graph.execute(i)) for i in range(200)] == [f"{i}abc" for i in range(200)]


def test_calls_on_one_actor_run_in_binding_order(stages, compiled):
    a, b = stages("a", "b")

    def bound(inp):
        first = a.numbered.bind(inp)
        return MultiOutputNode([b.through.bind(first), a.numbered.bind(inp), a.numbered.bind(b.through.bind(inp))])

    graph = compiled(bound)
    for n in range(3):
        first, second, third = ray.get(graph.execute("v"))
        assert (first[1], second[1], third[1]) == (3 * n + 1, 3 * n + 2, 3 * n + 3)


def test_a_graph_has_several_outputs_one_of_them_twice(stages, compiled):
    a, b = stages("a", "b")

    def bound(inp):
        x, y = a.add.bind(inp, 1), b.add.bind(inp, b=2)
        return MultiOutputNode([x, y, x])

    refs = compiled(bound).execute(10)
    assert ray.get(refs[1]) == 12
    assert [refs[2].get(), refs[0].get()] == [11, 11]


def test_parts_of_the_input_reach_their_readers(stages, compiled):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: MultiOutputNode([a.add.bind(inp[0], inp.x), b.pack.bind([inp[1], {"k": inp.x}], inp[0])]))
    assert ray.get(graph.execute(1, 2, x=3)) == [4, (([2, {"k": 3}], 1), {})]
    with pytest.raises(ValueError, match="2 positional args, got 1"):
        graph.execute(1, x=3)
    with pytest.raises(ValueError, match="kwarg `x`"):
        graph.execute(1, 2)
    assert ray.get(graph.execute(5, 6, x=7))[0] == 12


def test_bound_arguments_are_sent_once(stages, compiled):
    a, _ = stages("a", "b")
    ref, table = ray.put(5), np.arange(100_000)
    graph = compiled(lambda inp: a.pack.bind(inp, ref, table, k=[1]))
    for n in range(3):
        (x, five, same), named = ray.get(graph.execute(n))
        assert (x, five, named) == (n, 5, {"k": [1]})
        assert (same == table).all()


def test_random_graphs_compute_the_result_of_their_calls(stages, compiled):
    choose, actors = random.Random(3), stages("a", "b", "c")
    for _ in range(6):
        described = []  # by call: its actor and two operands; operand n is the result of call n, -1 the graph's input
        for n in range(choose.randrange(3, 15)):
            described.append((choose.randrange(3), choose.randrange(-1, n), choose.randrange(-1, n)))

        def bound(inp, described=described):
            nodes = []
            for actor, x, y in described:
                nodes.append(actors[actor].add.bind(inp if x < 0 else nodes[x], inp if y < 0 else nodes[y]))
            return MultiOutputNode(nodes)

        def value(x, given, described=described):
            return given if x < 0 else value(described[x][1], given) + value(described[x][2], given)

        graph = compiled(bound)
        refs = [graph.execute(n) for n in range(10)]
        for n, several in enumerate(refs):
            assert ray.get(several) == [value(x, n) for x in range(len(described))]
        graph.teardown()


def test_an_exception_is_one_result_and_the_graph_goes_on(stages, compiled):
    a, b, c = stages("a", "b", "c")

    def bound(inp):
        odd = a.fail_if_odd.bind(inp)
        return MultiOutputNode([c.through.bind(b.through.bind(odd)), b.through.bind(inp)])

    graph = compiled(bound)
    for n in range(4):
        failed, good = graph.execute(n)
        assert ray.get(good) == n
        if n % 2:
            with pytest.raises(KeyError, match="fail_if_odd raised"):
                ray.get(failed)
        else:
            assert ray.get(failed) == n
    assert ray.get(c.count.remote()) == 2  # the failed execution did not call c


def test_an_unserializable_result_is_an_error(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.lock_of.bind(inp))
    with pytest.raises(TypeError, match="lock"):
        ray.get(graph.execute(1))
    assert ray.get(graph.execute(0)) is None


def test_an_unserializable_input_is_refused_before_any_message(stages, compiled):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: MultiOutputNode([a.through.bind(inp[0]), b.through.bind(inp[1])]))
    with pytest.raises(TypeError, match="lock"):
        graph.execute(1, threading.Lock())
    assert ray.get(graph.execute(2, 3)) == [2, 3]


def test_only_the_executing_process_fetches_a_result_and_only_once(stages, compiled):
    (a,) = stages("a")
    ref = compiled(lambda inp: a.through.bind(inp)).execute(1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ValueError, match="cannot be"):
            copied(ref)
    with pytest.raises(TypeError):
        ray.wait([ref])
    assert ray.get(ref) == 1
    with pytest.raises(ValueError, match="once"):
        ray.get(ref)


def test_results_are_fetched_in_any_order_or_not_at_all(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp))
    refs = [graph.execute(n) for n in range(10)]
    assert [refs[n].get() for n in (3, 0, 9)] == [3, 0, 9]
    refs = None
    assert ray.get(graph.execute("next")) == "next"


def test_executions_beyond_the_maximum_are_refused(stages, compiled, gate):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.wait_at.bind(gate, inp[0], inp[1]), _max_inflight_executions=2)
    first, second = graph.execute("one", 1), graph.execute("one", 2)
    with pytest.raises(RayCgraphCapacityExceeded, match="_max_inflight_executions is 2"):
        graph.execute("one", 3)
    ray.get(gate.open.remote("one"))
    assert ray.get(first) == 1
    third = graph.execute("one", 3)
    with pytest.raises(RayCgraphCapacityExceeded):
        graph.execute("one", 4)
    assert [ray.get(second), ray.get(third)] == [2, 3]


def test_dropped_results_make_room(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.numbered.bind(inp), _max_inflight_executions=3)
    for _ in range(50):
        graph.execute(None)
    assert ray.get(graph.execute("x")) == ("x", 51)


def test_thousands_of_executions_run_concurrently(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp), _max_inflight_executions=3000)
    refs = [graph.execute(n) for n in range(3000)]
    assert ray.get(refs) == list(range(3000))
    assert ray.get(graph.execute("x" * 200_000)) == "x" * 200_000


def test_a_timeout_loses_nothing(stages, compiled, gate):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: MultiOutputNode([a.through.bind(inp), b.wait_at.bind(gate, inp, 7)]))
    passed, held = graph.execute("door")
    for _ in range(3):
        with pytest.raises(RayChannelTimeoutError):
            held.get(timeout=0)
    with pytest.raises(TimeoutError):
        ray.get(held, timeout=0.001)
    ray.get(gate.open.remote("door"))
    assert [held.get(timeout=GUARD_S), passed.get()] == [7, "door"]
    assert ray.get(graph.execute("door")) == ["door", 7]


def test_a_wait_can_be_interrupted_and_goes_on(stages, compiled, gate):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.arrive.bind(gate, inp))
    ref = graph.execute("x")

    def interrupt():
        ray.get(gate.arrived.remote(1))
        _thread.interrupt_main()

    def waits():
        thread.start()  # here, because the interrupt may arrive before start() returns
        ray.get(ref)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        waits()
    thread.join()
    ray.get(gate.open.remote())
    assert ray.get(ref) == "x"
    assert ray.get(graph.execute("y")) == "y"


def test_an_actor_is_in_several_graphs_and_takes_ordinary_calls(stages, compiled):
    a, b = stages("a", "b")
    one, two = compiled(lambda inp: a.numbered.bind(inp)), compiled(lambda inp: a.numbered.bind(b.through.bind(inp)))
    for n in range(20):
        refs = [one.execute(n), two.execute(n), a.numbered.remote(n)]
        assert sorted(ray.get(r)[1] for r in refs) == [3 * n + 1, 3 * n + 2, 3 * n + 3]
    one.teardown()
    assert ray.get(two.execute("still")) == ("still", 61)


def test_an_ordinary_actor_runs_one_call_at_a_time_for_all_callers(stages, compiled, gate):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp))
    held = a.arrive.remote(gate, "call")
    ray.get(gate.arrived.remote(1))
    ref = graph.execute("graph")
    with pytest.raises(RayChannelTimeoutError):
        ref.get(timeout=0.05)
    ray.get(gate.open.remote())
    assert ray.get(ref) == "graph"
    assert ray.get(held) == "call"


def test_graphs_contain_concurrent_actors(compiled):
    threaded, asynchronous = Threaded.remote(), Async.remote()
    graph = compiled(lambda inp: asynchronous.loop_is_mine.bind(asynchronous.double.bind(threaded.double.bind(inp))))
    assert [ray.get(graph.execute(n)) for n in range(5)] == [(4 * n, True) for n in range(5)]


def test_a_reference_returned_by_an_async_method_stays_a_reference(compiled):
    actor = Async.remote()
    graph = compiled(lambda inp: actor.put.bind(inp))
    ref = ray.get(graph.execute(5))
    assert isinstance(ref, ray.ObjectRef)
    assert ray.get(ref, timeout=GUARD_S) == 5


@pytest.mark.parametrize("count", [1, 1000, 124_000, 125_000, 126_000, 5_000_000])
def test_arrays_of_any_size_pass(stages, compiled, count):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: MultiOutputNode([b.through.bind(a.through.bind(inp)), b.through.bind(inp)]))
    array = np.arange(count, dtype=np.float64)
    for got in (*ray.get(graph.execute(array)), *ray.get(graph.execute(array))):
        assert got.dtype == array.dtype
        assert np.array_equal(got, array)
        assert count < 1000 or not got.flags.writeable


def test_tensors_are_writable_by_their_receiver(stages, compiled):
    import torch

    (a,) = stages("a")
    graph = compiled(lambda inp: MultiOutputNode([a.add_in_place.bind(inp)]))
    for count in (3, 10_000, 1_000_000):
        tensor = torch.arange(count, dtype=torch.float32)
        (got,) = ray.get(graph.execute(tensor))
        assert torch.equal(got, tensor + 1)
        assert float(tensor[0]) == 0
        got += 1


def test_large_values_are_freed_read_or_unread(stages, compiled):
    (a,) = stages("a")
    before = memories_of_the_node()
    graph = compiled(lambda inp: a.ones.bind(inp), _buffer_size_bytes=1000)
    for _ in range(5):
        assert ray.get(graph.execute(200_000)).sum() == 200_000
    wait_until(lambda: len(memories_of_the_node()) == len(before) + 1, GUARD_S, "only the channels are there")
    refs = [graph.execute(200_000) for _ in range(5)]
    refs[-1].get()
    del refs
    for _ in range(5):
        graph.execute(200_000)
    graph.teardown()
    gc.collect()
    wait_until(lambda: memories_of_the_node() == before, GUARD_S, "all memory is given back")


# ---- asyncio


def test_results_are_awaited(stages, compiled):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: b.fail_if_odd.bind(a.through.bind(inp)), enable_asyncio=True, _max_inflight_executions=20)

    async def main():
        futures = [await graph.execute_async(n) for n in range(20)]
        out = []
        for n in (7, *range(0, 20, 2)):
            try:
                out.append(await futures[n])
            except KeyError:
                out.append("odd")
        with pytest.raises(ValueError, match="only be awaited upon once"):
            await futures[7]
        return out

    assert asyncio.run(main()) == ["odd", *range(0, 20, 2)]
    with pytest.raises(ValueError, match="execute_async"):
        graph.execute(1)


def test_awaited_graphs_support_several_outputs_bounds_and_deaths(stages, compiled, gate):
    a, b = stages("a", "b")
    options = {"enable_asyncio": True, "_max_inflight_executions": 1}
    graph = compiled(lambda inp: MultiOutputNode([a.arrive.bind(gate, inp), b.through.bind(inp)]), **options)
    pid = ray.get(a.pid.remote())

    async def until_it_fails():
        while True:
            for future in await graph.execute_async("five"):
                await future

    async def main():
        first = await graph.execute_async("one")
        with pytest.raises(RayCgraphCapacityExceeded):
            await graph.execute_async("two")
        await gate.open.remote()
        assert [await f for f in first] == ["one", "one"]
        held, _ = await graph.execute_async("three")
        assert await held == "three"
        pending = (await graph.execute_async("four"))[0]
        assert await pending == "four"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDiedError):
            await until_it_fails()

    asyncio.run(main())
    with pytest.raises(ValueError, match="enable_asyncio"):
        asyncio.run(compiled(lambda inp: b.through.bind(inp)).execute_async(1))
