"""Actors that the head finds by their names or ids: ``get_actor``, ``list_named_actors`` and ``kill``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from shoal._actors.handle import ActorHandle
from shoal._actors.ownership import HandleState, actor_ownership
from shoal._core import serialize
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal.exceptions import ActorHandleNotFoundError, NotFound

__all__ = ["get_actor", "kill", "list_named_actors", "living"]

# Limit for a report of a death to reach the head once it has reached this process, and pause between queries.
_ENDS_S, _AGAIN_S = 5.0, 0.002


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Returns the living actor of this name. ValueError (ActorNotFound) if the namespace (default: this job's) has none."""
    if not isinstance(name, str) or not name:
        raise (TypeError if name else ValueError)(f"the name of an actor is a str that is not empty, not {name!r}")
    session = _session()
    return living(partial(session.find_actor, name, namespace or state.namespace), actor_ownership.if_alive)


def living(
    find: Callable[[], bytes | None], lives: Callable[[HandleState], HandleState | None] = actor_ownership.keep_on
) -> ActorHandle | None:
    """Returns the actor that the head has by a name. It asks again while the head still lists an actor whose death this process already
    knows."""
    until = time.monotonic() + _ENDS_S
    while (found := find()) is not None:
        handle = serialize.loads(found, [])
        actor = lives(handle._shoal_actor)
        if actor is not None or time.monotonic() > until:
            handle._shoal_actor = actor or handle._shoal_actor
            return handle
        time.sleep(_AGAIN_S)
    return None


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Names of living actors in this job's namespace, or dicts of name and namespace for all namespaces."""
    named = [r for r in _session().list("actors") if r["name"] and r["state"] != "DEAD"]
    if all_namespaces:
        return [{"name": r["name"], "namespace": r["namespace"]} for r in named]
    return [r["name"] for r in named if r["namespace"] == state.namespace]


def kill(actor, *, no_restart: bool = True) -> None:
    """Ends an actor at once; calls on it fail with ActorDiedError. With ``no_restart=False`` an actor that has ``max_restarts`` left only
    loses its process."""
    held = getattr(actor, "_shoal_actor", None)
    if held is None:
        raise ValueError(f"kill() takes an actor handle, not {type(actor).__name__}; a call is ended by cancel()")
    actor_id = held.id
    if state.session is None and not state.forked:  # kill() must not start a cluster
        raise ActorHandleNotFoundError(f"this process has left the cluster of actor {actor_id}")
    session = _session()
    try:
        session.kill(actor_id, not no_restart)
    except NotFound:  # the head has no row of it, or has removed it
        if not session.dead(actor_id):
            raise ActorHandleNotFoundError(f"the cluster has no actor {actor_id}") from None
