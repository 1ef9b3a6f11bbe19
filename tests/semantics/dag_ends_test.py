"""The end of compiled graphs, by teardown or death, and graphs that are refused."""

import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from graphs import Async, Stage, Threaded, graph_threads, memories_of_the_node
from launching.leftovers import wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.dag import InputNode, MultiOutputNode
from shoal.exceptions import (
    ActorDiedError,
    InvalidArgument,
    RayChannelError,
    Unimplemented,
)

# ---- the end


def test_teardown_releases_the_actors_and_the_memory(stages, compiled, gate):
    a, b = stages("a", "b")
    before = memories_of_the_node()
    graph = compiled(lambda inp: b.through.bind(a.arrive.bind(gate, inp)))
    lost, unsaid = graph.execute("x"), graph.execute("y")
    ray.get(gate.arrived.remote(1))
    waiting = threading.Thread(target=graph.teardown)
    waiting.start()
    with pytest.raises(RayChannelError, match="torn down"):
        ray.get(lost)
    assert waiting.is_alive()  # teardown waits for the running call
    ray.get(gate.open.remote())
    waiting.join()
    graph.teardown()
    for call in (lambda: ray.get(unsaid), lambda: graph.execute(1)):
        with pytest.raises(RayChannelError, match="torn down"):
            call()
    assert graph_threads(a) == graph_threads(b) == 0
    assert "channels-" not in Path("/proc/self/maps").read_text()
    wait_until(lambda: memories_of_the_node() == before, GUARD_S, "the channels are given back")
    again = compiled(lambda inp: b.tag.bind(a.tag.bind(inp)))
    assert ray.get(again.execute(1)) == "1ab"


def test_a_graph_ends_with_its_last_reference(stages):
    (a,) = stages("a")
    with InputNode() as inp:
        graph = a.through.bind(inp).experimental_compile()
    ref = graph.execute(1)
    del graph
    assert ray.get(ref) == 1
    del ref
    gc.collect()
    wait_until(lambda: graph_threads(a) == 0, GUARD_S, "the graph's end")


def test_open_executions_fail_with_the_name_of_a_dead_actor(stages, compiled, gate):
    a, b, c = stages("a", "b", "c")
    graph = compiled(lambda inp: c.through.bind(b.arrive.bind(gate, a.through.bind(inp))))
    pid = ray.get(b.pid.remote())
    refs = [graph.execute(n) for n in range(3)]
    ray.get(gate.arrived.remote(1))
    os.kill(pid, signal.SIGKILL)
    for ref in refs:
        with pytest.raises(ActorDiedError, match=r"SIGKILL") as raised:
            ray.get(ref)
        assert raised.value.actor_id == b._actor_id
    with pytest.raises(ActorDiedError):
        graph.execute(4)
    for actor in (a, c):
        wait_until(lambda actor=actor: graph_threads(actor) == 0, GUARD_S, "the others have left the graph")
    graph.teardown()
    again = compiled(lambda inp: c.tag.bind(a.tag.bind(inp)))
    assert ray.get(again.execute(1)) == "1ac"


@pytest.mark.parametrize("how", ["leave", "leave_quietly"])
def test_exit_actor_in_a_graph_ends_the_actor(stages, compiled, how):
    (a,) = stages("a")
    graph = compiled(lambda inp: getattr(a, how).bind(inp))
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(graph.execute(1))
    with pytest.raises(ActorDiedError):
        ray.get(a.count.remote(), timeout=GUARD_S)


@pytest.mark.parametrize("how", ["leave", "leave_quietly"])
@pytest.mark.parametrize("kind", ["threads", "async"])
def test_exit_actor_in_a_graph_ends_a_concurrent_actor(compiled, kind, how):
    actor = Threaded.remote() if kind == "threads" else Async.remote()
    graph = compiled(lambda inp: getattr(actor, how).bind(inp))
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(graph.execute(1))
    with pytest.raises(ActorDiedError):
        ray.get(actor.__ray_ready__.remote(), timeout=GUARD_S)


