"""Hosts of an elastic run under a real Slurm are lost, leave and come later."""

import pytest
from internals.core import binary
from launching.commands import LIMIT_S
from launching.leftovers import wait_until
from launching.slurm import slurm
from running import PACE, ElasticTraining


@pytest.fixture(scope="module")
def cluster():
    yield from slurm(3, silence_s=10)


class Training(ElasticTraining):
    """A training of `shoal launch slurm`."""

    def __init__(self, cluster):
        super().__init__(cluster.hosts.a, cluster.folder)
        self._bounds = ["--min", "2", "--max", "3", "--nproc", "1", "--grace", "60"]
        words = ["--time", "1h", "--shoal", cluster.command, *self._bounds, "--", *self.words]
        self._cluster, self._command = cluster, cluster.program(binary(), "launch", "slurm", *words, **PACE)
        (self._job,) = wait_until(cluster.jobs, LIMIT_S, "the job")

    def has(self, *numbers: int) -> None:
        super().has(lambda: self._command.out, lambda: self._command.process.poll() is not None, *numbers)

    def join(self):
        """Starts a further host's part, as a job of its own. Returns that and its id."""
        started = self._cluster.srun("run", "--join", "--run-folder", f"shoal-run/{self._job}-0", *self._bounds, nodes=1)
        (job,) = wait_until(lambda: set(self._cluster.jobs()) - {self._job}, LIMIT_S, "the other job")
        return started, job

    def end(self) -> None:
        super().end()
        assert self._command.code() == 0, self._command.out + self._command.err


def test_hosts_come_late_are_lost_and_leave(cluster):
    a, b, c = map(cluster.name, cluster.hosts.all)
    cluster("scontrol", "update", f"nodename={c}", "state=drain", "reason=another job")
    training = Training(cluster)
    training.has(2)
    cluster("scontrol", "update", f"nodename={c}", "state=resume")
    late, job = training.join()
    training.has(2, 3)
    cluster.lose(cluster.hosts.b)
    training.has(2, 3, 2)
    cluster("scancel", "--signal=USR1", job)
    training.has(2, 3, 2, 1)
    assert late.code() == 0, late.err
    assert "this host has left the run" in late.err
    training.end()
    assert training.workers() == {a: 1, b: 1, c: 1}
