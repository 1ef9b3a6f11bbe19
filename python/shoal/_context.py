"""What this process runs right now: the actor it is, and the call that is being executed."""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CallInfo", "Running", "concurrent_call", "current_call", "running"]


class CallInfo:
    """A call that is executed. Ids are made when somebody asks."""

    __slots__ = ("_task_id", "extra", "where")

    def __init__(self, where: str, extra: dict[str, Any] | None):
        self.where, self.extra, self._task_id = where, extra, ""  # where: class and method, or the function's name

    @property
    def task_id(self) -> str:
        if not self._task_id:
            self._task_id = secrets.token_hex(8)
        return self._task_id


@dataclass
class Running:
    """Of a worker. ``call`` is the main thread's; threads and tasks of a concurrent actor have their own."""

    actor_id: str = ""  # "" in a worker that runs functions
    cls: type | None = None
    instance: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    call: CallInfo | None = None
    unanswered: Any = None


running = Running()
concurrent_call: ContextVar[CallInfo | None] = ContextVar("shoal_call", default=None)


def current_call() -> CallInfo | None:
    return concurrent_call.get() or running.call
