"""A driver's start: its options, its own cluster or one that it joins, and its shutdown."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import cloudpickle
import pytest
from internals.core import init, state
from launching.actors import Log
from launching.commands import BEGIN, LIMIT_S, pids_in
from launching.leftovers import gone, wait_until

import shoal
from shoal.exceptions import ActorDiedError, Cancelled, InvalidArgument, TaskCancelledError, Unavailable


@pytest.fixture(autouse=True)
def session(home):
    yield
    shoal.shutdown()


def test_shutdown_and_init_again():
    for round in range(3):
        shoal.init(num_cpus=2)
        actor = Log.remote(round)
        ref = actor.all.remote()
        assert shoal.get(ref) == [round]
        shoal.shutdown()
        shoal.shutdown()
        assert not shoal.is_initialized()
        assert shoal.get(ref) == [round]  # the session has closed, but this process has the value
        assert shoal.wait([ref]) == ([ref], [])
        assert not shoal.is_initialized()


def test_init_returns_the_address_and_is_a_context_manager():
    with shoal.init(num_cpus=1, include_dashboard=True) as context:
        assert shoal.init(ignore_reinit_error=True).address_info == context.address_info
        assert context.address_info["node_id"] == context["node_id"] == shoal.nodes()[0]["NodeID"]
        assert os.path.isdir(context.address_info["session_dir"])
        assert context.dashboard_url.startswith("http://127.0.0.1:")
        runtime = shoal.get_runtime_context()
        assert runtime.gcs_address == context["gcs_address"] == context["address"]
        assert os.path.join(os.path.dirname(runtime.get_temp_dir()), runtime.get_session_name()) == context.address_info["session_dir"]
    assert not shoal.is_initialized()
    assert shoal.init(num_cpus=1).dashboard_url is None


def test_nodes_have_rays_names_too():
    shoal.init(num_cpus=1, resources={"slot": 2}, labels={"zone": "a"})
    (node,) = shoal.nodes()
    assert (node["NodeID"], node["Alive"], node["Labels"]) == (node["id"], True, {"zone": "a"})
    assert node["alive"] is True
    assert node["Resources"]["slot"] == 2
    assert [node[name] for name in ("NodeManagerAddress", "NodeManagerHostname", "NodeName")] == [node["host"]] * 3 == ["127.0.0.1"] * 3
    assert shoal.get_runtime_context().get_node_labels() == {"zone": "a"}


def test_handles_and_references_of_an_ended_cluster_raise():
    shoal.init(num_cpus=2)
    actor = Log.remote()
    pending = actor.sleep.remote(100)
    shoal.shutdown()
    shoal.init(num_cpus=2)
    with pytest.raises((shoal.exceptions.NotFound, Unavailable, shoal.exceptions.Cancelled)):
        shoal.get(actor.echo.remote(1), timeout=60)
    with pytest.raises(shoal.exceptions.Cancelled, match="left the cluster"):
        shoal.get(pending, timeout=60)


def test_kill_of_an_actor_of_an_ended_cluster_starts_none():
    shoal.init(num_cpus=1)
    actor = Log.remote()
    shoal.shutdown()
    with pytest.raises(shoal.exceptions.ActorHandleNotFoundError, match="left the cluster"):
        shoal.kill(actor)
    assert not shoal.is_initialized()


def test_a_closed_session_raises():
    shoal.init(num_cpus=2)
    closed = state.session
    shoal.shutdown()
    for call in (closed.resources, lambda: closed.kill("0" * 16), lambda: closed.list("nodes"), lambda: closed.hand_over()):
        with pytest.raises(Unavailable, check=lambda e: e.reason == "Closed"):
            call()


def test_shutdown_wakes_waiting_threads_with_an_error():
    shoal.init(num_cpus=2)
    session, pending, heard, begun = state.session, Log.remote().sleep.remote(100), [], threading.Semaphore(0)

    def waits():
        begun.release()
        try:
            session.wait_all([pending._ref])
        except (shoal.exceptions.Cancelled, Unavailable) as error:  # Unavailable, if this thread began to wait after the session had closed
            heard.append(error)
        else:
            heard.append(pending)

    threads = [threading.Thread(target=waits, daemon=True) for _ in range(64)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    shoal.shutdown()
    for thread in threads:
        thread.join(60)
    assert len(heard) == len(threads)
    assert pending._ref.failed


def test_the_first_use_starts_a_cluster():
    assert not shoal.is_initialized()
    assert shoal.get(shoal.put(1)) == 1
    assert shoal.is_initialized()


def test_an_embedded_cluster_offers_the_given_resources():
    shoal.init(num_cpus=3, num_gpus=2, resources={"slot": 1.5}, memory=1000)
    (node,) = shoal.nodes()
    itself = {"node:127.0.0.1": 1, "node:__internal_head__": 1}
    assert shoal.cluster_resources() == {"CPU": 3, "GPU": 2, "memory": 1000, "slot": 1.5, **itself}
    assert node["state"] == "ALIVE"


def test_memory_is_reserved_and_excessive_requests_wait():
    shoal.init(num_cpus=4, memory=1000)

    @shoal.remote(memory=300)
    def free():
        return shoal.available_resources()["memory"]

    holds = Log.options(memory=600).remote()
    assert shoal.get(holds.all.remote()) == []
    assert shoal.available_resources()["memory"] == 400
    assert shoal.get(free.remote()) == 100
    actor, ref = Log.options(memory=601).remote(), free.options(memory=602).remote()
    rows = lambda: [r for r in state.session.list("actors") if r["state"] == "PENDING"]  # noqa: E731
    for amount in (601, 602):
        wait_until(lambda amount=amount: any(f"lacks memory {amount} " in r["pending_reason"] for r in rows()), 20, "why it waits")
    shoal.kill(holds)
    assert shoal.get(actor.all.remote(), timeout=60) == []
    shoal.kill(actor)
    assert shoal.get(ref, timeout=60) <= 398  # 1000 minus the 602 of this call; an idle worker of `free` may still hold another 300


@pytest.mark.parametrize("shown", [True, False])
def test_output_of_workers_is_shown_unless_log_to_driver_is_false(shoal_command, shown):
    driver = shoal_command.driver(
        BEGIN
        + f"""
