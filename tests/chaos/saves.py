"""The checkpoints of a training under faults: asynchronous saves in its workers, and checks that need no worker."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import torch

from shoal.checkpoint import Checkpoints, _disk, load
from shoal.checkpoint._inspect import verify
from shoal.exceptions import ShoalError

EVERY = 7  # steps between two saves
_SLOW_S = 0.02  # for each write and sync while the disk is slow
_GROWTH = 16, 8 << 20  # pieces, and the bytes of each


class SlowDisk(_disk.Disk):
    """Its writes and syncs take long while the file ``slow`` is there."""

    def __init__(self, slow: Path):
        self._slow, self._never = slow, threading.Event()

    def write(self, fd: int, data: memoryview, at: int) -> int:
        self._wait()
        return super().write(fd, data, at)

    def sync(self, fd: int) -> None:
        self._wait()
        super().sync(fd)

    def _wait(self) -> None:
        if self._slow.exists():
            self._never.wait(_SLOW_S)


def checkpoints(folder: Path) -> Checkpoints:
    """``folder``: as ``places.Disk`` describes it."""
    _disk.disk = SlowDisk(folder / "slow")
    return Checkpoints(folder / "disk", keep=2, every=EVERY, on_error="warn")


def grow_if_chosen(folder: Path) -> None:
    """If this process is chosen, its memory grows beside the step, and then it dies as the kernel's killer ends a process."""
    chosen = folder / f"oom-{os.getpid()}"
    if chosen.exists():
        chosen.unlink()
        threading.Thread(target=_grow, daemon=True).start()


def _grow() -> None:
    pieces, size = _GROWTH
    held = [b"x" * size for _ in range(pieces)]
    os.kill(os.getpid(), signal.SIGKILL)
    held.clear()


def wrong_with_newest(folder: Path, model: torch.nn.Module, at_least: int, at_most: int) -> list[str]:
    """Verifies each byte of the newest checkpoint, and that its counters are those of its step, which is within these bounds. ``model``: a
    plain one, which is loaded."""
    of = Checkpoints(folder / "disk")
    if (step := of.latest()) is None:
        return [f"there is no checkpoint after step {at_most}"] if at_least else []
    try:
        problems = verify(of.path(step)).problems
        state = load(of.path(step), model)
    except ShoalError as error:
        return [f"the checkpoint of step {step}: {error}"] if step in of.steps() else []  # later saves have deleted it meanwhile
    if problems and step not in of.steps():
        return []
    wrong = [f"the checkpoint of step {step}: {p}" for p in problems]
    counts = model.first.count[0].item(), model.second.count[0].item(), model.seen.sum().item() / model.batch, -state["step"]
    if counts != (-step,) * 4:
        wrong.append(f"the checkpoint of step {step} has the counters {counts}")
    if not at_least <= step <= at_most:
        wrong.append(f"the newest checkpoint is of step {step}, not of one from {at_least} to {at_most}")
    return wrong


def leftovers(folder: Path) -> list[str]:
    """Lists the entries on the disk besides two checkpoints. No save may be under way."""
    found = sorted(p.relative_to(folder / "disk").as_posix() for p in (folder / "disk").rglob("*"))
    steps = Checkpoints(folder / "disk").steps()
    kept = tuple(f"step-{step:08d}" for step in steps)
    parts = [name for name in found if ".saving" in name or not name.startswith(kept)]
    return ([f"the disk has {parts}"] if parts else []) + ([f"{len(steps)} checkpoints are kept"] if len(steps) > 2 else [])
