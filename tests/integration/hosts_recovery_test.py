"""The deaths of workers and of whole hosts, in an elastic training on two hosts: no step is lost, and none is made twice."""

import contextlib
import itertools
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import recovery_loops as r
from launching.hosts import cluster_of, join, several_hosts
from launching.leftovers import wait_until

PROGRAM = Path(__file__).with_name("hosts_recovery.py")
LIMIT_S = 120  # hang guard
# Workers that each host has room for, by resource. The driver is on host a.
ROOM = {"one": [2, 0, 0], "pair": [1, 1, 0], "two": [2, 2, 0], "trio": [1, 1, 1]}
TWO_AND_TWO = {"resource": "two", "bounds": (1, 4)}  # ranks 0 and 1 on one host, 2 and 3 on the other
ONE_AND_ONE = {"resource": "pair", "bounds": (1, 2)}
THREE = {"resource": "trio", "bounds": (1, 3)}
MOMENTS = ["forward", "backward", "unsent", "recorded", "committed", "inside", "end", "boundary"]
WHOLE = "SHOAL_SEEDS" in os.environ  # ./dev test --all; otherwise a slice

ONE_HOST = {"resource": "one", "bounds": (2, 2)}
MOMENTUM = ["SGD", {"momentum": 0.9}]
KINDS = {
    "bf16": {"bf16": True},
    "mixed": {"mixed": True},
    "sgd": {"optimizer": MOMENTUM},
    "bf16_sgd": {"bf16": True, "optimizer": MOMENTUM},
}


def room_of(index):
    return [word for name, counts in ROOM.items() if counts[index] for word in ("--resource", f"{name}={counts[index]}")]


@pytest.fixture(scope="module")
def cluster():
    for hosts in several_hosts(3, network="10.78.2"):
        yield hosts, cluster_of(hosts, {h.name: room_of(i) for i, h in enumerate(hosts.all)})


class Driver:
    """The program that runs the trainings, on host a, which no test ends. After a failure, the next training has a new process."""

    def __init__(self, hosts, address, folder):
        self.hosts, self.address, self.cases = hosts, address, folder / "cases"
        os.mkfifo(self.cases)
        self.process, self.to, self.number = None, None, 0

    def __call__(self, out, case):
        if self.process is None:
            argv = [sys.executable, str(PROGRAM), self.address, str(self.cases)]
            self.process = self.hosts.a.program(argv, SHOAL_TIMEOUT="30", OMP_NUM_THREADS="1")
            self.to, self.number = os.fdopen(os.open(self.cases, os.O_RDWR), "w"), 0  # also if the process ends before it reads
        process, before, self.process = self.process, len(self.process.err), None
        print(json.dumps({"out": str(out), **case}), file=self.to, flush=True)
        try:
            process.said(f"case {self.number} has ended", LIMIT_S)
        finally:
            said = process.err[before:]
            print(process.out, said)
        self.process, self.number = process, self.number + 1
        return json.loads(out.read_text()) | {"said": said}

    def end(self):
        if self.process:
            self.to.close()
            assert self.process.code(LIMIT_S) == 0


@pytest.fixture(scope="module")
def driver(cluster, tmp_path_factory):
    hosts, of = cluster
    driver = Driver(hosts, of.address, tmp_path_factory.mktemp("driver"))
    yield driver
    driver.end()


@pytest.fixture
def fit(cluster, driver, tmp_path):
    """Runs a training, before which hosts that have died join again."""
    hosts, of = cluster
    folders = (tmp_path / str(i) for i in itertools.count())

    def run(**case):
        alive = {n["labels"]["host"] for n in hosts.a.rows("nodes") if n["state"] == "ALIVE"}
        for index, host in enumerate(hosts.all):
            if host.name not in alive:
                join(host, of, *room_of(index))
        folder = next(folders)
        folder.mkdir()
        case = {"epochs": r.EPOCHS, "folder": str(folder), **case}
        with cuts(hosts, folder, case.pop("cut_s", 0)):
            return driver(folder / "found.json", case)

    return run


@contextlib.contextmanager
def cuts(hosts, folder, seconds):
    """While it lasts, a worker can have its host's link cut (``recovery_loops.Killer``), for so long; None: until it is over."""
    if seconds == 0:
        yield
        return
    for name in ("ask", "cut"):
        os.mkfifo(folder / name)
    healing = []

    def serve():
        name = (folder / "ask").read_text()
        host = next(h for h in hosts.all if h.name == name)
        hosts.cut(host)
        healing.append(threading.Timer(LIMIT_S if seconds is None else seconds, hosts.heal, (host,)))
        healing[0].start()
        (folder / "cut").write_text("")

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        for timer in healing:
            if seconds is None:
                timer.cancel()
                timer.function(*timer.args)
            timer.join()
    assert healing, "no worker has asked for a cut"


def changes_of(found):
    return [(c["before"], c["after"], c["died"]) for c in found["changes"]]


def test_a_training_without_deaths_prints_its_costs(fit):
    found = fit(**TWO_AND_TWO, deaths=[])
    nodes = [returned["node"] for returned in found["returns"]]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    r.check(found["history"], found["returns"])
    assert "MB of replicas for workers of other hosts" in found["said"]
    assert "replica of rank 0: 20 steps" in found["said"]


ON_ONE_HOST = ["forward", "recorded", "committed", "inside", "end", "boundary"]


@pytest.mark.parametrize(
    ("rank", "moment"), itertools.product([1, 2], ON_ONE_HOST) if WHOLE else zip(itertools.cycle([1, 2]), ON_ONE_HOST, strict=False)
)
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


