"""Several heads over a real etcd: one leads, another takes over, and running work goes on."""

import json
import os
import signal
import time

import pytest
from launching.etcd import Etcd
from launching.leftovers import alive, wait_until

LIMIT_S = 240  # hang guard


@pytest.fixture
def etcd(home, request):  # depends on `home`, so that etcd ends before home's check for leftovers
    server = Etcd(tls=getattr(request, "param", False))
    yield server
    server.remove()


class Heads:
    """Two heads of one cluster, each beside a node. The first leads."""

    def __init__(self, shoal, etcd, name):
        self.shoal, self.etcd, self.store = shoal, etcd, etcd.store(name)
        token = shoal.home.parent / "token"
        token.write_text(f"{17:064x}\n")
        token.chmod(0o600)
        self.token = token
        # Paths relative to the folder in which the command runs; the heads run in another one.
        self.files = [os.path.relpath(word, shoal.home) if word in etcd.files else word for word in etcd.store_files()]
        self.members = [self.start(), self.start()]

    def start(self):
        words = ["--store", self.store, *self.files, "--token-file", str(self.token), "--include-dashboard", "false"]
        return self.shoal.start(*words, cpus=2)

    @property
    def address(self) -> str:
        return ",".join(m.address for m in self.members)

    def status(self) -> dict:
        """The leader's status, once there are a leader, two heads and two nodes."""
        found = {}

        def asked() -> bool:
            done = self.shoal("status", "--json", "--address", self.address)
            if done.returncode == 0:
                found.update(json.loads(done.stdout))
            return done.returncode == 0 and len(found["heads"]) == 2 and found["nodes"] == 2

        wait_until(asked, LIMIT_S, "two heads and two nodes")
        return found

    def leader(self):
        leads = self.status()["heads"][0]
        return next(m for m in self.members if m.address == leads)

    def rows(self, what: str) -> dict:
        return {row["id"]: row for row in self.shoal.rows(what, "--address", self.address)}

    def kept(self) -> tuple:
        """The process of the driver's first actor."""
        [row] = [row for row in self.rows("actors").values() if row["name"] == "kept"]
        return row["id"], row["pid"], row["state"]


@pytest.fixture
def heads(shoal_command, etcd, request):
    out = Heads(shoal_command, etcd, request.function.__name__)
    yield out
    shoal_command.json("stop", "--all")


DRIVER = """
import os, sys, time
import shoal
from shoal.util import placement_group

@shoal.remote(num_cpus=0)
class Counter:
    def __init__(self): self.n = 0
    def add(self):
        self.n += 1
        return self.n

def wait_for(step):
    print("at", step, flush=True)
    while not os.path.exists(f"{sys.argv[0]}.{step}"):
        time.sleep(0.01)

shoal.init(address=ADDRESS)
mine = Counter.options(name="kept", lifetime="detached").remote()
assert shoal.get(mine.add.remote()) == 1
for step in range(STEPS):
    wait_for(step)
    assert shoal.get(mine.add.remote()) == step + 2               # what it had in memory is there
    other = Counter.remote()                                      # who asks the head does not notice
    assert shoal.get(other.add.remote()) == 1
    assert shoal.get(placement_group([{"CPU": 0.1}]).ready()) is not None
    assert shoal.get_actor("kept") is not None
    print("did", step, flush=True)
print("done", flush=True)
"""


class Driver:
    def __init__(self, heads, steps):
        self.heads, text = heads, DRIVER.replace("ADDRESS", repr(heads.address)).replace("STEPS", str(steps))
        self.running = heads.shoal.driver(text)
        self.running.said("at 0", LIMIT_S)

    def go_on(self, step: int) -> None:
        scripts = self.heads.shoal.home.parent / "scripts"
        (scripts / f"driver0.py.{step}").touch()
        self.running.said(f"did {step}", LIMIT_S)


def test_another_head_takes_over_from_a_killed_leader(heads):
    driver = Driver(heads, 3)
    for step in range(3):
        before = heads.kept()
        killed = heads.leader().pid("head")
        os.kill(killed, signal.SIGKILL)
        driver.go_on(step)
        assert heads.kept() == before
        assert heads.status()["head_pid"] != killed
    assert driver.running.code(LIMIT_S) == 0, driver.running.err


@pytest.mark.parametrize("etcd", [True], indirect=True, ids=["tls"])
def test_a_killed_leader_is_replaced_and_restarted_over_tls(heads):
    driver = Driver(heads, 1)
    assert heads.status()["store"] == heads.store
    assert heads.store.startswith("etcds://")
    before, first = heads.kept(), heads.leader()
    killed = first.pid("head")
    os.kill(killed, signal.SIGKILL)
    driver.go_on(0)
    wait_until(lambda: first.pids("head") not in ([killed], []), LIMIT_S, "its node starts another")
    heads.status()  # the new head reached etcd, so that the status lists both heads
    assert heads.kept() == before
    assert driver.running.code(LIMIT_S) == 0, driver.running.err


def test_an_orderly_ended_leader_is_replaced_at_once_and_not_restarted(heads):
    driver = Driver(heads, 1)
    first = heads.leader()
    os.kill(first.pid("head"), signal.SIGTERM)
    driver.go_on(0)
    assert driver.running.code(LIMIT_S) == 0, driver.running.err
    status = heads.shoal.json("status", "--address", heads.address)
    assert status["heads"] == [m.address for m in heads.members if m is not first]
    assert not first.pids("head")


