"""How an actor ends itself. Whoever asks for that notes it here, from any thread; its main ends it once what runs has come to its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from shoal._context import CallInfo, concurrent_call, current_call, running
from shoal._runtime import state

__all__ = ["ActorExit", "has_left", "leave", "own_call", "take_graph_calls", "unless_left"]


class ActorExit(SystemExit):
    """Raised by ``exit_actor``: user code lets it pass. ``why`` is what callers read."""

    why = "exit_actor() was called"


def leave(error: SystemExit, incoming: Any = None) -> None:
    """This actor is to end; the first ``error`` says how. ``incoming``: a call that comes to that end, as all do that ask for it."""
    if incoming is not None:
        running.leaving.append(incoming)
    if running.runner is not None:
        running.runner.leave(error)
        return
    running.ending = running.ending or error
    state.session.stop_serving()  # the main may wait for a call


def own_call() -> CallInfo | None:
    """The call that this thread runs, or this task, or the one that began it. None in a thread of the user's."""
    call = concurrent_call.get()
    if call is None and threading.current_thread() is threading.main_thread():
        return current_call()
    return call


def has_left() -> bool:
    """Whether ``exit_actor`` was called in this call, whatever became of its exception."""
    call = own_call() if running.ending is not None else None
    return call is not None and call.leaves


def take_graph_calls() -> Iterator[Any]:
    """Those that no other thread has taken, each to be answered by the taker."""
    with contextlib.suppress(KeyError):
        while True:
            yield running.graphs.popitem()[1]


def unless_left() -> None:
    if has_left():
        raise ActorExit(0)
