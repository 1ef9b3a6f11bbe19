"""The deaths of workers and of whole hosts, in an elastic training on two hosts: no step is lost, and none is made twice."""

import json
import sys
from pathlib import Path

import pytest
import recovery_loops as r
from hosts import cluster_of, join, several_hosts

PROGRAM = Path(__file__).with_name("hosts_recovery.py")
LIMIT_S = 120  # hang guard
# Workers that each host has room for, by resource. The driver is on host a.
ROOM = {"pair": [1, 1, 0], "two": [2, 2, 0], "trio": [1, 1, 1]}
TWO_AND_TWO = {"resource": "two", "bounds": (1, 4)}  # ranks 0 and 1 on host a, 2 and 3 on host b
ONE_AND_ONE = {"resource": "pair", "bounds": (1, 2)}
THREE = {"resource": "trio", "bounds": (1, 3)}
MOMENTS = ["forward", "backward", "unsent", "recorded", "committed", "inside", "end", "boundary"]


def room_of(index):
    return [word for name, counts in ROOM.items() if counts[index] for word in ("--resource", f"{name}={counts[index]}")]


@pytest.fixture(scope="module")
def cluster():
    for hosts in several_hosts(3, network="10.78.2"):
        yield hosts, cluster_of(hosts, {h.name: room_of(i) for i, h in enumerate(hosts.all)})


@pytest.fixture
def fit(cluster, tmp_path):
    """Runs a training, and lets hosts that have died join again."""
    hosts, of = cluster
    yield lambda **case: train(hosts, of, tmp_path, case)
    alive = {n["labels"]["host"] for n in hosts.a.json("list", "nodes")["rows"] if n["state"] == "ALIVE"}
    for index, host in enumerate(hosts.all):
        if host.name not in alive:
            join(host, of, *room_of(index))


def train(hosts, cluster, folder, case):
    out = folder / "found.json"
    case = {"epochs": r.EPOCHS, "folder": str(folder), **case}
    driver = hosts.a.program(
        [sys.executable, str(PROGRAM), cluster.address, str(out), json.dumps(case)], SHOAL_TIMEOUT="30", OMP_NUM_THREADS="1"
    )
    code = driver.code(LIMIT_S)
    print(driver.out, driver.err)
    assert code == 0
    return json.loads(out.read_text()) | {"said": driver.err}


def changes_of(found):
    return [(c["before"], c["after"], c["died"]) for c in found["changes"]]


def test_a_training_without_deaths_prints_its_costs(fit):
    found = fit(**TWO_AND_TWO, deaths=[])
    nodes = [returned["node"] for returned in found["returns"]]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    r.check(found["history"], found["returns"])
    assert "MB of replicas for workers of other hosts" in found["said"]
    assert "replica of rank 0: 20 steps" in found["said"]


@pytest.mark.parametrize("moment", ["forward", "recorded", "committed", "inside", "end", "boundary"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_worker_dies_and_another_one_of_its_host_adopts_its_shard(fit, rank, moment):
    found = fit(**TWO_AND_TWO, deaths=[(rank, 3, moment)], protect="host")
    r.check(found["history"], found["returns"])
    assert changes_of(found)[0] == (4, 3, [rank])
    assert "replica" not in found["said"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_only_worker_of_a_host_dies_and_its_buddy_adopts_the_replica(fit, moment):
    found = fit(**ONE_AND_ONE, deaths=[(1, 3, moment)])
    r.check(found["history"], found["returns"])
    assert changes_of(found)[0] == (2, 1, [1])


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_loss_of_a_host_changes_nothing(fit, moment):
    found = fit(**TWO_AND_TWO, deaths=[("b", 3, moment)], victims="host")
    r.check(found["history"], found["returns"])
    before, after, died = changes_of(found)[0]
    assert (before, after, len(died)) == (4, 2, 2)


def test_two_hosts_are_lost_one_after_the_other(fit):
    found = fit(**THREE, deaths=[("b", 3, "backward"), ("c", 9, "committed")], victims="host")
    r.check(found["history"], found["returns"])
    assert [c[:2] for c in changes_of(found)[:2]] == [(3, 2), (2, 1)]


def test_a_host_and_the_one_of_its_buddy_are_lost_at_once(fit):
    found = fit(**THREE, deaths=[("b", 3, "forward"), ("c", 3, "forward")], victims="host")
    assert "its node has no worker left, and neither has that of its buddy, worker" in found["lost"]
    assert "checkpoint" in found["lost"]
