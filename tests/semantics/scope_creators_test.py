"""A2 of COVERAGE.md, the end: actors end with the process that created them, or with the worker whose function did."""

import os
import signal
import threading

import pytest
from counted_actors import Counts, Holder, ends, row, still_there
from internals.core import FunctionPool, _native, state
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S

import shoal as ray
from shoal.exceptions import ActorDiedError, Unavailable, WorkerCrashedError
from shoal.util import ActorPool
from shoal.util.queue import Queue


@pytest.mark.parametrize("way", ["get_actor", "came back"])
def test_an_actor_whose_child_holds_its_found_handle_ends(way):
    @ray.remote(num_cpus=0)
    class Parent:
        def have(self, way, name):
            self.child = Holder.remote()
            found = ray.get_actor(name) if way == "get_actor" else ray.get_runtime_context().current_actor
            ray.get(self.child.keep.remote([found]))
            if way == "came back":
                ray.get(self.child.keep.remote(ray.get(self.child.__ray_call__.remote(lambda child: child.handles))))
            return self.child._actor_id

    parent = Parent.options(name="parent").remote()
    ids = parent._actor_id, ray.get(parent.have.remote(way, "parent"), timeout=GUARD_S)
    del parent
    for actor_id in ids:
        ends(actor_id)


def test_an_actor_created_by_an_actor_ends_with_its_last_handle(holder):
    actor_id, first = ray.get(holder.make.remote(), timeout=GUARD_S)
    assert first == 1
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


def test_an_actor_created_by_a_function_ends_with_its_last_handle():
    @ray.remote(num_cpus=0)
    def makes():
        actor = Counts.remote()
        return actor._actor_id, ray.get(actor.call.remote())

    actor_id, first = ray.get(makes.remote(), timeout=GUARD_S)
    assert first == 1
    ends(actor_id)


@ray.remote(num_cpus=0)
class Parent:
    """An actor that creates children, each of which creates one more."""

    def __init__(self, children=1, cpus=0):
        self.children = [Parent.options(num_cpus=cpus).remote(0) for _ in range(children)]
        self.more = None

    def make(self, **options):
        self.more = Parent.options(**options).remote(0)
        return self.more

    def family(self):
        """Returns the handles of this actor's children, and then of their children."""
        return self.children + [ray.get(child.make.remote()) for child in self.children]

    def ids(self):
        return ray.get([child.id.remote() for child in self.children])

    def id(self):
        return ray.get_runtime_context().get_actor_id()

    def pid(self):
        return os.getpid()

    def leave(self):
        ray.exit_actor()


def lives(actor):
    assert alive(ray.get(actor.pid.remote(), timeout=GUARD_S))
    assert row(actor._actor_id)["state"] == "ALIVE"


LEAVES = {
    "kill": ray.kill,
    "SIGKILL": lambda parent: os.kill(ray.get(parent.pid.remote()), signal.SIGKILL),
    "exit_actor": lambda parent: parent.leave.remote(),
    "__ray_terminate__": lambda parent: parent.__ray_terminate__.remote(),
    "out of scope": lambda parent: None,
}


@pytest.mark.parametrize("how", LEAVES)
def test_an_actor_ends_with_its_creator(how):
    parent = Parent.remote(2)
    family = ray.get(parent.family.remote(), timeout=GUARD_S)  # an actor ends with its creator although these handles exist
    names = [ray.get(f.id.remote(), timeout=GUARD_S) for f in (parent, *family)]
    LEAVES[how](parent)
    del parent
    for actor_id, creator in zip(names[1:], (names[0], names[0], *names[1:3]), strict=True):
        ends(actor_id)
        assert f"its creator, actor Parent({creator}), ended" in row(actor_id)["cause"]
    for actor in family:
        with pytest.raises(ActorDiedError):
            ray.get(actor.pid.remote(), timeout=GUARD_S)


def test_actors_created_by_each_life_of_an_actor_end_with_it():
    # the CPUs suffice for the children of one life only, so those of the life before have to end
    parent = Parent.options(max_restarts=-1, max_task_retries=-1).remote(2, 3)
    lives = [ray.get(parent.ids.remote(), timeout=GUARD_S)]
    for _ in range(2):
        os.kill(ray.get(parent.pid.remote(), timeout=GUARD_S), signal.SIGKILL)
        for child in lives[-1]:
            ends(child)
        lives.append(ray.get(parent.ids.remote(), timeout=GUARD_S))
    ray.kill(parent, no_restart=False)
    for child in lives[-1]:
        ends(child)
    last = ray.get(parent.ids.remote(), timeout=GUARD_S)
    assert len({child for life in (*lives, last) for child in life}) == 8
    ray.kill(parent)
    for child in last:
        ends(child)


