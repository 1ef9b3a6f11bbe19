"""The end that an actor asks for itself. Any thread notes it here; the main loop ends the actor once the running calls are done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from shoal._core.context import CallInfo, concurrent_call, current_call, running
from shoal._core.process import state

__all__ = ["ActorExit", "has_left", "leave", "own_call", "take_graph_calls", "unless_left"]


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
    state.session.stop_serving()  # wakes the main loop, which may wait for a call


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
