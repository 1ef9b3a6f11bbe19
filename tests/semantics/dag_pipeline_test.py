"""Concurrent executions of compiled graphs, and their end when an actor, a driver or a graph ends."""

import _thread
import asyncio
import os
import signal
import threading

import pytest
from graphs import graph_threads, memories_of_the_node
from internals.core import _native, state
from internals.workers import _compiled
from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.dag import InputNode
from shoal.exceptions import ActorDiedError, RayChannelError, Unavailable

# ---- waiting for room


@pytest.mark.parametrize("size", [4_000, 16_352, 100_000, 999_000])
@pytest.mark.parametrize("before", [1, 3])
def test_the_maximum_of_executions_can_be_submitted_repeatedly(stages, compiled, gate, size, before):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: b.through.bind(a.second_when_open.bind(gate, inp[0], inp[1])))
    ray.get(gate.open.remote("open"))
    values = [bytes([n]) * size for n in range(10)]
    for n in range(before):
        assert ray.get(graph.execute("open", values[n])) == values[n]
    # no value has passed the first actor, which waits at the gate
    refs = [graph.execute(f"round {n % 2}", value) for n, value in enumerate(values)]
    ray.get([gate.open.remote("round 0"), gate.open.remote("round 1")])
    assert ray.get(refs[9]) == values[9]  # the last value has passed the last actor, and the nine before it are unread
    assert ray.get(refs[:9]) == values[:9]


@pytest.fixture
def interrupts():
    """Signals this thread all the time. The signal handler raises an error once after each ``waits.set()``."""
    waits, over = threading.Event(), threading.Event()

    def interrupt(*_):
        if waits.is_set():
            waits.clear()
            raise InterruptedError

    def signal_main():
        while not over.wait(0.001):
            _thread.interrupt_main(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=signal_main)
    thread.start()
    yield waits
    over.set()
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_wait_for_room_can_be_interrupted(interrupts):
    """The channel has no reader, so the writer waits for room."""
    channels = _native.Channels(state.session, "channels-that-nobody-reads", 1, 1 << 16)
    sender = _native.Sender(channels, 0, 30_000)
    for _ in range(2):
        sender.write(b"x" * 30_000)

    def write():
        interrupts.set()
        sender.write(b"x" * 30_000)

    with pytest.raises(InterruptedError):
        write()


# ---- unread values when their graph ends


def large_results(stages, compiled):
    """Returns a graph, its actor, and the references of two results of 1.6 MB, which have arrived but are not read."""
    (a,) = stages("a")
    graph = compiled(lambda inp: a.ones.bind(inp), _buffer_size_bytes=1000)
    refs = [graph.execute(200_000) for _ in range(3)]
    assert refs.pop().get().sum() == 200_000
    return graph, a, refs


def test_an_unread_large_result_is_lost_with_its_graph(stages, compiled):
    graph, _, (first, second) = large_results(stages, compiled)
    assert first.get(timeout=GUARD_S).sum() == 200_000
    graph.teardown()
    with pytest.raises(RayChannelError, match="torn down"):
        second.get(timeout=GUARD_S)


def test_an_unread_large_result_is_lost_with_an_actor(stages, compiled):
    graph, a, (first, second) = large_results(stages, compiled)
    os.kill(ray.get(a.pid.remote()), signal.SIGKILL)
    with pytest.raises(ActorDiedError):
        ray.get(graph.execute(1))
    for ref in (first, second):
        with pytest.raises(ActorDiedError, match="SIGKILL") as raised:
            ref.get()
        assert raised.value.actor_id == a._actor_id


def test_an_actor_does_not_wait_for_a_released_value(stages, gate):
    a, b = stages("a", "b")
    with InputNode() as inp:
        graph = b.add.bind(b.arrive.bind(gate, inp), a.ones.bind(200_000, inp)).experimental_compile(_buffer_size_bytes=1000)
    graph.execute("x")
    ray.get(gate.arrived.remote(1))
    wait_until(lambda: ray.get(a.count.remote()) == 1, GUARD_S, "the value lies before the actor")
    ending = threading.Thread(target=graph.teardown)
    ending.start()
    wait_until(lambda: graph_threads(a) == 0, GUARD_S, "who wrote it has given it back")
    ray.get(gate.open.remote())
    wait_until(lambda: graph_threads(b) == 0, GUARD_S, "the graph's end")
    ending.join()


# ---- ends during other operations


def test_teardown_ends_an_execution_during_its_submission(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp), enable_asyncio=True)

    class TornDownBetween:
        def put(self, item, queue=graph._awaited):
            if item is not None:
                teardown = threading.Thread(target=graph.teardown)
                teardown.start()
                teardown.join()
            queue.put(item)

    async def main():
        graph._awaited = TornDownBetween()
        future = await graph.execute_async(1)
        with pytest.raises(RayChannelError, match="torn down"):
            await asyncio.wait_for(future, GUARD_S)

    asyncio.run(main())


def test_a_forked_child_leaves_its_parents_graph_alone(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp))
    ref = graph.execute("parent's")
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: graph.execute("child's"), ref.get):
                try:
                    os.write(there, f"{call()}\n".encode())
                except Unavailable as error:
                    os.write(there, f"{error.reason}\n".encode())
            graph.teardown()
            os.write(there, b"over\n")
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as said:
        assert said.read() == "Forked\nForked\nover\n"
    os.waitpid(child, 0)
    assert ref.get() == "parent's"
    assert ray.get(graph.execute("again")) == "again"


@ray.remote
class DiesBetween:
    """An actor whose process dies when it has compiled a graph and begins to run it."""

    def compile(self, other):
        call = _compiled._call

        def called(session, handle, what, *args):
            if what == "run":
                os.kill(os.getpid(), signal.SIGKILL)
            return call(session, handle, what, *args)

        _compiled._call = called
        with InputNode() as inp:
            other.through.bind(inp).experimental_compile()


def test_a_driver_that_dies_before_its_graph_runs_leaves_nothing(stages):
    (a,) = stages("a")
    before = memories_of_the_node()
    with pytest.raises(ActorDiedError):
        ray.get(DiesBetween.remote().compile.remote(a))
    wait_until(lambda: memories_of_the_node() == before, GUARD_S, "the channels are given back")
