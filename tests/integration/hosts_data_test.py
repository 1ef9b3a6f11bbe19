"""Encryption of data between hosts by ``shoal start --data-tls``: frames on a wire, the bits of a training, ranks that disagree."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hosts_exchange import MARK
from launching.hosts import cluster_of, run_ranks, several_hosts

PROGRAM = Path(__file__).with_name("hosts_exchange.py")
ROOM = ("--resource", "one_each=1")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The findings of the ranks and the bytes on the wire, by the option of the head: --data-tls or none. Also errors of ranks that ask for
    another transport, and of a host."""
    out = {}
    for option in ("", "--data-tls"):
        for hosts in several_hosts(2, network="10.78.6"):
            cluster = cluster_of(hosts, {"a": [*ROOM, *([option] if option else [])], "b": ROOM})
            wire = tmp_path_factory.mktemp("wire") / "frames"
            listening = hosts.b.listen_to_wire(wire)
            ranks = run_ranks(hosts.a, PROGRAM)
            listening.process.terminate()
            listening.code()
            out[option] = SimpleNamespace(ranks=ranks, wire=wire.read_bytes(), joined=cluster.joined)
            if option:
                out["tcp"] = run_ranks(hosts.a, PROGRAM, code=1, SHOAL_TRANSPORT="tcp")
                out["gloo"] = run_ranks(hosts.a, PROGRAM, "gather", code=1, SHOAL_TRANSPORT="gloo")
            else:
                home = hosts.b.home.parent / "stranger"
                home.mkdir(mode=0o700)
                words = ("--address", cluster.address, "--token-file", cluster.token, "--ca-fingerprint", cluster.fingerprint)
                done = hosts.b("start", *words, "--data-tls", env={**hosts.b.env(), "SHOAL_HOME": str(home)})
                out["joining"] = (done.returncode, done.stderr, list(home.iterdir()))
    return out


def test_gathered_parameters_are_on_the_wire_in_clear_text_only_without_data_tls(found):
    assert MARK * 8 in found[""].wire  # else the search would find nothing in any case
    assert MARK not in found["--data-tls"].wire
    assert len(found["--data-tls"].wire) > 64 << 10  # the first layer's rows


def test_hosts_that_join_inherit_data_tls(found):
    assert found["--data-tls"].joined["network"]["data_tls"]
    assert not found[""].joined["network"]["data_tls"]
    assert {f["transport"] for f in found["--data-tls"].ranks.values()} == {"tls"}
    assert {f["transport"] for f in found[""].ranks.values()} == {"tcp"}


def test_encryption_changes_no_bit_of_a_training(found):
    for rank in (0, 1):
        assert found["--data-tls"].ranks[rank]["digest"] == found[""].ranks[rank]["digest"]


def test_ranks_that_ask_for_another_transport_are_refused(found):
    for kind in ("tcp", "gloo"):
        assert f"this cluster's data travels in TLS only, and SHOAL_TRANSPORT asks for '{kind}'" in found[kind]


def test_a_host_that_asks_for_data_tls_does_not_join_a_cluster_without(found):
    code, text, left = found["joining"]
    assert code != 0
    assert "the cluster's head was started without --data-tls" in text
    assert not left
