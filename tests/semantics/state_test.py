"""shoal.util.state: rows of actors, nodes, workers, jobs and groups; their printed form."""

import json
import os
import signal
import warnings

import pytest
from launching.leftovers import wait_until
from semantics_actors import GUARD_S, Gate, Recorder

import shoal as ray
from shoal.exceptions import ActorDiedError, TaskCancelledError, Unavailable, Unimplemented
from shoal.util import placement_group, remove_placement_group, state


@pytest.fixture
def recorder():
    actor = Recorder.options(name="state-recorder", namespace="states").remote()
    assert ray.get(actor.add.remote(1)) == 1
    yield actor
    ray.kill(actor)


def test_actors_are_listed_filtered_and_fetched(recorder):
    (row,) = state.list_actors(filters=[("name", "=", "state-recorder"), ("state", "=", "alive")])
    assert (row.class_name, row["state"], row.ray_namespace) == ("Recorder", "ALIVE", "states")
    assert row.job_id == ray.get_runtime_context().get_job_id()
    assert row.pid == ray.get(recorder.pid.remote())
    assert "num_restarts" not in row
    whole = state.get_actor(row.actor_id)
    assert (whole.num_restarts, whole.is_detached, whole.death_cause) == (0, False, None)
    assert state.get_actor("0" * 16) is None
    assert state.list_actors(filters=[("name", "=", "state-recorder"), ("state", "!=", "ALIVE")]) == []
    assert len(state.list_actors(limit=1)) == 1
    counts = state.summarize_actors()["cluster"]
    assert counts["summary"]["Recorder"]["state_counts"]["ALIVE"] >= 1
    with pytest.raises(ValueError, match="no 'colour'"):
        state.list_actors(filters=[("colour", "=", "x")])
    with pytest.raises(ValueError, match="a filter is"):
        state.list_actors(filters=[("state", ">", "x")])


def test_a_death_has_its_cause():
    actor = Gate.remote()
    ray.get(actor.seen.remote())
    ray.kill(actor)
    row = state.get_actor(actor._actor_id)
    assert row.state == "DEAD"
    assert "killed by shoal.kill" in row.death_cause


def test_nodes_workers_jobs_and_groups(recorder):
    (node,) = state.list_nodes(detail=True)
    assert node.state == "ALIVE"
    assert node.resources_total["CPU"] == 8
    assert state.get_node(node.node_id).resources_available["CPU"] <= 8
    me = state.get_job(ray.get_runtime_context().get_job_id())
    assert (me.status, me.type) == ("RUNNING", "DRIVER")
    mine = state.list_workers(filters=[("job_id", "=", me.job_id), ("is_alive", "=", True)])
    assert {w.worker_type for w in mine} == {"DRIVER", "WORKER"}
    assert state.get_worker(mine[0].worker_id).pid == mine[0].pid
    group = placement_group([{"CPU": 1}], name="a group")
    assert group.wait(30)
    (row,) = state.list_placement_groups(filters=[("name", "=", "a group"), ("state", "=", "CREATED")], detail=True)
    assert row.bundles[0]["resources"] == {"CPU": 1}
    assert state.get_placement_group(row.placement_group_id).strategy == "PACK"
    remove_placement_group(group)


def test_logs_come_from_the_named_node(recorder):
    ray.get(recorder.__ray_call__.remote(lambda _: print("said", flush=True)))
    row = state.get_actor(recorder._actor_id)
    (node,) = state.list_nodes()
    wait_until(lambda: "".join(state.get_log(pid=row.pid, node_id=node.node_id)) == "said\n", 20, "the line")
    assert "".join(state.get_log(pid=row.pid, node_ip=node.node_ip)) == "said\n"
    of_node = state.list_logs(node_id=node.node_id)
    assert f"worker-{row.worker_id}.out" in of_node["worker_out"]
    assert state.list_logs(node_ip=node.node_ip) == of_node
    for wrong in ({"node_id": "5f"}, {"node_ip": "10.9.8.7"}, {"node_id": node.node_id, "node_ip": "10.9.8.7"}):
        with pytest.raises(ValueError, match="there is no node"):
            state.list_logs(**wrong)
        with pytest.raises(ValueError, match="there is no node"):
            state.get_log(pid=row.pid, **wrong)


