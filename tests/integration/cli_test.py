"""The command line: start, stop, status, list, logs and doctor, with and without --json, and several clusters side by side."""

import json
import os
import re
import signal
import subprocess

import pytest
from internals.core import binary
from launching.actors import Log
from launching.commands import LIMIT_S, printed
from launching.leftovers import wait_until

import shoal


@pytest.fixture
def cluster(shoal_command):
    one = shoal_command.start()
    yield one
    done = shoal_command("stop", "--address", one.address)
    assert done.returncode in (0, 3), done


@pytest.fixture
def driver(cluster):
    shoal.init(cluster.address)
    yield
    shoal.shutdown()


def fails(done, code, *texts):
    assert done.returncode == code, done
    for text in texts:
        assert re.search(text, done.stderr), done
    assert done.stdout == ""


# ---- start and stop


def test_start_prints_its_address_and_next_steps(shoal_command):
    done = shoal_command("start", "--head", "--port", "0", "--num-cpus", "2", "--resource", "slot=3")
    assert done.returncode == 0, done
    address = re.search(r"127\.0\.0\.1:\d+", done.stdout)[0]
    assert f"shoal stop --address {address}" in done.stdout
    assert shoal_command.json("status")["total"]["slot"] == 3
    done = shoal_command("stop")
    assert done.returncode == 0
    assert "Stopped" in done.stdout
    fails(shoal_command("stop"), 3, "no cluster is running", "hint")


def test_start_and_stop_print_json(shoal_command):
    said = shoal_command.json("start", "--head", "--port", "0", "--num-cpus", "2", "--num-gpus", "1", "--memory", "1000")
    assert said["schema"] == "shoal.start/1"
    assert said["resources"] == {"CPU": 2, "GPU": 1, "memory": 1000}
    assert said["local"].startswith("unix:@")
    stopped = shoal_command.json("stop")
    assert stopped == {"schema": "shoal.stop/1", "stopped": [{"session": said["session"], "killed": 0}]}


def test_stop_ends_only_the_named_one_of_several_clusters(shoal_command):
    one, two, three = shoal_command.start(), shoal_command.start(), shoal_command.start()
    done = shoal_command("stop")
    fails(done, 2, "3 clusters are running")
    assert all(c.address in done.stderr for c in (one, two, three))
    assert shoal_command("stop", "--address", two.address).returncode == 0
    assert shoal_command("status", "--address", two.address).returncode == 5
    for c in (one, three):
        assert shoal_command.json("status", "--address", c.address)["session"] == str(c.session)
    fails(shoal_command("stop", "--address", two.address), 3, "no running cluster")
    assert len(shoal_command.json("stop", "--all")["stopped"]) == 2
    assert shoal_command.json("stop", "--all")["stopped"] == []


def test_start_accepts_rays_notation_of_resources_and_labels(shoal_command):
    words = ["--resources", '{"slot": 2, "token": 0.5}', "--labels", "zone=a,disk=fast", "--label", "rack=1"]
    shoal_command.start(*words)
    total = shoal_command.json("status")["total"]
    assert (total["slot"], total["token"]) == (2, 0.5)
    (node,) = shoal_command.rows("nodes")
    assert {"zone": "a", "disk": "fast", "rack": "1"}.items() <= node["labels"].items()
    for option in ("--min-worker-port", "--max-worker-port", "--node-manager-port", "--object-manager-port"):
        done = shoal_command("start", "--address", "127.0.0.1:1", option, "1000")
        assert f"{option} has no effect" in done.stderr
    for wrong in ("slot=1", '{"slot": "1"}', '{"slot": -1}', "[]"):
        fails(shoal_command("start", "--head", "--resources", wrong), 2, "--resources")
    assert shoal_command("stop", "--force").returncode == 0
    assert shoal_command("status").returncode == 5


def test_start_with_block_stays_until_a_signal_or_the_clusters_end(shoal_command):
    words = ("start", "--head", "--port", "0", "--num-cpus", "1", "--block")
    for number in (signal.SIGTERM, signal.SIGINT, None):
        one = shoal_command.popen(*words)
        one.said("It ends with this command")
        assert shoal_command.json("status")["nodes"] == 1
        if number is None:
            assert shoal_command("stop", "--grace-period", "20").returncode == 0
        else:
            one.signal(number)
        assert one.code() == 0, one.err
        assert shoal_command("status").returncode == 5
    one = shoal_command.popen(*words)
    one.said("It ends with this command")
    (row,) = shoal_command.rows("nodes")
    os.kill(row["pid"], signal.SIGKILL)
    assert one.code() == 1
    assert "ended unexpectedly" in one.err
    assert shoal_command("status").returncode == 5


