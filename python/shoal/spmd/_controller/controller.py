"""One program that drives the processes which hold the devices: ``xr.use_spmd(workers=N)``.

Items (replaying.py) are collected into batches, which every rank's actor runs while the program goes on. When the program reads a value, it
waits for the ranks' answer.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core.process import state
from shoal._core.telemetry import Activity, at
from shoal._objects.values import get, put, wait
from shoal._printable import say
from shoal.exceptions import Cancelled, ShoalError, Unavailable
from shoal.spmd._controller.replaying import Failure
from shoal.spmd._layout.errors import located
from shoal.spmd._layout.traffic import line_of

Position = tuple[CodeType, int] | None  # code of the program, and the offset of an instruction in it
_ITEMS = 200  # least size of a batch, but _FEW while the ranks are idle
_FEW = 32
_UNDER_WAY = 8  # the most batches that are sent and not answered
_AGREE_S = 5.0  # how long the other ranks may run after a rank's failure, until their waits are ended


class _Batch:
    __slots__ = ("kept", "names", "positions", "refs")

    def __init__(self, refs: list, items: list, positions: list, kept: list):
        self.refs, self.names, self.positions, self.kept = refs, items, positions, kept


class Controller:
    """Sends batches to ``ranks`` and handles their answers."""

    def __init__(self, ranks: list[ActorHandle]):
        self.lock = threading.RLock()
        self.queue: deque[Any] = deque()  # (item, position in the program), or a freed tensor's number
        self._ranks = ranks
        self._beside: list[Any] = []  # large values of the current batch, sent by reference
        self._under_way: deque[_Batch] = deque()
        self._cause: BaseException | None = None
        self._operators: dict[int, str] = {}  # by number of a template: the operator's name
        self._lines: list[str] | None = None  # the program's line of each operator, while operators are timed
        self._collected: list[tuple[float, float, int]] = []  # by batch: begin and end of its collection, and its number of items
        self._since = 0.0

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    def add(self, item: tuple) -> Position:
        at = called_from()
        self.queue.append((item, at))
        return at

    def pace(self) -> None:
        """Sends the collected items if they are enough for a batch."""
        collected = len(self.queue)
        if collected >= _ITEMS or (collected >= _FEW and not self._busy()):
            self.flush()

    def _busy(self) -> bool:
        return bool(self._under_way) and not all(r._ref.ready for r in self._under_way[-1].refs)

    def beside(self, value: torch.Tensor) -> int:
        self._beside.append(put(value))
        return len(self._beside) - 1

    def flush(self) -> None:
        """Sends the collected items."""
        with self.lock:
            self._refuse_after_failure()
            if self.queue:
                self._send()
            while self._under_way and (len(self._under_way) > _UNDER_WAY or all(r._ref.ready for r in self._under_way[0].refs)):
                self._answered()

    def query(self, item: tuple) -> Any:
        """Returns rank 0's answer to a question. The ranks answer it after all items recorded before."""
        with self.lock:
            self._refuse_after_failure()
            self._send(item)
            while self._under_way:
                answer = self._answered()
            return answer

    def trace(self) -> None:
        """Makes the ranks record the times of operators from here on."""
        with self.lock:
            self.flush()
            self.add(("trace",))
            self._lines, self._collected, self._since = [], [], time.time()

    def traced(self) -> tuple[list[tuple[float, float, int]], list[list[tuple[str, float, float, str]]]]:
        """Returns the times: per batch (begin, end, items), and per rank (name, begin, end, line of the program) of operators and their
        waits."""
        with self.lock:
            self.query(("idle",))
            lines, self._lines = self._lines or [], None
            found = get([rank.traced.remote() for rank in self._ranks])
        return self._collected, [[(name, a, b, "" if i is None else lines[i]) for name, a, b, i in spans] for spans in found]

    def wait(self) -> None:
        """Returns once all recorded items have run."""
        self.query(("idle",))

    def _send(self, question: tuple | None = None) -> None:
        """Sends the collected batch. A question is its last item, even if other threads or the garbage collector add items meanwhile."""
        items, positions, names = [], [], []
        entries = [self.queue.popleft() for _ in range(len(self.queue))]
        if question is not None:
            entries.append((question, called_from()))
        for entry in entries:
            item, at = (entry, None) if type(entry) is int else entry
            items.append(item)
            positions.append(at)
            if self._lines is not None and type(item) is tuple and (type(item[0]) is int or item[0] == "ask"):
                self._lines.append(_line(at))
            names.append(self._name(item))
        kept, self._beside = self._beside, []
        if self._lines is not None:
            now = time.time()
            self._collected.append((self._since, now, len(items)))
            self._since = now
        packed = pickle.dumps(items, protocol=5)
        refs = [rank.run.remote(packed, kept) for rank in self._ranks]
        self._under_way.append(_Batch(refs, names, positions, kept))

    def _name(self, item: Any) -> str:
        if type(item) is int:
            return "free"
        kind = item[0]
        if type(kind) is int:
            return self._operators[kind]
        if kind == "template":
            self._operators[item[1]] = item[2]
        elif kind == "forget_templates":
            self._operators.clear()
        return self._operators[item[1]] if kind == "ask" else kind

    def _answered(self) -> Any:
        """Calls ``_await_answers``. Telemetry counts the main thread's wait as the forward of a unit "ranks", because the ranks compute
        meanwhile. Waits of other threads, such as a loader's, are no part of a step."""
        is_training = threading.current_thread() is threading.main_thread()
        with at(Activity.FORWARD, "ranks") if is_training else contextlib.nullcontext():
            return self._await_answers()

    def _await_answers(self) -> Any:
        """Waits for the answer to the oldest batch; after Ctrl-C that batch stays in flight. Raises the error of the first rank that failed
        by itself, not as a consequence of another rank's failure."""
        batch = self._under_way[0]
        found: dict[int, Any] = {}
        said: dict[int, list] = {}
        failed: dict[int, Failure] = {}
        waiting, aborted = list(batch.refs), False
        while waiting:
            # After a failure, other ranks may wait in an operator for the failed rank. abort() ends such waits.
            ready, waiting = wait(waiting, timeout=_AGREE_S if failed else None)
            if not ready:
                rank, aborted = min(failed), True
                self._ranks[rank].abort.remote(f"rank {rank} failed: {failed[rank].error}")
                ready, waiting = wait(waiting)
            rank = batch.refs.index(ready[0])
            try:
                found[rank], said[rank] = get(ready[0])
            except ShoalError as error:
                self._under_way.popleft()
                error.context = (*error.context, f"rank {rank} of {len(batch.refs)}")
                error.hint = error.hint or "tensors lie with the ranks: start the program again, from its last checkpoint"
                self._cause = error
                raise
            if isinstance(found[rank], Failure):
                failed[rank] = found[rank]
        self._under_way.popleft()
        self._warn(batch, said[0])
        if not failed:
            return found[0]
        own = [r for r, f in failed.items() if not isinstance(f.error, (Cancelled, Unavailable))]
        rank = min(own or failed)
        error = self._explained(batch, rank, failed[rank])
        if aborted or not failed[rank].continues:
            self._cause = error
        raise error

    def _explained(self, batch: _Batch, rank: int, failure: Failure) -> BaseException:
        """Returns the error with the operator, the program's line and the rank."""
        name = batch.names[failure.item]
        at = _line(batch.positions[failure.item])
        return located(failure.error, f"{name}{at and f', {at}'}, rank {rank} of {len(self._ranks)}")

    def _warn(self, batch: _Batch, said: list) -> None:
        for item, text, category in said:
            file, number = _file_and_line(batch.positions[item])
            warnings.warn_explicit(text, category, file, number)

    def _refuse_after_failure(self) -> None:
        if self._cause is not None:
            raise Unavailable(
                f"the ranks have stopped: an operator failed before ({self._cause})",
                hint="correct that operator, and start the program again",
            ) from self._cause

    def pids(self) -> list[int]:
        """Returns the process ids of the ranks."""
        return get([rank.pid.remote() for rank in self._ranks])

    def end(self) -> None:
        """Runs the recorded items and ends the ranks. If that fails, the program's exit status is 1."""
        try:
            if self._cause is None:
                self.wait()
        except BaseException as error:  # reported here, because the program is about to end
            say(f"shoal.spmd: the last operators failed: {error}")
            state.failed = True
        for rank in self._ranks:
            with contextlib.suppress(Exception):
                kill(rank)


# ---- position of an operator in the program -------------------------------------------------------------------------------------------

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_is_library: dict[str, bool] = {}


def called_from() -> Position:
    """Returns the position of the innermost frame outside of torch and shoal.spmd."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _is_library.get(name)
        if inside is None:
            inside = _is_library[name] = name.startswith(_LIBRARIES)
        if not inside:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def _file_and_line(at: Position) -> tuple[str, int]:
    return ("<unknown>", 0) if at is None else line_of(*at)


def _line(at: Position) -> str:
    return "" if at is None else "line {1} of {0}".format(*_file_and_line(at))