def test_logs_are_found_by_actor_process_and_file(recorder):
    @ray.remote
    class Speaker:
        def say(self, count):
            for i in range(count):
                print(f"line {i}")

    speaker = Speaker.remote()
    ray.get(speaker.say.remote(5))
    row = state.get_actor(speaker._actor_id)
    follow = state.get_log(actor_id=row.actor_id, follow=True)
    text = next(follow)
    while "line 4" not in text:
        text += next(follow)
    assert "".join(state.get_log(actor_id=row.actor_id, tail=2)) == "line 3\nline 4\n"
    assert "".join(state.get_log(pid=row.pid)).splitlines() == [f"line {i}" for i in range(5)]
    (file,) = state.list_logs(glob_filter=f"worker-{row.worker_id}.out")["worker_out"]
    assert "line 0" in "".join(state.get_log(filename=file))
    ray.kill(speaker)
    assert "".join(follow) == ""  # following ends when the process has ended
    assert "".join(state.get_log(actor_id=row.actor_id, tail=1)) == "line 4\n"  # the log is still there
    for bad in ("../token", "/etc/passwd", ".."):
        with pytest.raises(ValueError, match="no file of the session"):
            state.get_log(filename=bad)


def test_get_log_filters_decodes_and_follows_lines(recorder):
    ray.get(recorder.__ray_call__.remote(lambda _: print("\x1b[1;31mr\u00f6t\x1b[0m\nplain", flush=True)))
    who = {"actor_id": recorder._actor_id}
    whole = "\x1b[1;31mr\u00f6t\x1b[0m\nplain\n"
    wait_until(lambda: "".join(state.get_log(**who)) == whole, 20, "the lines")
    assert "".join(state.get_log(**who, filter_ansi_code=True)) == "r\u00f6t\nplain\n"
    assert b"".join(state.get_log(**who, encoding=None)) == whole.encode()
    assert "".join(state.get_log(**who, encoding="ascii", errors="ignore", filter_ansi_code=True, tail=2)) == "rt\nplain\n"
    with pytest.raises(UnicodeDecodeError):
        next(state.get_log(**who, encoding="ascii", errors="strict"))
    follow = state.get_log(**who, follow=True, _interval=0.01)
    assert next(follow) == whole
    ray.kill(recorder)
    assert "".join(follow) == ""


def test_the_state_api_accepts_rays_arguments(recorder):
    ray.get(recorder.all.remote())
    assert state.list_logs(glob_filter=None) == state.list_logs(glob_filter="*")
    assert state.get_actor(recorder._actor_id, None, 30, True).class_name == "Recorder"
    (node,) = state.list_nodes()
    assert state.get_node(node.node_id, _explain=True) == state.get_node(node.node_id)
    for get in (state.get_worker, state.get_job, state.get_placement_group, state.get_task):
        assert get("0" * 16, _explain=True) is None
    assert state.get_objects("0" * 16, _explain=True) == []
    assert state.summarize_actors(raise_on_missing_output=False, _explain=True)["cluster"]["summary_by"] == "class"
    assert state.list_jobs()[0].error_type is None
    with pytest.raises(ValueError, match="was put"):
        state.get_task(ray.put(1))


def test_an_object_has_a_row_for_each_process_that_holds_it(recorder):
    ref = ray.put(bytes(1 << 20))
    (row,) = state.get_objects(ref.hex())
    assert (row.object_id, row.task_status, row.attempt_number) == (ref.hex(), "FINISHED", 0)
    assert (row.reference_type, row.type, row.pid) == ("LOCAL_REFERENCE", "DRIVER", os.getpid())
    assert 1 << 20 <= row.object_size < (1 << 20) + 10_000
    assert row.ip == state.get_node(row.node_id).node_ip
    ray.get(recorder.add.remote([ref]))  # the actor keeps the reference
    pid = ray.get(recorder.pid.remote())
    assert {(r.pid, r.type) for r in state.get_objects(ref.hex())} == {(os.getpid(), "DRIVER"), (pid, "WORKER")}
    assert [r.pid for r in state.list_objects(filters=[("object_id", "=", ref.hex()), ("type", "=", "WORKER")])] == [pid]
    assert len(state.list_objects(limit=1)) == 1
    assert "spilled" not in state.list_objects(limit=1)[0]
    of_all = state.summarize_objects()["cluster"]
    assert of_all["total_objects"] >= 1
    assert of_all["total_size_mb"] >= 1
    assert of_all["summary"]["disabled"]["ref_type_counts"]["LOCAL_REFERENCE"] >= 2
    assert state.get_objects("0" * 32) == []


def test_an_object_that_contains_another_has_a_row(recorder):
    inner = ray.put(bytes(1 << 20))
    name, outer = inner.hex(), ray.put([inner])
    ray.get(recorder.add.remote([outer]))
    del inner
    kinds = [r.reference_type for r in state.get_objects(name)]
    assert "CAPTURED_IN_OBJECT" in kinds


