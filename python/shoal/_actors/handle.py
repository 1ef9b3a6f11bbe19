"""Handles of actors, their methods, and the packing of calls.

An actor ends with its last counted handle on any node (``ActorOwnership``). The creator's handle and its copies count, those of
``get_actor`` do not. While only the creating process has handles, none is counted. When the first one leaves it, an object without a
value represents the actor, and each handle carries a counted reference to that object. When the object is freed, the creating process
asks the actor to end. An actor counts the handles that it gave away of itself in the same way. It ends once it was asked to and they are
gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import types
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from shoal import _native
from shoal._actors.options import BUILT_IN, METHOD_OPTIONS, check_call_options
from shoal._actors.retry import MethodAttempts, Retries
from shoal._core import serialize
from shoal._core.context import parent_call, running
from shoal._core.ids import ActorID
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._core.signature import Signature
from shoal._driver.client import wait
from shoal._objects.refs import ObjectRef, load, new_object_id, when_ready
from shoal._objects.streams import ObjectRefGenerator
from shoal.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    CrossLanguageError,
    NotFound,
    ObjectLostError,
    PendingCallsLimitExceeded,
    ResourceExhausted,
    TaskCancelledError,
    Unimplemented,
)

__all__ = [
    "GRAPH",
    "HAND_OVER",
    "NO_ARGUMENTS",
    "RELEASE",
    "ActorHandle",
    "ActorMethod",
    "actor_ownership",
    "extra_of",
    "in_any_order",
    "own",
    "results",
    "sharing",
]

_END_S = 5.0  # limit for the release thread's work at the session's end
RELEASE = "__shoal_release__"  # the method that asks an actor to end, because no handle is left
HAND_OVER = "__shoal_last_words__"  # the method that asks a worker of functions for the actors that it leaves
GRAPH = "__shoal_graph__"  # the method that runs an actor's part in a compiled graph (shoal.dag)


class _Dep:
    """Replaces the k-th reference argument in a pickled call."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return _Dep, (self.k,)


# The packed arguments of a call without any.
NO_ARGUMENTS = serialize.dumps(((), {}))[0]

_Packed = tuple[bytes, list[memoryview], list[_native.Ref], list[_native.Ref]]


