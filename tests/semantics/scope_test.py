"""Row A2, the end: an actor ends with its last handle, after the calls that were made on it."""

import atexit
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from leak_check import alive, wait_until
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal import _native
from shoal._actors import ownership
from shoal._actors.calls import RELEASE, pack_call
from shoal._core.process import state
from shoal._objects.refs import load
from shoal._tasks.pool import FunctionPool
from shoal.exceptions import ActorDiedError, ObjectLostError, Unavailable, WorkerCrashedError
from shoal.util import ActorPool
from shoal.util.queue import Queue
from shoal.util.state import list_objects


def row(actor_id):
    (found,) = (r for r in ray._core.process.session().list("actors") if r["id"] == actor_id)
    return found


def ends(actor_id):
    wait_until(lambda: row(actor_id)["state"] == "DEAD", GUARD_S, "the end of the actor")


@ray.remote
class Counts:
    def __init__(self, hand_over=None):
        self.calls = 0
        if hand_over:
            atexit.register(lambda: Path(hand_over).write_text("bye"))

    def call(self):
        self.calls += 1
        return self.calls

    def numbers(self, n):
        yield from range(n)

    def touch_itself(self):
        me = ray.get_runtime_context().current_actor
        del me
        gc.collect()

    def introduce(self, holder, me):
        ray.get(holder.keep.remote(me))

    def has(self, holder):
        """Keeps `holder`, which in turn keeps this actor's current_actor."""
        self.holder = holder
        ray.get(holder.keep.remote([ray.get_runtime_context().current_actor]))

    def fails_until(self, n):
        if self.call() < n:
            raise ValueError("again")
        return self.calls


@ray.remote
class Holder:
    def __init__(self, handles=None):
        self.handles = handles

    def keep(self, handles):
        self.handles = handles

    def make(self):
        self.handles = [Counts.remote()]
        return self.handles[0]._actor_id, ray.get(self.handles[0].call.remote())

    def drop(self):
        self.handles.clear()

    def call(self):
        return ray.get(self.handles[0].call.remote())

    def begin(self, gate):
        """Makes calls that wait, and drops the handle that they were made on."""
        (actor,) = self.handles
        refs = [actor.wait_at.remote(gate, "", 7), *(actor.echo.remote(k) for k in range(3))]
        refs.append(actor.echo.remote(gate.wait.remote("late", "x")))
        self.handles.clear()
        return refs

    def pass_on(self, other):
        ray.get(other.keep.remote(self.handles))

    def call_of(self, name):
        return ray.get(ray.get_actor(name).call.remote())

    def pid(self):
        return os.getpid()


@pytest.fixture
def holder():
    actor = Holder.remote()
    yield actor
    ray.kill(actor)


def test_an_actor_ends_when_nothing_refers_to_it(tmp_path):
    actor = Counts.remote(str(tmp_path / "words"))
    actor_id, pid = actor._actor_id, ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    del actor
    ends(actor_id)
    wait_until(lambda: not alive(pid), GUARD_S, "the end of its process")
    assert (tmp_path / "words").read_text() == "bye"
    assert "exited with code 0" in row(actor_id)["cause"]


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_made_before_the_last_handle_went_are_run(gate, threads):
    actor = Recorder.options(max_concurrency=threads).remote()
    actor_id = actor._actor_id
    refs = [actor.wait_at.remote(gate, "", 7), *(actor.echo.remote(k) for k in range(5)), actor.echo.remote(gate.wait.remote("late", "x"))]
    del actor
    gc.collect()
    gate.open.remote()
    gate.open.remote("late")
    assert ray.get(refs, timeout=GUARD_S) == [7, 0, 1, 2, 3, 4, "x"]
    ends(actor_id)


def test_unordered_calls_do_not_wait_for_each_other_at_the_end(gate):
    actor = Recorder.options(max_concurrency=2).remote()
    actor_id = actor._actor_id
    first, second = (actor.echo.remote(gate.wait.remote(which, which)) for which in ("first", "second"))
    del actor
    gc.collect()
    gate.open.remote("second")
    assert ray.get(second, timeout=GUARD_S) == "second"
    gate.open.remote("first")
    assert ray.get(first, timeout=GUARD_S) == "first"
    ends(actor_id)


