"""Handles of actors, their methods, and how a call is packed. An actor ends with the handle that made it: see ``_Actor``."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import types
from queue import SimpleQueue
from typing import Any

from shoal import _native, _serialize
from shoal._context import parent_call, running
from shoal._ids import ActorID
from shoal._options import BUILT_IN, METHOD_OPTIONS, check_call_options
from shoal._refs import ObjectRef, load, new_stream_id, when_ready
from shoal._retry import MethodAttempts, Retries
from shoal._runtime import session as _session
from shoal._runtime import state
from shoal._signature import Signature
from shoal._stream import ObjectRefGenerator
from shoal.exceptions import ActorUnavailableError, CrossLanguageError, PendingCallsLimitExceeded, Unimplemented

__all__ = ["GRAPH", "LAST_METRICS", "NO_ARGUMENTS", "RELEASE", "ActorHandle", "ActorMethod", "extra_of", "results"]

_END_S = 5.0  # for what the thread of releases does, when the session ends
LAST_METRICS = "__shoal_last_metrics__"  # and this that it will be killed, so that its node is told what it measured
RELEASE = "__shoal_release__"  # the method by which an actor is told that nobody refers to it
GRAPH = "__shoal_graph__"  # and the one by which it is told of its part in a compiled graph (shoal.dag)


class _Dep:
    """Stands in a pickled call for the k-th argument that was a reference."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return _Dep, (self.k,)


# What most calls are made with, packed.
NO_ARGUMENTS = _serialize.dumps(((), {}))[0]

_Packed = tuple[bytes, list[memoryview], list[_native.Ref], list[_native.Ref]]


def _unsendable(args: tuple, kwargs: dict, error: Exception) -> Exception:
    """The same, with the argument that it is about."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *((f"argument {k}=", a) for k, a in kwargs.items())):
        try:
            _serialize.pack(value)
        except _serialize.UNSENDABLE as own:
            hint = "shoal.util.inspect_serializability(..) shows which part of it"
            return TypeError(f"{name}, of type {type(value).__name__}, cannot be sent: {own}; {hint}")
    return error


def _pack(args: tuple, kwargs: dict, extra: dict[str, Any] | None = None, first: int = 0, ours: int = 0) -> _Packed:
    """(head, buffers, values of arguments that are references, references inside the others). ``extra``: what the worker has to know of a
    call that is not like most (num_returns, group, name). ``first``: the place of the first reference among those that are sent along.
    ``ours``: so many of the first arguments are not the caller's. TypeError, with the argument, for what cannot be pickled."""
    deps: list[_native.Ref] = []
    if not kwargs and not extra:  # as most calls are
        if not args:
            return NO_ARGUMENTS, [], deps, []
        if all(map(_serialize.small, args)):
            return pickle.dumps((args, kwargs), protocol=5), [], deps, []
    if any(isinstance(a, ObjectRef) for a in args) or any(isinstance(a, ObjectRef) for a in kwargs.values()):

        def replaced(a):
            if not isinstance(a, ObjectRef):
                return a
            deps.append(a._ref)
            return _Dep(first + len(deps) - 1)

        args = tuple(replaced(a) for a in args)
        kwargs = {k: replaced(a) for k, a in kwargs.items()}
    if args:
        args = tuple(map(_serialize.beside, args))
    if kwargs:
        kwargs = {k: _serialize.beside(a) for k, a in kwargs.items()}
    try:
        head, buffers, refs = _serialize.pack((args, kwargs, extra) if extra else (args, kwargs))
    except _serialize.UNSENDABLE as error:
        raise _unsendable(args[ours:], kwargs, error) from error
    return head, buffers, deps, refs


def extra_of(options: dict[str, Any]) -> dict[str, Any]:
    extra = {k: options[k] for k in ("num_returns", "concurrency_group", "name") if k in options and (k, options[k]) != ("num_returns", 1)}
    if extra.get("num_returns") == "streaming":
        extra["stream"] = new_stream_id()
    return extra


def results(ref: _native.Ref, extra: dict[str, Any], where: str) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
    """What ``.remote()`` returns: one reference, a list of them, one that grows, or nothing."""
    num_returns = extra.get("num_returns", 1)
    if num_returns in (1, "dynamic"):
        return ObjectRef(ref, where)
    if num_returns == "streaming":
        return ObjectRefGenerator(ObjectRef(ref, where), extra["stream"], where)
    return [ObjectRef(r, where) for r in ref.split(_session(), num_returns)] if num_returns else None