def _unsendable(args: tuple, kwargs: dict, error: Exception) -> Exception:
    """Returns the error with the name of the argument that caused it."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *((f"argument {k}=", a) for k, a in kwargs.items())):
        try:
            serialize.pack(value)
        except serialize.UNSENDABLE as own:
            return serialize.unsendable(name, value, own)
    return error


def _pack(args: tuple, kwargs: dict, extra: dict[str, Any] | None = None, first: int = 0, ours: int = 0) -> _Packed:
    """Returns (head, buffers, references that are arguments, references inside arguments). ``extra``: options that few calls have
    (num_returns, group, name). ``first``: the index of the first reference argument. ``ours``: the number of leading arguments that Shoal
    added. TypeError names an argument that cannot be pickled."""
    deps: list[_native.Ref] = []
    if not kwargs and not extra:  # the common case
        if not args:
            return NO_ARGUMENTS, [], deps, []
        if all(map(serialize.small, args)):
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
        args = tuple(map(serialize.beside, args))
    if kwargs:
        kwargs = {k: serialize.beside(a) for k, a in kwargs.items()}
    try:
        head, buffers, refs = serialize.pack((args, kwargs, extra) if extra else (args, kwargs))
    except serialize.UNSENDABLE as error:
        if (named := _unsendable(args[ours:], kwargs, error)) is error:
            raise
        raise named from error
    return head, buffers, deps, refs


def extra_of(options: dict[str, Any]) -> dict[str, Any]:
    return {k: options[k] for k in ("num_returns", "concurrency_group", "name") if k in options and (k, options[k]) != ("num_returns", 1)}


def streaming(extra: dict[str, Any], where: str) -> tuple[dict[str, Any], ObjectRefGenerator | None]:
    """Returns the options of one call, and the generator of its items if it streams them."""
    if extra.get("num_returns") != "streaming":
        return extra, None
    items = ObjectRefGenerator(where)
    return {**extra, "stream": items._stream}, items


def results(ref: _native.Ref, extra: dict[str, Any], where: str, items: ObjectRefGenerator | None = None):
    """Returns the result of ``.remote()``: a reference, a list of them, a generator, or None."""
    num_returns = extra.get("num_returns", 1)
    if num_returns in (1, "dynamic"):
        return ObjectRef(ref, where)
    if items is not None:
        return items._follow(ref)
    return [ObjectRef(r, where) for r in ref.split(_session(), num_returns)] if num_returns else None


class LifetimeToken(NamedTuple):
    """The object that represents an actor, with a reference to it."""

    ref: _native.Ref
    object_id: str
    place: str  # place of the process whose node counts


def _lifetime_token(session: _native.Session) -> LifetimeToken:
    object_id, place = new_object_id(), session.place
    return LifetimeToken(session.hold(object_id, place), object_id, place)


class _Actor:
    """The state that a handle and its methods share. ``counts``: the session in which the handle's end is reported (None: uncounted).
    ``token``: the counted object, once a handle has left the creating process."""

    __slots__ = ("__weakref__", "any_order", "class_name", "counts", "created", "id", "max_pending", "methods", "pending", "token", "weak")

    def __init__(self, actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], created: ObjectRef | None, max_pending: int):
        self.counts: _native.Session | None = None
        self.token: LifetimeToken | None = None
        self.any_order = self.weak = False  # weak: keeps no actor alive, nor do its copies
        self.id, self.class_name, self.methods, self.created = actor_id, class_name, methods, created
        self.max_pending, self.pending = max_pending, None

    def options_of(self, name: str) -> dict[str, Any]:
        return self.methods.get(name) or {}

    def admit(self, session: _native.Session) -> _native.Tally | None:
        """Returns the tally of unfinished calls, if there is a limit. Raises PendingCallsLimitExceeded at the limit."""
        if self.max_pending < 0:
            return None
        if self.pending is None:
            self.pending = session.tally([])
        if self.pending.of - self.pending.ready >= self.max_pending:
            raise PendingCallsLimitExceeded(f"{self.max_pending} calls wait for actor {self.class_name}: its max_pending_calls")
        return self.pending

    def leaves(self) -> tuple[str, ...]:
        """Returns the part of a handle's pickle that makes it count."""
        if self.weak:
            token = None
        elif self.id == running.actor_id:
            token = running.token or actor_ownership.own_token()
        elif self.counts is not None and self.counts is state.session:
            token = self.token or actor_ownership.token_for(self)
        else:
            token = None
        if token is None:
            return ()
        if not serialize.note_ref(token.ref):
            _session().pin(token.ref)
        return token.object_id, token.place

    def __del__(self):
        # This may run in any thread, even at interpreter exit, so it only queues a note.
        if self.counts is not None and actor_ownership is not None:
            actor_ownership.put((self.counts, self.id, self.token))


