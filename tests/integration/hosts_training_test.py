"""Ranks on several hosts train to the same bits as the same ranks on one host, which share memory."""

import json
import sys
from pathlib import Path

import pytest
from hosts_training import TRAININGS
from launching.hosts import cluster_of, several_hosts

PROGRAM = Path(__file__).with_name("hosts_training.py")
LIMIT_S = 600  # hang guard

# Ranks that each host has room for, by resource. With "one", all ranks lie on host a.
ROOM = {"one": [4, 0, 0], "pair": [1, 1, 0], "two_each": [2, 2, 0], "two_and_one": [2, 1, 0], "trio": [1, 1, 1]}
# Ranks on several hosts, the number of hosts, and the same ranks on one host.
PLACES = {"2:pair": (2, "2:one"), "4:two_each": (2, "4:one"), "3:two_and_one": (2, "3:one"), "3:trio": (3, "3:one")}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of all trainings, by place and training."""
    out = tmp_path_factory.mktemp("out") / "found.json"
    for hosts in several_hosts(3, network="10.78.1"):
        room = {h.name: [w for name, n in ROOM.items() if n[i] for w in ("--resource", f"{name}={n[i]}")] for i, h in enumerate(hosts.all)}
        cluster = cluster_of(hosts, room)
        places = [*PLACES, *dict.fromkeys(one for _, one in PLACES.values())]
        driver = hosts.a.program(
            [sys.executable, str(PROGRAM), cluster.address, str(out), *places], SHOAL_TIMEOUT="20", OMP_NUM_THREADS="1"
        )
        assert driver.code(LIMIT_S) == 0, driver.err
        yield json.loads(out.read_text())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("training", TRAININGS)
def test_several_hosts_train_to_the_bits_of_one(found, training, place):
    num_hosts, one = PLACES[place]
    apart, together = found[place][training], found[one][training]
    assert "error" not in together, together["error"]
    assert "error" not in apart, apart["error"]
    assert len({r["node"] for r in apart["ranks"]}) == num_hosts
    assert len({r["node"] for r in together["ranks"]}) == 1
    assert {r["transport"] for r in together["ranks"]} == {"shm"}
    assert "shm" not in {r["transport"] for r in apart["ranks"]}
    for rank, (ours, theirs) in enumerate(zip(apart["ranks"], together["ranks"], strict=True)):
        assert ours["losses"] == theirs["losses"], f"the losses of rank {rank}"
        assert ours["parameters"] == theirs["parameters"], f"parameters, on rank {rank}"