def test_a_result_is_listed_by_its_reference(recorder):
    ref = recorder.echo.remote(bytes(1 << 20))
    ray.wait([ref])
    name = ref.hex()

    def mine():  # true once only this process has the value: the actor drops it right after its answer
        return [(r.pid, r.reference_type) for r in state.get_objects(name)] == [(os.getpid(), "LOCAL_REFERENCE")]

    wait_until(mine, 60, "that only the driver has it")


def test_the_error_names_a_process_without_an_answer(recorder):
    ref, pid = ray.put(bytes(1 << 20)), ray.get(recorder.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match=f"process {pid}"):
            state.list_objects()
        with pytest.warns(UserWarning, match=f"process {pid}"):
            rows = state.list_objects(limit=1000, raise_on_missing_output=False)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ref.hex() in [r.object_id for r in rows]
    assert state.list_objects(limit=1000)


def test_a_failed_call_outlives_many_others_and_forgotten_ones_are_counted(recorder):
    with pytest.raises(ValueError, match="the one"):
        ray.get(recorder.fail.remote(ValueError("the one")))
    ray.get([recorder.echo.remote(i) for i in range(2200)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # forgotten calls have ended, so they are no gap in such a list
        _known(lambda: state.list_tasks(filters=[("state", "=", "RUNNING")]))
    with pytest.warns(UserWarning, match=r"\d+ ended calls are kept no more"):
        failed = _known(lambda: state.list_tasks(filters=[("name", "=", "Recorder.fail"), ("state", "=", "FAILED")], limit=5))
    assert recorder._actor_id in [r.actor_id for r in failed]
    with pytest.warns(UserWarning, match="kept no more"):
        _known(state.summarize_tasks)


def test_runtime_envs_of_living_processes_are_listed():
    actor = Recorder.options(runtime_env={"env_vars": {"COLOUR": "blue"}}).remote()
    ray.get(actor.pid.remote())
    rows = [r for r in state.list_runtime_envs(detail=True) if r.runtime_env["env_vars"] == {"COLOUR": "blue"}]
    assert [(r.success, r.ref_cnt, r.error, r.node_id) for r in rows] == [(True, 1, None, state.list_nodes()[0].node_id)]
    assert "ref_cnt" not in state.list_runtime_envs()[0]
    ray.kill(actor)


@ray.remote
def _whose_task():
    return ray.get_runtime_context().get_task_id()


@ray.remote
def _comes_after(value):
    return value


@ray.remote(max_retries=0)
def _raises():
    raise ValueError("no")


def _known(ask):
    """Calls ``ask()`` until all processes have reported, and returns its result; a loaded machine may delay a process."""

    def asked():
        try:
            return (ask(),)
        except Unavailable:
            return None

    return wait_until(asked, 60, "an answer of all processes")[0]


def _tasks(*filters, **options):
    return _known(lambda: state.list_tasks(filters=list(filters), **{"limit": 1000, **options}))


def _states(*filters) -> list[str]:
    return sorted(r.state for r in _tasks(*filters))


def test_a_finished_function_is_listed_after_its_worker_ended():
    first, second = ray.get([_whose_task.remote() for _ in range(2)])
    ref = _whose_task.remote()
    assert _known(lambda: state.get_task(ref)).task_id == ray.get(ref)
    row = _known(lambda: state.get_task(first))
    assert (row.task_id, row.name, row.func_or_class_name) == (first, "_whose_task", "_whose_task")
    assert (row.state, row.type, row.error_type, row.actor_id) == ("FINISHED", "NORMAL_TASK", None, None)
    assert (row.attempt_number, row.job_id) == (0, ray.get_runtime_context().get_job_id())
    assert 0 < row.start_time_ms <= row.end_time_ms
    assert {r.task_id for r in _tasks(("name", "=", "_whose_task"))} == {first, second, ref.task_id()}
    assert "start_time_ms" not in _tasks(limit=1)[0]
    wait_until(lambda: not state.get_worker(row.worker_id).is_alive, 60, "the end of an idle worker")
    assert _known(lambda: state.get_task(first)).state == "FINISHED"
    assert _known(lambda: state.get_task("0" * 32)) is None


@ray.remote(max_retries=1)
def _dies_once(file):
    if not os.path.exists(file):
        with open(file, "w"):
            pass
        os._exit(1)
    return ray.get_runtime_context().get_task_id()


def test_each_attempt_has_a_row(tmp_path):
    task = ray.get(_dies_once.remote(str(tmp_path / "been here")))

    def attempts():
        rows = _known(lambda: state.get_task(task))
        return rows if isinstance(rows, list) else None

    first, second = sorted(wait_until(attempts, 60, "both attempts"), key=lambda r: r.attempt_number)
    assert (first.attempt_number, first.state, first.error_type) == (0, "FAILED", "WORKER_DIED")
    assert (second.attempt_number, second.state, second.error_type) == (1, "FINISHED", None)
    assert first.worker_id != second.worker_id


def test_each_attempt_of_a_method_has_a_row():
    @ray.remote
    class Tries:
        def __init__(self):
            self.tasks = []

        @ray.method(max_task_retries=1, retry_exceptions=True)
        def run(self):
            self.tasks.append(ray.get_runtime_context().get_task_id())
            if len(self.tasks) == 1:
                raise ValueError("again")
            return self.tasks

    actor = Tries.remote()
    task, again = ray.get(actor.run.remote())
    assert task == again

    def attempts():
        rows = _known(lambda: state.get_task(task))
        return rows if isinstance(rows, list) else None

    first, second = sorted(wait_until(attempts, 60, "both attempts"), key=lambda r: r.attempt_number)
    assert (first.attempt_number, first.state, first.error_type) == (0, "FAILED", "TASK_EXECUTION_EXCEPTION")
    assert (second.attempt_number, second.state, second.error_type) == (1, "FINISHED", None)
    ray.kill(actor)


def test_attempts_after_deaths_and_after_exceptions_are_counted_together(gate):
    @ray.remote(max_restarts=1, max_task_retries=3)
    class Tries:
        @ray.method(max_task_retries=3, retry_exceptions=True)
        def run(self, gate):
            ray.get(gate.note.remote(ray.get_runtime_context().get_task_id()))
            come = ray.get(gate.seen.remote())
            if len(come) == 1:
                os._exit(1)
            if len(come) == 2:
                raise ValueError("again")
            ray.get(gate.wait.remote("third"))
            return come

    actor = Tries.remote()
    result = actor.run.remote(gate)
    (task,) = set(ray.get(gate.arrived.remote(3), timeout=GUARD_S))

    def attempts():
        rows = _known(lambda: state.get_task(task))
        return [(r.attempt_number, r.state) for r in sorted(rows, key=lambda r: r.attempt_number)] if isinstance(rows, list) else None

    wait_until(lambda: attempts() == [(0, "FAILED"), (1, "FAILED"), (2, "RUNNING")], 60, "three attempts")
    ray.get(gate.open.remote("third"))
    assert ray.get(result, timeout=GUARD_S) == [task] * 3
    wait_until(lambda: attempts() == [(0, "FAILED"), (1, "FAILED"), (2, "FINISHED")], 60, "the end of the third")
    ray.kill(actor)


def test_a_call_without_an_answer_has_failed_on_its_worker():
    @ray.remote(max_concurrency=2)
    class Loses:
        def lose(self):
            def refuse(*_):
                raise RuntimeError("a bug of ours")

            from internals.workers import concurrency

            concurrency.refuse = refuse
            raise ValueError("never heard of")

        def goes_on(self):
            return True

    actor = Loses.remote()
    with pytest.raises(ray.exceptions.ShoalError, match="without an answer"):
        ray.get(actor.lose.remote(), timeout=GUARD_S)
    assert ray.get(actor.goes_on.remote(), timeout=GUARD_S)
    (row,) = _tasks(("name", "=", "Loses.lose"), detail=True)
    assert (row.state, row.error_type) == ("FAILED", "Internal")
    assert row.start_time_ms is not None  # the start time, which the actor's own process reports
    ray.kill(actor)


def test_workers_of_functions_are_no_actors():
    task = ray.get(_whose_task.remote())
    worker = _known(lambda: state.get_task(task)).worker_id
    assert state.get_worker(worker).worker_type == "WORKER"
    assert worker not in [r.worker_id for r in state.list_actors(limit=1000, detail=True)]
    assert "remote functions" not in state.summarize_actors()["cluster"]["summary"]


def test_a_failed_task_has_an_error_type():
    with pytest.raises(ValueError, match="no"):
        ray.get(_raises.remote())
    (row,) = _tasks(("name", "=", "_raises"))
    assert (row.state, row.error_type) == ("FAILED", "TASK_EXECUTION_EXCEPTION")
    assert _tasks(("name", "=", "_raises"), ("state", "=", "FINISHED")) == []


def test_a_waiting_task_has_its_reason(gate):
    mine = ("name", "=", "_comes_after")
    held = gate.wait.remote("held")
    after = _comes_after.remote(held)
    assert _states(mine) == ["PENDING_ARGS_AVAIL"]
    nowhere = _comes_after.options(resources={"nothing has this": 1}).remote(1)
    assert _states(mine) == ["PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT"]
    ray.cancel(nowhere)
    with pytest.raises(TaskCancelledError):
        ray.get(nowhere)
    ray.get(gate.open.remote("held"))
    ray.get(after)
    assert {(r.state, r.error_type) for r in _tasks(mine)} == {("FAILED", "TASK_CANCELLED"), ("FINISHED", None)}


def test_calls_of_an_actor_run_and_wait_for_it(gate, recorder):
    mine = ("actor_id", "=", recorder._actor_id)
    at_write_window = ("name", "=", "Recorder.wait_at")
    waiting = recorder.wait_at.remote(gate, "door")
    behind = recorder.all.remote()
    wait_until(lambda: _states(mine, at_write_window) == ["RUNNING"], 60, "the call")
    (row,) = _tasks(mine, at_write_window, detail=True)
    assert (row.type, row.worker_pid) == ("ACTOR_TASK", state.get_actor(recorder._actor_id).pid)
    assert row.start_time_ms > 0
    assert row.end_time_ms is None
    assert _states(mine, ("name", "=", "Recorder.all")) == ["SUBMITTED_TO_WORKER"]
    ray.get(gate.open.remote("door"))
    ray.get([waiting, behind])
    assert {r.state for r in _tasks(mine)} == {"FINISHED"}
    assert "ACTOR_CREATION_TASK" in {r.type for r in _tasks(mine)}


def test_a_summary_counts_by_name(recorder):
    ray.get([recorder.kind.remote(1) for _ in range(3)])
    counts = _known(state.summarize_tasks)["cluster"]
    assert counts["summary"]["Recorder.kind"] == {
        "func_or_class_name": "Recorder.kind",
        "type": "ACTOR_TASK",
        "state_counts": {"FINISHED": 3},
    }
    assert counts["total_actor_tasks"] >= 3


def test_calls_beyond_an_actors_concurrency_wait_for_their_turn(gate):
    narrow = Recorder.options(max_concurrency=1, concurrency_groups={"one": 1}).remote()
    calls = [narrow.wait_at.options(concurrency_group="one").remote(gate, "narrow") for _ in range(2)]
    mine = [("actor_id", "=", narrow._actor_id), ("name", "=", "Recorder.wait_at")]
    expected = ["PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING"]
    wait_until(lambda: _states(*mine) == expected, 60, "both calls")
    ray.get(gate.open.remote("narrow"))
    ray.get(calls)
    assert _states(*mine) == ["FINISHED"] * 2
    ray.kill(narrow)


def test_a_call_whose_actor_died_before_the_answer_has_failed(gate):
    victim = Recorder.remote()
    lost = victim.wait_at.remote(gate, "never")
    ray.kill(victim)
    with pytest.raises(ActorDiedError):
        ray.get(lost)
    (row,) = _tasks(("actor_id", "=", victim._actor_id), ("name", "=", "Recorder.wait_at"))
    assert (row.state, row.error_type) == ("FAILED", "ACTOR_DIED")


def test_a_timeline_contains_the_calls_that_ran(recorder, tmp_path):
    ray.get(recorder.echo.remote(1))
    pid, file = ray.get(recorder.pid.remote()), tmp_path / "trace.json"

    def echo_of(events):
        return next((e for e in events if e["name"] == "Recorder.echo" and e["args"]["actor"] == recorder._actor_id), None)

    def written():  # false while a process has not reported yet
        assert ray.timeline(str(file)) is None
        events = json.loads(file.read_text())
        return echo_of(events) and events

    events = wait_until(written, 60, "the call")
    echo = echo_of(events)
    assert (echo["ph"], echo["cat"], echo["dur"] >= 0) == ("X", "ACTOR_TASK", True)
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert f"pid {pid} " in lanes[echo["pid"], echo["tid"]]
    wait_until(lambda: echo_of(ray.timeline()), 60, "the call")


def test_queries_unavailable_over_http_are_an_error():
    for call in (state.list_tasks, state.list_objects, state.list_runtime_envs):
        with pytest.raises(Unimplemented, match="over HTTP"):
            call(address="http://127.0.0.1:1")
