"""Executions of compiled graphs that are under way together, and what becomes of them when something ends."""

import _thread
import signal
import threading

import pytest
from graphs import *  # noqa: F403

import shoal as ray
from shoal import _native
from shoal._runtime import state

# ---- room


@pytest.mark.parametrize("size", [4_000, 16_352, 100_000, 999_000])
@pytest.mark.parametrize("before", [1, 3])
def test_as_many_are_submitted_as_may_be_under_way_whatever_was_executed_before(stages, compiled, gate, size, before):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: b.through.bind(a.second_when_open.bind(gate, inp[0], inp[1])))
    ray.get(gate.open.remote("open"))
    values = [bytes([n]) * size for n in range(10)]
    for n in range(before):
        assert ray.get(graph.execute("open", values[n])) == values[n]
    refs = [graph.execute(f"round {n % 2}", value) for n, value in enumerate(values)]  # all of them lie before the first actor
    ray.get([gate.open.remote("round 0"), gate.open.remote("round 1")])
    assert ray.get(refs[9]) == values[9]  # and now behind the last one
    assert ray.get(refs[:9]) == values[:9]


@pytest.fixture
def interrupts():
    """Signals this thread again and again; whoever sets ``waits`` is interrupted once."""
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
    """Nobody reads here: no graph writes more to a channel than it has room for."""
    channels = _native.Channels(state.session, "channels-that-nobody-reads", 1, 1 << 16)
    sender = _native.Sender(channels, 0, 30_000)
    for _ in range(2):
        sender.write(b"x" * 30_000)

    def write():
        interrupts.set()
        sender.write(b"x" * 30_000)

    with pytest.raises(InterruptedError):
        write()