class _Actor:
    """What a handle and its methods know of their actor. When the last of them is gone, so is the actor, if this process made it and no
    other one ever had a handle of it (``owner``)."""

    __slots__ = ("any_order", "class_name", "created", "id", "max_pending", "methods", "owner", "pending", "restarts", "shared")

    def __init__(self, actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], created: ObjectRef | None, max_pending: int):
        self.owner: _native.Session | None = None
        self.any_order = self.shared = self.restarts = False
        self.id, self.class_name, self.methods, self.created = actor_id, class_name, methods, created
        self.max_pending, self.pending = max_pending, None

    def options_of(self, name: str) -> dict[str, Any]:
        return self.methods.get(name) or {}

    def admit(self, session: _native.Session) -> _native.Tally | None:
        """Counts the calls that are not done, if there is a bound."""
        if self.max_pending < 0:
            return None
        if self.pending is None:
            self.pending = session.tally([])
        if self.pending.of - self.pending.ready >= self.max_pending:
            raise PendingCallsLimitExceeded(f"{self.max_pending} calls wait for actor {self.class_name}: its max_pending_calls")
        return self.pending

    def __del__(self):
        # Anywhere, in any thread, also while the interpreter ends: it only says so.
        if self.owner is not None and not self.shared and _released is not None:
            _released.put((self.owner, self.id, self.restarts))


class ActorMethod:
    """``handle.method``; call it with ``.remote(...)``."""

    __slots__ = ("_actor", "_least", "_most", "_name", "_where")

    def __init__(self, actor: _Actor, name: str):
        self._actor, self._name, self._where = actor, name, f"{actor.class_name}.{name}"
        self._least, self._most = actor.options_of(name).get("takes", (0, 1 << 30))[:2]

    def _check(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if takes := self._actor.options_of(self._name).get("takes"):
            Signature(*takes).check(self._where, args, kwargs)

    def remote(self, *args, **kwargs) -> ObjectRef:
        actor, name = self._actor, self._name
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        return ObjectRef(_session().call(actor.id, name, *_pack(args, kwargs), parent_call()), self._where)

    def bind(self, *args, **kwargs):
        """A call that is not made yet: a node of a graph (``shoal.dag``)."""
        from shoal.dag._nodes import ClassMethodNode

        if getattr(self, "_options", {}).get("num_returns", 1) != 1:
            raise Unimplemented(f"{self._where} has several results: in a graph a call has one")
        self._check(args, kwargs)
        return ClassMethodNode(self, args, kwargs)

    def options(self, **options) -> _MethodWithOptions:
        """``num_returns``, ``concurrency_group``, ``name``, ``max_task_retries`` with ``retry_exceptions`` of the calls made through it."""
        check_call_options(options, "methods of actors")
        of = {**self._actor.options_of(self._name), **options}
        return _MethodWithOptions(self._actor, self._name, {k: v for k, v in of.items() if v is not None})

    def __call__(self, *args, **kwargs):
        raise TypeError(f"call {self._name}.remote(...): a method of an actor runs in the actor's process")


class _MethodWithOptions(ActorMethod):
    """One whose calls are not like most."""

    __slots__ = ("_options",)

    def __init__(self, actor: _Actor, name: str, options: dict[str, Any]):
        super().__init__(actor, name)
        self._options = options

    def remote(self, *args, **kwargs):
        actor, options, session = self._actor, self._options, _session()
        self._check(args, kwargs)
        extra, pending = extra_of(options), actor.admit(session)
        head, buffers, deps, refs = _pack(args, kwargs, extra)
        left = options.get("max_task_retries", options.get("of_actor"))
        if left and options.get("retry_exceptions"):
            retries = Retries.of(left, options["retry_exceptions"])
            ref = MethodAttempts(session, actor, self._name, session.put(head, buffers, refs), deps, retries).start()
        else:
            ref = session.call(actor.id, self._name, head, buffers, deps, refs, parent_call(), options.get("max_task_retries"))
        if pending is not None:
            session.count(pending, [ref])
        return results(ref, extra, options.get("name") or self._where)


class ActorHandle:
    """Names an actor; may be passed to other actors and tasks. Calls of one caller run in the order in which they were made."""

    def __init__(
        self,
        actor_id: str,
        class_name: str,
        methods: dict[str, dict[str, Any]],
        created: ObjectRef | None = None,
        max_pending: int = -1,
    ):
        self._actor = _Actor(actor_id, class_name, methods, created, max_pending)

    @classmethod
    def _sharing(cls, actor: _Actor) -> ActorHandle:
        """One more of the same actor, in the same process."""
        out = cls.__new__(cls)
        out._actor = actor
        return out

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def _actor_id(self) -> ActorID:
        return ActorID(self._actor.id)

    @property
    def _created(self) -> ObjectRef | None:
        return self._actor.created

    def _own(self, restarts: bool = False) -> ActorHandle:
        """The actor ends with this handle and its methods."""
        _released.begin()
        self._actor.owner, self._actor.restarts, self._actor.shared = _session(), restarts, False
        return self

    def _in_any_order(self) -> ActorHandle:
        """Calls that wait for an argument hold up nobody, whoever makes them."""
        self._actor.any_order = True
        _session().in_any_order(self._actor.id, True)
        return self

    def __getattr__(self, name: str) -> ActorMethod:
        actor = self._actor
        options = BUILT_IN[name] if name in BUILT_IN else actor.methods.get(name)
        if options is None:
            raise AttributeError(f"actor {actor.class_name} has no method {name}")
        plain = not options.keys() & METHOD_OPTIONS and actor.max_pending < 0
        method = ActorMethod(actor, name) if plain else _MethodWithOptions(actor, name, options)
        self.__dict__[name] = method  # looked up once
        return method

    def __repr__(self) -> str:
        return f"Actor({self._actor.class_name}, {self._actor.id})"

    def __reduce__(self):
        actor = self._actor
        actor.shared = True
        if actor.id == running.actor_id:
            running.shared = True
        return _revive_handle, (actor.id, actor.class_name, actor.methods, actor.max_pending, actor.any_order)

    def __eq__(self, other) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)