shoal.init(num_cpus=1, log_to_driver={shown})
shoal.get(Log.remote().say.remote("from the actor"))
"""
    )
    assert driver.code() == 0, driver.err
    assert ["from the actor" in text for text in (driver.out, driver.err)] == [shown] * 2


@pytest.mark.parametrize("offer", [{"num_cpus": -1}, {"resources": {"": 1}}, {"memory": float("inf")}])
def test_impossible_offers_are_refused_and_nothing_is_started(offer):
    with pytest.raises((InvalidArgument, ValueError)):
        shoal.init(**offer)
    assert not shoal.is_initialized()


def test_init_offers_the_gpus_that_the_environment_shows(home, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ValueError, match="2 GPUs were asked for"):
        shoal.init(num_cpus=1, num_gpus=2)
    with shoal.init(num_cpus=1, num_gpus=1):
        assert shoal.cluster_resources()["GPU"] == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with shoal.init(num_cpus=1):
        assert "GPU" not in shoal.cluster_resources()


def test_init_accepts_rays_other_options(home, tmp_path):
    unused = {"configure_logging": False, "logging_format": "%(message)s", "_system_config": {"max_io_workers": 1}, "log_to_driver": None}
    with shoal.init(num_cpus=1, _memory=1 << 30, **unused):
        assert shoal.cluster_resources()["memory"] == 1 << 30
    elsewhere = tmp_path / "temp"
    with shoal.init(num_cpus=1, _temp_dir=str(elsewhere), include_dashboard=True, dashboard_host="127.0.0.1") as context:
        assert context["session_dir"].startswith(str(elsewhere))
        port = context.dashboard_url.rpartition(":")[2]
        child = [sys.executable, "-c", f"import shoal; shoal.init(num_cpus=1, include_dashboard=True, dashboard_port={port})"]
        done = subprocess.run(child, capture_output=True, text=True, check=False, timeout=120)
        assert "already in use" in done.stderr
    for options, error in (
        ({"local_mode": True}, RuntimeError("local_mode")),
        ({"dashboard_host": "0.0.0.0"}, NotImplementedError("loopback")),
        ({"_system_config": 5}, TypeError("is a dict")),
        ({"_system_config": {"task_retry_dely_ms": 1}}, ValueError("'task_retry_dely_ms'; did you mean task_retry_delay_ms")),
        ({"_system_config": {"qqqq": 1}}, ValueError("there are .*max_io_workers, .*task_retry_delay_ms, ")),
        ({"_temp_dir": "relative"}, ValueError("absolute")),
    ):
        with pytest.raises(type(error), match=str(error)):
            shoal.init(num_cpus=1, **options)
    assert not shoal.is_initialized()


def test_addresses_without_a_listener_are_unavailable(tmp_path):
    for address in ("auto", "127.0.0.1:1", "unix:@nobody"):
        with pytest.raises(Unavailable) as info:
            shoal.init(address)
        assert info.value.reason == "NoCluster"
        assert "shoal start" in info.value.hint
    with pytest.raises(InvalidArgument, match="num_cpus"):
        shoal.init("127.0.0.1:1", num_cpus=1)


def test_sessions_writable_by_another_user_are_ignored(home):
    home.chmod(0o755)
    for address in ("auto", "127.0.0.1:1"):
        with pytest.raises(InvalidArgument, match="private folder"):
            shoal.init(address)
    home.chmod(0o700)


def note(path):
    with open(path, "a") as file:
        file.write(f"{time.monotonic()}\n")


class Mortal:
    def die(self, path):
        note(path)
        os._exit(1)


def mortals():
    """Returns a function and a method with two retries each."""
    actor = shoal.remote(max_restarts=-1, max_task_retries=2)(Mortal).remote()
    return shoal.remote(max_retries=2)(lambda path: Mortal().die(path)).remote, actor.die.remote


@pytest.fixture
def by_value():
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def test_a_call_whose_process_died_is_retried_after_a_delay(by_value, tmp_path):
    delay_s = 0.3
    shoal.init(num_cpus=2, _system_config={"task_retry_delay_ms": int(1000 * delay_s)})
    for k, call in enumerate(mortals()):
        path = tmp_path / str(k)
        with pytest.raises(Unavailable):
            shoal.get(call(str(path)), timeout=60)
        times = [float(t) for t in path.read_text().split()]
        assert len(times) == 3
        assert all(b - a >= delay_s for a, b in itertools.pairwise(times))


def test_other_calls_cancel_and_shutdown_do_not_wait_for_the_delay(by_value, tmp_path):
    shoal.init(num_cpus=1, _system_config={"task_retry_delay_ms": 3_600_000})
    paths = [str(tmp_path / str(k)) for k in range(4)]
    die, actor_dies = mortals()
    refs = [call(path) for call, path in zip((die, die, actor_dies, mortals()[1]), paths, strict=True)]
    wait_until(lambda: all(map(os.path.exists, paths)), 30, "the first attempts")
    assert shoal.get(shoal.remote(lambda: 9).remote(), timeout=60) == 9
    for ref in refs[::2]:
        shoal.cancel(ref)
        with pytest.raises(TaskCancelledError):
            shoal.get(ref, timeout=60)
    assert shoal.wait(refs[1::2], num_returns=1, timeout=0)[0] == []
    shoal.shutdown()
    for ref in refs[1::2]:
        with pytest.raises(Cancelled):
            shoal.get(ref, timeout=60)


def test_shutdown_cancels_open_calls_although_the_cluster_ended_before(by_value, tmp_path):
    shoal.init(num_cpus=1)
    path = tmp_path / "begun"

    class Sleeper:
        def sleep(self):
            path.touch()
            time.sleep(600)

    sleeper = shoal.remote(Sleeper).remote()
    refs = [sleeper.sleep.remote(), shoal.remote(lambda: 9).options(num_cpus=64).remote()]
    wait_until(path.exists, 30, "the call")
    session, cluster = state.session, state.cluster

    class Slow:
        """Replaces the session in this test: the embedded cluster has ended before the session's close() begins."""

        def shutdown_cluster(self):
            session.shutdown_cluster()
            cluster.wait(60)

        def __getattr__(self, name):
            return getattr(session, name)

    state.session = Slow()
    shoal.shutdown()
    for ref in refs:
        with pytest.raises(Cancelled):
            shoal.get(ref, timeout=60)


