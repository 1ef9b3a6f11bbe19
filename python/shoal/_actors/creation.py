"""The creation of actors: gangs, the settings of their workers, and the creation specs of those that are made again."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

from shoal import _native
from shoal._actors.calls import pack_call
from shoal._actors.handle import ActorHandle
from shoal._actors.launch import launch
from shoal._actors.options import concurrency_of, methods_of, with_retries
from shoal._core import serialize
from shoal._core.process import session as _session
from shoal._objects.refs import ObjectRef, when_ready
from shoal._objects.values import get, put
from shoal.exceptions import InvalidArgument

__all__ = ["create_gang", "end_if_unmade", "from_creation_spec", "pack_creation_spec", "settings_of"]

_MAX_BIRTH_BYTES = 1 << 19  # same as in actors/protocol/cluster/specs.h


def create_gang(
    cls: type,
    count: int,
    args=(),
    kwargs=None,
    *,
    resources: dict[str, float],
    torch: bool = False,
    refuse_infeasible: bool = False,
    env: dict[str, str] | None = None,
    name: str = "",
    options: dict[str, Any] | None = None,
    placed: dict[str, Any] | None = None,
    runtime_env: dict[str, Any] | None = None,
) -> list[ActorHandle]:
    """Creates ``count`` actors of one class with the same arguments, all or none, in order of rank. ``name`` is for display (default: the
    class's). ``options``: those in ACTOR_OPTIONS. ``placed``: the request from ``placement.where``."""
    name, options = name or cls.__name__, options or {}
    session = _session()
    methods = with_retries(methods_of(cls), options.get("max_task_retries"))
    # Packed before the request, so that arguments that cannot be pickled leave no actors behind.
    packed = _pack_creation(cls, name, methods, args, kwargs or {}, resources, options)
    how = launch(resources.get("CPU", 0), torch=torch, env=env, runtime_env=runtime_env)
    ids = session.create_gang(name, count, resources, how, refuse_infeasible, placed or {})
    limit = options.get("max_pending_calls", -1)
    try:
        handles = [ActorHandle(i, name, methods, ObjectRef(session.call(i, "__init__", *packed), name), limit) for i in ids]
    except BaseException:
        for i in ids:
            with contextlib.suppress(Exception):
                session.kill(i)
        raise
    for handle in handles if packed[2] else ():
        end_if_unmade(session, handle, packed[2])
    return handles


def _pack_creation(cls: type, class_name: str, methods: dict, args, kwargs: dict, resources: dict[str, float], options: dict[str, Any]):
    """Packs the call that makes an actor: its class, its worker's settings, and the arguments."""
    return pack_call((serialize.Code(cls), settings_of(cls, class_name, methods, resources, options), *args), kwargs, ours=2)


def settings_of(cls: type, class_name: str, methods: dict, resources: dict[str, float], options: dict[str, Any]) -> dict[str, Any]:
    session = _session()
    return {
        "class_name": class_name,
        "creator": (session.worker, session.node),
        "name": options.get("name", ""),
        "max_pending_calls": options.get("max_pending_calls", -1),
        "max_task_retries": options.get("max_task_retries"),
        "resources": {k: v for k, v in resources.items() if v},
        "restarts": bool(options.get("max_restarts")),
        "concurrency": concurrency_of(cls, options, methods),
    }


def end_if_unmade(session: _native.Session, handle: ActorHandle, arguments: list[_native.Ref]) -> None:
    actor_id = handle._shoal_actor.id
    when_ready(handle._shoal_actor.created, lambda: _end_unmade(session, actor_id, arguments))


def _end_unmade(session: _native.Session, actor_id: str, arguments: list[_native.Ref]) -> None:
    """Ends an actor that cannot be made, because one of its arguments has failed."""
    if any(a.ready and a.failed for a in arguments):
        with contextlib.suppress(Exception):  # if the session is closed, the actor has ended with it
            session.kill(actor_id)


def pack_creation_spec(cls: type, settings: dict[str, Any], args: tuple, kwargs: dict) -> tuple[bytes, list[_native.Ref]]:
    """Packs the class, settings and arguments for restarts of an actor, with the references in them. Reference arguments stay references; a
    large argument or class becomes one."""

    code = serialize.Code(cls)

    def packed() -> tuple[bytes, list[_native.Ref]]:
        head, buffers, refs = serialize.pack((code, settings, args, kwargs))
        return pickle.dumps((bytes(head), [bytes(b) for b in buffers])), refs

    out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        args = tuple(a if isinstance(a, ObjectRef) else put(a) for a in args)
        kwargs = {k: a if isinstance(a, ObjectRef) else put(a) for k, a in kwargs.items()}
        out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        code = put(code)
        out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        raise InvalidArgument(
            f"the creation spec of actor {cls.__name__} has {len(out)} bytes; an actor that may be restarted can have {_MAX_BIRTH_BYTES}",
            hint="pass fewer arguments, for example one list of them",
        )
    return out, refs


def from_creation_spec(creation_spec: bytes) -> tuple[type, dict[str, Any], tuple, dict]:
    """Returns (class, settings, args, kwargs)."""
    cls, settings, args, kwargs = serialize.loads(*pickle.loads(creation_spec))

    def value(a):
        return get(a) if isinstance(a, ObjectRef) else a

    return value(cls), settings, tuple(value(a) for a in args), {k: value(a) for k, a in kwargs.items()}