OF_TORCH = ["torch.AdamW", {}]


@pytest.mark.parametrize("moment", MOMENTS if WHOLE else ["unsent", "committed"])
def test_a_replica_has_the_copied_rows_and_states_of_devices(fit, moment):
    found = fit(**ONE_AND_ONE, deaths=[(1, 3, moment)], devices=True, optimizer=OF_TORCH)
    r.check(found["history"], found["returns"], optimizer=OF_TORCH)
    assert changes_of(found)[0] == (2, 1, [1])
    assert "MB of rows and states per step, updates copied in" in found["said"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_loss_of_a_host_changes_nothing(fit, moment):
    found = fit(**TWO_AND_TWO, deaths=[("b", 3, moment)], victims="host")
    r.check(found["history"], found["returns"])
    before, after, died = changes_of(found)[0]
    assert (before, after, len(died)) == (4, 2, 2)


def expect_same_bits(one, other):
    (one, one_returns), (other, other_returns) = bits(one), bits(other)
    for a, b in zip(one, other, strict=True):
        assert a == b
    assert one_returns == other_returns


def bits(found):
    """All but what the processes are."""
    history = [{k: v for k, v in m.items() if k != "pids"} for m in found["history"]]
    return history, [{k: v for k, v in returned.items() if k != "node"} for returned in found["returns"]]


# A step counts, too, if no survivor learns from host b that its workers have recorded it: "unknown".
LOST_IN = [
    ("mixed", "backward", 2),
    ("bf16_sgd", "committed", 3),
    ("bf16", "unknown", 3),
    ("bf16", "committed", 3),
    ("bf16_sgd", "unknown", 3),
    ("sgd", "backward", 2),
]


@pytest.mark.parametrize(("kind", "moment", "made"), LOST_IN if WHOLE else LOST_IN[:3])
def test_the_loss_of_a_host_gives_the_bits_of_a_planned_change(fit, kind, moment, made):
    lost = fit(**TWO_AND_TWO, **KINDS[kind], deaths=[("b", 3, moment)], victims="host")
    planned = fit(**TWO_AND_TWO, **KINDS[kind], deaths=[], scale={made: 2}, changes=[made])  # host b's workers leave behind this step
    assert len(changes_of(lost)[0][2]) == 2
    assert changes_of(planned) == [(4, 2, [])]
    expect_same_bits(lost, planned)
    losses = [m["loss"] for m in lost["history"]]
    assert losses[-1] < losses[0]
    assert losses != pytest.approx(r.plain_run([m["samples"] for m in lost["history"]])[0], rel=1e-5)  # so the kind has an effect


@pytest.mark.parametrize(("kind", "moment"), [({"bf16": True}, "committed"), ({}, "between")][: 2 if WHOLE else 1])
def test_a_deterministic_training_has_the_bits_of_one_host_also_when_the_other_host_is_lost(fit, kind, moment):
    one, apart, lost = (
        fit(**where, **kind, loop="deterministic", deaths=deaths, victims="host")
        for where, deaths in ((ONE_HOST, []), (TWO_AND_TWO, []), (TWO_AND_TWO, [("b", 7, moment)]))
    )
    assert [len({returned["node"] for returned in found["returns"]}) for found in (one, apart, lost)] == [1, 2, 1]
    assert (changes_of(apart), len(changes_of(lost)[0][2])) == ([], 2)
    history, returns = bits(one)
    assert bits(apart) == (history, 2 * returns)
    assert bits(lost) == (history, returns)


@pytest.mark.parametrize("moment", ["unsent", "end"])
def test_a_link_that_comes_back_costs_no_step(fit, moment):
    cut = fit(**TWO_AND_TWO, deaths=[("b", 3, moment)], victims="link", cut_s=2.5)
    whole = fit(**TWO_AND_TWO, deaths=[])
    assert changes_of(cut) == []
    expect_same_bits(cut, whole)


def test_a_host_behind_a_link_that_stays_cut_is_lost(fit, cluster):
    found = fit(**TWO_AND_TWO, deaths=[("b", 3, "unsent")], victims="link", cut_s=None)
    r.check(found["history"], found["returns"])
    before, after, died = changes_of(found)[0]
    assert (before, after, len(died)) == (4, 2, 2)
    a = cluster[0].a  # the node of host b joins again, as another one
    wait_until(lambda: [n["state"] for n in a.rows("nodes")].count("ALIVE") == 3, 30, "host b's return")


def test_a_step_counts_if_only_the_holder_of_a_replica_learns_that_all_have_recorded_it(fit):
    found = fit(**THREE, deaths=[("b", 3, "unknown")], victims="host")
    r.check(found["history"], found["returns"])
    assert [len(m["pids"]) for m in found["history"]][1:4] == [3, 3, 2]


def test_two_hosts_are_lost_one_after_the_other(fit):
    found = fit(**THREE, deaths=[("b", 3, "backward"), ("c", 9, "committed")], victims="host")
    r.check(found["history"], found["returns"])
    assert [c[:2] for c in changes_of(found)[:2]] == [(3, 2), (2, 1)]


def test_a_host_and_the_one_of_its_buddy_are_lost_at_once(fit):
    found = fit(**THREE, deaths=[("b", 3, "forward"), ("c", 3, "forward")], victims="host")
    assert "its node has no worker left, and neither has that of its buddy, worker" in found["lost"]
    assert "checkpoint" in found["lost"]