def test_an_invalid_retry_delay_is_a_value_error():
    with pytest.raises(ValueError, match="task_retry_delay_ms"):
        shoal.init(num_cpus=1, _system_config={"task_retry_delay_ms": -1})


def test_variables_that_are_set_to_nothing_count_as_not_set(home):
    sources = Path(shoal.__file__).parent.rglob("*.py")
    names = {name for file in sources for name in re.findall(r"\bSHOAL_[A-Z_]+\b", file.read_text())} - {"SHOAL_HOME"}
    assert {"SHOAL_TASK_RETRY_DELAY_MS", "SHOAL_TIMEOUT", "SHOAL_NODE", "SHOAL_WORKER_ID", "SHOAL_LOGGING"} <= names
    program = """
import shoal
import shoal._distributed.ranks  # reads variables when it is imported

shoal.init(num_cpus=2)
print(shoal.cluster_resources()["CPU"], shoal.get(shoal.remote(lambda: 4).remote()))
"""
    empty = dict.fromkeys({*names, "RANK", "WORLD_SIZE", "LOCAL_RANK", "TMPDIR"}, "")
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **empty}, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "2.0 4\n"), done


def test_two_drivers_of_one_cluster_have_actors_of_their_own(shoal_command):
    cluster = shoal_command.start()
    shoal.init(cluster.address)
    mine = Log.remote()
    other = shoal_command.driver(
        BEGIN + "shoal.init('auto')\na = Log.remote()\nprint('pids', shoal.get(a.pid.remote()))\ntime.sleep(1000)\n"
    )
    pids = pids_in(other)
    assert shoal.get(mine.pid.remote()) not in pids
    other.signal(signal.SIGKILL)
    other.code()
    gone(pids)
    assert shoal.get(mine.echo.remote(1)) == 1
    states = {j["name"]: j["state"] for j in shoal_command.rows("jobs")}
    assert states["driver0.py"] == "FAILED"
    shoal.shutdown()
    assert shoal_command("stop", "--address", cluster.address).returncode == 0


