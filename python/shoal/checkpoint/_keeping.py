"""Checkpoints of many steps in one folder: the newest and the best are kept, and a preemption signal asks for one more."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import torch

from shoal._core.variables import variable
from shoal.checkpoint import _load
from shoal.checkpoint._contents import Model, contents_of
from shoal.checkpoint._manifest import FILE, Manifest
from shoal.checkpoint._preemption import Preemption
from shoal.checkpoint._ranks import Ranks
from shoal.checkpoint._saving import About, PendingSave, save_with, settle
from shoal.checkpoint._store import join, open_store, read_manifest
from shoal.exceptions import DataLoss, InvalidArgument, NotFound

_STEP = re.compile(r"step-(\d{8,})")


class Checkpoints:
    """The checkpoints of a training run in ``folder``, one for each saved step. After a save is committed, those beyond the ``keep`` newest
    and the ``keep_best`` best are deleted; 0 keeps all of the newest.

    ``best``: the name in ``metrics`` that compares checkpoints; ``mode``: "min" or "max". ``every``: the number of steps between two saves
    for which ``should_save`` returns True. ``on_preemption``: after SIGTERM, or when a node of the training is drained, ``should_save`` and
    ``preempted`` return True. With it, every rank has to make this object in its main thread. ``on_error``: "raise" raises the error of a
    save that has failed at the next save. With "warn" rank 0 prints it, and training goes on to the next save; the earlier checkpoints
    remain. Raises InvalidArgument for wrong settings.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 3,
        best: str | None = None,
        mode: Literal["min", "max"] = "min",
        keep_best: int = 1,
        every: int = 1,
        on_preemption: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
    ):
        for wrong, text in (
            (keep < 0, f"keep is {keep}; it is the number of newest checkpoints to keep, or 0 for all"),
            (keep_best < 1, f"keep_best is {keep_best}; it is the number of best checkpoints to keep"),
            (every < 1, f"every is {every}; it is the number of steps between two saves"),
            (mode not in ("min", "max"), f"mode is {mode!r}; it is 'min' or 'max'"),
            (on_error not in ("raise", "warn"), f"on_error is {on_error!r}; it is 'raise' or 'warn'"),
        ):
            if wrong:
                raise InvalidArgument(text)
        self._folder, self._keep, self._best, self._mode, self._keep_best = folder, keep, best, mode, keep_best
        self._every, self._last, self._warns = every, -1, on_error == "warn"
        self._later: set[int] = set()  # steps after the one that ``load`` went back to; the next save may delete them
        self._preemption = Preemption() if on_preemption else None

    def path(self, step: int) -> str:
        """The folder of a step's checkpoint."""
        return join(self._folder, f"step-{step:08d}")

    def should_save(self, step: int) -> bool:
        """Returns True at every ``every``-th step, and once after a preemption signal. Collective with ``on_preemption``."""
        due = step % self._every == 0
        return (self.preempted() and self._last < step) or due

    def preempted(self) -> bool:
        """Returns True once any rank has a reason to end: save, wait, and leave the loop. Collective. False without ``on_preemption``."""
        return self._preemption is not None and self._preemption.agreed()

    def save(
        self,
        step: int,
        model: Model,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        state: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> PendingSave:
        """Saves a step beside the training, as ``save_async``. ``wait()`` of the result waits for it and raises its error. Raises
        InvalidArgument if ``metrics`` lacks the ``best`` one."""
        metrics = {k: float(v) for k, v in (metrics or {}).items()}
        if self._best is not None and self._best not in metrics:
            raise InvalidArgument(f"metrics has no {self._best}", hint=f"save(step, model, metrics={{{self._best!r}: value}})")
        began = time.perf_counter()

        def saved(rank: int) -> None:
            self._prune(step, rank)
            if rank == 0 and self._preemption is not None:
                self._preemption.compare(time.perf_counter() - began)

        about = About({"step": step, "metrics": metrics}, lambda: self._sweep(step), saved, self._warns)
        pending = save_with(self.path(step), model, optimizer, state=state, about=about)
        self._last = step
        return pending

    def load(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step: int | Literal["latest", "best"] = "latest",
        streaming: bool = False,
    ) -> tuple[int, dict[str, Any]] | None:
        """Loads a step, as ``shoal.checkpoint.load``. Returns (the step, the ``state`` saved with it); None for "latest" or "best" if there
        is no checkpoint yet. Raises NotFound for the number of a step without a checkpoint. Collective: rank 0 chooses the step.

        With a number, training goes back to that step. If a save of a step before the newest follows, it deletes the abandoned later steps,
        except the best and with ``keep=0``. So a resume does not take one of these for the newest.
        """
        settle()
        ranks = Ranks(contents_of(model).tensors.values())

        def choose() -> tuple[int | None, set[int]]:
            if ranks.rank != 0:
                return None, set()
            number = self.latest() if step == "latest" else self.best() if step == "best" else step
            return number, {s for s in self.steps() if s > number} if step == number else set()

        number, later = ranks.gather(ranks.agree(choose))[0]
        if number is None:
            return None
        state = _load.load(self.path(number), model, optimizer, streaming=streaming)
        self._last, self._later = number, later
        return number, state

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, in order."""
        return sorted(step for step, complete in self._found().items() if complete)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The step with the best metric; None if no checkpoint has one. Raises InvalidArgument without ``best``."""
        if self._best is None:
            raise InvalidArgument("there is no best checkpoint without a metric", hint='Checkpoints(folder, best="loss")')
        return next(iter(self._ranking()), None)

    def _found(self) -> dict[int, bool]:
        """Returns by step whether its checkpoint is complete."""
        found = {}
        for name in open_store(self._folder).list():
            if match := _STEP.fullmatch(name):
                found[int(match[1])] = FILE in open_store(join(self._folder, name)).list()
        return found

    def _ranking(self) -> list[int]:
        """The steps that have the metric, the best first."""
        values = {}
        for step in self.steps():
            value = self._manifest(step).info.get("metrics", {}).get(self._best)
            if isinstance(value, float) and value == value:  # NaN is no value
                values[step] = value
        return sorted(values, key=lambda s: (values[s] if self._mode == "min" else -values[s], -s))

    def _manifest(self, step: int) -> Manifest:
        try:
            return read_manifest(self.path(step))
        except (DataLoss, NotFound, InvalidArgument):  # a damaged checkpoint, or another program's file, is no reason to fail the next save
            return Manifest(1, "", {})

    def _sweep(self, step: int) -> None:
        """Deletes what is left of saves that were killed, so that it takes no space of the next one's."""
        with contextlib.suppress(Exception):  # a failed deletion fails no save; packages of fsspec raise errors of their own
            for other, is_complete in sorted(self._found().items()):
                if not is_complete and other != step:
                    open_store(self.path(other)).remove()

    def _prune(self, saved: int, rank: int) -> None:
        """Deletes the checkpoints that are not to be kept, on rank 0. Every rank forgets the later steps: it may be rank 0 of the next
        save."""
        later, self._later = self._later, set()
        if rank != 0:
            return
        _name_newest(self.path(saved))
        found, abandoned = self._found(), set()
        if self._keep and saved < max(later, default=-1):
            abandoned = later - {saved}
        complete = sorted(step for step, is_complete in found.items() if is_complete and step not in abandoned)
        kept = set(complete[-self._keep :]) | {saved}
        if self._best is not None:
            kept |= set(self._ranking()[: self._keep_best])
        for step in sorted(found):
            if step not in kept:
                open_store(self.path(step)).remove()


def _name_newest(path: str) -> None:
    """Writes the path into the folder of ``shoal run``, so that its record of the run's end names the newest checkpoint."""
    if not (folder := variable("SHOAL_RUN_FOLDER")):
        return
    file = Path(folder, "checkpoint")
    half = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a failed write here fails no save
        half.write_text(path if "://" in path else os.path.abspath(path))
        half.replace(file)
