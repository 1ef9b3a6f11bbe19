"""The hosts of tests: three on a switch, whose links count bytes, are limited, cut and healed; and nothing is left of them."""

import re
import subprocess
import sys

import pytest
from launching.commands import LIMIT_S
from launching.hosts import TC, Hosts, several_hosts

SIZE = 3_000_000

RECEIVE = """
import socket
with socket.create_server(("", 7777)) as server:
    print("ready", flush=True)
    stream, _ = server.accept()
    total = 0
    while piece := stream.recv(1 << 16):
        total += len(piece)
    print("received", total, flush=True)
"""
SEND = f"import socket, sys; socket.create_connection((sys.argv[1], 7777), timeout=float(sys.argv[2])).sendall(bytes({SIZE}))"


@pytest.fixture(scope="module")
def hosts():
    yield from several_hosts(3, network="10.78.2")


def send(source, target, timeout):
    argv = [*source.before, sys.executable, "-c", SEND, target.address, str(timeout)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)


def test_links_count_the_bytes_of_their_host(hosts):
    a, _, c = hosts.all
    receiver = c.program([sys.executable, "-c", RECEIVE])
    receiver.said("ready")
    before = [host.traffic() for host in hosts.all]
    assert send(a, c, LIMIT_S).returncode == 0
    receiver.said(f"received {SIZE}")
    of_a, of_b, of_c = (host.traffic() - old for host, old in zip(hosts.all, before, strict=True))
    assert SIZE < of_a.sent < 1.1 * SIZE
    assert SIZE < of_c.received < 1.1 * SIZE
    assert of_b.sent + of_b.received < 0.01 * SIZE
    assert receiver.code() == 0


def test_a_cut_host_is_reached_again_when_its_link_is_healed(hosts):
    a, _, c = hosts.all
    receiver = c.program([sys.executable, "-c", RECEIVE])
    receiver.said("ready")
    hosts.cut(c)
    before = c.traffic()
    assert "timed out" in send(a, c, 0.5).stderr
    assert (c.traffic() - before).received == 0
    hosts.heal(c)
    assert send(a, c, LIMIT_S).returncode == 0
    receiver.said(f"received {SIZE}")
    assert receiver.code() == 0


def limits(namespace):
    said = subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", TC, "qdisc", "show"], capture_output=True, text=True, check=True)
    return re.findall(r"qdisc tbf .* rate (\S+)", said.stdout)


def test_a_rate_limits_both_ends_of_every_cable(hosts):
    for gbit, rates in ((1, ["1Gbit"]), (0.5, ["500Mbit"]), (None, [])):
        hosts.set_rate(gbit)
        assert [limits(host.namespace) for host in hosts.all] == [rates] * 3
        assert limits(f"{hosts.a.namespace[:-2]}-switch") == rates * 3


def test_ended_hosts_leave_no_namespace_and_no_process(tmp_path):
    homes = [tmp_path / str(i) for i in range(3)]
    for home in homes:
        home.mkdir()
    made = Hosts(homes, network="10.78.3", cores=[0, 0, 0])
    running = made.b.program([sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(1000)"])
    running.said("runs")
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert listed.count(made.a.namespace[:-2]) == 4
    made.end(kill=True)
    assert running.code() == -9
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert made.a.namespace[:-2] not in listed