def test_a_named_actor_but_no_detached_one_ends_with_its_creator():
    parent = Parent.remote(0)
    ray.get(ray.get(parent.make.remote(name="detached", lifetime="detached"), timeout=GUARD_S).pid.remote(), timeout=GUARD_S)
    ray.get(ray.get(parent.make.remote(name="named"), timeout=GUARD_S).pid.remote(), timeout=GUARD_S)
    named, detached = ray.get_actor("named"), ray.get_actor("detached")
    ray.kill(parent)
    ends(named._actor_id)
    with pytest.raises(ValueError, match="named"):
        ray.get_actor("named")
    lives(detached)
    ray.kill(detached)


def test_an_actor_ends_with_the_worker_whose_function_created_it(recorder):
    @ray.remote(num_cpus=0, max_retries=0)
    def makes_and_dies(recorder):
        child = Parent.remote(0)
        ray.get(recorder.add.remote(ray.get(child.id.remote())))
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        ray.get(makes_and_dies.remote(recorder), timeout=GUARD_S)
    (child,) = ray.get(recorder.all.remote(), timeout=GUARD_S)
    ends(child)
    assert "its creator, a worker of remote functions, ended" in row(child)["cause"]


@pytest.mark.parametrize("calls", [0, 1])
def test_an_actor_that_a_function_returned_outlives_its_worker(calls):
    @ray.remote(num_cpus=0, max_calls=calls)
    def makes():
        child = Parent.remote(0)
        ray.get(child.pid.remote())  # the child exists before this function returns
        return os.getpid(), child

    pid, child = ray.get(makes.remote(), timeout=GUARD_S)
    exits(pid)
    lives(child)
    child_id = child._actor_id
    del child
    ends(child_id)


def test_a_worker_is_retired_once_the_head_is_back(monkeypatch):
    asked = {"retire": 0, "know": 0}

    def while_it_is_away(what):
        really = getattr(_native.Session, what)

        def ask(*args):
            if threading.current_thread().name == "shoal-tasks":
                asked[what] += 1
                if asked[what] <= 2:
                    raise Unavailable("the head is away", reason="HeadGone")
            return really(*args)

        monkeypatch.setattr(_native.Session, what, ask)

    while_it_is_away("know")
    while_it_is_away("retire")

    @ray.remote(num_cpus=0, max_calls=1)
    def makes():
        child = Parent.remote(0)
        ray.get(child.pid.remote())
        return os.getpid(), child

    pid, child = ray.get(makes.remote(), timeout=GUARD_S)
    exits(pid)
    assert min(asked.values()) > 2
    lives(child)
    child_id = child._actor_id
    del child
    ends(child_id)


def asked(pid):
    """Waits until this process has asked the worker ``pid``, which runs its functions, to hand over its actors, or that worker has
    ended."""
    ids = [r["id"] for r in ray._core.process.session().list("actors") if r["pid"] == pid]
    wait_until(lambda: any(leaving.worker in ids for leaving in state.functions._leaving) or not alive(pid), GUARD_S, "its last call")