def test_unordered_calls_with_pending_arguments_are_run_at_the_end(gate):
    actor = Recorder.options(allow_out_of_order_execution=True).remote()
    actor_id, late = actor._actor_id, actor.echo.remote(gate.wait.remote("", "late"))
    assert ray.get(actor.echo.remote("early"), timeout=GUARD_S) == "early"
    del actor
    gc.collect()
    gate.open.remote()
    assert ray.get(late, timeout=GUARD_S) == "late"
    ends(actor_id)


def test_running_async_methods_finish_before_the_actor_ends():
    gate = Gate.remote()
    actor_id, waiting = gate._actor_id, [gate.wait.remote("", k) for k in range(3)]
    gate.open.remote("unrelated")
    last = gate.open.remote()
    del gate
    assert ray.get([*waiting, last], timeout=GUARD_S) == [0, 1, 2, None]
    ends(actor_id)


def test_a_handle_argument_of_an_async_method_is_released_after_it():
    @ray.remote
    class Waits:
        async def on(self, actor):
            import asyncio

            asyncio.get_running_loop().create_task(asyncio.sleep(1000))  # the task keeps the context of this call
            return await actor.all.remote()

    waits, recorder = Waits.remote(), Recorder.remote()
    assert ray.get(waits.on.remote(recorder), timeout=GUARD_S) == []
    name = recorder._actor_id
    del recorder
    ends(name)
    ray.kill(waits)


def test_a_chained_calls_handle_is_released_before_its_result():
    assert ray.get([Counts.remote().call.remote() for _ in range(3)], timeout=GUARD_S) == [1, 1, 1]
    assert [ray.get(r, timeout=GUARD_S) for r in Counts.remote().numbers.remote(4)] == [0, 1, 2, 3]


def test_a_method_refers_to_its_actor():
    call = Counts.remote().call
    optioned = call.options(name="again")
    gc.collect()
    assert [ray.get(m.remote(), timeout=GUARD_S) for m in (call, optioned)] == [1, 2]
    actor_id = call._actor.id
    del call
    assert ray.get(optioned.remote(), timeout=GUARD_S) == 3
    del optioned
    ends(actor_id)


def test_a_retried_call_finds_its_actor():
    ref = Counts.remote().fails_until.options(max_task_retries=-1, retry_exceptions=True).remote(3)
    assert ray.get(ref, timeout=GUARD_S) == 3


def test_an_ended_actors_resources_are_free_again():
    for _ in range(3):
        assert ray.get(Counts.options(num_cpus=8).remote().call.remote(), timeout=GUARD_S) == 1


def test_an_actor_without_handles_is_not_restarted():
    actor = Counts.options(max_restarts=-1).remote()
    actor_id = actor._actor_id
    assert ray.get(actor.call.remote(), timeout=GUARD_S) == 1
    del actor
    ends(actor_id)
    assert row(actor_id)["num_restarts"] == 0


# ---- handles in other processes


def still_there(actor_id, call):
    """Checks that the actor answers. A wrong release would have arrived before these calls, because that of another actor has."""
    gc.collect()
    other = Counts.remote()
    other_id, kept = other._actor_id, ray.put([other])
    del other, kept
    ends(other_id)
    first = ray.get(call(), timeout=GUARD_S)
    assert [ray.get(call(), timeout=GUARD_S) for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert row(actor_id)["state"] == "ALIVE"


def test_an_actor_ends_when_another_process_drops_its_handle(holder):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


def test_an_actor_ends_with_the_last_of_several_holders(holder):
    other, actor = Holder.remote(), Counts.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    ray.get(holder.pass_on.remote(other), timeout=GUARD_S)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    still_there(actor_id, other.call.remote)
    ray.get(other.pass_on.remote(holder), timeout=GUARD_S)
    ray.get(other.drop.remote(), timeout=GUARD_S)
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)
    ray.kill(other)


def test_an_actor_ends_with_the_process_that_holds_its_handle():
    holder, actor = Holder.remote(), Counts.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, holder.call.remote)
    os.kill(ray.get(holder.pid.remote(), timeout=GUARD_S), signal.SIGKILL)
    ends(actor_id)
    assert "exited with code 0" in row(actor_id)["cause"]