def test_exit_actor_in_an_ordinary_call_ends_the_graph(stages, compiled):
    a, b = stages("a", "b")
    graph = compiled(lambda inp: b.through.bind(a.through.bind(inp)))
    assert ray.get(graph.execute(1)) == 1
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(a.leave_quietly.remote(1), timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(graph.execute(2))
    wait_until(lambda: graph_threads(b) == 0, GUARD_S, "the other has left the graph")


def test_teardown_may_end_the_actors(stages, compiled):
    (a,) = stages("a")
    graph = compiled(lambda inp: a.through.bind(inp))
    graph.teardown(kill_actors=True)
    with pytest.raises(ActorDiedError):
        ray.get(a.count.remote())


def test_a_graph_over_a_dead_actor_is_refused(stages, compiled):
    a, b = stages("a", "b")
    ray.kill(a)
    with pytest.raises(ActorDiedError):
        compiled(lambda inp: b.through.bind(a.through.bind(inp)))
    assert ray.get(compiled(lambda inp: b.through.bind(inp)).execute(1)) == 1


def test_a_graph_ends_with_its_executing_process(stages):
    a, b = stages("a", "b")
    assert ray.get(a.run_graph.remote(b, 5)) == 5
    assert graph_threads(b) == 1
    os.kill(ray.get(a.pid.remote()), signal.SIGKILL)
    wait_until(lambda: graph_threads(b) == 0, GUARD_S, "the end of the graph on the other actor")


DRIVER = """
import shoal
from semantics_actors import Recorder
from shoal.dag import InputNode

shoal.init()
first, second = Recorder.remote(), Recorder.remote()
with InputNode() as inp:
    compiled = second.echo.bind(first.echo.bind(inp)).experimental_compile()
refs = [compiled.execute(n) for n in range(4)]
assert shoal.get(refs[1]) == 1
print("pids", *shoal.get([first.pid.remote(), second.pid.remote()]))
"""


def test_a_driver_that_exits_without_teardown_leaves_nothing(tmp_path):
    """The fixture module_home checks that no process and no memory is left over."""
    import subprocess
    import sys

    from launching.leftovers import alive

    path = os.pathsep.join([os.path.dirname(__file__), *(p for p in sys.path if p)])
    env = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", DRIVER], env=env, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    pids = [int(p) for p in run.stdout.split()[1:]]
    assert len(pids) == 2
    wait_until(lambda: not any(alive(p) for p in pids), GUARD_S, "the end of its actors")


# ---- refusals


def test_a_cycle_is_found_at_compile_time(stages, compiled):
    a, b = stages("a", "b")

    def bound(inp):
        given = [inp]
        first = a.pack.bind(given)
        second = b.through.bind(first)
        given.append(second)
        return second

    with pytest.raises(InvalidArgument, match=r"Stage\.pack .* waits for Stage\.through .*; Stage\.through .* waits for Stage\.pack") as e:
        compiled(bound)
    assert e.value.reason == "Deadlock"


def test_an_actor_that_would_wait_for_itself_gets_an_error(stages):
    (a,) = stages("a")
    with pytest.raises(InvalidArgument, check=lambda e: e.reason == "Deadlock"):
        ray.get(a.run_graph.remote(None, 1))
    assert ray.get(a.count.remote()) == 0


def test_only_graphs_of_methods_are_compiled(stages, compiled):
    a, b = stages("a", "b")

    @ray.remote
    def function(value):
        return value

    def left_out(inp):
        first = a.through.bind(inp)
        left_out.kept = b.through.bind(first)
        return first

    for bound, error, text in (
        (lambda inp: function.bind(inp), Unimplemented, "methods of actors"),
        (lambda inp: a.through.bind(1), ValueError, "exactly one InputNode"),
        (lambda inp: b.add.bind(a.through.bind(1), inp), ValueError, "nothing would start it"),
        (lambda inp: a.add.bind(inp, InputNode()), ValueError, "exactly one InputNode"),
        (lambda inp: a.add.bind(inp, inp[0]), ValueError, "InputNode.. directly"),
        (lambda inp: MultiOutputNode([a.through.bind(inp), inp]), ValueError, "results of methods"),
        (lambda inp: MultiOutputNode([]), ValueError, "not empty"),
        (left_out, ValueError, "MultiOutputNode"),
        (lambda inp: a.through.bind(inp).with_tensor_transport("nccl"), Unimplemented, "shared memory"),
        (lambda inp: a.add.bind(inp, 1, 2), TypeError, "Stage.add"),
        (lambda inp: Stage.bind("a"), Unimplemented, "existing actors"),
        (lambda inp: a.through.options(num_returns=2).bind(inp), Unimplemented, "several results"),
    ):
        with pytest.raises(error, match=text):
            compiled(bound)
    for options in ({"_buffer_size_bytes": 0}, {"_max_inflight_executions": -1}, {"_max_inflight_executions": True}):
        with pytest.raises(ValueError, match="positive int"):
            compiled(lambda inp: a.through.bind(inp), **options)


def test_a_graph_is_compiled_once(stages, compiled):
    (a,) = stages("a")
    with InputNode() as inp:
        node = a.through.bind(inp)
    graph = node.experimental_compile()
    with pytest.raises(ValueError, match="compiled already"):
        node.experimental_compile()
    assert "0 = through(input)" in graph.visualize()
    graph.teardown()


def test_an_actor_of_another_job_is_refused_with_a_message(compiled):
    other = Recorder.options(name="other", lifetime="detached").remote()
    try:
        with pytest.raises(Unimplemented, match="is of another job"):
            compiled(lambda inp: other.echo.bind(inp))
        with InputNode() as inp:
            assert ray.get(other.echo.bind(inp).execute(3)) == 3
    finally:
        ray.kill(other)
