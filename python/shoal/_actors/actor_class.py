"""``ActorClass``: a class decorated with ``remote``, which creates actors."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from shoal._actors.calls import pack_call
from shoal._actors.creation import create_gang, end_if_unmade, pack_creation_spec, settings_of
from shoal._actors.handle import ActorHandle, in_any_order, own
from shoal._actors.launch import launch
from shoal._actors.options import check_actor_options, check_call_options, is_async, methods_of, with_retries
from shoal._actors.placement import where
from shoal._actors.registry import living
from shoal._actors.resources import RESOURCE_OPTIONS, check_options, resources_of
from shoal._core import serialize
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._core.signature import Signature, of_callable
from shoal._objects.refs import ObjectRef
from shoal._printable import printable, say
from shoal.exceptions import Unimplemented

__all__ = ["ActorClass", "ActorClassInheritanceException"]


class ActorClassInheritanceException(TypeError):
    """Raised when a class derives from one that is decorated with ``remote``."""


class ActorClass:
    """A class decorated with ``remote``."""

    def __init__(self, cls: type, options: dict[str, Any]):
        self._shoal_cls, self._shoal_options = cls, self._shoal_checked(options)
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def __ray_actor_class__(self) -> type:
        """The decorated class."""
        return self._shoal_cls

    def __getattr__(self, name: str):
        """Returns the attribute of the class itself."""
        if name.startswith("__") or "_shoal_cls" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._shoal_cls, name)

    # Computed on first use: a class that refers to itself is still empty while it is unpickled.
    @cached_property
    def _shoal_methods(self) -> dict[str, dict[str, Any]]:
        return methods_of(self._shoal_cls)

    @cached_property
    def _shoal_takes(self) -> Signature | None:
        return of_callable(self._shoal_cls)

    @cached_property
    def _shoal_is_async(self) -> bool:
        return is_async(self._shoal_cls)

    def _shoal_takes_any_order(self, options: dict[str, Any]) -> bool:
        """True if a call that waits for its arguments may be overtaken. Calls of a concurrent actor have no order to keep."""
        chosen, concurrent = options.get("allow_out_of_order_execution"), self._shoal_is_async or (options.get("max_concurrency") or 1) > 1
        if concurrent and chosen is False:
            raise ValueError("allow_out_of_order_execution=False: calls of an async actor, or with max_concurrency above 1, have no order")
        return concurrent if chosen is None else chosen

    def __mro_entries__(self, bases):
        raise ActorClassInheritanceException(
            f"Attempted to define a subclass of actor class '{self.__name__}'. Inheriting from actor classes is not currently supported. "
            "You can instead inherit from a non-actor base class and make the derived class an actor class (with @ray.remote)."
        )

    @staticmethod
    def _shoal_checked(options: dict[str, Any]) -> dict[str, Any]:
        options = check_call_options(options, "actors", RESOURCE_OPTIONS)
        check_actor_options(options)
        return options

    def options(self, /, **options) -> ActorClass:
        other = object.__new__(ActorClass)  # a copy that has the cached properties, too
        other.__dict__.update(self.__dict__, _shoal_options=self._shoal_checked({**self._shoal_options, **check_options(options)}))
        return other

    def remote(self, /, *args, **kwargs) -> ActorHandle:
        """Creates an actor. ``name``: other processes find the actor with ``get_actor``. ``lifetime="detached"``: the actor outlives its
        job, and only ``shoal logs NAME`` shows its output. ``max_restarts``: how often its process is started again after it ended without
        a request, also by ``sys.exit`` with a code other than 0.

        Other actors end when no counted handle (see ``ActorHandle``) is left in any process, after the calls made on them. An actor also
        ends with the process of the actor that created it, even if that is restarted. An actor created by a remote function ends if the
        function's worker dies, but not if the worker retires (``max_calls``, or idle).
        """
        if self._shoal_takes is not None:
            self._shoal_takes.check(self.__name__, args, kwargs)
        options = {k: v for k, v in self._shoal_options.items() if v is not None}
        resources, (placed, env) = resources_of(options, 0), where(options, self.__name__)
        if not (options.get("name") or options.get("max_restarts") or options.get("lifetime") == "detached"):
            around = {"placed": placed, "env": env, "runtime_env": options.get("runtime_env")}
            any_order = self._shoal_takes_any_order(options)
            handle = own(create_gang(self._shoal_cls, 1, args, kwargs, resources=resources, options=options, **around)[0])
            return in_any_order(handle) if any_order else handle
        session, name, restarts = _session(), self.__name__, options.get("max_restarts", 0)
        detached = options.get("lifetime") == "detached"
        settings = settings_of(self._shoal_cls, name, self._shoal_methods, resources, options)
        # A detached actor makes itself from its creation spec, as its creator may be gone by then. This call only returns when that is
        # done.
        packed = pack_call((), {}) if detached else pack_call((serialize.Code(self._shoal_cls), settings, *args), kwargs, ours=2)
        limit = options.get("max_pending_calls", -1)
        handle = ActorHandle(
            session.new_actor_id(), name, with_retries(self._shoal_methods, options.get("max_task_retries")), max_pending=limit
        )
        handle._shoal_actor.any_order = self._shoal_takes_any_order(options)
        env = {**env, "SHOAL_SELF_MADE": "1"} if detached else env
        creation_spec, kept = pack_creation_spec(self._shoal_cls, settings, args, kwargs) if restarts or detached else (b"", [])
        for ref in kept if detached else ():  # kept until this process ends, because no process is notified of a detached actor's end
            session.pin(ref)
        create = partial(
            session.create_actor,
            handle._shoal_actor.id,
            name,
            resources,
            launch(resources["CPU"], env=env, runtime_env=options.get("runtime_env")),
            name=options.get("name") or "",
            name_space=options.get("namespace") or state.namespace,
            handle=serialize.dumps(handle)[0],
            get_if_exists=options.get("get_if_exists", False),
            detached=detached,
            where=placed,
            max_restarts=restarts,
            max_task_retries=options.get("max_task_retries", 0),
            creation_spec=creation_spec,
        )
        if (found := living(create)) is not None:
            return found
        if detached and state.shows_logs and not state.notified_of_detached:
            state.notified_of_detached = True
            called = options.get("name") or name
            say(f"shoal: what detached actors print is not shown here; to read it: shoal logs {printable(called)}")
        try:
            handle._shoal_actor.created = ObjectRef(session.call(handle._shoal_actor.id, "__init__", *packed), name)
        except BaseException:
            with contextlib.suppress(Exception):
                session.kill(handle._shoal_actor.id)
            raise
        if packed[2]:
            end_if_unmade(session, handle, packed[2])
        if handle._shoal_actor.any_order:
            in_any_order(handle)
        return handle if detached else own(handle, bool(restarts), kept)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options) -> ActorHandle:
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        return self.options(**options).remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        raise Unimplemented("a graph binds methods of existing actors", hint=f"make one with {self.__name__}.remote() and bind its methods")

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"make an actor with {self.__name__}.remote(...)")

    def __reduce__(self):
        return ActorClass, (self._shoal_cls, self._shoal_options)
