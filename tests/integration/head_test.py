"""A killed head: running work goes on, the head comes back, and no decision is lost."""

import os
import random
import signal
import sqlite3
import time

import pytest
from launching.commands import LIMIT_S
from launching.leftovers import alive, wait_until


@pytest.fixture
def cluster(shoal_command):
    started = shoal_command.start()
    yield started
    if started.pids("node"):
        shoal_command.json("stop")


def test_actors_names_groups_and_their_state_outlive_the_head(cluster, shoal_command):
    driver = shoal_command.driver(
        """
import os, sys, time
import shoal
from shoal.util import get_placement_group, placement_group, remove_placement_group

@shoal.remote(num_cpus=0)
class Counter:
    def __init__(self): self.n = 0
    def add(self):
        self.n += 1
        return self.n

shoal.init(address="auto")
counter = Counter.options(name="kept", lifetime="detached").remote()
mine = Counter.options(max_restarts=-1).remote()
group = placement_group([{"CPU": 1}], name="place")
assert shoal.get(group.ready()) is not None
assert shoal.get([counter.add.remote(), mine.add.remote()]) == [1, 1]
print("made", flush=True)
while not os.path.exists(sys.argv[0] + ".go"):
    time.sleep(0.01)
assert shoal.get([counter.add.remote(), mine.add.remote()]) == [2, 2]       # calls need no head
assert shoal.get(shoal.get_actor("kept").add.remote()) == 3
other = Counter.remote()                                                    # nor does who asks it now notice
assert shoal.get(other.add.remote()) == 1
assert get_placement_group("place").bundle_specs == [{"CPU": 1}]
remove_placement_group(group)
shoal.kill(other)
try:
    shoal.get(other.add.remote())
    raise SystemExit("it lives")
except shoal.exceptions.ActorDiedError:
    print("done", flush=True)
"""
    )
    driver.said("made")
    before = {row["id"]: row for row in shoal_command.rows("actors")}
    assert len(before) == 2
    cluster.kill_head()
    after = {row["id"]: row for row in shoal_command.rows("actors")}
    assert after.keys() == before.keys()
    for actor, row in before.items():
        assert {k: after[actor][k] for k in ("state", "pid", "name", "node", "class")} == {
            k: row[k] for k in ("state", "pid", "name", "node", "class")
        }
    (shoal_command.home.parent / "scripts" / "driver0.py.go").touch()
    assert driver.code() == 0, driver.err
    [job] = [j for j in shoal_command.rows("jobs") if not j["name"].startswith("detached")]
    assert job["state"] == "SUCCEEDED"


def test_handles_are_counted_without_a_head(cluster, shoal_command):
    driver = shoal_command.driver(
        """
import os, sys, time
import shoal

@shoal.remote(num_cpus=0)
class Holder:
    def keep(self, handles): self.handles = handles
    def call(self): return shoal.get(self.handles[0].call.remote())

@shoal.remote(num_cpus=0)
class Held:
    def call(self): return 5

shoal.init(address="auto")
holder, before, after = Holder.remote(), Held.options(name="before").remote(), Held.options(name="after").remote()
shoal.get(holder.keep.remote([after, before]))
del after, before
print("held", flush=True)
while not os.path.exists(sys.argv[0] + ".go"):
    time.sleep(0.01)
assert shoal.get(holder.call.remote()) == 5
assert shoal.get(shoal.get_actor("before").call.remote()) == 5
shoal.get(holder.keep.remote([shoal.get_actor("after")]))
for name in "before", "after":
    end = time.monotonic() + 120
    while True:
        try:
            shoal.get_actor(name)
        except ValueError:
            break
        assert time.monotonic() < end
        time.sleep(0.01)
print("done", flush=True)
"""
    )
    driver.said("held")
    cluster.kill_head()
    (shoal_command.home.parent / "scripts" / "driver0.py.go").touch()
    assert driver.code() == 0, driver.err


def test_a_job_that_ends_without_a_head_is_reported_later(cluster, shoal_command):
    script = shoal_command.script(
        """
        import os, sys, time
        print("up", flush=True)
        while not os.path.exists(sys.argv[0] + ".go"):
            time.sleep(0.01)
        raise SystemExit(7)
        """
    )
    job = shoal_command.popen("submit", "--num-workers", "2", script)
    job.said("[rank0] up")
    job.said("[rank1] up")
    ranks = [w["pid"] for w in shoal_command.rows("workers") if w["role"].startswith("rank")]
    assert len(ranks) == 2
    # A stopped node starts no other head when this one dies. It reports the ends of its workers when it continues.
    [node] = cluster.pids("node")
    os.kill(node, signal.SIGSTOP)
    os.kill(cluster.pid("head"), signal.SIGKILL)
    script.with_name(script.name + ".go").touch()
    wait_until(lambda: not any(alive(pid) for pid in ranks), LIMIT_S)
    os.kill(node, signal.SIGCONT)
    assert job.code() == 7, job.err
    row = wait_until(lambda: next((j for j in shoal_command.rows("jobs") if j["state"] == "FAILED"), None), LIMIT_S)
    assert row["exit_code"] == 7