def test_calls_made_by_another_process_are_run(gate, holder):
    actor = Recorder.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    refs = ray.get(holder.begin.remote(gate), timeout=GUARD_S)
    gate.open.remote()
    gate.open.remote("late")
    assert ray.get(refs, timeout=GUARD_S) == [7, 0, 1, 2, "x"]
    ends(actor_id)


def test_functions_may_receive_a_handle_one_after_the_other():
    @ray.remote(num_cpus=0)
    def uses(actor):
        return ray.get(actor.call.remote())

    for _ in range(6):  # the CPUs suffice for one actor
        actor = Counts.options(num_cpus=8).remote()
        assert ray.get(uses.remote(actor), timeout=GUARD_S) == 1
        del actor


def test_an_actor_in_a_put_value_ends_with_the_value():
    actor = Counts.remote()
    actor_id, values = actor._actor_id, [ray.put({"it": [actor]})]
    del actor
    still_there(actor_id, lambda: ray.get(values[0])["it"][0].call.remote())
    values[0] = ray.put([values[0]])
    still_there(actor_id, lambda: ray.get(ray.get(values[0])[0])["it"][0].call.remote())
    values.clear()
    ends(actor_id)


def test_a_handle_that_returns_to_its_creator_still_counts(holder):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    (back,) = ray.get(holder.__ray_call__.remote(lambda self: self.handles), timeout=GUARD_S)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    still_there(actor_id, back.call.remote)
    del back
    ends(actor_id)


def test_an_actor_with_its_own_handle_ends():
    actor = Holder.remote()
    actor_id = actor._actor_id
    ray.get(actor.keep.remote([actor]), timeout=GUARD_S)
    assert ray.get(actor.pid.remote(), timeout=GUARD_S)
    del actor
    ends(actor_id)


