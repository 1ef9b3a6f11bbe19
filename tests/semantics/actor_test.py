"""A2 of COVERAGE.md: creation, order of calls, handles as values, ends, contexts."""

import json
import os
import pickle
import time
from pathlib import Path

import pytest
from launching.leftovers import alive, wait_until
from semantics_actors import GUARD_S, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, RayActorError


@ray.remote
class Mortal:
    """An actor that writes to a file when its exit handlers run."""

    def __init__(self, path):
        import atexit

        self.path = path
        atexit.register(lambda: Path(path).write_text("exit handler"))

    def pid(self):
        return os.getpid()

    def leave(self, how):
        if how == "actor.exit_actor":
            ray.actor.exit_actor()
        if how == "exit_actor":
            ray.exit_actor()
        raise SystemExit(how)

    def swallow(self):
        try:
            ray.actor.exit_actor()
        except Exception:
            return "swallowed"


@pytest.fixture
def mortal(tmp_path):
    return Mortal.remote(str(tmp_path / "said"))


# ---- creation and calls


def test_arguments_of_the_constructor_are_resolved():
    recorder = Recorder.remote(ray.put("a"), "b")
    assert ray.get(recorder.all.remote()) == ["a", "b"]
    ray.kill(recorder)


class Told:
    """A value that writes to a file when it is destroyed."""

    def __init__(self, path):
        self.path = path

    def __del__(self):
        Path(self.path).touch()


def test_arguments_and_results_are_released_when_the_call_ends(recorder, tmp_path):
    name = str(tmp_path / "gone")
    ray.get(recorder.kind.remote(Told(name)))
    # without a further call: the actor releases its argument when the call ends
    wait_until(lambda: Path(name).exists(), GUARD_S, "the argument was given back")

    @ray.remote
    def make():
        return Told(name + " result")

    made = make.remote()
    ray.wait([made])
    # the worker releases its object, although the caller keeps the pickle
    wait_until(lambda: Path(name + " result").exists(), GUARD_S, "the result was given back")


def test_an_actor_waits_for_pending_arguments_of_its_constructor(gate):
    made = Recorder.remote(gate.wait.remote(then="late"))
    result = made.all.remote()
    assert ray.wait([result], timeout=0) == ([], [result])
    gate.open.remote()
    assert ray.get(result, timeout=GUARD_S) == ["late"]
    ray.kill(made)


def test_an_actor_whose_constructors_argument_failed_is_dead(recorder):
    made = Recorder.remote(recorder.fail.remote(ValueError("argument")))
    with pytest.raises(RayActorError):
        ray.get(made.all.remote(), timeout=GUARD_S)


def test_every_call_reports_a_constructor_error():
    @ray.remote
    class Broken:
        def __init__(self):
            raise RuntimeError("no such luck")

        def method(self):
            return 1

    broken = Broken.remote()
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="no such luck"):
            ray.get(broken.method.remote(), timeout=GUARD_S)


def test_calls_of_one_caller_stay_in_order_after_a_pending_argument(recorder, gate):
    recorder.add.remote(gate.wait.remote(then="first"))
    recorder.add.remote("second")
    gate.open.remote()
    assert ray.get(recorder.all.remote(), timeout=GUARD_S) == ["first", "second"]


@ray.remote
class Patient:
    def echo(self, value):
        return value

    def until(self, path):
        """Waits until the file exists, without any call of its own."""
        while not os.path.exists(path):
            time.sleep(0.01)


@pytest.mark.parametrize("calls", [1, 40], ids=["through the socket", "through rings"])
def test_an_answer_does_not_wait_for_the_next_call(tmp_path, calls):
    actor = Patient.remote()
    answers, late = [actor.echo.remote(i) for i in range(calls)], actor.until.remote(str(tmp_path / "open"))
    try:
        assert ray.get(answers, timeout=GUARD_S) == list(range(calls))
    finally:
        (tmp_path / "open").touch()
    ray.get(late, timeout=GUARD_S)


def test_out_of_order_calls_do_not_wait_for_a_pending_argument(gate):
    actor = Recorder.options(allow_out_of_order_execution=True).remote()
    copy = pickle.loads(pickle.dumps(actor))
    blocked = [actor.add.remote(gate.wait.remote("", "late")), copy.add.remote(gate.wait.remote("", "late"))]
    assert ray.get([actor.add.remote(1), copy.add.remote(2)], timeout=GUARD_S) == [1, 2]
    assert ray.wait(blocked, timeout=0)[0] == []
    gate.open.remote()
    ray.get(blocked, timeout=GUARD_S)
    assert ray.get(actor.all.remote()) == [1, 2, "late", "late"]
    ray.kill(actor)


@ray.remote
class Threads:
    def echo(self, value):
        return value


@ray.remote
class Coroutines:
    async def echo(self, value):
        return value


