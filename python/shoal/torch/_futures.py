"""Futures of operations, and the turns in which their callbacks run."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.futures import Future


class _Failure:
    """The value of a future that failed. torch's C++ code takes every value for a result; converting this one raises the error."""

    def __init__(self, error: BaseException):
        self._error = error

    def _raise(self, *_: object) -> NoReturn:
        raise self._error

    __len__ = __iter__ = __getitem__ = __str__ = __reduce_ex__ = _raise


class OperationFuture(Future):
    """A future of the tensors of an operation. Its error is the operation's."""

    error: BaseException | None = None

    def complete(self, value: Callable[[], Any]) -> None:
        """Sets the result of ``value()``, or the error that it raises."""
        try:
            result = value()
        except BaseException as error:
            self.error = error
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


class Turns:
    """Runs the callbacks of the futures of a group's collectives.

    A callback may start collectives, and collectives match by their order. So callbacks run one after another, each after the end of its
    future, in the order in which the program registers them, which is the same on all ranks. Their collectives have an order of their own
    (``inside``), beside that of the program. Inside a callback, further ones run where they are registered.
    """

    def __init__(self, name: str):
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[OrderedFuture, Callable[[], None]]] = deque()
        self._has_thread = self._ended = False
        self.runner: int | None = None  # the thread whose turn it is: it runs a callback, or waits for its future

    def inside(self) -> bool:
        """Returns True in a callback."""
        return self.runner == threading.get_ident()

    def take(self, future: OrderedFuture, call: Callable[[], None]) -> None:
        """Runs ``call`` after the end of the future and of earlier callbacks: before it returns, if they have ended."""
        if self.inside():
            _settle(future)
            call()
            return
        with self._turn():
            with self._changed:
                if self.runner is not None or self._waiting or not future.done():
                    self._waiting.append((future, call))
                    if not self._has_thread:
                        self._has_thread = True
                        threading.Thread(target=self._run, name=f"shoal-{self._name}-callbacks", daemon=True).start()
                    self._changed.notify_all()
                    return
                self.runner = threading.get_ident()
            call()

    def end(self) -> None:
        """Ends the thread after the last callback."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """A block in which this thread may take its turn. The end of the block ends the turn, also after an interrupt anywhere inside."""
        try:
            yield
        finally:
            if self.inside():
                self.runner = None  # before the lock, at which another interrupt may come
                with self._changed:
                    self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._turn():
                with self._changed:
                    self._changed.wait_for(lambda: self.runner is None and (self._waiting or self._ended))
                    if not self._waiting:
                        self._has_thread = False
                        return
                    future, call = self._waiting.popleft()
                    self.runner = threading.get_ident()
                with contextlib.suppress(BaseException):  # the future keeps the error
                    _settle(future)
                    call()
            del future, call  # no reference to the last tensors while the thread sleeps


def _settle(future: OrderedFuture) -> None:
    """Waits for a future, whose error its callback takes. An interrupt of the wait is no such error."""
    try:
        future.wait()
    except Exception:
        return
    except BaseException as error:
        if error is not future.error:
            raise
