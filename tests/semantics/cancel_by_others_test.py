"""A1 and A2 of COVERAGE.md, cancellation of calls by processes that did not make them."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
from cancelled_calls import cancels, is_cancelled, plus_one, stubborn, tells, waits
from internals.core import pool
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import OwnerDiedError, TaskCancelledError


class Calls:
    """An actor that makes calls and returns their references."""

    def __init__(self):
        pool.FunctionPool.IDLE_S = GUARD_S  # this actor's process has pools of its own, which the fixture workers_stay does not change

    def wait(self, gate):
        return [waits.remote(gate)]

    def wait_in_vain(self):
        return [plus_one.options(resources={"unobtainium": 1}).remote(1)]

    def pid(self):
        return os.getpid()


def test_another_process_cancels_a_waiting_call():
    actor = Recorder.options(resources={"unobtainium": 1}).remote()
    refs = [plus_one.options(resources={"unobtainium": 1}).remote(1), actor.all.remote()]
    ray.get(cancels.remote(refs), timeout=GUARD_S)
    for ref in refs:
        is_cancelled(ref)
    ray.kill(actor)


def test_another_process_cancels_a_running_call(gate):
    ref = waits.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(cancels.remote([ref]), timeout=GUARD_S)
    is_cancelled(ref)


def test_another_process_cancels_by_force(gate):
    ref = stubborn.options(max_retries=-1).remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(cancels.remote([ref], force=True), timeout=GUARD_S)
    is_cancelled(ref)
    assert ray.get(gate.seen.remote()) == ["stubborn"]


def test_force_from_another_process_is_refused_for_methods(gate, recorder):
    ref = recorder.wait_at.remote(gate)
    with pytest.raises(ValueError, match="force=True is not supported for actor tasks"):
        ray.get(cancels.remote([ref], force=True), timeout=GUARD_S)
    gate.open.remote()
    assert ray.get(ref, timeout=GUARD_S) is None


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize("recursive", [True, False])
def test_recursive_decides_about_nested_calls_from_another_process(gate, recursive):
    @ray.remote(num_cpus=0)
    def parent(gate):
        ray.get(tells.remote(gate, "child"))

    ref = parent.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(cancels.remote([ref], recursive=recursive), timeout=GUARD_S)
    is_cancelled(ref)
    gate.open.remote("child") if not recursive else None
    assert ray.get(gate.arrived.remote(2), timeout=GUARD_S) == ["begins", "cancelled" if recursive else "done"]


def test_another_process_cancels_the_whole_call_by_one_result(gate):
    first, second = waits.options(num_returns=2).remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(cancels.remote([second]), timeout=GUARD_S)
    is_cancelled(first)
    is_cancelled(second)


def test_a_method_cancelled_by_another_process_is_not_retried(gate):
    @ray.remote
    class Tries:
        @ray.method(max_task_retries=-1, retry_exceptions=True)
        async def run(self, gate):
            gate.note.remote("one")
            raise ValueError("again")

    actor = Tries.remote()
    ref = actor.run.remote(gate)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    ray.get(cancels.remote([ref]), timeout=GUARD_S)
    is_cancelled(ref)
    ray.kill(actor)


def test_calls_made_by_another_process_are_cancelled(gate):
    actor = ray.remote(Calls).remote()
    (running,), (waiting,) = ray.get([actor.wait.remote(gate), actor.wait_in_vain.remote()], timeout=GUARD_S)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    for ref in running, waiting:
        ray.cancel(ref)
        is_cancelled(ref)
    (stays,) = ray.get(actor.wait.remote(gate), timeout=GUARD_S)
    ray.get(gate.arrived.remote(2), timeout=GUARD_S)
    ray.cancel(stays, force=True)
    is_cancelled(stays)
    ray.kill(actor)


def test_a_third_process_cancels_calls_of_another(gate):
    actor = ray.remote(Calls).remote()
    refs = ray.get(actor.wait.remote(gate), timeout=GUARD_S)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(cancels.remote(refs), timeout=GUARD_S)
    is_cancelled(refs[0])
    ray.kill(actor)


OTHER_JOB = """
import sys
import shoal as ray
ray.init(address=sys.argv[1])
((ref,),) = ray.get(ray.get_actor("of all jobs", namespace="cancel").all.remote())
ray.cancel(ref)
"""


def test_another_job_with_the_reference_cancels_the_call(gate):
    registry = Recorder.options(name="of all jobs", namespace="cancel").remote()
    ref = waits.remote(gate)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.get(registry.add.remote([ref]), timeout=GUARD_S)
    head = ray._core.process.session().head_endpoint
    ran = subprocess.run([sys.executable, "-c", OTHER_JOB, head], capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert ran.returncode == 0, ran.stderr
    is_cancelled(ref)
    ray.kill(registry)


def came_back(how, ref, recorder):
    if how == "from an actor":
        return ray.get(recorder.echo.remote([ref]), timeout=GUARD_S)[0]
    return copy.copy(ref) if how == "copied" else pickle.loads(pickle.dumps(ref))


@pytest.mark.parametrize("how", ["from an actor", "copied", "pickled"])
def test_a_call_is_cancelled_through_a_returned_reference(gate, recorder, how):
    running, waiting = waits.remote(gate), plus_one.options(resources={"unobtainium": 1}).remote(1)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    for ref in running, waiting:
        back = came_back(how, ref, recorder)
        ray.cancel(back)
        is_cancelled(ref)
        is_cancelled(back)


def test_a_returned_reference_follows_the_same_force_rules(gate, recorder):
    function, method = stubborn.options(max_retries=-1).remote(gate), gate.wait.remote("method", 1)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    with pytest.raises(ValueError, match="force=True is not supported for actor tasks"):
        ray.cancel(came_back("from an actor", method, recorder), force=True)
    ray.cancel(came_back("from an actor", function, recorder), force=True)
    is_cancelled(function)
    ray.get(gate.open.remote("method"))
    assert ray.get(method, timeout=GUARD_S) == 1


def test_cancel_by_another_process_after_the_end_has_no_effect():
    done, put = plus_one.remote(1), ray.put(3)
    assert ray.get(done, timeout=GUARD_S) == 2
    ray.get(cancels.remote([done, put]), timeout=GUARD_S)
    ray.get(cancels.remote([done, put], force=True), timeout=GUARD_S)
    assert ray.get([done, put], timeout=GUARD_S) == [2, 3]


def test_cancel_after_the_callers_death_has_no_effect(gate):
    actor = ray.remote(Calls).remote()
    pid = ray.get(actor.pid.remote(), timeout=GUARD_S)
    (ref,) = ray.get(actor.wait.remote(gate), timeout=GUARD_S)
    ray.get(gate.arrived.remote(1), timeout=GUARD_S)
    ray.kill(actor)
    ray.cancel(ref)  # the dying process may still receive this cancellation
    with pytest.raises((OwnerDiedError, TaskCancelledError)):
        ray.get(ref, timeout=GUARD_S)
    wait_until(lambda: not alive(pid), GUARD_S, "the end of who made the call")
    ray.cancel(ref)
    ray.cancel(ref, force=True)
