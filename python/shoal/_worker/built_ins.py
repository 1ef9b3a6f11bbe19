"""The methods that every actor has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shoal._actors.calls import GRAPH, HAND_OVER, RELEASE
from shoal._actors.ownership import actor_ownership
from shoal._core import serialize
from shoal._core.context import parent_call, running
from shoal._core.process import state
from shoal._worker.ending import ActorExit, exit_actor
from shoal._worker.serving import LATER

__all__ = ["BUILT_INS", "LAST_METRICS_S"]

_AGAIN_S = 1.0  # seconds before another attempt to reach the head
LAST_METRICS_S = 9.0  # seconds for the node to take the last metrics


def _call(instance, function, /, *args, **kwargs):
    return function(instance, *args, **kwargs)


class _Released(ActorExit):
    why = "nothing referred to it any more"


def _release(instance) -> object:
    """Ends this actor, to which no process has a counted handle any more. It lives on while handles that it gave away of itself exist."""
    if actor_ownership.may_end(running.actor_id, running.settings["class_name"]):
        raise _Released(0)
    if not running.settings["restarts"]:
        return None
    threading.Thread(target=_answer_survived, args=(parent_call(),), daemon=True, name="shoal-leaving").start()
    return LATER


def _answer_survived(incoming) -> None:
    """Answers the request to end, for an actor that still waits for handles that it gave away. This first rules out a restart, because a
    restarted actor would not be asked to end. If the actor dies before that, the request fails, and the creator repeats it."""
    while True:
        try:
            state.session.leave()
            break
        except Exception:
            time.sleep(_AGAIN_S)  # no head answers
    state.session.reply(incoming, *serialize.dumps(None))


def _hand_over(_, within: float) -> tuple | None:
    """Reports the actors that a worker made to the process that retires it. Returns None if calls that it made, or workers of its own, are
    still open after ``within`` seconds: they would be lost. The worker is asked again then, and lends its CPUs
    meanwhile."""
    session, functions, until = state.session, state.functions, time.monotonic() + within
    if state.lends and not (session.wait_calls(0.0) and (functions is None or functions.idle())):
        state.lends = False  # its CPUs stay lent from here on, because it runs no more tasks
        session.set_blocked(True)
    if not session.wait_calls(max(0.0, until - time.monotonic())):
        return None
    if functions is not None and not functions.hand_over(until):
        return None
    session.send_last_metrics(LAST_METRICS_S)  # only metrics are sent, because the values that the worker has put are at its node already
    return actor_ownership.hand_over() if session.wait_calls(0.0) else None  # threads may have made calls meanwhile


# Methods that every actor has. `__init__` does nothing: the creator's call may reach an actor that has been restarted, and so
# constructed, before.
BUILT_INS: dict[str, Callable] = {
    "__init__": lambda *_, **__: None,
    "__ray_terminate__": lambda _: exit_actor(),
    "__ray_ready__": lambda _: True,
    HAND_OVER: _hand_over,
    "__ray_call__": _call,
    RELEASE: _release,
    GRAPH: lambda *_: None,  # does nothing until shoal.dag._loop is loaded, which happens when a part of a graph is unpickled
}