def test_a_restartable_actor_that_dies_still_ends_for_good(holder):
    actor = Counts.options(max_restarts=-1).remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=GUARD_S), signal.SIGKILL)
    wait_until(lambda: row(actor_id)["num_restarts"] == 1, GUARD_S, "its second life")
    del actor
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)
    assert row(actor_id)["num_restarts"] == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_actor_that_passed_on_its_handle_ends_with_that_handle(holder, concurrency):
    actor = Counts.options(max_concurrency=concurrency).remote()
    actor_id = actor._actor_id
    ray.get(actor.introduce.remote(holder, [actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, holder.call.remote)
    (back,) = ray.get(holder.__ray_call__.remote(lambda self: self.handles), timeout=GUARD_S)
    ray.get(back.introduce.remote(holder, [back]), timeout=GUARD_S)  # again, replacing the first handle
    del back
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_actor_ends_with_the_actor_that_holds_its_current_actor(concurrency):
    actor, other = Counts.options(max_concurrency=concurrency).remote(), Holder.remote()
    ids = actor._actor_id, other._actor_id
    ray.get(actor.has.remote(other), timeout=GUARD_S)
    assert ray.get(other.call.remote(), timeout=GUARD_S) == 1  # called by its current_actor, while a handle keeps it
    del other
    still_there(ids[1], actor.call.remote)
    del actor
    for actor_id in ids:
        ends(actor_id)


def test_an_unplaced_actor_is_withdrawn_with_its_last_handle(holder):
    actor = Counts.options(resources={"nowhere": 1}).remote()
    waits = Counts.options(resources={"nowhere": 1}).remote()
    ids, call = (actor._actor_id, waits._actor_id), waits.call.remote()
    del actor, waits
    ends(ids[0])
    assert row(ids[1])["state"] == "PENDING"  # a pending call keeps it
    assert ray.wait([call], timeout=0) == ([], [call])


def test_an_actor_with_pending_arguments_is_withdrawn_with_its_last_handle(holder):
    @ray.remote(resources={"nowhere": 1})
    def never():
        pass

    @ray.remote
    class Takes:
        def __init__(self, argument, kept):
            pass

    kept = ray.put(bytes(1 << 20))
    name = kept.hex()
    actors = [cls.remote(never.remote(), [kept]) for cls in (Takes, Takes.options(max_restarts=-1), Takes.options(max_concurrency=2))]
    ids = [actor._actor_id for actor in actors]
    del actors, kept
    for actor_id in ids:
        ends(actor_id)
    wait_until(lambda: name not in {o["object_id"] for o in list_objects()}, GUARD_S, "the end of what the arguments refer to")


def test_an_unplaced_actor_is_withdrawn_when_another_process_drops_it(holder):
    @ray.remote(num_cpus=0)
    def makes():
        return [Counts.options(resources={"nowhere": 1}).remote()]

    [made_by_function], actor_ownership = ray.get(makes.remote(), timeout=GUARD_S), Counts.options(resources={"nowhere": 1}).remote()
    ray.get(holder.keep.remote([actor_ownership]), timeout=GUARD_S)
    ids = made_by_function._actor_id, actor_ownership._actor_id
    del made_by_function, actor_ownership
    ends(ids[0])
    assert row(ids[1])["state"] == "PENDING"  # the holder has a handle
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(ids[1])


def told_to_end(actor_id):
    """Asks the actor to end. It answers, and waits for handles of itself."""
    ray.get(ray.ObjectRef(ray._core.process.session().call(actor_id, RELEASE, *pack_call((), {}))), timeout=GUARD_S)


def test_an_actor_that_passed_on_its_handle_survives_two_end_requests(holder):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ray.get(actor.introduce.remote(holder, [actor]), timeout=GUARD_S)
    for _ in range(2):  # once by its creator, and once by the holder
        told_to_end(actor_id)
    del actor
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_actor_kept_only_by_its_own_handles_does_not_restart(holder, concurrency):
    actor = Counts.options(max_restarts=-1, max_concurrency=concurrency).remote()
    actor_id, pid = actor._actor_id, ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=GUARD_S)
    ray.get(actor.introduce.remote(holder, [actor]), timeout=GUARD_S)
    del actor
    told_to_end(actor_id)
    assert ray.get(holder.call.remote(), timeout=GUARD_S) == 1
    os.kill(pid, signal.SIGKILL)
    ends(actor_id)
    assert row(actor_id)["num_restarts"] == 0


def test_an_actor_ends_although_its_handle_count_was_long_unreachable(holder, monkeypatch):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    heard = []

    def not_reached(ref):
        heard.append(ref)
        if len(heard) < 3:
            raise ObjectLostError("the node that has this object cannot be reached", reason="ObjectLost")
        return load(ref)

    monkeypatch.setattr(ownership, "load", not_reached)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


def test_handles_pickled_within_each_other_are_counted_together(monkeypatch):
    """As when the garbage collector runs user code that pickles a handle while the same handle is being pickled."""
    actors, stands, within = [Counts.remote()], [], []
    actor_id = actors[0]._actor_id

    def token(session):
        stands.append(session)
        if len(stands) == 1:
            within.append(ray.put(actors))
        return made_token(session)

    made_token = ownership._lifetime_token
    monkeypatch.setattr(ownership, "_lifetime_token", token)
    leaving = threading.Thread(target=lambda: within.append(ray.put(actors)), daemon=True)
    leaving.start()
    leaving.join(GUARD_S)
    assert len(within) == 2
    actors.clear()
    still_there(actor_id, lambda: ray.get(within[0])[0].call.remote())
    del within[0]
    still_there(actor_id, lambda: ray.get(within[0])[0].call.remote())
    within.clear()
    ends(actor_id)


def test_an_actor_that_is_only_a_pending_argument_stays(gate, holder):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ready = gate.wait.remote()

    @ray.remote(num_cpus=0)
    def calls(actor, _):
        return ray.get(actor.call.remote())

    ref = calls.remote(actor, ready)
    del actor
    gc.collect()
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) == 1
    ends(actor_id)


def test_a_name_does_not_keep_an_actor():
    actor = Counts.options(name="called").remote()
    actor_id, found = actor._actor_id, ray.get_actor("called")
    kept = ray.put([found])  # handles from get_actor do not count, in any process
    still_there(actor_id, ray.get(kept)[0].call.remote)
    del actor
    ends(actor_id)
    with pytest.raises(ActorDiedError):
        ray.get(found.call.remote(), timeout=GUARD_S)
    with pytest.raises(ValueError, match="called"):
        ray.get_actor("called")


def test_get_if_exists_by_the_creator_returns_a_counted_handle(holder):
    actor = Counts.options(name="called").remote()
    actor_id = actor._actor_id
    for _ in range(3):  # as in a loop that reuses its variable
        actor = Counts.options(name="called", get_if_exists=True).remote()
        still_there(actor_id, actor.call.remote)
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, lambda: holder.__ray_call__.remote(lambda me: ray.get(me.handles[0].call.remote())))
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


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


