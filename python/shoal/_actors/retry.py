"""Rules for repeated calls: how often, after which exceptions, and which methods (``max_task_retries`` with ``retry_exceptions``)."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

from shoal import _native
from shoal._core.context import parent_call
from shoal._objects.refs import ObjectRef, callbacks, load, when_ready

__all__ = ["MethodAttempts", "Retries"]


@dataclass(slots=True)
class Retries:
    """``left``: remaining repetitions, unlimited below 0. ``exceptions``: the classes to repeat after, or True for all."""

    left: int
    exceptions: bool | tuple[type[BaseException], ...]

    @classmethod
    def from_options(cls, left: int, exceptions: bool | list | tuple) -> Retries:
        return cls(left, exceptions if isinstance(exceptions, bool) else tuple(exceptions))

    @property
    def judges_exceptions(self) -> bool:
        return bool(self.exceptions) and self.left != 0

    def take(self) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def worth_another(self, attempt: _native.Ref) -> bool:
        """True if an attempt that raised may be repeated."""
        if isinstance(self.exceptions, bool):
            return self.exceptions
        try:
            load(ObjectRef(attempt))
        except BaseException as error:
            return isinstance(error, self.exceptions)
        return False


@dataclass(slots=True)
class MethodAttempts:
    """A method call that is repeated while it raises. Later calls of the same caller do not wait for it."""

    session: _native.Session
    actor: Any  # shared state of handles, which keeps the actor alive
    method: str
    args: _native.Ref
    deps: list[_native.Ref]
    retries: Retries
    attempts: _native.Attempts = field(default_factory=_native.Attempts)
    attempt: _native.Ref | None = None
    starting: Any = field(default_factory=threading.Lock)  # held until ``attempt`` is set
    parent: Any = field(default_factory=parent_call)

    def start(self) -> _native.Ref:
        awaited, result = callbacks(), self.attempts.ref
        number = awaited.number(self._judge)
        again = (self.retries.judges_exceptions, awaited.readiness, number, self.parent)
        with self.starting:  # the attempt may have ended before this thread goes on
            self.attempt = self.attempts.start(self.session, self.actor.id, self.method, self.args, self.deps, *again)
        when_ready(ObjectRef(result), lambda: awaited.forget(number))
        return result

    def _judge(self) -> None:
        with self.starting:
            attempt = self.attempt
        with contextlib.suppress(Exception):  # the session is closed: this failure is the result
            if attempt.raised and self.retries.worth_another(attempt) and self.retries.take():
                self.start()
                return
        with contextlib.suppress(Exception):
            self.attempts.settle(self.session, attempt)
