"""The state of this process: the actor that it is, and the executing call."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

__all__ = ["CallInfo", "Running", "concurrent_call", "current_call", "method_of", "parent_call", "running"]


class CallInfo:
    """An executing call. Its id is made on the first access."""

    __slots__ = ("_task_id", "began", "extra", "incoming", "leaves", "over", "where")

    def __init__(self, where: str, extra: dict[str, Any] | None, incoming: Any = None):
        self.where, self.extra, self.incoming, self._task_id = where, extra, incoming, ""  # where: class and method, or function
        self.began = self.leaves = self.over = False  # it has begun on its loop, has called exit_actor, has run all its code

    @property
    def task_id(self) -> str:
        if not self._task_id:
            self._task_id = self.incoming.task_id if self.incoming is not None else os.urandom(16).hex()
        return self._task_id


def method_of(instance, name: str):
    """Returns a method as the instance's class defines it, bound; attributes of the instance do not hide it from callers."""
    found = getattr(instance, name, None)
    if type(found) is MethodType and found.__self__ is instance and found.__func__ is getattr(type(instance), name, None):
        return found  # the common case: an ordinary method
    for cls in type(instance).__mro__:
        if name in vars(cls):
            own = vars(cls)[name]
            bind = getattr(type(own), "__get__", None)
            return own if bind is None else bind(own, instance, type(instance))
    return getattr(instance, name)


@dataclass
class Running:
    """The state of a worker. The fields of a call belong to the main thread; concurrent actors use concurrent_call instead."""

    actor_id: str = ""  # "" in a worker of functions
    cls: type | None = None
    instance: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    incoming: Any = None  # the executing call
    info: CallInfo | None = None  # its CallInfo, once requested
    extra: dict[str, Any] | None = None
    where: str = ""  # the function's name; "" for class and method
    interruptible: bool = False  # user code runs, and a cancellation may interrupt it
    token: Any = None  # counts the handles that this actor gave away of itself
    ending: SystemExit | None = None  # the reason for this actor's end
    leaving: list = field(default_factory=list)  # calls that are answered by the actor's end
    graphs: dict = field(default_factory=dict)  # calls answered at the end of their graphs or of this actor
    # Calls that the actor's death answers; kept here, because a call that is freed without an answer fails as Internal.
    unanswered: list = field(default_factory=list)
    runner: Any = None  # serves a concurrent actor
    function: Any = None  # the running remote function, in a worker of functions
    turn: Any = None  # lock of the running call, for ordinary actors in compiled graphs (shoal.dag._loop)


running = Running()
concurrent_call: ContextVar[CallInfo | None] = ContextVar("shoal_call", default=None)


def parent_call() -> Any:
    """The call in which this code makes others, which are cancelled with it. A driver has none."""
    call = concurrent_call.get()
    return running.incoming if call is None else call.incoming


def current_call() -> CallInfo | None:
    """The executing call. It is made on request, because most calls never need it."""
    call, incoming = concurrent_call.get(), running.incoming
    if call is not None or incoming is None:
        return call
    if running.info is None:
        running.info = CallInfo(running.where or f"{running.cls.__name__}.{incoming.method}", running.extra, incoming)
    return running.info
