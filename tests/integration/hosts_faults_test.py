"""The traffic between two hosts, and a cable that is pulled; each test has a cluster of its own."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching.commands import Cluster
from launching.hosts import ACTORS, cluster_of, drive, join, two_hosts
from launching.leftovers import alive, wait_until

MARKER = "a text that nobody on the wire shall read"


@pytest.fixture
def own():
    """Yields two hosts and their cluster."""
    for hosts in two_hosts():
        yield hosts, cluster_of(hosts)


def test_traffic_between_hosts_is_encrypted(own, tmp_path):
    hosts, cluster = own
    capture = tmp_path / "capture"
    wire = hosts.a.listen_to_wire(capture)
    text = f"{MARKER!r} * 2000"
    join(hosts.b, cluster)  # a second node, so that the traffic includes a join
    drive(
        hosts.a,
        f"shoal.init(address={cluster.address!r})\nthere = on('b')\nassert shoal.get(there.echo.remote({text})) == {text}\n",
    )
    # A control: the recording shows the same text when it is sent in plain TCP.
    serve = "import socket; s = socket.create_server(('', 7777)); print('ready', flush=True); c, _ = s.accept(); print(len(c.recv(99)))"
    server = hosts.b.program([sys.executable, "-c", serve])
    server.said("ready")
    say = f"import socket; socket.create_connection(('{hosts.b.address}', 7777)).sendall(b'in the clear: {MARKER}')"
    assert hosts.a.program([sys.executable, "-c", say]).code() == 0
    assert server.code() == 0
    wait_until(lambda: b"in the clear: " in capture.read_bytes(), 10, "the text in the clear")
    wire.signal(signal.SIGTERM)
    wire.code()
    seen = capture.read_bytes()
    assert len(seen) > 2 * 2000 * len(MARKER)
    assert seen.count(MARKER.encode()) == 1
    assert b"SHL1" not in seen  # no hello outside of TLS
    assert cluster.token.read_text().strip().encode() not in seen
    assert bytes.fromhex(cluster.token.read_text().strip()) not in seen
    key = next(line for line in (cluster.session / "tls" / "node.key").read_text().splitlines() if not line.startswith("-"))
    assert key.encode() not in seen


def test_a_pulled_cable_ends_the_node_behind_it(own):
    hosts, cluster = own
    driver = hosts.a.driver(
        ACTORS
        + f"""
from shoal.exceptions import ActorDiedError
shoal.init(address={cluster.address!r})
here, there = on("a"), on("b")
node = shoal.get(there.node.remote())
assert shoal.get(there.ask.remote(here, 1)) == 1
print("calling", flush=True)
try:
    while True:
        shoal.get(there.echo.remote(1))
except ActorDiedError as error:
    assert node in str(error), (node, str(error))
    print("died with its node", flush=True)
assert shoal.get(here.echo.remote(2)) == 2
"""
    )
    driver.said("calling")
    hosts.pull_cable()
    assert driver.code() == 0, driver.err
    assert "died with its node" in driver.out
    states = {n["labels"]["host"]: n["state"] for n in hosts.a.rows("nodes")}
    assert states == {"a": "ALIVE", "b": "DEAD"}


def test_a_host_joins_the_cluster_that_took_the_address_of_its_old_one(own):
    hosts, old = own
    there, here = Cluster(old.address, Path(old.joined["session"])), Cluster(old.address, old.session)
    left, head = there.pid("node"), here.pid("head")
    for pid in (here.pid("node"), head):  # the node first, as it would start another head
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(head), 60, "the end of the head")
    words = ("--host", hosts.a.address, "--port", old.address.rpartition(":")[2], "--num-cpus", "1", "--include-dashboard", "false")
    said = hosts.a.json("start", "--head", *words)
    new = SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], token=Path(said["session"]) / "token")
    assert new.address == old.address
    refused = hosts.b("status")
    assert refused.returncode == 4
    assert "another cluster answers" in refused.stderr
    join(hosts.b, new)
    assert not alive(left)
    assert hosts.b.json("status")["nodes"] == 2


def test_heads_unreachable_for_others_are_refused(shoal_command):
    done = shoal_command("start", "--head", "--host", "0.0.0.0")
    assert done.returncode != 0
    assert "every address" in done.stderr
    done = shoal_command("start", "--head", "--dashboard-host", "0.0.0.0")
    assert done.returncode != 0
    assert "loopback" in done.stderr
    done = shoal_command("status", "--address", "192.0.2.1:7460", "--token-file", _token(shoal_command))
    assert "TlsRequired" in done.stderr


def _token(command):
    path = command.home.parent / "token"
    path.write_text("ab" * 32)
    return path
