"""``exit_actor``: an actor ends itself. And the names under which handles and classes are known to type checkers."""

from __future__ import annotations

import threading

from shoal._context import running
from shoal._ending import ActorExit, leave, own_call
from shoal._handle import ActorHandle, ActorMethod
from shoal._options import method
from shoal._remote import ActorClass, ActorClassInheritanceException
from shoal.exceptions import AsyncioActorExit

__all__ = ["ActorClass", "ActorClassInheritanceException", "ActorHandle", "ActorMethod", "exit_actor", "method"]


def exit_actor() -> None:
    """Ends the actor that runs this: its constructor, a method, or a thread or task that one of them began.

    It raises an exception, which ends the call; the actor ends whether that is caught or not. Calls that run (of an async actor or one
    with threads) come to their end first, however long they take; a call that does not end keeps the actor until it is killed. Tasks and
    threads that are no calls are not waited for. Calls that wait for their turn, and all that come, fail with ActorDiedError; so does
    the call that ends it, at once if others run, and else when the actor has ended. ``__ray_shutdown__`` and exit handlers (``atexit``)
    run. It is not started again.
    TypeError outside of an actor.
    """
    if not running.actor_id:
        raise TypeError("exit_actor called on a non-actor worker: only a method of an actor can end it")
    if (call := own_call()) is not None:
        call.leaves = True
    leave(ActorExit(0))
    if call is None and threading.current_thread() is not threading.main_thread():
        raise SystemExit(0)  # which ends a thread without a word
    if (running.settings.get("concurrency") or {}).get("async") and threading.current_thread() is not threading.main_thread():
        raise AsyncioActorExit("exit_actor() was called")
    raise ActorExit(0)