def test_ending_a_blocking_start_ends_only_its_node(shoal_command, cluster):
    one = shoal_command.popen("start", "--address", cluster.address, "--num-cpus", "1", "--block")
    one.said("It ends with this command")
    assert shoal_command.json("status")["nodes"] == 2
    one.signal(signal.SIGTERM)
    assert one.code() == 0, one.err
    wait_until(lambda: shoal_command.json("status")["nodes"] == 1, 10, "the node's end")


def test_gpus_that_the_environment_hides_are_not_offered(shoal_command):
    words = ("start", "--head", "--port", "0", "--num-cpus", "1")
    done = shoal_command(*words, "--num-gpus", "2", env=shoal_command.env(CUDA_VISIBLE_DEVICES="3"))
    fails(done, 1, "2 GPUs were asked for", "CUDA_VISIBLE_DEVICES")
    assert shoal_command("status").returncode == 5
    said = shoal_command.json(*words, "--num-gpus", "1", env=shoal_command.env(CUDA_VISIBLE_DEVICES="3,5"))
    assert said["resources"]["GPU"] == 1
    assert shoal_command("stop").returncode == 0
    said = shoal_command.json(*words, env=shoal_command.env(CUDA_VISIBLE_DEVICES=""))
    assert "GPU" not in said["resources"]
    assert shoal_command("stop").returncode == 0


def test_a_port_in_use_is_an_error_with_a_hint(shoal_command, cluster):
    port = cluster.address.rpartition(":")[2]
    fails(shoal_command("start", "--head", "--port", port), 1, r"error\[ResourceExhausted/AddressInUse\]", "hint: .*--port")
    error = shoal_command.json("start", "--head", "--port", port, code=1)
    assert (error["schema"], error["code"], error["reason"]) == ("shoal.error/1", "ResourceExhausted", "AddressInUse")
    assert shoal_command.json("status")["nodes"] == 1  # the first cluster runs on, and no second one is half started


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["start"], ["--head"]),
        (["start", "--head", "--address", "127.0.0.1:1"], ["exclude"]),
        (["start", "--head", "--port", "0", "--resource", "slot"], ["NAME=AMOUNT"]),
        (["start", "--head", "--port", "0", "--num-cpus", "many"], ["num-cpus"]),
        (["start", "--head", "--port", "0", "--num-cpus", "-1"], ["num-cpus", "0 or more, not -1"]),
        (["start", "--head", "--port", "70000"], ["port"]),
        (["start", "--head", "--port", "0", "--resource", "slot=-1"], ["slot"]),
        (["job", "submit", "--entrypoint-memory", "-1", "--", "true"], ["entrypoint-memory", "0 or more, not -1"]),
        (["list", "ghosts"], ["ghosts"]),
        (["nonsense"], []),
        ([], []),
    ],
    ids=lambda x: " ".join(x) or "nothing",
)
def test_bad_usage_is_2_and_starts_nothing(shoal_command, words, texts):
    fails(shoal_command(*words), 2, *texts)


@pytest.mark.parametrize("option", ["--host", "--node-ip-address"])
def test_a_head_for_the_whole_network_is_refused(shoal_command, option):
    fails(shoal_command("start", "--head", "--port", "0", option, "0.0.0.0"), 1, "every address")


def test_joining_an_absent_cluster_is_refused(shoal_command):
    fails(shoal_command("start", "--address", "127.0.0.1:1"), 5, "no running cluster", "hint")
    fails(shoal_command("status", "--address", "nonsense"), 1, "HOST:PORT")


def test_a_failing_node_ends_the_head_that_started_with_it(shoal_command):
    env = shoal_command.env(SHOAL_PYTHON="/nonexistent/python")
    done = shoal_command("start", "--head", "--port", "0", "--resource", "CPU=1", env=env)
    assert done.returncode in (0, 1), done
    if done.returncode == 0:  # the node has no Python, but runs other programs
        done = shoal_command("submit", "--", "true")
        assert done.returncode == 0, done
        assert shoal_command("stop").returncode == 0


def test_joining_nodes_bring_the_missing_resources(shoal_command, cluster, driver, tmp_path):
    with printed(tmp_path) as so_far:
        actor = Log.options(resources={"slot": 1}).remote()
        ref = actor.echo.remote("placed")
        wait_until(lambda: "nearest fit" in so_far(2), 5, "the warning")
    (pending,) = shoal_command.json("status")["pending"]
    assert "slot" in pending
    assert shoal_command("start", "--address", cluster.address, "--resource", "slot=1").returncode == 0
    assert shoal.get(ref, timeout=60) == "placed"
    assert len(shoal_command.rows("nodes")) == 2
    assert shoal_command.json("status")["pending"] == []


