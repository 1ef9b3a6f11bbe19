"""Heads on two hosts over one etcd, all with TLS: the leader is killed, and its host is cut off."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from launching.etcd import Etcd
from launching.hosts import ACTORS, B, two_hosts
from launching.leftovers import wait_until

LIMIT_S = 240  # hang guard

DRIVER = (
    ACTORS
    + """
import time
shoal.init(address=ADDRESS)
there, here = on("a"), on("b")
assert shoal.get([there.echo.remote(1), here.echo.remote(2)]) == [1, 2]
print("before", flush=True)
while not os.path.exists(sys.argv[0] + ".go"):
    time.sleep(0.01)
assert shoal.get(on("b").echo.remote(3)) == 3       # who asks the head does not notice
assert shoal.get(here.echo.remote(4)) == 4
if LOST:
    try:
        shoal.get(there.echo.remote(5))
    except shoal.exceptions.RayActorError as error:
        print("lost", flush=True)
else:
    assert shoal.get(there.echo.remote(5)) == 5
print("after", flush=True)
"""
)


class Heads:
    """Two heads on hosts A and B; the one on A leads. etcd runs on B."""

    def __init__(self, hosts, etcd):
        self.hosts, self.store = hosts, ["--store", etcd.store("train"), *etcd.store_files()]
        said = self.start(hosts.a, "a")
        self.session, self.leader = Path(said["session"]), said["address"]
        self.fingerprint = said["ca_fingerprint"]
        copy = hosts.b.home / "copy"  # the certificate authority with its private key, which the second head needs
        shutil.copytree(self.session / "tls", copy)
        self.second = self.start(hosts.b, "b", "--token-file", self.session / "token", "--authority", copy)
        assert self.second["ca_fingerprint"] == self.fingerprint
        assert self.second["leader"] == self.leader

    def start(self, host, label, *words):
        return host.json(
            "start", "--head", "--host", host.address, "--port", "0", *self.store, "--num-cpus", "4", "--label", f"host={label}",
            "--include-dashboard", "false", *words,
        )  # fmt: skip

    def status(self) -> dict:
        return self.hosts.b.json("status", "--address", self.second["address"])

    def driver(self, lost: bool):
        text = DRIVER.replace("ADDRESS", repr(f"{self.leader},{self.second['address']}")).replace("LOST", str(lost))
        running = self.hosts.b.driver(text)
        running.said("before", LIMIT_S)
        wait_until(lambda: len(self.status()["heads"]) == 2, LIMIT_S, "everybody knows both heads")
        return running

    def go_on(self) -> None:
        [script] = (self.hosts.b.home.parent / "scripts").glob("driver*.py")
        Path(f"{script}.go").touch()


@pytest.fixture
def heads():
    for hosts in two_hosts():
        etcd = Etcd(B, hosts.b.before, tls=True)
        try:
            yield Heads(hosts, etcd)
            for host in (hosts.b, hosts.a):
                host("stop", "--all")
        finally:
            etcd.remove()


def test_a_killed_leader_on_another_host_is_replaced(heads):
    driver = heads.driver(lost=False)
    killed = heads.status()["head_pid"]
    os.kill(killed, signal.SIGKILL)
    heads.go_on()
    assert driver.code(LIMIT_S) == 0, driver.err
    assert heads.status()["head_pid"] != killed


def test_a_cut_off_host_loses_only_its_own_head(heads):
    driver = heads.driver(lost=True)
    heads.hosts.pull_cable()
    heads.go_on()
    assert driver.code(LIMIT_S) == 0, driver.err
    assert "lost" in driver.out
    assert heads.status()["heads"][0] == heads.second["address"]


def test_a_head_with_another_certificate_authority_is_refused(heads):
    refused = heads.hosts.b(
        "start", "--head", "--host", B, "--port", "0", *heads.store, "--token-file", heads.session / "token",
        "--include-dashboard", "false",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "another authority" in refused.stderr
    assert "--authority" in refused.stderr
