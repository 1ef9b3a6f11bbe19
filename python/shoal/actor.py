"""``exit_actor``: an actor ends itself. And the names under which handles and classes are known to type checkers."""

from __future__ import annotations

from shoal._context import running
from shoal._handle import ActorHandle, ActorMethod
from shoal._options import method
from shoal._remote import ActorClass, ActorClassInheritanceException
from shoal.exceptions import AsyncioActorExit

__all__ = ["ActorClass", "ActorClassInheritanceException", "ActorHandle", "ActorMethod", "exit_actor", "method"]


class ActorExit(SystemExit):
    """Raised by ``exit_actor``: user code lets it pass. ``why`` is what callers read."""

    why = "exit_actor() was called"


def exit_actor() -> None:
    """Ends the actor that runs this, by an exception: exit handlers (``atexit``) run, calls that wait fail with ActorDiedError.

    TypeError outside of an actor.
    """
    if not running.actor_id:
        raise TypeError("exit_actor called on a non-actor worker: only a method of an actor can end it")
    if (running.settings.get("concurrency") or {}).get("async"):
        raise AsyncioActorExit("exit_actor() was called")
    raise ActorExit(0)