def test_stop_kills_processes_that_do_not_end(shoal_command):
    cluster = shoal_command.start()
    os.kill(cluster.pid("node"), signal.SIGSTOP)
    stopped = shoal_command.json("stop", "--grace", "2")["stopped"]
    assert [s["killed"] for s in stopped] == [1]


# ---- status, list and logs


STATUS = {"schema", "session", "address", "head_pid", "total", "available", "nodes", "workers", "actors", "jobs", "pending"}
ROWS = {
    "actors": {"id", "class", "state", "job", "node", "worker", "pid", "rank", "world_size", "generation", "endpoint", "attributes"},
    "nodes": {"id", "host", "pid", "state", "endpoint", "total", "available"},
    "workers": {"id", "node", "job", "pid", "state", "role", "rank", "cause"},
    "jobs": {"id", "name", "state", "driver_pid", "num_workers", "started_unix_ms", "ended_unix_ms", "exit_code", "cause"},
}


def test_status_counts_nodes_and_actors(shoal_command, cluster, driver):
    actor = Log.options(num_cpus=1).remote()
    shoal.get(actor.pid.remote())
    status = shoal_command.json("status")
    assert set(status) >= STATUS
    assert status["schema"] == "shoal.status/1"
    assert (status["session"], status["address"]) == (str(cluster.session), cluster.address)
    assert (status["nodes"], status["actors"], status["jobs"]) == (1, 1, 1)
    assert (status["total"]["CPU"], status["available"]["CPU"]) == (4, 3)
    text = shoal_command("status").stdout
    assert "CPU 4" in text
    assert str(cluster.session) in text


def test_an_empty_id_names_nothing(shoal_command, cluster, driver):
    """It is what a shell makes of a variable that is not set."""
    for words in ("job stop", "job status", "job logs", "drain", "cordon", "drain-node --node-id", "get jobs", "logs", "stack"):
        done = shoal_command(*words.split(), "")
        assert done.returncode == 2, words
        assert "an empty text names nothing" in done.stderr, words
    [job] = shoal_command.rows("jobs")
    assert job["state"] == "RUNNING"


@pytest.mark.parametrize("what", list(ROWS))
def test_list_has_a_row_per_object(shoal_command, cluster, driver, what):
    actor = Log.remote()
    pid = shoal.get(actor.pid.remote())
    said = shoal_command.json("list", what)
    assert (said["schema"], said["what"]) == ("shoal.list/1", what)
    assert said["rows"]
    for row in said["rows"]:
        assert set(row) >= ROWS[what]
    table = shoal_command("list", what).stdout.splitlines()
    assert len(table) == 1 + len(said["rows"])
    if what in ("actors", "workers"):
        assert pid in [r["pid"] for r in said["rows"]]
        assert str(pid) in "".join(table)


@pytest.mark.parametrize("words", ["status", "status --json", "list nodes", "metrics"])
def test_output_that_is_lost_is_an_error(shoal_command, cluster, words):
    _loses_output(shoal_command, words.split())


@pytest.mark.parametrize(
    "words",
    ["launch slurm --dry-run x.py", "run --dry-run --json", "run --variables", "--help", "doctor --json", "migrate SCRIPT", "check SCRIPT"],
)
def test_output_that_is_lost_is_an_error_without_a_cluster(shoal_command, words):
    script = shoal_command.script("from torch.distributed.fsdp import fully_shard\nimport torch\nfully_shard(torch.nn.Linear(2, 2))\n")
    _loses_output(shoal_command, [str(script) if word == "SCRIPT" else word for word in words.split()])


