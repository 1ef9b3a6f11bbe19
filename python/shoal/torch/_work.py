"""The Work of an operation or of several, and the threads that complete futures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.futures import Future

from shoal import _native
from shoal.exceptions import DeadlineExceeded, ShoalError
from shoal.torch._errors import as_torch
from shoal.torch._futures import OperationFuture, OrderedFuture, Turns
from shoal.torch._recorder import recorder

OF_CALLBACKS = "callbacks"  # the lane of collectives that callbacks start
_finishing = threading.Lock()  # one thread copies results back, others that wait for the same Work wait for that


class EndedWork(dist.Work):
    """The Work of an operation that has ended before its call returned."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return []

    def get_future(self) -> Future:
        future = Future()
        future.set_result([])
        return future


ENDED = EndedWork()


class Work(dist.Work):
    """An operation under way.

    It keeps the operation's tensors alive. Results of tensors that are not contiguous are copied back by the first ``wait``, or by the
    first query after the end.
    """

    def __init__(
        self,
        natives: list[_native.Work],
        tensors: object,
        result: list[torch.Tensor],
        back: Callable[[], None] | None,
        completer: Completer,
        source: int = -1,
        guard: Callable[[], None] | None = None,
        lane: Hashable = None,
    ):
        """``lane``: operations of one lane end in the order in which they were started; None for collectives of the program."""
        super().__init__()
        self._natives, self._tensors, self._result, self._back, self._completer = natives, tensors, result, back, completer
        self._source = source
        self._guard = guard  # waits for an operation's peer, and raises if that is lost
        self._error: ShoalError | None = None
        self._future: OperationFuture | None = None
        self.lane = lane

    def ended(self) -> bool:
        """Returns True if the operation uses its memory no more. Results that are to be copied back may not be in their tensors yet."""
        return all(native.ended() for native in self._natives)

    def succeeded(self) -> bool:
        """Returns True if the operation has ended without an error. It copies nothing back."""
        if self._error is not None or not self.ended():
            return False
        try:
            for native in self._natives:
                native.wait()
        except ShoalError:
            return False
        return True

    def is_completed(self) -> bool:
        """Returns True if ``wait`` would return or raise at once. The results are in their tensors then."""
        if not self.ended():
            return False
        if self._back is not None and self._error is None:
            with contextlib.suppress(ShoalError):  # raised again by wait()
                self.wait()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Returns the error of an operation that has ended, or None."""
        if self.is_completed() and self._error is None:
            try:
                self.wait()
            except ShoalError as error:
                return error
        return self._error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end of the operation; raises its error.

        ``timeout``: raises ``DeadlineExceeded`` then, and the operation goes on. By default, and for zero, only the operation's own time
        limit counts.
        """
        if timeout:
            self._wait_at_most(timeout.total_seconds())
        try:
            guard = self._guard  # another thread that waits may remove it
            if guard is not None:
                guard()
                self._guard = None
            for native in self._natives:
                native.wait()
        except ShoalError as error:
            self._error = as_torch(error)
            if recorder is not None:
                recorder.failed(error)
            raise self._error from None
        if self._back is not None:
            with _finishing:
                if self._back is not None:
                    self._back()
                    self._back = None
        self._tensors = None
        return True

    def _wait_at_most(self, seconds: float) -> None:
        end, pause = time.monotonic() + seconds, 20e-6
        while not self.is_completed():
            if time.monotonic() > end:
                late = DeadlineExceeded(f"an operation is not complete after {seconds:g} s", hint="the operation goes on; wait again")
                raise as_torch(late)
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors with the results. Raises ``RuntimeError`` before the end of the operation."""
        if not self.is_completed():
            raise RuntimeError("the operation has not ended: call wait() first")
        return self._result

    def source_rank(self) -> int:
        """Returns the sender's rank in the group, of a receive."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> OperationFuture:
        """Returns a future of the list of results, which another thread completes. Its error is the operation's.

        Callbacks of a collective's future may start collectives, and wait for them (``Turns``).
        """
        if self._future is None:
            self._future = self._completer.make_future(self.ordered)
            self._complete_later(self._future)
        return self._future

    @property
    def ordered(self) -> bool:
        """True for a collective: all ranks start it at the same place of their order."""
        return self.lane in (None, OF_CALLBACKS)

    def _complete_later(self, future: OperationFuture) -> None:
        if self.is_completed():
            future.complete(self.waited_result)
        else:
            self._completer.add(self, future)

    def waited_result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result


class Several(Work):
    """Operations that were started together. Each of them has a Work of its own, which its group keeps."""

    def __init__(self, parts: Sequence[Work], result: list[torch.Tensor], completer: Completer):
        super().__init__([], None, result, None, completer)
        self._parts = parts

    def ended(self) -> bool:
        return all(part.ended() for part in self._parts)

    def succeeded(self) -> bool:
        return all(part.succeeded() for part in self._parts)

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout:
            self._wait_at_most(timeout.total_seconds())
        return all(part.wait() for part in self._parts)

    @property
    def ordered(self) -> bool:
        return all(part.ordered for part in self._parts)

    def _complete_later(self, future: OperationFuture) -> None:
        parts = torch.futures.collect_all([part.get_future() for part in self._parts])
        parts.add_done_callback(lambda _: future.complete(self.waited_result))


class Completer:
    """Completes the futures of a group's operations. A lane has threads from its first use on, so an operation that does not end delays no
    future of another lane."""

    def __init__(self, name: str):
        self._name = name
        self.turns = Turns(name)
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, _Lane] = {}

    def make_future(self, ordered: bool) -> OperationFuture:
        return OrderedFuture(self.turns) if ordered else OperationFuture()

    def add(self, work: Work, future: OperationFuture) -> None:
        with self._lock:
            lane = self._lanes.get(work.lane)
            if lane is None:
                lane = self._lanes[work.lane] = _Lane(f"shoal-{self._name}")
        lane.add(work, future)

    def end(self) -> None:
        self.turns.end()
        with self._lock:
            for lane in self._lanes.values():
                lane.end()
            self._lanes.clear()


class _Lane:
    """Operations that end in the order in which they were started, and the threads that complete their futures.

    One thread waits for the next operation. While it completes a future, which may run callbacks that torch keeps, another takes its place.
    """

    def __init__(self, name: str):
        self._name = name
        self._changed = threading.Condition()
        self._next = threading.Lock()  # held by the thread that waits for the next operation
        self._works: deque[tuple[Work, OperationFuture]] = deque()
        self._free = 0  # threads that run no callbacks
        self._ended = False

    def add(self, work: Work, future: OperationFuture) -> None:
        with self._changed:
            self._works.append((work, future))
            self._start_if_none()
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _start_if_none(self) -> None:
        if self._works and not self._free:
            self._free += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._next:
                with self._changed:
                    self._changed.wait_for(lambda: self._works or self._ended)
                    if not self._works:
                        self._free -= 1
                        return
                    work, future = self._works.popleft()
                with contextlib.suppress(Exception):  # raised again by waited_result
                    work.wait()
            with self._changed:
                self._free -= 1
                self._start_if_none()
            future.complete(work.waited_result)
            del work, future  # no reference to the last tensors while the thread sleeps
            with self._changed:
                if self._free > 1:
                    return
                self._free += 1
