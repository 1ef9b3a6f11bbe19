"""The objects of ``shoal launch jobset`` and ``.. kueue`` train in pods, which a small stand-in for Kubernetes plays."""

import os
import signal

import pytest
from launching.hosts import several_hosts
from launching.leftovers import wait_until
from launching.pods import pods
from running import PACE, ElasticTraining

whole = pytest.mark.skipif("SHOAL_SEEDS" not in os.environ, reason="./dev test --all runs it")


@pytest.fixture(scope="module")
def hosts():
    yield from several_hosts(4, "10.80.0")


@pytest.fixture
def cluster(hosts, monkeypatch):
    for name, value in PACE.items():
        monkeypatch.setenv(name, value)
    folder = hosts.a.home.parent / "pods"
    folder.mkdir()
    with pods(hosts, folder, 2, {"train-shoal": {"token": "1f" * 32}}) as made:
        yield made
    for host in hosts.all:  # a test may have cut links to lose machines; the other links are up already
        hosts.heal(host)


def printed(hosts, kind: str, *words) -> str:
    done = hosts.a("launch", kind, "--name", "train", "--image", "i:1", "--nproc", "1", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Training(ElasticTraining):
    def __init__(self, hosts, cluster, *words: str):
        super().__init__(hosts.a, cluster.folder)
        self.cluster = cluster
        cluster.create(printed(hosts, *words, "--min", "2", "--max", "3", "--", *self.words))
        self.leader = cluster.pod("train-leader-0-0")

    def has(self, *numbers: int) -> None:
        super().has(lambda: self.leader.log, lambda: self.leader.code is not None, *numbers)

    def end(self) -> None:
        super().end()
        assert self.cluster.code(self.leader) == 0, self.cluster.logs()
        job_set = self.cluster.job_sets["train"]
        wait_until(lambda: job_set.state, 5)
        assert (job_set.state, job_set.num_restarts) == ("Completed", 0)


def test_pods_of_a_job_set_come_late_are_lost_and_leave(hosts, cluster):
    training = Training(hosts, cluster, "jobset")
    training.has(2)
    cluster.add_machine()
    training.has(2, 3)
    lost = cluster.pod("train-workers-0-0")
    cluster.lose_machine(lost)
    training.has(2, 3, 2)
    cluster.add_machine()
    training.has(2, 3, 2, 3)
    left = cluster.pod("train-further-0-0")
    cluster.evict(left)
    training.has(2, 3, 2, 3, 2)
    assert cluster.code(left) == 143, left.log
    training.end()
    assert training.workers() == {"train-leader-0-0": 1, "train-workers-0-0": 2, "train-further-0-0": 1}
    assert [pod.name for pod in cluster.all if pod is not left][:3] == ["train-leader-0-0", "train-workers-0-0", "train-workers-0-0"]


@whole
def test_kueue_admits_further_pods_and_takes_them_back(hosts, cluster):
    training = Training(hosts, cluster, "kueue", "--queue", "research")
    training.has(2)
    cluster.add_machine()
    cluster.admit("train-further", 1)
    training.has(2, 3)
    cluster.pod("train-workers-0-0").signal(signal.SIGKILL)  # as at the end of the pod's memory: the Job starts it again
    training.has(2, 3, 2, 3)
    cluster.suspend("train-further")
    training.has(2, 3, 2, 3, 2)
    assert cluster.code(cluster.pod("train-further-0")) == 143
    training.end()
    assert training.workers() == {"train-leader-0-0": 1, "train-workers-0-0": 2, "train-further-0": 1}
