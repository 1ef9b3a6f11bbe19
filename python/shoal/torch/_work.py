"""The Work of an operation or of several, and the threads that complete futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.futures import Future

from shoal import _native
from shoal.exceptions import DeadlineExceeded, ShoalError
from shoal.torch._errors import as_torch

_finishing = threading.Lock()  # one thread copies results back, others that wait for the same Work wait for that


class Done(dist.Work):
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


DONE = Done()


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
        """``lane``: operations of one lane end in the order in which they were started."""
        super().__init__()
        self._natives, self._tensors, self._result, self._back, self._completer = natives, tensors, result, back, completer
        self._source = source
        self._guard = guard  # waits for an operation's peer, and raises if that is lost
        self._error: ShoalError | None = None
        self._future: Future | None = None
        self.lane = lane

    def ended(self) -> bool:
        """Returns True if the operation uses its memory no more. Results that are to be copied back may not be in their tensors yet."""
        return all(native.done() for native in self._natives)

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

    def get_future(self) -> Future:
        """Returns a future of the list of results, which another thread completes. Its error is a ``RuntimeError`` with the text of the
        operation's."""
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Future:
        # torch's C++ code takes an exception of set_exception() for a result, so then() makes the error from the one that is raised.
        ended = Future()
        future = ended.then(self._waited_result)
        if self.is_completed():
            self.settle(ended)
        else:
            self._completer.add(self, ended)
        return future

    def _waited_result(self, _: Future) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def settle(self, ended: Future) -> None:
        """Waits, then completes the future that states the end."""
        with contextlib.suppress(ShoalError):  # raised again by _waited_result
            self.wait()
        ended.set_result(None)


class Several(Work):
    """Operations that were started together. Each of them has a Work of its own, which its group keeps."""

    def __init__(self, parts: Sequence[Work], result: list[torch.Tensor], completer: Completer):
        super().__init__([], None, result, None, completer)
        self._parts = parts

    def ended(self) -> bool:
        return all(part.ended() for part in self._parts)

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts)

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout:
            self._wait_at_most(timeout.total_seconds())
        return all(part.wait() for part in self._parts)

    def _make_future(self) -> Future:
        return torch.futures.collect_all([part.get_future() for part in self._parts]).then(self._waited_result)


class Completer:
    """Completes the futures of a group's operations, in the order of each lane. A lane has a thread from its first use on, so an operation
    that does not end delays no future of another lane."""

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, queue.SimpleQueue[tuple[Work, Future] | None]] = {}

    def add(self, work: Work, ended: Future) -> None:
        with self._lock:
            works = self._lanes.get(work.lane)
            if works is None:
                works = self._lanes[work.lane] = queue.SimpleQueue()
                threading.Thread(target=_settle_all, args=(works,), name=f"shoal-{self._name}", daemon=True).start()
            works.put((work, ended))

    def end(self) -> None:
        with self._lock:
            for works in self._lanes.values():
                works.put(None)
            self._lanes.clear()


def _settle_all(works: queue.SimpleQueue[tuple[Work, Future] | None]) -> None:
    while (item := works.get()) is not None:
        item[0].settle(item[1])
        item = None  # no reference to the last tensors while it sleeps
