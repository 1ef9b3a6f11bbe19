"""``exit_actor``, by which an actor ends itself, and the names of handles and classes for type checkers."""

from __future__ import annotations

import threading

from shoal._actors.creation import ActorClass, ActorClassInheritanceException
from shoal._actors.handle import ActorHandle, ActorMethod
from shoal._actors.options import method
from shoal._core.context import running
from shoal._worker.ending import ActorExit, leave, own_call
from shoal.exceptions import AsyncioActorExit

__all__ = ["ActorClass", "ActorClassInheritanceException", "ActorHandle", "ActorMethod", "exit_actor", "method"]


def exit_actor() -> None:
    """Ends the actor that runs this: its constructor, a method, or a thread or task that one of them began.


    It raises an exception, which ends the call; the actor ends even if user code catches it. Running calls of an async or threaded actor
    finish first, without a time limit; a call that never ends keeps the actor until it is killed. Other tasks and threads are not waited
    for. Waiting and later calls fail with ActorDiedError. So does the calling call: at once if others run, otherwise when the actor has
    ended. ``__ray_shutdown__`` and ``atexit`` handlers run. The actor is not restarted.

    TypeError outside of an actor.
    """
    if not running.actor_id:
        raise TypeError("exit_actor called on a non-actor worker: only a method of an actor can end it")
    if (call := own_call()) is not None:
        call.leaves = True
    leave(ActorExit(0))
    if call is None and threading.current_thread() is not threading.main_thread():
        raise SystemExit(0)  # ends the thread silently
    if (running.settings.get("concurrency") or {}).get("async") and threading.current_thread() is not threading.main_thread():
        raise AsyncioActorExit("exit_actor() was called")
    raise ActorExit(0)
