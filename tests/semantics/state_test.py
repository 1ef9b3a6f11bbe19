"""shoal.util.state: rows of actors, nodes, workers, jobs and groups; what they print."""

import pytest
from cast import Gate, Recorder

import shoal as ray
from shoal.exceptions import Unimplemented
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


def test_what_the_cluster_does_not_know_says_so():
    for call in (state.list_tasks, state.list_objects, state.list_runtime_envs, state.summarize_tasks, state.get_task):
        with pytest.raises(Unimplemented):
            call()