def test_a_waiting_drain_goes_on_with_the_next_head(cluster, shoal_command):
    second = shoal_command.json("start", "--address", cluster.address, "--num-cpus", "8")["node"]
    job = shoal_command.popen("submit", "--num-cpus", "8", "--", "sh", "-c", "echo begun; exec sleep 600")
    job.said("begun")
    drain = shoal_command.popen("drain", second, "--deadline", "600")
    wait_until(lambda: {n["id"]: n["state"] for n in shoal_command.rows("nodes")}[second] == "DRAINING", LIMIT_S)
    cluster.kill_head()
    assert {n["id"]: n["state"] for n in shoal_command.rows("nodes")}[second] == "DRAINING"
    shoal_command.json("drain", second, "--deadline", "0", "--no-wait")
    assert drain.code() == 0, drain.err
    assert drain.out == f"Node {second} is drained.\n"


def test_a_waiting_job_stop_goes_on_with_the_next_head(cluster, shoal_command):
    slow = "trap 'echo asked; while [ ! -e go ]; do sleep 0.05; done; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    job = shoal_command.popen("submit", "--", "sh", "-c", slow)
    job.said("begun")
    [row] = shoal_command.rows("jobs")
    stop = shoal_command.popen("job", "stop", row["id"])
    job.said("asked")
    cluster.kill_head()
    (shoal_command.home / "go").touch()
    assert stop.code() == 0, stop.err
    [row] = shoal_command.rows("jobs")
    assert row["state"] == "STOPPED"


def test_repeated_kills_of_the_head_lose_no_row(cluster, shoal_command):
    driver = shoal_command.driver(
        """
import shoal

@shoal.remote(num_cpus=0)
class Actor:
    def which(self): return self.name
    def __init__(self, name): self.name = name

@shoal.remote
def square(x): return x * x

shoal.init(address="auto")
print("up", flush=True)
kept = []
for i in range(20):
    kept.append(Actor.options(name=f"actor {i}", lifetime="detached").remote(i))
    passing = Actor.remote(-i)
    assert shoal.get(passing.which.remote()) == -i
    shoal.kill(passing)
    assert shoal.get([square.remote(i), kept[-1].which.remote()]) == [i * i, i]
assert shoal.get([a.which.remote() for a in kept]) == list(range(20))
print("done", flush=True)
"""
    )
    driver.said("up")
    dice = random.Random(3)
    kills = 0
    while driver.process.poll() is None and kills < 15:
        time.sleep(dice.uniform(0, 0.3))
        cluster.kill_head()
        kills += 1
    assert driver.code() == 0, driver.err
    assert kills >= 5
    rows = [row for row in shoal_command.rows("actors") if row["state"] == "ALIVE"]
    assert sorted(row["name"] for row in rows) == sorted(f"actor {i}" for i in range(20))
    database = sqlite3.connect(cluster.session / "state.sqlite")
    assert database.execute("SELECT count(*) FROM actors WHERE state = 'ALIVE'").fetchone() == (20,)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_orderly_ended_head_is_not_restarted(cluster, shoal_command):
    os.kill(cluster.pid("head"), signal.SIGTERM)
    wait_until(lambda: not cluster.pids("head"), LIMIT_S)
    time.sleep(0.5)
    assert not cluster.pids("head")
    assert shoal_command.json("stop")["stopped"]
    assert not cluster.pids("node")


def test_a_row_that_cannot_be_read_is_set_aside_and_the_rest_is_served(cluster, shoal_command):
    driver = shoal_command.driver(
        """
import shoal

@shoal.remote(num_cpus=0)
class Actor:
    def echo(self, x): return x

shoal.init(address="auto")
actors = [Actor.options(name=name, lifetime="detached").remote() for name in ("kept", "lost")]
assert shoal.get([a.echo.remote(3) for a in actors]) == [3, 3]
"""
    )
    assert driver.code() == 0, driver.err
    with sqlite3.connect(cluster.session / "state.sqlite", timeout=30) as database:
        database.execute("UPDATE actors SET record = x'6e6f6e65' WHERE name = 'lost'")
    cluster.kill_head()
    status = shoal_command.json("status")
    assert status["num_set_aside"] == 1
    assert "(lost)" in status["set_aside"][0]
    rows = {row["name"]: row for row in shoal_command.rows("actors")}
    assert rows["kept"]["state"] == "ALIVE"
    assert (rows["lost"]["state"], rows["lost"]["cause"]["reason"]) == ("DEAD", "RowSetAside")
    checks = {check["name"]: check for check in shoal_command.json("doctor")["checks"]}
    assert checks["stored state"]["verdict"] == "warning"
    assert [f.read_bytes() for f in (cluster.session / "set-aside").iterdir()] == [b"none"]


def test_a_head_that_does_not_start_says_why(cluster, shoal_command):
    def set_schema(version: str) -> None:
        with sqlite3.connect(cluster.session / "state.sqlite", timeout=30) as database:
            database.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (version,))

    set_schema("another")
    os.kill(cluster.pid("head"), signal.SIGKILL)
    why = "does not start: the head's state was written by another version of Shoal"
    wait_until(lambda: why in shoal_command("status").stderr, LIMIT_S)
    logs = [f.read_text() for f in (cluster.session / "logs").glob("head-*.log")]
    assert any("head not started: the head's state was written by another version" in log for log in logs)
    set_schema("2")
    wait_until(lambda: shoal_command("status").returncode == 0, LIMIT_S)
    assert not (cluster.session / "head-failure.json").exists()
