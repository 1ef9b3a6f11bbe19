"""A cluster over two hosts: joining, calls in both directions, and refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching.commands import LIMIT_S
from launching.hosts import cluster_of, drive, two_hosts


@pytest.fixture(scope="module")
def both():
    """Yields two hosts and the report with which the head's `shoal start` ended."""
    for hosts in two_hosts():
        yield hosts, cluster_of(hosts)


CALLS = """
shoal.init(address=os.environ["HEAD"])
here, there = on(os.environ["HERE"]), on(os.environ["THERE"])
assert shoal.get(here.node.remote()) != shoal.get(there.node.remote())
assert shoal.get(here.node.remote()) == shoal.get_runtime_context().get_node_id()
for size in (1, 1 << 20, 100 << 20):
    value = np.arange(size, dtype=np.uint8)
    for actor in (here, there):
        assert np.array_equal(shoal.get(actor.echo.remote(value)), value), size
    assert np.array_equal(shoal.get(there.ask.remote(here, value)), value), size
assert shoal.get(there.echo.remote("text")) == "text"
assert shoal.get([there.echo.remote(i) for i in range(1000)]) == list(range(1000))
for actor in (here, there):
    items = [shoal.get(ref) for ref in actor.items.remote([0, 1, 1 << 20, 10 << 20])]
    assert [len(item) for item in items] == [0, 1, 1 << 20, 10 << 20]
    assert np.array_equal(items[2], np.arange(1 << 20, dtype=np.uint8))
    for size, count in ((1, 1001), (200_000, 300), (1 << 20, 40)):
        refs = [shoal.put(np.zeros(size, dtype=np.uint8)) for _ in range(count)]
        assert shoal.get(actor.total.remote(*refs)) == (count, count * size)
try:
    shoal.get(there.echo.remote())
    raise AssertionError("a call without its argument")
except TypeError as error:
    assert "value" in str(error)
print("all is well")
"""


def test_actors_of_both_hosts_call_each_other(both):
    hosts, cluster = both
    assert "all is well" in drive(hosts.a, CALLS, HEAD=cluster.address, HERE="a", THERE="b")


def test_a_driver_on_the_joined_host_uses_the_cluster(both):
    hosts, cluster = both
    assert "all is well" in drive(hosts.b, CALLS, HEAD=cluster.address, HERE="b", THERE="a")


def test_commands_work_on_joined_and_other_hosts(both, tmp_path):
    hosts, cluster = both
    assert hosts.b.json("status")["nodes"] == 2
    stranger = {**hosts.b.env(), "SHOAL_HOME": str(tmp_path)}
    tmp_path.chmod(0o700)
    words = ("--address", cluster.address, "--ca-fingerprint", cluster.fingerprint)
    assert hosts.b.json("status", *words, "--token-file", cluster.token, env=stranger)["nodes"] == 2
    stranger |= {"SHOAL_TOKEN": cluster.token.read_text(), "SHOAL_CA_FINGERPRINT": cluster.fingerprint}
    assert hosts.b.json("status", "--address", cluster.address, env=stranger)["nodes"] == 2
    script = hosts.b.script("print('ran', __import__('sys').argv[1])", "job.py")
    done = hosts.b("submit", "--address", cluster.address, script, "there", env=stranger)
    assert (done.returncode, done.stdout) == (0, "ran there\n"), done.stderr
    assert "ran there" in hosts.b("logs", "--address", cluster.address, env=stranger).stdout
    assert not list(tmp_path.iterdir())  # the token leaves no file behind


def _refusal(host, cluster, *words, home):
    done = host("start", "--address", cluster.address, *words, "--json", env={**host.env(), "SHOAL_HOME": str(home)})
    assert done.returncode != 0
    assert not list(home.iterdir()), "something is left of a host that was refused"
    return done.stderr + done.stdout


def test_wrong_tokens_and_fingerprints_are_refused(both, tmp_path):
    hosts, cluster = both
    tmp_path.chmod(0o700)
    wrong = hosts.b.home.parent / "wrong-token"
    wrong.write_text("ab" * 32)
    token, fingerprint = ("--token-file", cluster.token), ("--ca-fingerprint", cluster.fingerprint)

    def refused(*words):
        return _refusal(hosts.b, cluster, *words, home=tmp_path)

    assert "CertificateRefused" in refused(*token, "--ca-fingerprint", "sha256:" + "ab" * 32)
    assert "TokenRefused" in refused("--token-file", wrong, *fingerprint)
    assert "TlsRequired" in refused(*token)
    assert "--token-file" in refused(*fingerprint)
    assert "not a fingerprint" in refused(*token, "--ca-fingerprint", "abc")
    assert hosts.b.json("status")["nodes"] == 2


def test_the_head_sends_nothing_to_clear_text_clients(both):
    hosts, cluster = both
    host, _, port = cluster.address.partition(":")
    ask = f"""
import socket
with socket.create_connection(({host!r}, {port})) as s:
    s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    said = b""
    while piece := s.recv(4096):
        said += piece
print(said.hex())
"""
    done = subprocess.run([*hosts.b.before, sys.executable, "-c", ask], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    said = bytes.fromhex(done.stdout)
    assert said[:1] in (b"", b"\x15"), said  # at most a TLS alert
    assert b"SHL1" not in said


def test_private_keys_are_readable_by_their_owner_only(both):
    _, cluster = both
    joined = Path(cluster.joined["session"])
    for folder in (cluster.session / "tls", joined / "tls"):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert {f.name: f.stat().st_mode & 0o777 for f in folder.iterdir()} == {f.name: 0o600 for f in folder.iterdir()}
    assert (cluster.session / "tls" / "ca.key").exists()
    assert not (joined / "tls" / "ca.key").exists()