class ActorMethod:
    """``handle.method``; call it with ``.remote(...)``."""

    __slots__ = ("_actor", "_least", "_most", "_name", "_where")

    def __init__(self, actor: _Actor, name: str):
        self._actor, self._name, self._where = actor, name, f"{actor.class_name}.{name}"
        self._least, self._most = actor.options_of(name).get("takes", (0, 1 << 30))[:2]

    def _check(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if takes := self._actor.options_of(self._name).get("takes"):
            Signature(*takes).check(self._where, args, kwargs)

    def remote(self, /, *args, **kwargs) -> ObjectRef:
        actor, name = self._actor, self._name
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        return ObjectRef(_session().call(actor.id, name, *_pack(args, kwargs), parent_call()), self._where)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options):
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        called = self.options(**options) if options else self
        return called.remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        """Returns a call that is not made yet: a node of a graph (``shoal.dag``)."""
        from shoal.dag._nodes import ClassMethodNode

        if getattr(self, "_options", {}).get("num_returns", 1) != 1:
            raise Unimplemented(f"{self._where} has several results: in a graph a call has one")
        self._check(args, kwargs)
        return ClassMethodNode(self, args, kwargs)

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

    def __init__(self, actor: _Actor, name: str, options: dict[str, Any]):
        super().__init__(actor, name)
        self._options = options

    def __reduce__(self):
        return _method_of, (sharing(self._actor), self._name, self._options)

    def remote(self, /, *args, **kwargs):
        actor, options, session = self._actor, self._options, _session()
        self._check(args, kwargs)
        where = options.get("name") or self._where
        pending = actor.admit(session)
        extra, items = streaming(extra_of(options), where)
        head, buffers, deps, refs = _pack(args, kwargs, extra)
        left = options.get("max_task_retries", options.get("of_actor"))
        if left and options.get("retry_exceptions"):
            retries = Retries.of(left, options["retry_exceptions"])
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
        self._shoal_actor = _Actor(actor_id, class_name, methods, created, max_pending)

    __class_getitem__ = classmethod(types.GenericAlias)

    def __getattr__(self, name: str) -> ActorMethod:
        actor = self._shoal_actor
        options = BUILT_IN[name] if name in BUILT_IN else actor.methods.get(name)
        if options is None:
            if name in _ID_NAMES:
                return ActorID(actor.id)
            raise AttributeError(f"actor {actor.class_name} has no method {name}")
        plain = not options.keys() & METHOD_OPTIONS and actor.max_pending < 0
        method = ActorMethod(actor, name) if plain else _MethodWithOptions(actor, name, options)
        self.__dict__[name] = method  # looked up once
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