def test_a_head_suspended_beyond_its_lease_decides_nothing(heads):
    driver = Driver(heads, 1)
    first = heads.leader()
    pid = first.pid("head")
    os.kill(pid, signal.SIGSTOP)
    driver.go_on(0)  # the call goes through the other head, which leads now
    before = heads.rows("actors")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: first.pids("head") not in ([pid], []), LIMIT_S, "it ends by itself, and its node starts another")
    assert heads.status()["heads"][1] == first.address  # the head that was suspended comes second in the list, after the leader
    assert heads.rows("actors").keys() == before.keys()
    [log] = (first.session / "logs").glob(f"head-{pid}.log")
    assert "no longer leads" in log.read_text()
    assert driver.running.code(LIMIT_S) == 0, driver.running.err


def test_a_restart_of_etcd_loses_nothing(heads, etcd):
    driver = Driver(heads, 1)
    heads.status()  # waits until each node has the addresses of both heads
    before = heads.kept()
    etcd.crash()
    time.sleep(4)  # longer than the lease: no head leads, and running work goes on
    etcd.start()
    driver.go_on(0)
    heads.status()
    assert heads.kept() == before
    assert driver.running.code(LIMIT_S) == 0, driver.running.err


def test_status_shows_store_and_standby_and_refuses_another_token(heads, shoal_command):
    status = heads.status()
    assert status["store"] == heads.store
    assert sorted(status["heads"]) == sorted(m.address for m in heads.members)
    text = shoal_command("status", "--address", heads.address).stdout
    assert f"store    {heads.store}\n" in text
    assert f"standby  {status['heads'][1]}\n" in text
    refused = shoal_command("start", "--head", "--port", "0", "--store", heads.store)
    assert refused.returncode != 0
    assert "have another token" in refused.stderr
    assert "--token-file" in refused.stderr


def test_a_head_that_stands_by_has_started(heads):
    leads = heads.leader()
    waits = next(m for m in heads.members if m is not leads)
    note = waits.session / "head-failure.json"
    note.write_text(json.dumps({"message": "of an earlier start"}))
    os.kill(waits.pid("head"), signal.SIGKILL)
    wait_until(lambda: not note.exists(), LIMIT_S, "the end of the note about an earlier start")
    assert heads.leader() is leads


def test_stop_ends_every_head_and_node(heads, shoal_command):
    assert shoal_command.json("stop", "--address", heads.members[1].address)["stopped"]
    nothing_runs(heads)


def nothing_runs(heads):
    """Waits until every head and node has ended. The file of one that was killed, or that failed, stays in its session."""

    def runs():
        return any(alive(pid) for m in heads.members for role in ("head", "node") for pid in m.pids(role))

    wait_until(lambda: not runs(), LIMIT_S, "nothing runs")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_stop_during_a_change_of_the_leader_ends_every_head_and_node(heads, shoal_command, number):
    first = heads.leader()
    [other] = [m for m in heads.members if m is not first]
    leader = first.pid("head")
    os.kill(leader, number)
    assert shoal_command.json("stop", "--address", other.address)["stopped"]
    if number == signal.SIGSTOP:
        os.kill(leader, signal.SIGCONT)
    nothing_runs(heads)


def test_wrong_options_are_errors_that_name_them(shoal_command):
    for store, text in (("etcd://127.0.0.1:1", "names no cluster"), ("redis://x", "not a kind of store that Shoal supports")):
        refused = shoal_command("start", "--head", "--port", "0", "--store", store)
        assert refused.returncode != 0
        assert text in refused.stderr
    refused = shoal_command("start", "--head", "--port", "0", "--store", "etcd://127.0.0.1:1/x")
    assert refused.returncode != 0
    assert "127.0.0.1:1" in refused.stderr


def test_a_store_beyond_loopback_needs_tls_or_an_explicit_option(shoal_command):
    def start(*words, env=None):
        done = shoal_command("start", "--head", "--port", "0", *words, env={**shoal_command.env(), **(env or {})})
        return done.returncode, done.stderr

    there = ["--store", "etcd://0.0.0.0:1/x"]  # 0.0.0.0 is on this host, but no loopback address
    code, said = start(*there)
    assert code == 4
    assert "no TLS" in said
    assert "--store-in-clear-text" in said
    for words, env in ((["--store-in-clear-text"], {}), ([], {"SHOAL_STORE_IN_CLEAR_TEXT": "1"})):
        code, said = start(*there, *words, env=env)
        assert code == 5, said  # Unavailable: no etcd listens at this address
        assert "no TLS" not in said

    code, said = start("--store", "etcds://127.0.0.1:1/x")
    assert code != 0
    assert "--store-ca-file" in said
    files = {f"SHOAL_STORE_{what}_FILE": "nowhere.pem" for what in ("CA", "CERT", "KEY")}
    code, said = start("--store", "etcds://127.0.0.1:1/x", env=files)
    assert code != 0
    assert f"{shoal_command.home}/nowhere.pem" in said
    code, said = start("--store-ca-file", "ca.pem")
    assert code == 2
    assert "say --store" in said


def test_durability_is_an_option(shoal_command):
    shoal_command.start("--durability", "fsync", "--include-dashboard", "false")
    assert shoal_command.json("status")["store"] == "sqlite, durability fsync"
    shoal_command.json("stop")
    shoal_command.start("--include-dashboard", "false")
    assert shoal_command.json("status")["store"] == "sqlite, durability process"
    shoal_command.json("stop")
    assert shoal_command("start", "--head", "--durability", "none").returncode != 0
