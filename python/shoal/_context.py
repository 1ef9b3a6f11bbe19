"""The state of what this process runs right now: the actor it is, and the call that is being executed."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

__all__ = ["CallInfo", "Running", "concurrent_call", "current_call", "method_of", "parent_call", "running"]


class CallInfo:
    """A call that is executed. Ids are made when somebody asks."""

    __slots__ = ("_task_id", "began", "extra", "incoming", "leaves", "over", "where")

    def __init__(self, where: str, extra: dict[str, Any] | None, incoming: Any = None):
        self.where, self.extra, self.incoming, self._task_id = where, extra, incoming, ""  # where: class and method, or the function's name
        self.began = self.leaves = self.over = False  # it has its turn, on a loop; exit_actor was called in it; its code has run

    @property
    def task_id(self) -> str:
        if not self._task_id:
            self._task_id = self.incoming.task_id if self.incoming is not None else os.urandom(16).hex()
        return self._task_id


def method_of(instance, name: str):
    """A method as the instance's class defines it, bound: an attribute of the instance hides nothing from callers of the actor."""
    found = getattr(instance, name, None)
    if type(found) is MethodType and found.__self__ is instance and found.__func__ is getattr(type(instance), name, None):
        return found  # as most are
    for cls in type(instance).__mro__:
        if name in vars(cls):
            own = vars(cls)[name]
            bind = getattr(type(own), "__get__", None)
            return own if bind is None else bind(own, instance, type(instance))
    return getattr(instance, name)


@dataclass
class Running:
    """The state of a worker. Fields of a call are the main thread's; those of a concurrent actor have their own (concurrent_call)."""

    actor_id: str = ""  # "" in a worker that runs functions
    cls: type | None = None
    instance: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    incoming: Any = None  # the call that is executed
    info: CallInfo | None = None  # of it, once somebody asked
    extra: dict[str, Any] | None = None
    where: str = ""  # in it; "" for class and method
    interruptible: bool = False  # its code runs, and may be interrupted when it is cancelled
    stand: Any = None  # what is counted of the handles that this actor has given away of itself
    ending: SystemExit | None = None  # why this actor is to end
    leaving: list = field(default_factory=list)  # calls that come to its end
    graphs: dict = field(default_factory=dict)  # calls that are answered when their graphs end, or this actor
    unanswered: list = field(default_factory=list)  # calls that come to its death: one that is let go of is answered, with a bug of ours
    runner: Any = None  # of a concurrent actor
    function: Any = None  # the remote function that runs, of a worker of functions
    turn: Any = None  # of an ordinary actor that is in compiled graphs: whose call may run (shoal.dag._loop)


running = Running()
concurrent_call: ContextVar[CallInfo | None] = ContextVar("shoal_call", default=None)


def parent_call() -> Any:
    """The call in which this code makes others: when it is cancelled they are, too. None in a driver."""
    call = concurrent_call.get()
    return running.incoming if call is None else call.incoming


def current_call() -> CallInfo | None:
    """Made when somebody asks: most calls never do."""
    call, incoming = concurrent_call.get(), running.incoming
    if call is not None or incoming is None:
        return call
    if running.info is None:
        running.info = CallInfo(running.where or f"{running.cls.__name__}.{incoming.method}", running.extra, incoming)
    return running.info