@pytest.mark.parametrize("cls", [Threads.options(max_concurrency=2), Threads.options(max_concurrency=2, name="in any order"), Coroutines])
def test_concurrent_calls_do_not_wait_for_a_pending_argument(gate, cls):
    actor = cls.remote()
    blocked = actor.echo.remote(gate.wait.remote("", "late"))
    assert ray.get(actor.echo.remote(1), timeout=GUARD_S) == 1
    gate.open.remote()
    assert ray.get(blocked, timeout=GUARD_S) == "late"
    with pytest.raises(ValueError, match="allow_out_of_order_execution"):
        cls.options(allow_out_of_order_execution=False, max_concurrency=2).remote()
    ray.kill(actor)


def test_a_retried_call_runs_before_its_dependants():
    @ray.remote
    class Fails:
        tries = 0

        @ray.method(max_task_retries=2, retry_exceptions=True)
        def twice(self):
            self.tries += 1
            if self.tries < 3:
                raise ValueError(self.tries)
            return self.tries

        def echo(self, value):
            return value

    actor = Fails.remote()
    first = actor.twice.remote()
    assert ray.get([actor.echo.remote(first), actor.echo.remote(first)], timeout=GUARD_S) == [3, 3]
    ray.kill(actor)


@ray.remote
class Goes:
    def __init__(self, path):
        self.path = path

    def leave(self):
        ray.exit_actor()

    def __del__(self):
        Path(self.path).write_text("gone")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["leave", "__ray_terminate__", "out of scope"])
def test_an_orderly_end_deletes_the_instance(tmp_path, way, threads):
    path = tmp_path / "said"
    actor = Goes.options(max_concurrency=threads).remote(str(path))
    if way == "out of scope":
        ray.get(actor.__ray_ready__.remote())
        del actor
    else:
        getattr(actor, way).remote()
    wait_until(lambda: path.exists() and path.read_text() == "gone", GUARD_S)


def test_a_method_is_a_value(recorder):
    @ray.remote
    def calls(method, value):
        return ray.get(method.remote(value))

    assert ray.get(calls.remote(recorder.echo, 3), timeout=GUARD_S) == 3
    assert ray.get(calls.remote(recorder.echo.options(num_returns=2), [1, 2]), timeout=GUARD_S) == [1, 2]
    assert ray.get(ray.get(ray.put(recorder.echo)).remote(4)) == 4


def test_a_handle_lists_its_methods(recorder):
    assert {"add", "all"} <= set(dir(recorder))


def test_a_handle_has_rays_built_in_methods(recorder):
    assert ray.get(recorder.__ray_ready__.remote()) is True
    assert ray.get(recorder.__ray_call__.remote(lambda self, x: (type(self).__name__, x), 5)) == ("Recorder", 5)


def test_an_unknown_method_is_an_attribute_error(recorder):
    with pytest.raises(AttributeError, match="nothing"):
        recorder.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        recorder.__nothing__  # noqa: B018


# ---- handles as values


def test_a_pickled_handle_keeps_its_methods_options(recorder, gate):
    (handle,) = ray.get(gate.wait.remote("x", then=[recorder]) if gate.open.remote("x") else None)
    assert handle == recorder
    assert ray.get(handle.pair.remote()) == [1, 2]


def test_an_actor_has_a_handle_of_itself():
    @ray.remote
    class Selfish:
        def me(self):
            return ray.get_runtime_context().current_actor

        @ray.method(num_returns=2)
        def two(self):
            return 1, 2

    actor = Selfish.remote()
    handle = ray.get(actor.me.remote())
    assert handle == actor
    assert ray.get(handle.two.remote()) == [1, 2]
    ray.kill(actor)


# ---- the end


