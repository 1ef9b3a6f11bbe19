"""A training of some ranks for troubles_test.py: in a given step and on a given rank, something goes wrong for real.

``TROUBLES``: a list of objects in JSON. ``kind``: a branch below; ``step``, ``rank`` (-1: all); ``until``: a step from which all is well.
A rank writes the time of day and the step to the file NOTES/KIND before it does harm.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shoal.checkpoint
from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import State, report, steps

NAP_S = 0.03
WIDTH = int(os.environ.get("WIDTH", "256"))
SAMPLES, BATCH, SAVE_EVERY = 4096, int(os.environ.get("BATCH", "64")), 40
LEAST_FREE = 0.04  # the part of the memory that is free at the end of the ballast's growth
BALLAST_BYTES = 2 << 20

rank = int(os.environ["RANK"])
notes = Path(os.environ["NOTES"])


class Trouble:
    """``begins``: it is this rank's, and its step has come for the first time. ``lasts``: it has come."""

    def __init__(self, kind: str, step: int, rank: int = 1, until: int = 1 << 60, **more: str):
        self.kind, self.step, self.until, self.more = kind, step, until, more
        self._mine, self._begun = globals()["rank"] == rank or rank < 0, False

    def lasts(self, step: int) -> bool:
        if not self._mine or not self.step <= step < self.until:
            return False
        if not self._begun:
            self._begun = True
            note(self.kind, step)
        return True

    def begins(self, step: int) -> bool:
        return not self._begun and self.lasts(step)


def note(kind: str, step: int) -> None:
    path = notes / f".{kind}"
    path.write_text(json.dumps({"t": time.time_ns() // 1000, "step": step}))
    path.rename(notes / kind)


troubles = {t["kind"]: Trouble(**t) for t in json.loads(os.environ["TROUBLES"])}


def lasts(kind: str, step: int) -> bool:
    return kind in troubles and troubles[kind].lasts(step)


def begins(kind: str, step: int) -> bool:
    return kind in troubles and troubles[kind].begins(step)


class Samples(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())), nn.Linear(WIDTH, 1))
        for unit in (*(m for m in self.model if isinstance(m, nn.Linear)), self.model):
            fully_shard(unit)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-3)
        self.state = State(model=self.model, optimizer=self.optimizer)
        self.ballast: list[torch.Tensor] = []
        self.model[2].register_forward_hook(lambda *_: self.in_forward(self.state.step))
        self.data = torch.randn(SAMPLES, WIDTH)

    def collate(self, indices: list[int]) -> torch.Tensor:
        if lasts("slow_loader", self.state.step + 1):
            time.sleep(NAP_S)
        return self.data[indices]

    def in_forward(self, step: int) -> None:
        if lasts("straggler", step):
            time.sleep(NAP_S)
        if begins("hang", step):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if begins("stopped", step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if begins("dead", step):
            os.kill(os.getpid(), signal.SIGKILL)

    def between_steps(self, step: int) -> None:
        """Harm in the program, before the step."""
        if begins("stuck", step):
            time.sleep(1e9)
        if begins("collective", step):
            dist.all_reduce(torch.ones(1))  # the others do not call it
        if begins("clock", step):
            write(os.environ["TROUBLES_CLOCK"], troubles["clock"].more["seconds"])
        if lasts("memory", step) and not (notes / "memory_full").exists():
            self.ballast.append(torch.ones(BALLAST_BYTES // 4))
            if free_part(Path(troubles["memory"].more["group"])) < LEAST_FREE:
                note("memory_full", step)

    def save(self, step: int) -> None:
        if begins("slow_disk", step):
            write(os.environ["TROUBLES_SLOW"], "3000")
        shoal.checkpoint.save(notes / "checkpoint", self.model, self.optimizer)

    def run(self) -> None:
        loader = DataLoader(Samples(), BATCH, shuffle=True, collate_fn=self.collate)
        for x in steps(loader, self.state, max_steps=int(os.environ.get("MAX_STEPS", "1000000000"))):
            step = self.state.step
            self.between_steps(step)
            if begins("nan", step):
                x = x * float("nan")
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            report({"loss": loss.item()})
            if "slow_disk" in troubles and step % SAVE_EVERY == 0:
                self.save(step)


def free_part(group: Path) -> float:
    """The part of a control group's memory that is free, without its cached files."""
    second = (group / "memory.max").exists()
    names = ("max", "current") if second else ("limit_in_bytes", "usage_in_bytes")
    limit, usage = (int((group / f"memory.{name}").read_text()) for name in names)
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    files = sum(int(fields[("" if second else "total_") + name]) for name in ("inactive_file", "active_file"))
    return 1 - (usage - files) / limit


def write(path: str, text: str) -> None:
    Path(path + ".new").write_text(text)
    Path(path + ".new").rename(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Loop().run()
    dist.destroy_process_group()
