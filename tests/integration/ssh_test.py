"""``shoal launch ssh`` with a real sshd on each host."""

import os
import signal
import sys

import pytest
from internals.core import binary
from launching.sshd import sshd
from running import PACE, TRAIN, ElasticTraining, losses, run

whole = pytest.mark.skipif("SHOAL_SEEDS" not in os.environ, reason="./dev test --all runs it")


@pytest.fixture(scope="module")
def hosts():
    yield from sshd(2, **PACE)


def launched(hosts, *words, **env):
    addresses = ",".join(host.address for host in hosts.hosts.all)
    where = ["--hosts", addresses, "--folder", hosts.folder, "--shoal", binary(), "--nproc", "1"]
    return hosts.program(binary(), "launch", "ssh", *where, *words, **env)


def test_two_hosts_train_to_the_losses_of_one(hosts):
    script = hosts.hosts.a.script(TRAIN, "train.py")
    job = launched(hosts, "--", script, "5", SHOAL_FSDP="1")
    assert job.code() == 5, job.out + job.err
    assert "Shoal shards this model" in job.out  # by the caller's SHOAL_FSDP
    alone = run(hosts.hosts.a, "--nproc", "2", script, "5", SHOAL_FSDP="1")
    assert alone.code() == 5, alone.err
    assert sorted(losses(job.out)) == [0, 1], job.out + job.err
    assert losses(job.out) == losses(alone.out)


def test_no_host_is_started_if_another_one_does_not_answer(hosts):
    words = ["--hosts", f"{hosts.hosts.a.address},10.81.0.99", "--folder", hosts.folder, "--shoal", binary(), "--", "true"]
    job = hosts.program(binary(), "launch", "ssh", *words)
    assert job.code() == 1, job.out + job.err
    assert "shoal: host 10.81.0.99: ssh: connect to host 10.81.0.99" in job.err
    assert not list(hosts.folder.glob("true-*.pid"))


@whole
def test_the_other_hosts_end_with_a_first_host_that_cannot_begin(hosts):
    """Its port is taken."""
    a = hosts.hosts.a
    listens = f"import socket; s = socket.create_server(('{a.address}', 7461)); print('listens'); s.accept()"
    taken = a.program([sys.executable, "-c", listens])
    taken.said("listens")
    job = launched(hosts, "--port", "7461", "--name", "taken", "--", "true")
    assert job.code() == 120, job.out + job.err
    assert "AddressInUse" in job.out
    assert (hosts.folder / "taken-0.pid").exists()
    assert not (hosts.folder / "taken-1.pid").exists()  # removed behind its end
    taken.signal(signal.SIGKILL)


@whole
def test_a_lost_host_does_not_end_an_elastic_run(hosts):
    training = ElasticTraining(hosts.hosts.a, hosts.folder)
    job = launched(hosts, "--name", "elastic", "--min", "2", "--max", "2", "--", *training.words)

    def has(*numbers):
        training.has(lambda: job.out, lambda: job.process.poll() is not None, *numbers)

    has(2)
    hosts.lose(hosts.hosts.b)
    has(2, 1)
    training.end()
    assert job.code() == 0, job.out + job.err
    assert sum(training.workers().values()) == 2