@pytest.mark.parametrize("how", ["actor.exit_actor", "exit_actor"])
def test_exit_actor_runs_exit_handlers_and_fails_waiting_calls(mortal, tmp_path, how):
    pid = ray.get(mortal.pid.remote())
    leaving, waiting = mortal.leave.remote(how), mortal.pid.remote()
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(leaving, timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(waiting, timeout=GUARD_S)
    with pytest.raises(ActorDiedError):
        ray.get(mortal.pid.remote(), timeout=GUARD_S)
    wait_until(lambda: not alive(pid), GUARD_S, "its end")
    assert (tmp_path / "said").read_text() == "exit handler"


def test_terminate_runs_after_earlier_calls(mortal, tmp_path):
    before = [mortal.pid.remote() for _ in range(20)]
    terminated, after = mortal.__ray_terminate__.remote(), mortal.pid.remote()
    assert len(set(ray.get(before, timeout=GUARD_S))) == 1
    for ref in (terminated, after):
        with pytest.raises(ActorDiedError):
            ray.get(ref, timeout=GUARD_S)
    wait_until((tmp_path / "said").exists, GUARD_S, "the exit handler")


def test_large_answers_before_the_end_arrive():
    @ray.remote
    class Talker:
        def talk(self):
            return "x" * 90_000

    talker = Talker.remote()
    said = [talker.talk.remote() for _ in range(200)]
    talker.__ray_terminate__.remote()
    assert {len(s) for s in ray.get(said, timeout=GUARD_S)} == {90_000}


def test_kill_runs_no_exit_handler(mortal, tmp_path):
    pid = ray.get(mortal.pid.remote())
    ray.kill(mortal)
    with pytest.raises(ActorDiedError):
        ray.get(mortal.pid.remote(), timeout=GUARD_S)
    wait_until(lambda: not alive(pid), GUARD_S, "its end")
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize("code", [0, 4, "a message"])
def test_system_exit_in_a_method_ends_the_actor(mortal, tmp_path, code):
    told = "exited with code 1" if isinstance(code, str) else f"exited with code {code}"
    with pytest.raises(ActorDiedError, match=told):
        ray.get(mortal.leave.remote(code), timeout=GUARD_S)
    with pytest.raises(ActorDiedError, match=told):
        ray.get(mortal.pid.remote(), timeout=GUARD_S)
    assert (tmp_path / "said").exists()


def test_exit_actor_passes_except_exception(mortal):
    with pytest.raises(ActorDiedError):
        ray.get(mortal.swallow.remote(), timeout=GUARD_S)


def test_exit_actor_outside_of_an_actor_is_an_error():
    @ray.remote
    def leaves():
        ray.actor.exit_actor()

    with pytest.raises(TypeError, match="non-actor"):
        ray.get(leaves.remote())
    with pytest.raises(TypeError, match="non-actor"):
        ray.exit_actor()


# ---- the context


@ray.remote
class Knows:
    def what(self):
        c = ray.get_runtime_context()
        return {
            "job": c.get_job_id(),
            "node": c.get_node_id(),
            "worker": c.get_worker_id(),
            "actor": c.get_actor_id(),
            "task": c.get_task_id(),
            "again": c.get_task_id(),
            "name": c.get_actor_name(),
            "task_name": c.get_task_name(),
            "resources": c.get_assigned_resources(),
            "gpus": [c.get_accelerator_ids(), ray.get_gpu_ids()],
            "reconstructed": c.was_current_actor_reconstructed,
            "namespace": c.namespace,
        }


def test_the_context_of_an_actor_has_its_ids_and_node():
    actor, driver = Knows.options(num_cpus=0.5).remote(), ray.get_runtime_context()
    first, second = ray.get([actor.what.remote(), actor.what.remote()])
    assert first["job"] == driver.get_job_id()
    assert first["node"] == driver.get_node_id()
    assert first["worker"] != driver.get_worker_id()
    assert first["actor"] == second["actor"] == actor._actor_id
    assert first["task"] == first["again"] != second["task"]
    assert (first["name"], first["task_name"]) == ("", "Knows.what")
    assert first["resources"] == {"CPU": 0.5}
    assert first["gpus"] == [{"GPU": []}, []]
    assert first["reconstructed"] is False
    assert first["namespace"] == driver.namespace
    json.dumps(first)
    ray.kill(actor)


@pytest.mark.parametrize("more", [{}, {"max_restarts": 1}, {"lifetime": "detached"}], ids=repr)
def test_the_context_of_an_actor_has_its_name(more):
    actor = Knows.options(name=f"known {more}", **more).remote()
    assert ray.get(actor.what.remote())["name"] == f"known {more}"
    ray.kill(actor)


def test_the_name_option_names_a_call_and_an_actor_needs_no_resources():
    actor = Knows.remote()
    known = ray.get(actor.what.options(name="mine").remote())
    assert (known["task_name"], known["resources"]) == ("mine", {})
    ray.kill(actor)


def test_the_context_of_a_function_has_a_task_and_no_actor():
    @ray.remote
    def what():
        c = ray.get_runtime_context()
        return c.get_task_id(), c.get_task_name(), c.get_actor_id(), c.get_actor_name(), c.get_assigned_resources()

    first, second = ray.get([what.remote(), what.options(name="mine", num_cpus=2).remote()])
    assert first[0] != second[0]
    assert first[1:] == ("what", None, None, {"CPU": 1.0})
    assert second[1:] == ("mine", None, None, {"CPU": 2.0})


def test_the_context_of_a_driver_has_no_task():
    context = ray.get_runtime_context()
    with pytest.warns(UserWarning, match="get_task_id"):
        assert context.get_task_id() is None
    with pytest.warns(UserWarning, match="get_actor_id"):
        assert context.get_actor_id() is None
    with pytest.raises(RuntimeError, match="current_actor"):
        context.current_actor  # noqa: B018
    assert set(context.get()) == {"job_id", "node_id", "namespace"}


def test_get_gpu_ids_in_a_driver_follows_the_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 3,GPU-5f")
    assert ray.get_gpu_ids() == [0, 3, "GPU-5f"]
    assert ray.get_runtime_context().get_accelerator_ids() == {"GPU": ["0", "3", "GPU-5f"]}