def test_a_named_actor_stays_while_a_process_holds_its_handle(holder):
    actor = Counts.options(name="held", max_restarts=1).remote()
    actor_id = actor._actor_id
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, lambda: holder.call_of.remote("held"))
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


def test_a_detached_actor_needs_no_handle():
    actor = Counts.options(name="detached", lifetime="detached").remote()
    actor_id, kept = actor._actor_id, ray.put([actor])
    assert ray.get(actor.call.remote(), timeout=GUARD_S) == 1
    del actor, kept
    still_there(actor_id, lambda: ray.get_actor("detached").call.remote())
    ray.kill(ray.get_actor("detached"))


def test_an_actors_own_handles_of_itself_do_not_count():
    actor = Counts.remote()
    ray.get(actor.touch_itself.remote(), timeout=GUARD_S)
    still_there(actor._actor_id, actor.call.remote)


def test_a_hand_pickled_handle_keeps_its_actor_until_its_process_ends():
    actor, holder = Counts.remote(), Holder.remote()
    actor_id = actor._actor_id
    other = pickle.loads(pickle.dumps(actor))
    del actor
    still_there(actor_id, other.call.remote)
    ray.kill(other)

    made_id, pickled = ray.get(holder.__ray_call__.remote(_pickles_by_hand), timeout=GUARD_S)
    still_there(made_id, lambda: pickle.loads(pickled).call.remote())
    ray.kill(holder)
    ends(made_id)


def _pickles_by_hand(_):
    actor = Counts.remote()
    return actor._actor_id, pickle.dumps(actor)


def test_copies_of_a_handle_count_as_one():
    actor = Counts.remote()
    actor_id, copies = actor._actor_id, [copy.copy(actor), copy.deepcopy({"it": actor})]
    del actor
    still_there(actor_id, copies[1]["it"].call.remote)
    copies.clear()
    ends(actor_id)


def test_a_constructor_argument_actor_stays_while_its_actor_may_restart():
    actor = Counts.remote()
    actor_id, maker = actor._actor_id, Holder.options(max_restarts=-1).remote([actor])
    maker_id = maker._actor_id
    del actor
    os.kill(ray.get(maker.pid.remote(), timeout=GUARD_S), signal.SIGKILL)
    wait_until(lambda: row(maker_id)["num_restarts"] == 1, GUARD_S, "its second life")
    still_there(actor_id, maker.call.options(max_task_retries=-1).remote)
    del maker
    ends(actor_id)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_constructor_argument_actor_ends_when_its_actor_drops_it(concurrency):
    actor = Counts.remote()
    actor_id, maker = actor._actor_id, Holder.options(max_concurrency=concurrency).remote([actor])
    del actor
    still_there(actor_id, maker.call.remote)
    ray.get(maker.keep.remote([]), timeout=GUARD_S)
    ends(actor_id)


def test_a_forked_child_ends_no_actor():
    actor = Counts.remote()
    assert ray.get(actor.call.remote(), timeout=GUARD_S) == 1
    child = os.fork()
    if child == 0:
        del actor
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    still_there(actor._actor_id, actor.call.remote)


def test_the_end_of_a_program_is_quiet(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import shoal as ray\n"
        "ray.init(num_cpus=2)\n"
        "A = ray.remote(type('A', (), {'call': lambda self: 5}))\n"
        "kept, cycle = A.remote(), [A.remote()]\n"
        "held = ray.put([kept])\n"
        "cycle.append(cycle)\n"
        "print(ray.get([kept.call.remote(), cycle[0].call.remote(), A.remote().call.remote()]))\n"
    )
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=GUARD_S)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("[5, 5, 5]\n", "", 0)


# ---- creators


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
        """Returns the handles, children first."""
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
    family = ray.get(parent.family.remote(), timeout=GUARD_S)  # these handles do not keep the actors
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
    parent = Parent.options(max_restarts=-1, max_task_retries=-1).remote(2, 3)  # the CPUs suffice for the children of one life
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
        ray.get(child.pid.remote())  # creates it before this function returns
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
    """Waits until this process has asked a worker of its functions for its hand-over, or the worker has ended."""
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
    """Workers of this process's functions that have reported open calls."""
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
