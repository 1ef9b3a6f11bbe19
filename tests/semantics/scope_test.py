"""A2 of COVERAGE.md, the end: an actor ends with its last handle, after the calls that were made on it."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys

import pytest
from counted_actors import Counts, Holder, ends, row, still_there
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError


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

            # this task keeps the context of its call alive when the call has ended
            asyncio.get_running_loop().create_task(asyncio.sleep(1000))
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


# ---- names, pickles and forks


def test_a_name_does_not_keep_an_actor():
    actor = Counts.options(name="called").remote()
    actor_id, found = actor._actor_id, ray.get_actor("called")
    kept = ray.put([found])  # handles from get_actor do not count, whichever process has them
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
    for _ in range(3):  # three times, as in a loop that reuses its variable
        actor = Counts.options(name="called", get_if_exists=True).remote()
        still_there(actor_id, actor.call.remote)
    ray.get(holder.keep.remote([actor]), timeout=GUARD_S)
    del actor
    still_there(actor_id, lambda: holder.__ray_call__.remote(lambda me: ray.get(me.handles[0].call.remote())))
    ray.get(holder.drop.remote(), timeout=GUARD_S)
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
