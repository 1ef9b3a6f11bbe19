"""Handles of actors and their methods. ``ownership`` counts them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from shoal import _native
from shoal._actors.calls import extra_of, pack_call, results, streaming
from shoal._actors.options import BUILT_IN, METHOD_OPTIONS, check_call_options
from shoal._actors.ownership import HandleState, LifetimeToken, actor_ownership
from shoal._actors.retry import MethodAttempts, Retries
from shoal._core.context import parent_call, running
from shoal._core.ids import ActorID
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._core.signature import Signature
from shoal._objects.refs import ObjectRef
from shoal.exceptions import CrossLanguageError, Unimplemented

__all__ = ["ActorHandle", "ActorMethod", "in_any_order", "own", "sharing"]


class ActorMethod:
    """``handle.method``; call it with ``.remote(...)``."""

    __slots__ = ("_actor", "_least", "_most", "_name", "_where")

    def __init__(self, actor: HandleState, name: str):
        self._actor, self._name, self._where = actor, name, f"{actor.class_name}.{name}"
        self._least, self._most = actor.options_of(name).get("takes", (0, 1 << 30))[:2]

    def _check(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if takes := self._actor.options_of(self._name).get("takes"):
            Signature(*takes).check(self._where, args, kwargs)

    def remote(self, /, *args, **kwargs) -> ObjectRef:
        actor, name = self._actor, self._name
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        return ObjectRef(_session().call(actor.id, name, *pack_call(args, kwargs), parent_call()), self._where)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options):
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        called = self.options(**options) if options else self
        return called.remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        """Returns a call that is not made yet: a node of a graph (``shoal.dag``)."""
        if getattr(self, "_options", {}).get("num_returns", 1) != 1:
            raise Unimplemented(f"{self._where} has several results: in a graph a call has one")
        self._check(args, kwargs)
        return state.import_graphs().ClassMethodNode(self, args, kwargs)

    def options(self, /, **options) -> _MethodWithOptions:
        """Sets ``num_returns``, ``concurrency_group``, ``name``, ``max_task_retries`` and ``retry_exceptions`` of the calls made through
        it."""
        options = check_call_options(options, "methods of actors")
        of = {**self._actor.options_of(self._name), **options}
        return _MethodWithOptions(self._actor, self._name, {k: v for k, v in of.items() if v is not None})

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"call {self._name}.remote(...): a method of an actor runs in the actor's process")

    def __reduce__(self):
        return getattr, (sharing(self._actor), self._name)


class _MethodWithOptions(ActorMethod):
    """A method with options that few calls have."""

    __slots__ = ("_options",)

    def __init__(self, actor: HandleState, name: str, options: dict[str, Any]):
        super().__init__(actor, name)
        self._options = options

    def __reduce__(self):
        return _method_of, (sharing(self._actor), self._name, self._options)

    def remote(self, /, *args, **kwargs):
        decorate = self._options.get("invocation")
        return self._call(args, kwargs) if decorate is None else decorate(self._call)(args, kwargs)

    def _call(self, args: Sequence, kwargs: dict[str, Any]):
        args, actor, options, session = tuple(args), self._actor, self._options, _session()
        self._check(args, kwargs)
        where = options.get("name") or self._where
        pending = actor.admit(session)
        extra, items = streaming(extra_of(options), where)
        head, buffers, deps, refs = pack_call(args, kwargs, extra)
        left = options.get("max_task_retries", options.get("of_actor"))
        if left and options.get("retry_exceptions"):
            retries = Retries.from_options(left, options["retry_exceptions"])
            ref = MethodAttempts(session, actor, self._name, session.put(head, buffers, refs), deps, retries).start()
        else:
            ref = session.call(actor.id, self._name, head, buffers, deps, refs, parent_call(), options.get("max_task_retries"))
        if pending is not None:
            session.count(pending, [ref])
        return results(ref, extra, where, items)


class ActorHandle:
    """Refers to an actor; may be passed to other actors and tasks. Calls of one caller run in the order in which they were made.

    The actor ends when its calls are done and no counted handle is left in a process, in transit or in an object. A handle that
    was pickled by hand keeps the actor while the pickling process lives. Handles of ``get_actor`` and ``current_actor`` do not count, nor
    do their copies, nor those that ``get_if_exists`` finds. An actor's handle of itself does not keep it, but copies given to others do.
    """

    def __init__(
        self,
        actor_id: str,
        class_name: str,
        methods: dict[str, dict[str, Any]],
        created: ObjectRef | None = None,
        max_pending: int = -1,
    ):
        # All other names belong to the user's methods.
        self._shoal_actor = HandleState(actor_id, class_name, methods, created, max_pending)

    __class_getitem__ = classmethod(types.GenericAlias)

    def __getattr__(self, name: str) -> ActorMethod:
        actor = self._shoal_actor
        options = BUILT_IN[name] if name in BUILT_IN else actor.methods.get(name)
        if options is None:
            if name in _ID_NAMES:
                return ActorID(actor.id)
            raise AttributeError(f"actor {actor.class_name} has no method {name}")
        plain = not options.keys() & METHOD_OPTIONS and "invocation" not in options and actor.max_pending < 0
        method = ActorMethod(actor, name) if plain else _MethodWithOptions(actor, name, options)
        self.__dict__[name] = method  # so that it is looked up once
        return method

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._shoal_actor.methods, *_ID_NAMES})

    def __repr__(self) -> str:
        return f"Actor({self._shoal_actor.class_name}, {self._shoal_actor.id})"

    def __reduce__(self):
        actor = self._shoal_actor
        return _revive_handle, (actor.id, actor.class_name, actor.methods, actor.max_pending, actor.any_order, *actor.leaves())

    def __copy__(self) -> ActorHandle:
        return self

    def __deepcopy__(self, memo: dict) -> ActorHandle:
        return self

    def __eq__(self, other) -> bool:
        return isinstance(other, ActorHandle) and other._shoal_actor.id == self._shoal_actor.id

    def __hash__(self) -> int:
        return hash(self._shoal_actor.id)


_ID_NAMES = ("_actor_id", "_ray_actor_id")  # the actor's id by Ray's names, unless the class has such methods


def sharing(actor: HandleState) -> ActorHandle:
    """Returns another handle of the same actor, in the same process."""
    out = ActorHandle.__new__(ActorHandle)
    out._shoal_actor = actor
    return out


def own(handle: ActorHandle, restarts: bool = False, kept: list[_native.Ref] | None = None) -> ActorHandle:
    """Makes ``handle`` and its copies keep the actor, which this process made. ``kept``: the references needed to make it again."""
    actor_ownership.add(handle._shoal_actor, restarts, kept)
    return handle


def in_any_order(handle: ActorHandle) -> ActorHandle:
    """Lets a call that waits for an argument be overtaken by others. Copies of the handle inherit this."""
    handle._shoal_actor.any_order = True
    _session().in_any_order(handle._shoal_actor.id, True)
    return handle


def _count(handle: ActorHandle, object_id: str, place: str) -> None:
    """Counts a handle that came from another process."""
    actor_ownership.begin()
    session = handle._shoal_actor.counts = _session()
    handle._shoal_actor.token = LifetimeToken(session.hold(object_id, place), object_id, place)


def _method_of(handle: ActorHandle, name: str, options: dict[str, Any]) -> ActorMethod:
    return _MethodWithOptions(handle._shoal_actor, name, options)


def _foreign(class_name: str):
    """Raises: the unpickled handle belongs to an actor of a C++ program (actors/api/context/launch.cc writes a pickle of this call)."""
    raise CrossLanguageError(
        f"the actor is a {class_name} of a C++ program: its arguments are of C++ types, in CBOR, and not pickles",
        hint="call it from C++ (Context::get_actor), or exchange data through files or sockets",
    )


def _revive_handle(
    actor_id: str,
    class_name: str,
    methods: dict[str, dict[str, Any]],
    max_pending: int = -1,
    any_order: bool = False,
    object_id: str = "",
    place: str = "",
) -> ActorHandle:
    _session().know(actor_id, class_name)
    handle = ActorHandle(actor_id, class_name, methods, max_pending=max_pending)
    # True as well for the actor of this process, which itself counts the handles of itself that it gives away.
    handle._shoal_actor.weak = not object_id
    if object_id and actor_id != running.actor_id:  # an actor's handle of itself does not keep it
        _count(handle, object_id, place)
    return in_any_order(handle) if any_order else handle
