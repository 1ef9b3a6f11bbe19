"""list, get, describe, summary, status -v and health-check."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from internals.core import binary
from launching.actors import Log
from launching.leftovers import wait_until

import shoal


@pytest.fixture
def cluster(shoal_command):
    one = shoal_command.start("--label", "zone=a", cpus=2)
    shoal.init(one.address)
    yield one
    shoal.shutdown()
    shoal_command.json("stop")


@pytest.fixture
def actors(cluster):
    """One actor that lives, one that was killed."""
    alive, dead = Log.options(name="alive", namespace="n").remote(), Log.remote()
    shoal.get([alive.all.remote(), dead.all.remote()])
    shoal.kill(dead)
    return alive, dead


def test_rows_are_filtered_limited_and_formatted(shoal_command, actors):
    def ids(*words):
        return [r["id"] for r in shoal_command.rows("actors", *words)]

    alive, dead = (a._actor_id for a in actors)
    assert set(ids()) == {alive, dead}
    assert ids("--filter", "state=ALIVE") == [alive]
    assert ids("--filter", "state=dead") == [dead]
    assert ids("--filter", "state!=ALIVE", "--filter", "class=Log") == [dead]
    assert ids("--filter", "class=nothing") == []
    assert ids("-f", f"actor_id={alive}", "-f", "class_name=log") == [alive]  # Ray's names of the columns work, too
    assert len(ids("--limit", "1")) == 1
    assert len(shoal_command.rows("nodes", "--filter", "labels.zone=a")) == 1
    assert shoal_command.rows("nodes", "--filter", "labels.zone=b") == []
    assert json.loads(shoal_command("list", "actors", "--format", "json").stdout)["what"] == "actors"
    yaml = shoal_command("list", "actors", "--detail", "--filter", "state=ALIVE").stdout
    assert f'id: "{alive}"\n' in yaml or f"id: {alive}\n" in yaml
    assert yaml.startswith("- ")
    table = shoal_command("list", "actors", "--detail", "--format", "table").stdout
    assert table.startswith("ACTOR")
    assert shoal_command.json("list", "placement-groups") == {"schema": "shoal.list/1", "what": "groups", "rows": [], "more": 0}


def test_get_and_describe_show_one_object(shoal_command, actors):
    alive, dead = (a._actor_id for a in actors)
    assert shoal_command.json("get", "actors", alive)["state"] == "ALIVE"
    assert shoal_command.json("get", "actor", "alive")["id"] == alive  # finds the actor by its name
    assert "state: ALIVE\n" in shoal_command("get", "actor", alive[:12]).stdout
    text = shoal_command("describe", "actor", dead).stdout
    assert "why it ended: actor Log died. The actor is dead because it was killed by shoal.kill" in text
    assert f"next: shoal logs {dead}" in text
    done = shoal_command("get", "actor", "0000")
    assert (done.returncode, done.stdout) == (3, "")
    node = shoal_command.rows("nodes")[0]["id"]
    assert f"shoal drain {node}" in shoal_command("describe", "node", node).stdout


def test_stack_shows_the_frames_of_a_hanging_worker(shoal_command, cluster, tmp_path):
    @shoal.remote
    class Hangs:
        def pid(self):
            return os.getpid()

        def stuck_here(self, path):
            threading.Thread(target=self.beside_it, args=(path,), daemon=True).start()
            threading.Event().wait()

        def beside_it(self, path):
            Path(path).touch()
            threading.Event().wait()

    hangs, idle = Hangs.remote(), Hangs.remote()
    pid, other = shoal.get([hangs.pid.remote(), idle.pid.remote()])
    hangs.stuck_here.remote(str(tmp_path / "there"))
    wait_until(lambda: (tmp_path / "there").exists(), 60, "the call")
    for _ in range(2):  # the second report has each stack once, too, and not also those of the first
        (row,) = shoal_command.json("stack", hangs._actor_id)["workers"]
        assert (row["pid"], row["role"]) == (pid, "Hangs")
        assert row["stacks"].count("in stuck_here\n") == row["stacks"].count("in beside_it\n") == 1
    text = shoal_command("stack").stdout
    assert f"pid {pid}, worker" in text
    assert f"pid {other}, worker" in text
    assert shoal_command.json("stack", str(other))["workers"][0]["stacks"].count("in stuck_here\n") == 0
    os.kill(other, signal.SIGSTOP)
    (row,) = shoal_command.json("stack", idle._actor_id)["workers"]
    assert "it did not answer" in row["error"]
    os.kill(other, signal.SIGCONT)
    assert shoal.get(idle.pid.remote()) == other
    assert shoal_command("stack", "ffff").returncode == 3


def test_lists_show_why_a_request_waits(shoal_command, cluster):
    waiting = Log.options(num_cpus=5).remote()
    wait_until(lambda: "nearest fit" in shoal_command("describe", "actor", waiting._actor_id).stdout, 20, "why it waits")
    text = shoal_command("status", "-v").stdout
    assert "demands  1" in text
    assert "needs CPU 5; nearest fit" in text
    assert "ALIVE" in text
    assert "0/2 CPU" in text
    said = shoal_command.json("status", "-v")
    assert [n["state"] for n in said["node_rows"]] == ["ALIVE"]


def test_waiting_functions_are_counted(shoal_command, cluster, tmp_path):
    @shoal.remote
    def waits(path):
        while not os.path.exists(path):
            time.sleep(0.01)

    refs = [waits.remote(str(tmp_path / "gate")) for _ in range(5)]
    counted = lambda: shoal_command.json("status", "-v")["calls"]  # noqa: E731
    wait_until(lambda: counted()["running"] == 2 and counted()["waiting"] >= 3, 20, "two that run, three that wait")
    assert "calls    2 running" in shoal_command("status", "-v").stdout
    (tmp_path / "gate").touch()
    shoal.get(refs)


def test_summaries_count_by_class_and_state(shoal_command, actors):
    assert shoal_command.json("summary", "actors")["summary"] == {"Log": {"ALIVE": 1, "DEAD": 1}}
    assert "ALIVE" in shoal_command("summary", "nodes").stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["get", "objects", "0123"], 3, "none of the objects is 0123"),
        (["get", "task", "0123"], 3, "none of the tasks is 0123"),
        (["memory", "--group-by", "COLOUR"], 2, "COLOUR"),
        (["list", "ghosts"], 2, "no list of ghosts"),
        (["list", "actors", "--filter", "state"], 2, "KEY=VALUE"),
        (["list", "nodes", "--filter", "stat=ALIVE"], 2, "they have available,"),
        (["list", "actors", "--format", "xml"], 2, "xml"),
        (["get", "actors"], 2, "id"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_absent_objects_are_an_error(shoal_command, cluster, words, code, text):
    done = shoal_command(*words)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert text in done.stderr


def test_objects_are_listed_with_their_holders(shoal_command, cluster):
    big, small = shoal.put(bytes(3 << 20)), shoal.put(bytes(1 << 20))
    rows = shoal_command.json("list", "objects", "--filter", f"pid={os.getpid()}")["rows"]
    assert [r["reference"] for r in rows] == ["LOCAL_REFERENCE"] * 2
    assert {r["id"] for r in rows} == {big.hex(), small.hex()}
    listed = shoal_command.json("list", "objects", "--limit", "1")
    assert (len(listed["rows"]), listed["more"], listed["silent"]) == (1, 1, [])
    cut = shoal_command("list", "objects", "--limit", "1")
    assert "1 rows more" in cut.stderr
    assert cut.stdout.startswith("OBJECT")
    assert shoal_command("list", "objects", "--detail").stdout.startswith("- ")
    (got,) = shoal_command.json("get", "object", big.hex())["rows"]
    assert (got["pid"], got["role"], got["spilled"]) == (os.getpid(), "driver", False)
    assert shoal_command.json("summary", "objects")["summary"] == {"objects": {"LOCAL_REFERENCE": 2}}


def test_memory_is_grouped_by_node_and_process(shoal_command, cluster):
    big, small = shoal.put(bytes(3 << 20)), shoal.put(bytes(1 << 20))
    said = shoal_command.json("memory")
    (group,) = said["groups"]
    assert [r["id"] for r in group["rows"]] == [big.hex(), small.hex()]  # the largest object comes first
    assert (group["objects"], group["references"]) == (2, {"LOCAL_REFERENCE": 2})
    assert 4 << 20 <= group["bytes"] < (4 << 20) + 20_000
    (node,) = said["nodes"]
    assert node["limit_bytes"] > 0
    assert 4 << 20 <= node["kept_bytes"] <= node["limit_bytes"]
    (mine,) = shoal_command.json("memory", "--group-by", "process", "-n", "1")["groups"]
    assert f"pid {os.getpid()}" in mine["group"]
    assert len(mine["rows"]) == 1
    assert "rows" not in shoal_command.json("memory", "--stats-only")["groups"][0]
    text = shoal_command("memory", "--sort-by", "pid").stdout
    assert big.hex() in text
    assert "3.0 MiB" in text
    assert "of memory kept for large values" in text


def test_tasks_are_listed_and_have_a_timeline(shoal_command, cluster, tmp_path):
    def told(*words):  # asks until all processes have reported; a loaded machine may delay one
        def said():
            out = shoal_command.json(*words)
            return out if not out["silent"] else None

        return wait_until(said, 60, "an answer of all processes")

    log = Log.remote()
    shoal.get([log.all.remote() for _ in range(3)])
    mine = ("--filter", f"actor={log._actor_id}")
    rows = told("list", "tasks", *mine, "--filter", "type=ACTOR_TASK")["rows"]
    assert [(r["name"], r["state"], r["attempt"]) for r in rows] == [("Log.all", "FINISHED", 0)] * 3

    def got():
        done = shoal_command("get", "task", rows[0]["id"], "--json")
        return json.loads(done.stdout)["rows"] if done.returncode == 0 else None

    (row,) = wait_until(got, 60, "the task")  # one row per attempt, and the task had one
    assert (row["id"], row["name"], row["attempt"]) == (rows[0]["id"], "Log.all", 0)
    refused = shoal_command("get", "task", rows[0]["id"][:16])
    assert (refused.returncode, "have an id that begins with" in refused.stderr) == (1, True), refused
    wait_until(lambda: shoal_command.json("summary", "tasks")["summary"].get("Log.all") == {"FINISHED": 3}, 60, "the summary")
    assert len(told("list", "tasks", *mine, "--limit", "2")["rows"]) == 2
    assert shoal_command("list", "tasks").stdout.startswith("TASK")
    file = tmp_path / "out.json"

    def spans():
        said = shoal_command.json("timeline", "-o", str(file))
        events = json.loads(file.read_text())
        assert (said["file"], said["events"]) == (str(file), len(events))
        return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["name"] == "Log.all")

    found = wait_until(spans, 60, "the calls")
    assert len(found) == 3
    assert all(end <= start for (_, end), (start, _) in pairwise(found))  # the calls ran one after the other
    assert shoal_command("timeline", "-o", str(tmp_path / "no" / "such")).returncode == 3


def test_runtime_envs_are_listed(shoal_command, cluster):
    actor = Log.options(runtime_env={"env_vars": {"COLOUR": "blue"}}).remote()
    shoal.get(actor.all.remote())
    (row,) = shoal_command.rows("runtime-envs")
    assert (row["runtime_env"], row["processes"]) == ({"env_vars": {"COLOUR": "blue"}}, 1)
    assert "COLOUR" in shoal_command("list", "runtime-envs").stdout


def test_checkpoint_lists_verifies_converts_and_compares(shoal_command, tmp_path, capsys):
    import torch

    from shoal import checkpoint
    from shoal.checkpoint.__main__ import main

    def tool(*words):
        """Runs a command line in this process, which has imported torch. Returns (exit code, output)."""
        return main(list(words)), capsys.readouterr().out

    model, path = torch.nn.Linear(3, 2), str(tmp_path / "c")
    checkpoint.save(path, model, state={"step": 1})
    assert [t["name"] for t in shoal_command.json("checkpoint", "ls", path)["tensors"]] == ["bias", "weight"]
    code, said = tool("verify", path, "--json")
    assert code == 0
    assert json.loads(said)["sound"]
    hf = str(tmp_path / "hf")
    assert tool("export", path, hf, "--max-shard-size", "1MB")[0] == 0
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert tool("diff", path, path) == (0, "no difference\n")
    assert tool("diff", path, hf)[0] == 1  # the state is in one of them only
    file = next((tmp_path / "c").glob("*/*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x77")
    assert tool("verify", path)[0] == 1
    assert tool("ls", str(tmp_path / "nothing"))[0] == 1
    assert shoal_command("checkpoint", "export", path, hf, "--format", "pickle").returncode == 2
    odd = torch.nn.ModuleDict({"a\x1b]0;T\a": torch.nn.Linear(1, 1)})
    checkpoint.save(str(tmp_path / "odd"), odd)
    table = tool("ls", str(tmp_path / "odd"))[1]
    assert r"a\x1b]0;T\x07.weight" in table
    assert "\x1b" not in table


def test_microbenchmark_prints_figures(shoal_command):
    said = shoal_command.json("microbenchmark", "--filter", "1:1 actor calls sync", "--seconds", "0.01")
    (row,) = said["results"]
    assert (row["name"], row["per_second"] > 0) == ("1:1 actor calls sync", True)
    text = shoal_command("microbenchmark", "--filter", "single client get calls", "--seconds", "0.01").stdout
    assert text.startswith("single client get calls (Plasma Store) per second ")
    assert shoal_command("microbenchmark", "--filter", "no such", "--seconds", "0.01").returncode == 2


def test_health_check_reports_the_head_and_nodes(shoal_command):
    assert shoal_command("health-check").returncode == 5
    cluster = shoal_command.start(cpus=1)
    assert shoal_command.json("health-check")["nodes"] == 1
    os.kill(cluster.pid("node"), signal.SIGKILL)
    wait_until(lambda: shoal_command("health-check").returncode != 0, 20, "the node's death")
    assert shoal_command.json("health-check", code=1)["nodes"] == 0  # exit code 1: the head runs on, without a node
    shoal_command.json("stop")
    assert shoal_command("health-check").returncode == 5


def test_nothing_that_another_process_chose_reaches_the_terminal_raw(shoal_command, cluster):
    evil = "\x1b]0;T\a\x1b[2J\r\x9b31m\u202e"
    shown = r"\x1b]0;T\x07\x1b[2J\r\u009b31m\u202e日"
    kind = type("A" + evil + "日", (), {"__init__": lambda self: None, "boom": lambda self: 1 / 0})
    actor = shoal.remote(kind).options(name="name" + evil, namespace="s\n" + evil).remote()
    with pytest.raises(ZeroDivisionError) as raised:
        shoal.get(actor.boom.remote())
    waiting = shoal.remote(resources={"res" + evil: 1})(kind).remote()
    group = shoal.util.placement_group([{"CPU": 1}], name="pg" + evil)
    assert group.wait()
    job_id = "id" + evil.replace("\r", "")  # the URL of a job is a line
    job = shoal_command("job", "submit", "--submission-id", job_id, "--metadata-json", json.dumps({"m": evil}), "--", "exit 3 #" + evil)
    assert job.returncode == 1
    forged = "x\n2026-01-01T00:00:00.000 error head FORGED\n"
    assert shoal_command("submit", "--name", forged, "--", "true").returncode == 0
    wait_until(lambda: shoal_command.json("get", "actor", waiting._actor_id)["pending_reason"] != "", 30)
    said = [job.stdout, job.stderr, str(raised.value)]
    for words in (
        *(("list", what) for what in ("actors", "jobs", "tasks", "workers", "nodes", "groups", "objects")),
        *((verb, what, row) for verb in ("get", "describe") for what, row in (("actor", actor._actor_id), ("job", job_id))),
        *(("list", "actors", *form) for form in (("--detail",), ("--json",), ("--format", "json"))),
        ("status", "-v"),
        ("summary", "tasks"),
        ("summary", "actors"),
        ("job", "status", job_id),
        ("job", "delete", "absent" + evil),
        ("memory",),
        ("metrics",),
        ("timeline", "-o", "-"),
        ("stack",),
        ("list", "actors", "--" + evil),
        ("doctor" + evil,),
    ):
        done = subprocess.run([binary(), *words], env=shoal_command.env(), cwd=shoal_command.home, capture_output=True)
        said += [done.stdout.decode(), done.stderr.decode()]
    raw = [text for text in said if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)]
    assert raw == []
    actors = shoal_command("list", "actors").stdout
    assert "A" + shown in actors
    assert r"s\n\x1b" in actors
    assert len(actors.splitlines()) == 3
    assert shoal_command.json("get", "actor", actor._actor_id)["class"] == kind.__name__
    for log in (cluster.session / "logs").glob("[hn]*-*.log"):
        text = log.read_text()
        assert "\x1b" not in text
        assert "\n2026-01-01T00" not in text
        assert log.name.startswith("node") or "\n  | 2026-01-01T00:00:00.000 error head FORGED" in text