def _foreign(class_name: str):
    """What a C++ program's actor is found as (actors/api/launch.cc writes this call as a pickle)."""
    raise CrossLanguageError(
        f"the actor is a {class_name} of a C++ program: its arguments are of C++ types, in CBOR, and not pickles",
        hint="call it from C++ (Context::get_actor), or let the two meet in files or sockets",
    )


def _revive_handle(
    actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], max_pending: int = -1, any_order: bool = False
) -> ActorHandle:
    _session().know(actor_id, class_name)
    handle = ActorHandle(actor_id, class_name, methods, max_pending=max_pending)
    return handle._in_any_order() if any_order else handle


class _Released:
    """Actors that nobody refers to any more, and the thread that tells them: nothing of that may happen where a handle goes."""

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._queue: SimpleQueue = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.put = self._queue.put  # which may be called anywhere

    def begin(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(self._queue,), daemon=True, name="shoal-released")
                self._thread.start()
                state.ending.append(self.end)

    def end(self) -> None:
        """Returns when nothing of it uses the session any more."""
        thread, self._thread = self._thread, None
        self.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)

    @staticmethod
    def _run(queue: SimpleQueue) -> None:
        while (released := queue.get()) is not None:
            _release(*released)


def _release(session: _native.Session, actor_id: str, restarts: bool) -> None:
    """Behind the calls that were made: it ends when they are done."""
    if session is not state.session:  # it is gone with its job; or this is a forked child, and the actor its parent's
        return
    with contextlib.suppress(Exception):  # the session is closed meanwhile
        session.in_any_order(actor_id, False)
        ref = ObjectRef(session.call(actor_id, RELEASE, *_pack((), {})))
        if restarts:
            when_ready(ref, lambda: _release_again(session, actor_id, ref))


def _release_again(session: _native.Session, actor_id: str, ref: ObjectRef) -> None:
    """Of one that was started again when it was told."""
    try:
        load(ref)
    except ActorUnavailableError:
        _released.put((session, actor_id, True))
    except Exception:
        pass


_released = _Released()
os.register_at_fork(after_in_child=_released.forget)