def _loses_output(command, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [binary(), *words], env=command.env(), cwd=command.home, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    assert done.returncode == 1, done.stderr
    assert "stdout did not take the whole output: No space left on device" in done.stderr


def test_list_shows_why_an_actor_died(shoal_command, cluster, driver):
    actor = Log.remote()
    os.kill(shoal.get(actor.pid.remote()), signal.SIGKILL)
    wait_until(lambda: shoal_command.rows("actors")[0]["state"] == "DEAD", 5)
    (row,) = shoal_command.rows("actors")
    assert row["cause"]["reason"] == "ActorDied"
    assert "SIGKILL" in row["cause"]["message"]
    assert "SIGKILL" in shoal_command("list", "actors").stdout


@pytest.mark.parametrize("words", [["status"], ["list", "nodes"], ["logs"]], ids=" ".join)
def test_commands_without_a_cluster_exit_with_5(shoal_command, words):
    fails(shoal_command(*words), 5, "no cluster is running", "hint: .*shoal start")
    assert shoal_command.json(*words, code=5)["reason"] == "NoCluster"


def test_logs_are_readable_after_the_job_ended(shoal_command, cluster):
    script = shoal_command.script("import sys\nfor i in range(5): print('line', i)\nprint('oh', file=sys.stderr)\n")
    assert shoal_command("submit", script).returncode == 0
    done = shoal_command("logs")
    assert done.returncode == 0
    assert done.stdout == "".join(f"(driver) line {i}\n" for i in range(5))
    assert done.stderr == "(driver) oh\n"
    assert shoal_command("logs", "--tail", "2").stdout == "(driver) line 3\n(driver) line 4\n"
    (job,) = shoal_command.rows("jobs")
    said = shoal_command.json("logs", job["id"][:6])
    assert said["schema"] == "shoal.logs/1"
    texts = {entry["stream"]: entry["text"] for entry in said["logs"]}
    assert texts == {"stdout": "".join(f"line {i}\n" for i in range(5)), "stderr": "oh\n"}
    fails(shoal_command("logs", "0123456789"), 3, "no job, worker or actor has the id or name 0123456789")


def test_logs_follow_a_job_to_its_end(shoal_command, cluster):
    flag = shoal_command.home.parent / "go"
    script = shoal_command.script(
        f"import os, time\nprint('first')\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\nprint('last')\n"
    )
    job = shoal_command.popen("submit", script)
    job.said("first")
    following = shoal_command.popen("logs", "--follow")
    following.said("(driver) first")
    flag.touch()
    assert following.code() == 0
    assert following.out == "(driver) first\n(driver) last\n"
    assert job.code() == 0
    assert shoal_command("logs", "-f").stdout == "(driver) first\n(driver) last\n"


def test_doctor_reports_findings_and_remedies(shoal_command):
    done = shoal_command("doctor")
    said = shoal_command.json("doctor", code=done.returncode)
    assert said["schema"] == "shoal.doctor/1"
    assert said["ok"] == (done.returncode == 0)
    names = [c["name"] for c in said["checks"]]
    assert {"kernel", "shared memory", "python", "torch", "sessions", "devices", "ucx", "data network"} <= set(names)
    for check in said["checks"]:
        assert check["verdict"] in ("ok", "warning", "broken")
        assert check["found"]
        assert check["verdict"] == "ok" or check["fix"]
    assert all(name in done.stdout for name in names)
    (ucx,) = [c for c in said["checks"] if c["name"] == "ucx"]
    assert "libucp" in ucx["found"] or "none" in ucx["found"]
    absent = shoal_command("doctor", env=shoal_command.env(SHOAL_UCX_LIBRARY="/nonexistent/libucp.so.0", SHOAL_TRANSPORT="tls"))
    assert "none: ranks on other hosts are reached by TCP" in absent.stdout
    assert "programs from here have SHOAL_TRANSPORT=tls" in absent.stdout
    broken = shoal_command("doctor", env=shoal_command.env(SHOAL_PYTHON="/nonexistent/python"))
    assert broken.returncode == 1
    assert "fix:" in broken.stdout


def test_a_driver_killed_before_it_reached_its_node_leaves_no_running_job(shoal_command, cluster):
    os.kill(cluster.pid("node"), signal.SIGSTOP)
    driver = shoal_command.driver(f"import shoal\nshoal.init({cluster.address!r})\n")
    wait_until(lambda: shoal_command.rows("jobs"), 10, "its job")
    driver.signal(signal.SIGKILL)
    wait_until(lambda: shoal_command.rows("jobs")[0]["state"] == "FAILED", 10, "the end of its job")
    os.kill(cluster.pid("node"), signal.SIGCONT)


# ---- secrets and addresses


def test_a_cluster_on_loopback_has_no_data_tls(shoal_command):
    done = shoal_command("start", "--head", "--port", "0", "--data-tls")
    assert done.returncode != 0
    assert "--data-tls is for a cluster over several hosts" in done.stderr


def test_a_wrong_token_exits_with_4(shoal_command, cluster):
    token = cluster.session / "token"
    right = token.read_text()
    try:
        for wrong in ("0" * 64 + "\n", "garbage", "", right[:-3]):
            token.write_text(wrong)
            for words in (["status"], ["list", "jobs"], ["status", "--address", cluster.address]):
                fails(shoal_command(*words), 4, "token")
            error = shoal_command.json("status", code=4)
            assert error["reason"] == "TokenRefused"
            fails(shoal_command("submit", "--", "true"), 123, "token")
            with pytest.raises(shoal.exceptions.InvalidArgument, check=lambda e: e.reason == "TokenRefused"):
                shoal.init(cluster.address)
            assert not shoal.is_initialized()
        token.unlink()
        fails(shoal_command("status"), 4, "token")
    finally:
        token.write_text(right)
    assert shoal_command("status").returncode == 0


def test_a_cluster_of_another_home_is_not_found(shoal_command, cluster, tmp_path):
    other = tmp_path / "other"
    env = shoal_command.env(SHOAL_HOME=str(other))
    fails(
        shoal_command("status", "--address", cluster.address, env=env), 5, "no running cluster of this user has the address", "SHOAL_HOME"
    )
    fails(shoal_command("submit", "--address", cluster.address, "--", "true", env=env), 124, "no running cluster")


def test_a_home_accessible_to_others_is_refused(shoal_command, tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    open_to_all.chmod(0o755)
    fails(shoal_command("status", env=shoal_command.env(SHOAL_HOME=str(open_to_all))), 1, "private", "chmod 700", "SHOAL_HOME")


def test_the_token_is_only_in_its_file(shoal_command, cluster):
    token = (cluster.session / "token").read_text().strip()
    assert (cluster.session / "token").stat().st_mode & 0o777 == 0o600
    script = shoal_command.script("import time\nprint('up')\ntime.sleep(1000)\n")
    job = shoal_command.popen("submit", "--num-workers", "1", script)
    job.said("up")
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        for file in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{file}", "rb") as f:
                    assert token.encode() not in f.read(), (pid, file)
            except OSError:
                continue
    for path in cluster.session.rglob("*"):
        if path.is_file() and path.name != "token":
            assert token.encode() not in path.read_bytes(), path
    job.signal(signal.SIGINT)
    assert job.code() == 130


def test_stop_ends_a_cluster_whose_head_cannot_restart(shoal_command):
    cluster = shoal_command.start()
    os.kill(cluster.pid("node"), signal.SIGSTOP)
    os.kill(cluster.pid("head"), signal.SIGKILL)
    said = (f"no head answers at {cluster.address}", "not started again", str(cluster.session / "logs"), "shoal stop --address")
    fails(shoal_command("status"), 5, *said)
    fails(shoal_command("submit", "--", "true"), 124, *said)
    os.kill(cluster.pid("node"), signal.SIGCONT)
    assert shoal_command.json("stop")["stopped"] == [{"session": str(cluster.session), "killed": 0}]


def test_a_command_without_its_option_says_what_to_pass(shoal_command):
    fails(shoal_command("scale", "job"), 2, "`shoal scale` lacks the option `--workers`", "pass --workers VALUE: ")


KINDS = "actors, nodes, workers, jobs, groups, tasks, objects or runtime-envs"


@pytest.mark.parametrize(
    ("words", "lacks", "hint"),
    [
        *((word, "what", KINDS) for word in ("list", "summary", "get", "describe")),
        *((word, "id", "shoal list actors") for word in ("get actor", "describe actor")),
        *((word, "node", "shoal list nodes") for word in ("drain", "cordon", "uncordon")),
        *((f"job {word}", "id", "shoal list jobs") for word in ("status", "logs", "stop", "delete")),
        ("drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
    ],
)
def test_a_command_without_its_argument_lists_the_choices(shoal_command, words, lacks, hint):
    done = shoal_command(*words.split())
    assert done.returncode == 2, done
    said, hinted = done.stderr.splitlines()
    assert f"`shoal {words.removesuffix(' actor')}` lacks" in said, done
    assert f"`{lacks}`" in said, done
    assert hint in hinted, done
    error = json.loads(shoal_command(*words.split(), "--json").stdout)
    assert hint in json.dumps(error), error


@pytest.mark.parametrize("words", ["drain", "job submit", "job stop"])
def test_help_shows_the_no_wait_option(shoal_command, words):
    assert re.search(r"--no-wait +Do not wait", shoal_command(*words.split(), "--help").stdout)


@pytest.mark.parametrize("words", ["run", "submit", "launch slurm"])
def test_help_shows_where_the_script_stands(shoal_command, words):
    assert "[OPTIONS] SCRIPT.py [ARGS] | -- PROGRAM [ARGS]\n" in shoal_command(*words.split(), "--help").stdout


def test_version_and_help_exit_with_0(shoal_command):
    assert shoal_command("--version").stdout.startswith("shoal ")
    for words in ([], ["start"], ["submit"], ["logs"]):
        done = shoal_command(*words, "--help")
        assert done.returncode == 0
        assert done.stdout
