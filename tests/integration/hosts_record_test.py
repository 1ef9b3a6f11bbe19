"""``shoal run`` on two hosts that share no folder: the first host records the ranks of both."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching.commands import LIMIT_S
from launching.hosts import two_hosts
from launching.leftovers import wait_until
from running import run

whole = pytest.mark.skipif("SHOAL_SEEDS" not in os.environ, reason="./dev test --all runs it")

# Trains until the test says how to end. A rank whose file SLOW-RANK exists sleeps in its forward.
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()


class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.05 if (folder / f"slow-{rank}").exists() else 0.01)
        return x


model = torch.nn.Sequential(torch.nn.Linear(16, 64), Slow(), torch.nn.Linear(64, 1))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ends = torch.zeros(())
for step in range(1, 1_000_000):
    model(torch.randn(32, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ends.fill_((folder / "end").exists())
    dist.all_reduce(ends)
    if step == 20:
        print(f"rank {rank} trains", flush=True)
    if ends:
        break
dist.destroy_process_group()
"""

# Enters a host's own name and disk: the command's folder NAME is a folder of another name here.
APART = 'hostname "$0" && mount --bind "$1" "$2" && shift 2 && exec "$@"'


@pytest.fixture(scope="module")
def hosts():
    yield from two_hosts()


class Run:
    """A run over both hosts, each with a name and a disk of its own."""

    def __init__(self, hosts, folder: Path):
        self.folder = folder / "run"  # as the first host has it
        disks = {host.name: folder / f"disk-{host.name}" for host in hosts.all}
        for path in (self.folder, *disks.values()):
            path.mkdir(mode=0o700)
        secret = folder / "secret"
        secret.write_text("1f" * 32)
        script = hosts.a.script(SCRIPT, "record.py")
        addresses = ",".join(host.address for host in hosts.all)
        words = ["--run-folder", self.folder, "--hosts", addresses, "--nproc", "1", script, folder]
        self.first, self.second = (
            self._start(host, disks[host.name], words, {"SHOAL_FSDP": "1", "SHOAL_TOKEN_FILE": str(secret)}) for host in hosts.all
        )
        self.own, self.others = disks["a"], disks["b"]
        for rank in range(2):
            self.first.said(f"rank {rank} trains")

    def _start(self, host, disk, words, env):
        before = host.before
        apart = ("unshare", "--uts", "--mount", "sh", "-c", APART)
        host.before = (*before, *apart, f"host-{host.name}", str(disk), str(self.folder))
        try:
            return run(host, *words, **env)
        finally:
            host.before = before

    def check_record(self) -> None:
        """After the end: the first host has each file of the other one, which keeps its own."""
        recorded = files(self.others)
        assert ranks(self.others) == {1}
        assert {name: text for name, text in files(self.own).items() if name in recorded} == recorded


def files(disk: Path) -> dict[str, bytes]:
    """The files of the processes that record on this disk."""
    return {str(path.relative_to(disk)): path.read_bytes() for path in (disk / "processes").rglob("*") if path.is_file()}


def ranks(disk: Path) -> set[int]:
    all_facts = [json.loads(path.read_text()) for path in (disk / "processes").glob("*/process.json")]
    return {facts["rank"] for facts in all_facts if facts["role"] == "rank"}


def test_the_first_host_records_all_ranks_and_names_a_slow_one(hosts, tmp_path):
    training = Run(hosts, tmp_path)
    wait_until(lambda: ranks(training.own) == {0, 1}, LIMIT_S, "both ranks on the first host's disk")
    hosts.cut(hosts.b)  # for a moment
    hosts.heal(hosts.b)
    (tmp_path / "slow-1").touch()
    training.first.said("shoal: rank 1 on host host-b computes ")
    (tmp_path / "end").touch()
    assert training.first.code() == 0, training.first.err
    assert training.second.code() == 0, training.second.err
    training.check_record()
    assert sum(name.endswith("/steps.0-0.jsonl") for name in files(training.own)) == 2
    shown = json.loads(hosts.a("show", "--json", training.own).stdout)
    assert shown["state"] == "ended", shown


@whole
def test_the_first_host_names_a_host_whose_link_is_cut(hosts, tmp_path):
    training = Run(hosts, tmp_path)
    wait_until(lambda: ranks(training.own) == {0, 1}, LIMIT_S, "both ranks on the first host's disk")
    hosts.cut(hosts.b)
    try:
        training.first.said("shoal: rank 1 on host host-b has been silent for ")
        assert training.first.code() != 0  # the node counts as dead
    finally:
        hosts.heal(hosts.b)
    training.second.code()


@whole
def test_a_first_host_that_stands_still_holds_up_no_training(hosts, tmp_path):
    training = Run(hosts, tmp_path)
    wait_until(lambda: ranks(training.own) == {0, 1}, LIMIT_S, "both ranks on the first host's disk")
    (steps,) = (training.others / "processes").glob("*/steps.0-0.jsonl")
    training.first.signal(signal.SIGSTOP)
    try:
        training.second.said("lacks this host, which tries to reach ")
        before = steps.stat().st_size
        wait_until(lambda: steps.stat().st_size > before, LIMIT_S, "a further step")
    finally:
        training.first.signal(signal.SIGCONT)
    (tmp_path / "end").touch()
    assert training.first.code() == 0, training.first.err
    assert training.second.code() == 0, training.second.err
    training.check_record()
