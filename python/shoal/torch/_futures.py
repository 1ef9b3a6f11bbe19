"""Futures of operations, and the turns in which their callbacks run."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from torch.futures import Future

from shoal.exceptions import DeadlineExceeded
from shoal.torch._errors import as_torch


class _Failure:
    """The value of a future that failed. torch's C++ code takes every value for a result; converting this one raises the error."""

    def __init__(self, error: BaseException):
        self._error = error

    def _raise(self, *_: object) -> NoReturn:
        raise self._error

    __len__ = __iter__ = __getitem__ = __str__ = __reduce_ex__ = _raise


class OperationFuture(Future):
    """A future of the tensors of an operation. Its error is the operation's."""

    def complete(self, value: Callable[[], Any]) -> None:
        """Sets the result of ``value()``, or the error that it raises."""
        try:
            result = value()
        except BaseException as error:
            failure = _Failure(error)
            self._set_unwrap_func(failure._raise)
            self.set_result(failure)
            if not isinstance(error, Exception):
                raise
        else:
            self.set_result(result)


class OrderedFuture(OperationFuture):
    """A future of a collective. Its callbacks, and those of the futures that ``then`` returns, run in the turns of the group."""

    def __init__(self, turns: Turns):
        super().__init__()
        self._turns = turns

    def then(self, callback: Callable[[Future], Any]) -> OrderedFuture:
        """Returns a future of the result of ``callback(self)``."""
        following = OrderedFuture(self._turns)
        self._turns.take(self, lambda: following.complete(lambda: callback(self)))
        return following

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        self.then(callback)


class ApartThread(threading.Thread):
    """A thread of this package that may run callbacks of the user. Its collectives wait for no callbacks."""


class _CallbackThread(ApartThread):
    pass


class Turns:
    """Runs the callbacks of the futures of a group's collectives.

    A callback may start collectives, and collectives match by their order. So a callback has a place in the program's order, the same on
    all ranks: the place where the program registers it. A thread runs the callbacks one after another, each after the end of its future.
    A collective that the program starts later waits for them. Inside a callback, further ones run where they are registered.
    """

    def __init__(self, name: str):
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[OrderedFuture, Callable[[], None]]] = deque()
        self._has_thread = self._ended = False
        self.pending = False  # a callback waits or runs

    def take(self, future: OrderedFuture, call: Callable[[], None]) -> None:
        """Runs ``call`` after the end of the future and of earlier callbacks: before it returns, if they have ended."""
        if isinstance(threading.current_thread(), _CallbackThread):
            _settle(future)
            call()
            return
        with self._changed:
            if self.pending or not future.done():
                self.pending = True
                self._waiting.append((future, call))
                if not self._has_thread:
                    self._has_thread = True
                    _CallbackThread(target=self._run, name=f"shoal-{self._name}-callbacks", daemon=True).start()
                self._changed.notify_all()
                return
        call()

    def catch_up(self, limit_s: float) -> None:
        """Waits for all callbacks; raises ``DeadlineExceeded`` after ``limit_s``."""
        if isinstance(threading.current_thread(), ApartThread):
            return
        with self._changed:
            if self._changed.wait_for(lambda: not self.pending, limit_s):
                return
        raise as_torch(
            DeadlineExceeded(
                f"a callback of a future has not returned within {limit_s:g} s, and this collective has its turn after it",
                hint="let callbacks wait for no later step of the program; a callback waits for its collective on all ranks",
            )
        )

    def end(self) -> None:
        """Ends the thread after the last callback."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self.pending = False
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    self._has_thread = False
                    return
                future, call = self._waiting.popleft()
            _settle(future)
            with contextlib.suppress(BaseException):  # the future has it
                call()
            del future, call  # no reference to the last tensors while the thread sleeps


def _settle(future: OrderedFuture) -> None:
    """Waits for a future, whose error its callback takes."""
    with contextlib.suppress(Exception):
        future.wait()