def test_shoal_address_selects_the_cluster(shoal_command, monkeypatch):
    one, two = shoal_command.start(), shoal_command.start()
    monkeypatch.setenv("SHOAL_ADDRESS", one.address)
    shoal.init()
    (job,) = shoal_command.rows("jobs", "--address", one.address)
    assert job["driver_pid"] == os.getpid()
    assert shoal_command.rows("jobs", "--address", two.address) == []
    shoal.shutdown()
    monkeypatch.delenv("SHOAL_ADDRESS")
    assert shoal_command("stop", "--all").returncode == 0


def jobs_of(shoal_command, address: str) -> list[str]:
    return [job["name"] for job in shoal_command.rows("jobs", "--address", address)]


def test_init_joins_a_running_shared_cluster(shoal_command):
    cluster = shoal_command.start()
    # joins the running cluster at its first call
    driver = shoal_command.driver("import shoal\n@shoal.remote\ndef f():\n    return 1\nprint(shoal.get(f.remote()))\n")
    assert driver.code() == 0, driver.err
    for address in ("", "'auto'"):
        driver = shoal_command.driver(f"import shoal\nprint('at', shoal.init({address}).address_info['session_dir'])\n")
        assert driver.code() == 0, driver.err
        assert f"at {cluster.session}" in driver.out
    assert jobs_of(shoal_command, cluster.address) == ["driver0.py", "driver1.py", "driver2.py"]
    assert shoal_command("stop").returncode == 0
    driver = shoal_command.driver("import shoal\nprint('at', shoal.init(num_cpus=1).address_info['session_dir'])\n")
    assert driver.code() == 0, driver.err  # the driver finds no shared cluster, and starts its own
    assert str(cluster.session) not in driver.out


