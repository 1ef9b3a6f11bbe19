"""Saves: at once, or in a thread beside the training, one at a time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal._core.telemetry import Activity, at
from shoal._distributed.saves import SaveControl, save_controls
from shoal._printable import printable_lines, say
from shoal.checkpoint._contents import Model, contents_of
from shoal.checkpoint._plan import Plan
from shoal.checkpoint._ranks import Ranks
from shoal.checkpoint._save import write
from shoal.checkpoint._shards import image_blocks, live_blocks
from shoal.checkpoint._snapshot import Snapshot, settle_all
from shoal.checkpoint._store import writing
from shoal.exceptions import Unavailable

_CHECK_S = 0.02  # between two looks while a wait may end early
_NICENESS = 15  # the thread that hashes and writes uses the time that the training leaves

_current: PendingSave | None = None


@dataclass(frozen=True)
class About:
    """``info``: for the manifest. ``before``: runs on rank 0, in the save's thread, before its first write, once every rank's earlier save
    has ended. ``after``: runs on every rank, with its number, after the commit. ``warns``: an error is printed, and neither ``wait`` nor
    the next save raises it."""

    info: dict[str, Any] | None = None
    before: Callable[[], None] | None = None
    after: Callable[[int], None] | None = None
    warns: bool = False


class PendingSave:
    """A save that runs in a thread. ``stall_s``: seconds that the training waited for it so far; ``snapshot_bytes``: memory that it
    holds."""

    def __init__(
        self,
        path: str | Path,
        plan: Plan | Exception,
        snapshot: Snapshot | None,
        ranks: Ranks,
        begin: float,
        about: About,
    ):
        self.path = path
        self._plan, self._ranks, self._about = plan, ranks, about
        self._error: BaseException | None = None
        self._raised = self._committed = self._abandoned = False
        self._prints: bool | None = ranks.rank == 0  # unknown after a death, until the survivors have new numbers
        self._unprinted = ""
        self._printing = threading.Lock()
        self._snapshot = snapshot
        self.snapshot_bytes = self._snapshot.num_bytes if self._snapshot else 0
        self._thread = threading.Thread(target=self._run, name="shoal-checkpoint")
        self._thread.start()
        self._own_stall = time.perf_counter() - begin

    @property
    def stall_s(self) -> float:
        return self._own_stall + (self._snapshot.stall_s if self._snapshot else 0.0)

    def done(self) -> bool:
        """Returns True once the checkpoint is committed, or the save has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until the checkpoint is committed. Raises the save's error."""
        self._thread.join()
        if self._error is not None:
            self._raised = True
            raise self._error

    def _run(self) -> None:
        try:
            if self._snapshot is not None:
                self._complete()
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            self._ranks.agree(self._check)
            if (before := self._about.before) is not None:
                self._ranks.agree(lambda: self._on_first_rank(before))
            images = self._snapshot.images
            write(self.path, self._plan, self._ranks, lambda index, layout: image_blocks(images[index], layout), self._note_commit)
            if (after := self._about.after) is not None:
                self._ranks.agree(lambda: self._on_each_rank(after))
        except BaseException as error:
            self._error = error
            if self._about.warns or self._abandoned:
                self._warn()
        finally:
            if self._snapshot is not None:
                self._snapshot.release()

    def _complete(self) -> None:
        """Keeps an error, such as a device's, for ``_check``, in which the other ranks wait for this one."""
        try:
            self._snapshot.complete()
        except Exception as error:
            self._snapshot.error = self._snapshot.error or error

    def _on_first_rank(self, action: Callable[[], None]) -> None:
        if self._ranks.rank == 0:
            with writing(self.path):
                action()

    def _on_each_rank(self, action: Callable[[int], None]) -> None:
        with writing(self.path):
            action(self._ranks.rank)

    def _note_commit(self) -> None:
        self._committed = True

    def abandon(self) -> None:
        """A rank has died. An error that the death causes, and every later one, is printed instead of raised: by ``print_error``, because
        the first rank may be the dead one."""
        self._abandoned, self._prints = True, None
        if self._error is not None and self._ranks.failed:
            self._warn()

    def _warn(self) -> None:
        """Neither ``wait`` nor the next save raises the error. One rank prints it."""
        with self._printing:
            if self._raised:
                return
            self._raised = True
            what = "was saved, but not all that follows a save was done" if self._committed else "was not saved"
            self._unprinted = f"shoal: the checkpoint {self.path} {what}, and the training goes on: {self._cause()}\n"
            self._print()

    def print_error(self, first: bool) -> None:
        """The survivors of a death have new numbers: the first of them prints the error, now or when it comes."""
        with self._printing:
            if self._prints is None:
                self._prints = first
            self._print()

    def _print(self) -> None:
        if self._prints is not None:
            text, self._unprinted = self._unprinted, ""
            sys.stderr.write(printable_lines(text) if self._prints else "")

    def _cause(self) -> str:
        if self._abandoned and self._ranks.failed and not isinstance(self._error, Unavailable):
            return "a rank has died"  # the error is about the groups of that generation, which have ended
        return getattr(self._error, "message", "") or f"{type(self._error).__name__}: {self._error}"

    def _check(self) -> None:
        if isinstance(self._plan, Exception):
            raise self._plan
        if self._snapshot.error is not None:
            raise self._snapshot.error


