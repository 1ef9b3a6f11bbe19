"""The network interface that ``shoal start --interface`` chooses for control and data, on hosts with two networks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from launching.hosts import join, run_ranks, several_hosts

PROGRAM = Path(__file__).with_name("hosts_exchange.py")
ROOM = ("--resource", "one_each=1")
SECOND = "second"  # a cable beside the hosts' first one
BYTES = 8 << 20  # sent by each host in `hosts_exchange.py gather`


@pytest.fixture(scope="module")
def cabled():
    """Yields two hosts with two cables, and their cluster over the second one, in whose environment no variable names an interface."""
    for hosts in several_hosts(2, network="10.78.4"):
        hosts.add_cable(SECOND, "10.78.5")
        for host in hosts.all:
            host.names_device = False
        said = hosts.a.json("start", "--head", "--interface", SECOND, "--port", "0", "--num-cpus", "4", *ROOM)
        cluster = SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], token=Path(said["session"]) / "token")
        cluster.network, cluster.joined = said["network"], join(hosts.b, cluster, "--interface", "10.78.5.2", *ROOM)
        yield hosts, cluster


def test_the_interface_is_printed_on_every_host(cabled):
    hosts, cluster = cabled
    assert cluster.address.startswith("10.78.5.1:")
    assert cluster.network == {"interface": SECOND, "host": "10.78.5.1", "data_tls": False}
    assert cluster.joined["network"] == {"interface": SECOND, "host": "10.78.5.2", "data_tls": False}
    for host, address in ((hosts.a, "10.78.5.1"), (hosts.b, "10.78.5.2")):
        (row,) = [check for check in host.json("doctor")["checks"] if check["name"] == "data network"]
        assert f"{SECOND} ({address}) for control and data; data between hosts in clear text" in row["found"]


def test_data_and_control_travel_over_the_chosen_interface(cabled):
    hosts, _ = cabled
    before = [(host.traffic(SECOND), host.traffic("cable")) for host in hosts.all]
    found = run_ranks(hosts.a, PROGRAM, "gather")
    assert {f["transport"] for f in found.values()} == {"tcp"}
    assert sorted(f["variables"]["SHOAL_INTERFACE"] for f in found.values()) == ["10.78.5.2", SECOND]  # as it was named on each host
    for f in found.values():
        assert f["variables"]["GLOO_SOCKET_IFNAME"] == SECOND
        assert f["variables"]["NCCL_SOCKET_IFNAME"] == f"={SECOND}"  # without '=' NCCL takes it for a prefix
    for host, (second, first) in zip(hosts.all, before, strict=True):
        assert (host.traffic(SECOND) - second).sent > BYTES
        assert (host.traffic("cable") - first).sent < 10_000


def test_the_environment_of_a_job_overrides_the_interface(cabled):
    hosts, _ = cabled
    before = [host.traffic("cable") for host in hosts.all]
    found = run_ranks(hosts.a, PROGRAM, "gather", SHOAL_INTERFACE="cable")
    assert {f["variables"]["SHOAL_INTERFACE"] for f in found.values()} == {"cable"}
    for host, first in zip(hosts.all, before, strict=True):
        assert (host.traffic("cable") - first).sent > BYTES


TRAINER = """
import os
from shoal.train import ScalingConfig, Trainer

scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0, "one_each": 1})
print("interfaces", sorted(Trainer(lambda: os.environ["SHOAL_INTERFACE"], scaling_config=scaling).fit().returns))
"""


def test_a_trainers_ranks_have_the_interface_of_their_nodes_or_of_the_jobs_environment(cabled):
    hosts, _ = cabled
    script = hosts.a.script(TRAINER, "trainer.py")
    for variables, interfaces in (({}, ["10.78.5.2", SECOND]), ({"SHOAL_INTERFACE": "cable"}, ["cable", "cable"])):
        done = hosts.a("submit", script, env=hosts.a.env(**variables))
        assert f"interfaces {interfaces}" in done.stdout, done.stdout + done.stderr


def test_unknown_interfaces_are_refused(cabled, tmp_path):
    hosts, cluster = cabled
    text = run_ranks(hosts.a, PROGRAM, "gather", code=1, SHOAL_INTERFACE="eth99")
    assert "no interface 'eth99'" in text
    tmp_path.chmod(0o700)
    env = {**hosts.b.env(), "SHOAL_HOME": str(tmp_path)}
    credentials = ("--token-file", cluster.token, "--ca-fingerprint", cluster.fingerprint)
    for words in (("--head", "--port", "0"), ("--address", cluster.address, *credentials)):
        for wrong, message in (("eth99", "no interface 'eth99'"), ("10.78.9.9", "no interface of this host has the address 10.78.9.9")):
            done = hosts.b("start", *words, "--interface", wrong, env=env)
            assert done.returncode != 0
            assert message in done.stderr
            assert f"{SECOND} (10.78.5.2)" in done.stderr
        assert "exclude each other" in hosts.b("start", *words, "--interface", SECOND, "--host", "10.78.5.2", env=env).stderr
    assert not list(tmp_path.iterdir())


def test_further_nodes_of_a_host_have_its_interface(cabled):
    hosts, cluster = cabled
    done = hosts.b("start", "--address", cluster.address, "--interface", "cable", "--num-cpus", "1")
    assert done.returncode != 0
    assert "this host is in the cluster with the address 10.78.5.2, and --interface cable has 10.78.4.2" in done.stderr
    done = hosts.b("start", "--address", cluster.address, "--host", "10.78.4.2", "--num-cpus", "1")
    assert done.returncode != 0
    assert "this host is in the cluster with the address 10.78.5.2, and --host is 10.78.4.2" in done.stderr
