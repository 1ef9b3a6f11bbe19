"""Scripts and helpers of the tests of ``shoal run``."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from internals.core import binary
from launching.commands import LIMIT_S, Running
from launching.leftovers import wait_until

TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
for unit in (model[0], model[2], model):
    fully_shard(unit)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(5):
    x = torch.randn(32, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {dist.get_rank()} of {dist.get_world_size()} at {os.environ['MASTER_ADDR']}: {loss.item().hex()}", flush=True)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""

# A rank that trains until a preemption, then saves.
SAVE = """
import sys
import shoal.checkpoint
import torch, torch.distributed as dist
from shoal.fsdp import fully_shard
from shoal.optim import AdamW

dist.init_process_group("gloo")
model = torch.nn.Linear(16, 4)
fully_shard(model)
optimizer = AdamW(model.parameters(), lr=1e-2)
run, step = shoal.checkpoint.Checkpoints(sys.argv[1], every=1_000_000_000, on_preemption=True), 0
while not run.preempted():
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 3:
        print("it trains", flush=True)
run.save(step, model, optimizer).wait()
print("saved", flush=True)
dist.destroy_process_group()
"""

WAIT = """
import os, signal, time
print("pid", os.getpid(), flush=True)
while True:
    time.sleep(3600)
"""


def losses(text: str) -> dict[int, str]:
    """The losses that ranks have printed, by rank."""
    return {int(rank): loss for rank, loss in re.findall(r"loss (\d) of \d at \S+: (\S+)", text)}


def run(host, *words, **env) -> Running:
    """Starts ``shoal run`` with these words."""
    return host.program([binary(), "run", *map(str, words)], **env)


def exit_record(folder: Path) -> dict:
    return json.loads((folder / "exit.json").read_text())


ELASTIC = Path(__file__).with_name("elastic_hosts.py")
PACE = {"PACE": "0.05"}


class ElasticTraining:
    """A training whose hosts come and go, beside the same one on one host alone. The test starts the script and arguments `words`."""

    def __init__(self, host, folder: Path):
        self._folder, self._alone_folder = folder / "elastic", folder / "alone"
        for name in (self._folder, self._alone_folder):
            name.mkdir()
        self.words = [str(ELASTIC), str(self._folder)]
        words = ["--min", "1", "--max", "1", "--nproc", "1", "--run-folder", folder / "run"]
        self._alone = run(host, *words, ELASTIC, self._alone_folder, **PACE)

    def has(self, output: Callable[[], str], ended: Callable[[], bool], *numbers: int) -> None:
        """Waits until the numbers of workers have been these, and the last ones have made ten steps: a change that comes sooner would hide
        a wrong step of theirs. ``output`` is what the first host has printed."""

        def found():
            return [int(number) for number in re.findall(r"^workers (\d+)$", output(), re.MULTILINE)]

        def trained():
            return len(found()) >= len(numbers) and output().rpartition("\nworkers ")[2].count("\nstep ") >= 2

        wait_until(lambda: trained() or ended(), LIMIT_S, f"ten steps after the numbers of workers {numbers}")
        assert found() == list(numbers), output()

    def end(self) -> None:
        (self._folder / "end").touch()

    def workers(self) -> dict[str, int]:
        """Compares the steps of both trainings. Returns the number of processes that have trained on each host."""
        history = json.loads((self._folder / "out.json").read_text())
        self._alone.said(f"step {-(-len(history) // 10) * 10}\n")
        (self._alone_folder / "end").touch()
        assert self._alone.code() == 0, self._alone.err
        alone = json.loads((self._alone_folder / "out.json").read_text())[: len(history)]
        assert [m["step"] for m in history] == list(range(1, len(history) + 1))  # no step was lost, and none was made twice
        assert [sorted(m["samples"]) for m in history] == [sorted(m["samples"]) for m in alone]
        assert [m["loss"] for m in history] == [m["loss"] for m in alone]
        processes = {worker for m in history for worker in m["workers"]}
        hosts = sorted(process.split()[0] for process in processes)
        return {host: hosts.count(host) for host in hosts}