def sharing(actor: _Actor) -> ActorHandle:
    """Returns one more handle of the same actor, in the same process."""
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
    """Refuses to unpickle an actor of a C++ program (actors/api/launch.cc writes a pickle of this call)."""
    raise CrossLanguageError(
        f"the actor is a {class_name} of a C++ program: its arguments are of C++ types, in CBOR, and not pickles",
        hint="call it from C++ (Context::get_actor), or let the two meet in files or sockets",
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
    handle._shoal_actor.weak = not object_id  # also for this process's own actor, which counts the handles it gives away
    if object_id and actor_id != running.actor_id:  # an actor's handle of itself does not keep it
        _count(handle, object_id, place)
    return in_any_order(handle) if any_order else handle


class _Made(NamedTuple):
    """An actor that ends when no handle is left. ``stand``: id and place of the object that represents it, if it is counted."""

    id: str
    class_name: str
    restarts: bool
    token: tuple[str, str] | None = None


class _Keeps:
    """Unpickles as an empty tuple; the value that contains it keeps ``refs`` alive."""

    def __init__(self, refs: list[_native.Ref]):
        self.refs = refs

    def __reduce__(self):
        for ref in self.refs:
            serialize.note_ref(ref)
        return tuple, ()


class ActorOwnership:
    """The actors that this process asks to end: those that it made, and those adopted from a process that is gone. Its thread does the work
    that must not run in a handle's ``__del__``. Thread-safe."""

    MAX_REPORTED = 1000  # number of remembered requests to end
    AGAIN_S = 1.0  # pause before an overloaded actor is asked again

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._queue: SimpleQueue = SimpleQueue()
        self._lock = threading.RLock()  # reentrant: a handle's __del__, or user code run by the GC, may interrupt its holder
        self._thread: threading.Thread | None = None
        self._made: dict[str, _Made] = {}
        self._kept: dict[str, list[_native.Ref]] = {}  # references of restartable actors
        self._told: deque[tuple[_Made, ObjectRef]] = deque(maxlen=self.MAX_REPORTED)  # requests to end, with their answers
        self._held: WeakValueDictionary[str, _Actor] = WeakValueDictionary()  # the counted state of handles, for actors in _made
        self.put = self._queue.put  # takes (session, actor, token) of a dropped handle; callable anywhere

    def begin(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            thread = threading.Thread(target=self._run, args=(self._queue,), daemon=True, name="shoal-released")
            if self._thread is None:
                self._thread = thread
                thread.start()
                state.ending.append(self.end)

    def settle(self) -> None:
        """Returns when all handles dropped so far have been handled."""
        if self._thread is not None:
            told = threading.Event()
            self._queue.put(told)
            told.wait(_END_S)

    def is_alive(self, handle: ActorHandle) -> bool:
        """False once this process has learnt of the actor's death."""
        return not _session().dead(handle._shoal_actor.id)

    def keep_on(self, handle: ActorHandle) -> bool:
        """True if an actor that was found by name stays alive. If this process made it, ``handle`` counts as one more. A request to end
        that the actor has not begun is cancelled; the actor then ends with ``handle``."""
        if (held := self._held.get(handle._shoal_actor.id)) is not None:
            handle._shoal_actor = held
            return self.is_alive(handle)
        self.settle()
        session, actor = _session(), handle._shoal_actor
        told = next((told for told in reversed(tuple(self._told)) if told[0].id == actor.id), None)
        if told is None:
            return self.is_alive(handle)
        made, ref = told
        session.cancel(ref._ref, False, False)
        wait([ref], timeout=_END_S)
        try:
            if ref._ref.ready:
                load(ref)
        except TaskCancelledError:
            with contextlib.suppress(ValueError):
                self._told.remove(told)
            self.add(actor, made.restarts, None)
        except ActorDiedError:  # reported by the actor or its node
            return False
        except Exception:
            return self.is_alive(handle)
        return True

    def end(self) -> None:
        """Returns when the release thread no longer uses the session."""
        thread, self._thread = self._thread, None
        self.put(None)
        self._made.clear()
        self._kept.clear()
        self._told.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)

    def add(self, actor: _Actor, restarts: bool, kept: list[_native.Ref] | None) -> None:
        self.begin()
        self._made[actor.id] = _Made(actor.id, actor.class_name, restarts)
        if kept:
            self._kept[actor.id] = kept
        self._held[actor.id] = actor
        actor.counts = _session()

    def token_for(self, actor: _Actor) -> LifetimeToken | None:
        """Starts counting when a handle of an actor made here first leaves this process. Returns None in a forked child."""
        with self._lock:
            made = self._made.get(actor.id)
            if actor.token is not None or made is None:
                return actor.token
            token = _lifetime_token(actor.counts)
            if actor.token is not None:  # set meanwhile by code that the GC ran
                return actor.token
            actor.token = token
            self._made[actor.id] = made = made._replace(token=actor.token[1:])
        self._watch(actor.counts, made)
        return actor.token

    def own_token(self) -> LifetimeToken:
        """Returns the object that counts the handles that this process's actor gives away of itself."""
        with self._lock:
            if running.token is None:
                token = _lifetime_token(_session())
                running.token = running.token or token
            return running.token

    def may_end(self, actor_id: str, class_name: str) -> bool:
        """True if this process's actor may end, as it was asked to. If not, it is asked again once the handles that it gave away of itself
        are gone. Several processes may ask it."""
        with self._lock:
            if actor_id in self._made:
                return False
            token, running.token = running.token, None
            if token is None:
                return True
            made = self._made[actor_id] = _Made(actor_id, class_name, False, token[1:])
        self.begin()
        self._watch(_session(), made)
        return False

    def all(self) -> list[_Made]:
        """The actors that another process is to adopt, including those that have not answered a request to end."""
        return [*tuple(self._made.values()), *(made for made, ref in tuple(self._told) if not ref._ref.ready)]

    def hand_over(self) -> tuple[list[_Made], _Keeps]:
        """The actors that this process leaves, and the references needed to make them again."""
        kept = [ref for refs in tuple(self._kept.values()) for ref in refs]
        return self.all(), _Keeps(kept)

    def adopt(self, session: _native.Session, made: list[_Made], words: ObjectRef) -> None:
        """Takes over actors of a process that ends. It removes them from ``made`` one by one, so that it may be called again after it
        raised (the head is away). Actors without a handle outside of that process end. ``words``: the value that contained ``made``; it
        keeps the references needed to make them again."""
        self.begin()
        if any(actor.restarts for actor in made):
            words._publish()  # this process may have to pass it on
        while made:
            actor = made[0]
            with contextlib.suppress(NotFound):  # already removed there
                session.know(actor.id, actor.class_name)
                self._made[actor.id] = actor
                if actor.restarts:
                    self._kept[actor.id] = [words._ref]
                if actor.token is None:
                    self.put((session, actor.id, None))
                else:
                    self._watch(session, actor)
            del made[0]

    def _watch(self, session: _native.Session, made: _Made) -> None:
        """Waits until an object that is never put is freed. The fetch names no owner, because the owner may be gone."""
        object_id, place = made.token
        ref = ObjectRef(session.fetch(object_id, "0" * 16 + place[16:]))
        when_ready(ref, lambda: self._freed(session, made, ref))

    def _freed(self, session: _native.Session, made: _Made, ref: ObjectRef) -> None:
        try:
            load(ref)
        except ObjectLostError as error:
            if error.reason == "ObjectFreed":
                self.put((session, made.id, None))
            elif error.reason in ("ObjectLetGo", "ObjectLost"):  # freed here, not on the counting node, or that node is unreachable
                with contextlib.suppress(Exception):
                    self._watch(session, made)
        except Exception:  # the counting process is gone or the job has ended; the actor ends as well
            pass

    def _run(self, queue: SimpleQueue) -> None:
        while (released := queue.get()) is not None:
            if isinstance(released, threading.Event):
                released.set()
                continue
            session, actor_id, token = released
            if session is state.session:  # false after the job, and in a forked child, whose parent has the actor
                with contextlib.suppress(Exception):  # the session may be closed meanwhile
                    if token is None:
                        self._tell(session, actor_id)
                    else:  # unanswered calls still need the handle's reference
                        session.keep_until_answered(actor_id, token.ref)
            released = session = token = None

    def _tell(self, session: _native.Session, actor_id: str) -> None:
        """Asks an actor to end after the calls made so far."""
        made = self._made.pop(actor_id, None)
        if made is None:
            return
        with contextlib.suppress(Exception):  # the head is away: the request is sent once the actor is placed
            if session.withdraw(actor_id):
                self._kept.pop(actor_id, None)
                return
        ref = ObjectRef(session.call(actor_id, RELEASE, *_pack((), {})))
        self._told.append((made, ref))
        when_ready(ref, lambda: self._tell_again(session, made, ref))

    def _tell_again(self, session: _native.Session, made: _Made, ref: ObjectRef) -> None:
        """Repeats a request that failed: the connection broke, the actor was restarted, or it has too many calls."""
        try:
            load(ref)
        except (ActorUnavailableError, ResourceExhausted) as error:
            self._made[made.id] = made
            pause = 0.0 if isinstance(error, ActorUnavailableError) else self.AGAIN_S
            later = threading.Timer(pause, self.put, ((session, made.id, None),))
            later.daemon = True
            later.start()
            return
        except TaskCancelledError:  # a new handle exists (keep_on)
            return
        except Exception:
            pass
        self._kept.pop(made.id, None)  # it has ended, or will end without a restart


actor_ownership = ActorOwnership()
os.register_at_fork(after_in_child=actor_ownership.forget)
