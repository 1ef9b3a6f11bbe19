"""The Work of an operation, and the thread that completes futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
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

    It keeps the operation's tensors alive. Results of tensors that are not contiguous are copied back by the first ``wait``.
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
    ):
        super().__init__()
        self._natives, self._tensors, self._result, self._back, self._completer = natives, tensors, result, back, completer
        self._source = source
        self._guard = guard  # waits for an operation's peer, and raises if that is lost
        self._error: ShoalError | None = None
        self._future: Future | None = None
        self._ended: Future | None = None

    def is_completed(self) -> bool:
        """Returns True if ``wait`` would return or raise at once."""
        return all(native.done() for native in self._natives)

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
            if self._guard is not None:
                self._guard()
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
            # torch's C++ code takes an exception of set_exception() for a result, so then() makes the error from the one that is raised.
            self._ended = Future()
            self._future = self._ended.then(self._waited_result)
            if self.is_completed():
                self.settle()
            else:
                self._completer.add(self)
        return self._future

    def _waited_result(self, _: Future) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def settle(self) -> None:
        """Waits, then completes the future."""
        with contextlib.suppress(ShoalError):  # raised again by _waited_result
            self.wait()
        self._ended.set_result(None)


class Completer:
    """Completes the futures of a group's operations, in their order, in a thread that runs from the first use on."""

    def __init__(self, name: str):
        self._name = name
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"shoal-{self._name}", daemon=True)
            self._thread.start()
        self._works.put(work)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work.settle()
            work = None  # no reference to the last tensors while it sleeps

    def end(self) -> None:
        self._works.put(None)