def test_init_refuses_resources_for_a_running_cluster(shoal_command, monkeypatch):
    cluster = shoal_command.start()
    for option in (
        {"num_cpus": 1},
        {"num_gpus": 1},
        {"resources": {"x": 1}},
        {"labels": {"a": "b"}},
        {"object_store_memory": 1 << 28},
        {"object_spilling_directory": "/tmp"},
    ):
        for address in (None, "auto", cluster.address):
            with pytest.raises(ValueError, match=next(iter(option))):
                shoal.init(address, **option)
    assert jobs_of(shoal_command, cluster.address) == []
    monkeypatch.setenv("SHOAL_ADDRESS", "local")
    with pytest.raises(ValueError, match="existing folder"):
        shoal.init(num_cpus=1, object_spilling_directory="/nowhere")
    shoal.init(num_cpus=1)
    shoal.shutdown()
    monkeypatch.delenv("SHOAL_ADDRESS")
    with shoal.init("local", num_cpus=1) as context:
        assert context["session_dir"] != str(cluster.session)
    assert jobs_of(shoal_command, cluster.address) == []
    assert shoal_command("stop").returncode == 0


def test_init_joins_the_latest_cluster_and_warns_of_several(shoal_command, monkeypatch):
    one, two = shoal_command.start(), shoal_command.start()
    with pytest.warns(UserWarning, match=f"2 clusters run here: {two.address}, {one.address}"), shoal.init() as context:
        assert context["session_dir"] == str(two.session)
    monkeypatch.setenv("SHOAL_ADDRESS", one.address)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with shoal.init("auto") as context:
            assert context["session_dir"] == str(one.session)
        with shoal.init(two.address) as context:
            assert context["session_dir"] == str(two.session)
    monkeypatch.delenv("SHOAL_ADDRESS")
    assert shoal_command("stop", "--all").returncode == 0


def test_calls_between_live_actors_go_on_without_a_head(shoal_command, monkeypatch):
    monkeypatch.setattr(init, "HEAD_TIMEOUT_S", 2.0)
    cluster = shoal_command.start()
    shoal.init(cluster.address)
    actor, other = Log.remote(), Log.remote()
    assert shoal.get(actor.call.remote(other, "add", 1)) == 1  # opens the connection between the two actors
    os.kill(cluster.pid("head"), signal.SIGTERM)  # ends the head in order, after which its node starts no other one
    wait_until(lambda: not cluster.pids("head"), 30, "the head's end")
    with pytest.raises(Unavailable, check=lambda e: e.reason == "HeadGone"):
        shoal.nodes()  # raised after HEAD_TIMEOUT_S
    assert shoal.get(actor.call.remote(other, "add", 2), timeout=60) == 2
    assert shoal.get(other.all.remote(), timeout=60) == [1, 2]
    done = shoal_command("status")
    assert done.returncode == 5, done
    ref = actor.sleep.remote(1000)
    os.kill(shoal.get(other.pid.remote()), signal.SIGKILL)
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        shoal.get(other.echo.remote(1), timeout=60)
    assert shoal_command("stop").returncode == 0
    with pytest.raises(ActorDiedError):
        shoal.get(ref, timeout=60)