def save(path: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, *, state: dict[str, Any] | None = None) -> None:
    """Writes the model's parameters and buffers, the optimizer's state and ``state`` to the folder ``path``. Replaces a checkpoint there.

    ``path``: a folder that all ranks see, or an address of fsspec such as ``s3://bucket/run``. ``model``: a module, plain or sharded by
    ``shoal.fsdp.fully_shard`` or torch's, or a state dict of tensors, DTensors or ShardedTensors. Every rank of a sharded model must call
    it with the same arguments; each writes its part. Plain tensors, and options and numbers of the optimizer, have to be the same on all
    ranks; of a module's buffers and extra state, and plain tensors of its ``state_dict()``, rank 0's are saved. If a model is not sharded
    (DDP), one rank may call it, or several, which take turns on a local disk. ``state``: further values for resuming, of JSON's types; rank
    0's are saved.
    Waits for a save of ``save_async`` that is under way, and raises its error.
    After a crash or a power cut the previous checkpoint remains. Only one job at a time may save to a path.
    Beside the model it needs 32 MiB per rank. Raises InvalidArgument if ``path`` cannot be written or holds other data, or if ranks differ,
    ResourceExhausted for a full disk, Unimplemented for unsupported tensors and optimizer states. An error on one rank is raised on all.
    """
    with at(Activity.SAVE):
        wait()
        contents = contents_of(model)
        ranks = Ranks(contents.tensors.values())
        plan = ranks.agree(lambda: Plan(contents, optimizer, state, ranks))
        write(path, plan, ranks, lambda _, layout: live_blocks(layout))


def save_async(
    path: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, *, state: dict[str, Any] | None = None
) -> PendingSave:
    """As ``save``, but a thread writes the present values while training goes on. Returns at once if no earlier save is under way.

    The thread copies parameters of models that ``shoal.fsdp`` shards, and states of optimizers. The next optimizer step, or other write to
    parameters, waits for the copy, but not for the disk. Everything else is copied before the call returns. The copy, as large as this
    rank's part of the checkpoint, is kept for the next save. Waits for the earlier save, and raises its error if no ``wait()`` has. Errors
    of this save are raised by its ``wait()``, the next save, or ``shoal.checkpoint.wait()``. A process that ends waits for its save.
    Collective, as ``save``.
    """
    return save_with(path, model, optimizer, state=state)


def save_with(
    path: str | Path,
    model: Model,
    optimizer: torch.optim.Optimizer | None,
    *,
    state: dict[str, Any] | None,
    about: About = About(),
) -> PendingSave:
    """As ``save_async``, with more about the save."""
    with at(Activity.SAVE):
        return _begin_save(path, model, optimizer, state, about)


def _begin_save(
    path: str | Path, model: Model, optimizer: torch.optim.Optimizer | None, state: dict[str, Any] | None, about: About
) -> PendingSave:
    global _current
    wait()
    begin = time.perf_counter()
    contents = contents_of(model)
    ranks = Ranks(contents.tensors.values(), apart=True)
    snapshot = None
    try:
        plan: Plan | Exception = Plan(contents, optimizer, state, ranks, about.info)
        snapshot = Snapshot(plan.layouts)
    except Exception as error:
        if ranks.size == 1:
            raise
        plan = error  # raised in the thread's collectives, where the other ranks wait
    _current = PendingSave(path, plan, snapshot, ranks, begin, about)
    return _current


def wait() -> None:
    """Waits for the save under way, if any, and raises its error unless it was raised before."""
    global _current
    if (pending := _current) is not None:
        pending._thread.join()  # Ctrl-C ends this wait, and the next one still knows of the save
        _current = None
        pending.print_error(pending._ranks.rank == 0)  # after an abandoned save that no recovery has followed
        if not pending._raised:
            pending.wait()


def settle() -> None:
    """Waits for the save under way, if any. Leaves its error to ``wait`` or the next save."""
    if _current is not None:
        _current._thread.join()


def finish(check: Callable[[], None]) -> None:
    """Waits for the save under way, if any, before its ranks change. Leaves its error to ``wait`` or the next save. ``check``: is called
    repeatedly during the wait, and ends it by raising an error."""
    while _current is not None and not _current.done():
        _current._thread.join(_CHECK_S)
        check()


def abandon() -> None:
    """Leaves the save under way to its thread after the death of a rank, which ends it. An error that the death causes is printed and not
    raised: the checkpoint before remains, and the next save waits for the thread. An earlier error of the save stays for the next one."""
    if _current is not None:
        _current.abandon()
        settle_all()  # the snapshot must be complete before the recovery writes and moves the values


def print_error(first: bool) -> None:
    """After ``abandon``, once the survivors have new numbers: the first of them prints the save's error, also if the thread ends later."""
    if _current is not None:
        _current.print_error(first)


save_controls.append(SaveControl(wait, finish, abandon, print_error))


def _at_exit() -> None:
    try:
        wait()
    except Exception as error:  # an exit has no caller
        say(f"the checkpoint was not saved: {error}")


threading._register_atexit(_at_exit)  # atexit's functions run after threads can start no others
