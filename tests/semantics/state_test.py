"""shoal.util.state: rows of actors, nodes, workers, jobs and groups; what they print."""

import os
import signal

import pytest
from cast import Gate, Recorder
from leftovers import wait_until

import shoal as ray
from shoal.exceptions import Unavailable, Unimplemented
from shoal.util import placement_group, remove_placement_group, state


@pytest.fixture
def recorder():
    actor = Recorder.options(name="state-recorder", namespace="states").remote()
    assert ray.get(actor.add.remote(1)) == 1
    yield actor
    ray.kill(actor)


def test_actors_are_listed_filtered_and_got(recorder):
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


def test_logs_are_of_the_node_that_is_named(recorder):
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
    assert "".join(follow) == ""  # over with its process
    assert "".join(state.get_log(actor_id=row.actor_id, tail=1)) == "line 4\n"  # kept
    for bad in ("../token", "/etc/passwd", ".."):
        with pytest.raises(ValueError, match="no file of the session"):
            state.get_log(filename=bad)


def test_an_object_has_a_row_for_each_process_that_holds_it(recorder):
    ref = ray.put(bytes(1 << 20))
    (row,) = state.get_objects(ref.hex())
    assert (row.object_id, row.task_status, row.attempt_number) == (ref.hex(), "FINISHED", 0)
    assert (row.reference_type, row.type, row.pid) == ("LOCAL_REFERENCE", "DRIVER", os.getpid())
    assert 1 << 20 <= row.object_size < (1 << 20) + 10_000
    assert row.ip == state.get_node(row.node_id).node_ip
    ray.get(recorder.add.remote([ref]))  # which keeps the reference
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


def test_an_object_in_which_another_is_kept(recorder):
    inner = ray.put(bytes(1 << 20))
    name, outer = inner.hex(), ray.put([inner])
    ray.get(recorder.add.remote([outer]))
    del inner
    kinds = [r.reference_type for r in state.get_objects(name)]
    assert "CAPTURED_IN_OBJECT" in kinds


def test_a_result_is_known_by_its_reference(recorder):
    ref = recorder.echo.remote(bytes(1 << 20))
    ray.wait([ref])
    name = ref.hex()

    def mine():  # its maker lets go of it as soon as it has answered
        return [(r.pid, r.reference_type) for r in state.get_objects(name)] == [(os.getpid(), "LOCAL_REFERENCE")]

    wait_until(mine, 60, "that only the driver has it")


def test_who_tells_nothing_is_named(recorder):
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


def test_runtime_envs_of_processes_that_live():
    actor = Recorder.options(runtime_env={"env_vars": {"COLOUR": "blue"}}).remote()
    ray.get(actor.pid.remote())
    rows = [r for r in state.list_runtime_envs(detail=True) if r.runtime_env["env_vars"] == {"COLOUR": "blue"}]
    assert [(r.success, r.ref_cnt, r.error, r.node_id) for r in rows] == [(True, 1, None, state.list_nodes()[0].node_id)]
    assert "ref_cnt" not in state.list_runtime_envs()[0]
    ray.kill(actor)


def test_what_the_cluster_does_not_know_says_so():
    for call in (state.list_tasks, state.summarize_tasks, state.get_task):
        with pytest.raises(Unimplemented):
            call()
