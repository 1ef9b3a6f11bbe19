"""The end that an actor asks for itself. Any thread notes it here; the main loop ends the actor once the running calls are done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from shoal._core.context import CallInfo, concurrent_call, current_call, running
from shoal._core.process import state
from shoal.exceptions import AsyncioActorExit

__all__ = ["ActorExit", "exit_actor", "has_left", "leave", "own_call", "take_graph_calls", "unless_left"]


class ActorExit(SystemExit):
    """Raised by ``exit_actor``; user code should let it pass. ``why`` is shown to callers."""

    why = "exit_actor() was called"


def leave(error: SystemExit, incoming: Any = None) -> None:
    """Asks this actor to end; the first ``error`` decides how. ``incoming``: the call that asked, which is answered by the end."""
    if incoming is not None:
        running.leaving.append(incoming)
    if running.runner is not None:
        running.runner.leave(error)
        return
    running.ending = running.ending or error
    state.session.stop_serving()  # ends the main loop's wait for a call


def own_call() -> CallInfo | None:
    """The call that this thread or task runs, or that started it. A thread of the user has none."""
    call = concurrent_call.get()
    if call is None and threading.current_thread() is threading.main_thread():
        return current_call()
    return call


def has_left() -> bool:
    """True if ``exit_actor`` was called in this call, even if user code caught its exception."""
    call = own_call() if running.ending is not None else None
    return call is not None and call.leaves


def take_graph_calls() -> Iterator[Any]:
    """Takes the graph calls that no other thread has taken; the caller answers each."""
    with contextlib.suppress(KeyError):
        while True:
            yield running.graphs.popitem()[1]


def unless_left() -> None:
    if has_left():
        raise ActorExit(0)


def exit_actor() -> None:
    """Ends the actor that runs this: its constructor, a method, or a thread or task that one of them began.

    It raises an exception, which ends the call; the actor ends even if user code catches it. Running calls of an async or threaded actor
    finish first, without a time limit; a call that never ends keeps the actor until it is killed. Other tasks and threads are not waited
    for. Waiting and later calls fail with ActorDiedError. So does the calling call: at once if others run, otherwise when the actor has
    ended. ``__ray_shutdown__`` and ``atexit`` handlers run. The actor is not restarted.

    TypeError outside of an actor.
    """
    if not running.actor_id:
        raise TypeError("exit_actor API is called on a non-actor worker: only the code of an actor can end it")
    if (call := own_call()) is not None:
        call.leaves = True
    leave(ActorExit(0))
    if call is None and threading.current_thread() is not threading.main_thread():
        raise SystemExit(0)  # ends the thread silently
    if (running.settings.get("concurrency") or {}).get("async") and threading.current_thread() is not threading.main_thread():
        raise AsyncioActorExit("exit_actor() was called")
    raise ActorExit(0)
