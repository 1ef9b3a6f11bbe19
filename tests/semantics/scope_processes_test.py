"""A2 of COVERAGE.md, the end: handles in other processes, in values and in calls keep an actor."""

import gc
import os
import signal
import threading

import pytest
from counted_actors import Counts, Holder, ends, row, still_there
from internals.core import RELEASE, load, ownership, pack_call
from launching.leftovers import wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ObjectLostError
from shoal.util.state import list_objects


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

    for _ in range(6):  # the CPUs suffice for one actor at a time
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
    # the actor passes on its handle again, which replaces the holder's first one
    ray.get(back.introduce.remote(holder, [back]), timeout=GUARD_S)
    del back
    still_there(actor_id, holder.call.remote)
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(actor_id)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_actor_ends_with_the_actor_that_holds_its_current_actor(concurrency):
    actor, other = Counts.options(max_concurrency=concurrency).remote(), Holder.remote()
    ids = actor._actor_id, other._actor_id
    ray.get(actor.has.remote(other), timeout=GUARD_S)
    # `other` calls the actor by its current_actor, while a counted handle keeps the actor
    assert ray.get(other.call.remote(), timeout=GUARD_S) == 1
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
    assert row(ids[1])["state"] == "PENDING"  # a call that waits keeps the actor
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
    assert row(ids[1])["state"] == "PENDING"  # the holder has a handle of this actor
    ray.get(holder.drop.remote(), timeout=GUARD_S)
    ends(ids[1])


def told_to_end(actor_id):
    """Sends the call that asks the actor to end. The actor answers, but lives while others have handles that it passed on."""
    ray.get(ray.ObjectRef(ray._core.process.session().call(actor_id, RELEASE, *pack_call((), {}))), timeout=GUARD_S)


def test_an_actor_that_passed_on_its_handle_survives_two_end_requests(holder):
    actor = Counts.remote()
    actor_id = actor._actor_id
    ray.get(actor.introduce.remote(holder, [actor]), timeout=GUARD_S)
    for _ in range(2):  # stands for the requests of its creator and of the holder
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
    """Pickles a handle while the same handle is being pickled, as user code does that the garbage collector runs at that moment."""
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