def test_an_actor_returned_with_pending_arguments_is_created(gate, monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", 10.0 * GUARD_S)

    @ray.remote(num_cpus=0, max_calls=1)
    def makes(refs):
        return os.getpid(), Holder.remote(refs[0])

    pid, child = ray.get(makes.remote([gate.wait.remote("", [Counts.remote()])]), timeout=GUARD_S)
    asked(pid)
    gate.open.remote()
    assert ray.get(child.call.remote(), timeout=GUARD_S) == 1
    exits(pid)
    lives(child)
    child_id = child._actor_id
    del child
    ends(child_id)


def needed():
    """Workers of this process's functions that were asked to leave, and have reported open calls."""
    return [leaving for leaving in state.functions._leaving if leaving.needed]


def test_an_actor_returned_with_long_pending_arguments_is_created(gate, monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", 10.0 * GUARD_S)
    monkeypatch.setattr(FunctionPool, "NEEDED_S", 0.1)

    @ray.remote(num_cpus=0, max_calls=1)
    def makes(refs):
        return os.getpid(), Holder.remote(refs[0])

    pid, child = ray.get(makes.remote([gate.wait.remote("", [Counts.remote()])]), timeout=GUARD_S)
    wait_until(needed, GUARD_S, "that its worker says so")
    gate.open.remote()
    assert ray.get(child.call.remote(), timeout=GUARD_S) == 1
    exits(pid)


def test_a_returned_actors_constructor_arguments_stay_while_it_may_restart():
    @ray.remote(num_cpus=0, max_calls=1)
    def makes():
        inner = Counts.remote()
        return os.getpid(), inner._actor_id, Holder.options(max_restarts=-1).remote([inner])

    pid, inner_id, maker = ray.get(makes.remote(), timeout=GUARD_S)
    exits(pid)
    maker_id = maker._actor_id
    os.kill(ray.get(maker.pid.remote(), timeout=GUARD_S), signal.SIGKILL)
    wait_until(lambda: row(maker_id)["num_restarts"] == 1, GUARD_S, "its second life")
    still_there(inner_id, maker.call.options(max_task_retries=-1).remote)
    del maker
    ends(maker_id)
    ends(inner_id)


def test_a_worker_without_last_words_blocks_no_other(monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", 10.0 * GUARD_S)
    pid = ray.get(ray.remote(num_cpus=0)(os.getpid).remote(), timeout=GUARD_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        asked(pid)
        other = ray.remote(num_cpus=0, max_calls=1)(os.getpid)
        pids = [ray.get(other.remote(), timeout=GUARD_S) for _ in range(3)]
        assert len({pid, *pids}) == 4
    finally:
        os.kill(pid, signal.SIGCONT)
    exits(pid)


def exits(pid):
    ended = lambda: [r["state"] for r in ray._core.process.session().list("workers") if r["pid"] == pid] == ["EXITED"]  # noqa: E731
    wait_until(ended, GUARD_S, "the end of a worker that is idle or used up")


def test_an_actor_that_a_function_returned_ends_while_its_worker_lives():
    @ray.remote(num_cpus=0)
    def makes():
        return Parent.remote(0)

    child = ray.get(makes.remote(), timeout=GUARD_S)
    lives(child)
    child_id = child._actor_id
    del child
    ends(child_id)


def test_an_actor_that_came_through_two_functions_ends_with_its_last_handle():
    @ray.remote(num_cpus=0, max_calls=1)
    def inner():
        child = Parent.remote(0)
        ray.get(child.pid.remote())
        return child

    @ray.remote(num_cpus=0, max_calls=1)
    def outer():
        return os.getpid(), ray.get(inner.remote())

    pid, child = ray.get(outer.remote(), timeout=GUARD_S)
    exits(pid)
    lives(child)
    child_id = child._actor_id
    del child
    ends(child_id)


def test_open_calls_of_a_returned_function_own_their_actors(gate, holder, monkeypatch):
    monkeypatch.setattr(FunctionPool, "HAND_OVER_S", 10.0 * GUARD_S)
    monkeypatch.setattr(FunctionPool, "NEEDED_S", 0.1)

    @ray.remote(num_cpus=0)
    def inner(gate, holder):
        child = Counts.remote()
        ray.get([child.call.remote(), holder.keep.remote([child])])
        ray.get(gate.arrive.remote(child._actor_id))

    @ray.remote(num_cpus=0, max_calls=1)
    def outer(gate, holder):
        inner.remote(gate, holder)
        return ray.get(gate.arrived.remote(1))

    (child_id,) = ray.get(outer.remote(gate, holder), timeout=GUARD_S)
    wait_until(needed, GUARD_S, "that its worker says that it is")
    gate.open.remote()
    wait_until(lambda: not state.functions._leaving, GUARD_S, "its end")
    still_there(child_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(child_id)


def test_an_actor_held_only_by_a_functions_worker_ends_with_it():
    @ray.remote(num_cpus=0, max_calls=1)
    def makes():
        os.kept = Parent.remote(0)
        return ray.get(os.kept.id.remote())

    child_id = ray.get(makes.remote(), timeout=GUARD_S)
    ends(child_id)
    assert "exited with code 0" in row(child_id)["cause"]


def test_pools_and_queues_keep_their_actors():
    pool = ActorPool([Counts.remote() for _ in range(2)])
    assert len(list(pool.map_unordered(lambda actor, _: actor.call.remote(), range(4)))) == 4
    queue = Queue()
    queue.put(1)
    ids = [queue.actor._actor_id]
    assert queue.get(timeout=GUARD_S) == 1
    del pool, queue
    ends(ids[0])
