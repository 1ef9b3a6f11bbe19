"""Handles of actors, their methods, and how a call is packed.

An actor ends with the last handle that counts, on whatever node (``MadeHere``): the one that made it and those that came of it, not what
``get_actor`` gives. While only the process that made it has handles, nothing is counted. With the first that leaves it, an object without a
value stands for the actor: each handle carries a reference to it, which is counted as any other reference is. When that object is freed,
the process that made the actor tells it. One that gave away handles of itself counts these in the same way, and ends when it was told so
and they are gone.
"""

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

from shoal import _native, _serialize
from shoal._client import wait
from shoal._context import parent_call, running
from shoal._ids import ActorID
from shoal._options import BUILT_IN, METHOD_OPTIONS, check_call_options
from shoal._refs import ObjectRef, load, new_object_id, when_ready
from shoal._retry import MethodAttempts, Retries
from shoal._runtime import session as _session
from shoal._runtime import state
from shoal._signature import Signature
from shoal._stream import ObjectRefGenerator
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
    "LAST_WORDS",
    "NO_ARGUMENTS",
    "RELEASE",
    "ActorHandle",
    "ActorMethod",
    "extra_of",
    "in_any_order",
    "made_here",
    "own",
    "results",
    "sharing",
]

_END_S = 5.0  # for what the thread of releases does, when the session ends
RELEASE = "__shoal_release__"  # the method by which an actor is told that nobody refers to it
LAST_WORDS = "__shoal_last_words__"  # and the one by which a worker of functions is asked what it leaves
GRAPH = "__shoal_graph__"  # and the one by which it is told of its part in a compiled graph (shoal.dag)


class _Dep:
    """Stands in a pickled call for the k-th argument that was a reference."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return _Dep, (self.k,)


# The arguments of most calls, packed.
NO_ARGUMENTS = _serialize.dumps(((), {}))[0]

_Packed = tuple[bytes, list[memoryview], list[_native.Ref], list[_native.Ref]]


def _unsendable(args: tuple, kwargs: dict, error: Exception) -> Exception:
    """The same, with the argument that it is about."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *((f"argument {k}=", a) for k, a in kwargs.items())):
        try:
            _serialize.pack(value)
        except _serialize.UNSENDABLE as own:
            return _serialize.unsendable(name, value, own)
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
        if (named := _unsendable(args[ours:], kwargs, error)) is error:
            raise
        raise named from error
    return head, buffers, deps, refs


def extra_of(options: dict[str, Any]) -> dict[str, Any]:
    return {k: options[k] for k in ("num_returns", "concurrency_group", "name") if k in options and (k, options[k]) != ("num_returns", 1)}


def streaming(extra: dict[str, Any], where: str) -> tuple[dict[str, Any], ObjectRefGenerator | None]:
    """The same for one call, and what its items come to, if it yields some."""
    if extra.get("num_returns") != "streaming":
        return extra, None
    items = ObjectRefGenerator(where)
    return {**extra, "stream": items._stream}, items


def results(ref: _native.Ref, extra: dict[str, Any], where: str, items: ObjectRefGenerator | None = None):
    """The answer of ``.remote()``: one reference, a list of them, one that grows, or nothing."""
    num_returns = extra.get("num_returns", 1)
    if num_returns in (1, "dynamic"):
        return ObjectRef(ref, where)
    if items is not None:
        return items._follow(ref)
    return [ObjectRef(r, where) for r in ref.split(_session(), num_returns)] if num_returns else None


class _Stand(NamedTuple):
    """The object that stands for an actor, and a reference to it."""

    ref: _native.Ref
    object_id: str
    place: str  # of the process whose node counts


def _stand(session: _native.Session) -> _Stand:
    object_id, place = new_object_id(), session.place
    return _Stand(session.hold(object_id, place), object_id, place)


class _Actor:
    """The state that a handle and its methods share. ``counts``: the session in which its end is to be told (None: it does not count);
    ``stand``: what is counted, once a handle has left the process that made the actor."""

    __slots__ = ("__weakref__", "any_order", "class_name", "counts", "created", "id", "max_pending", "methods", "pending", "stand", "weak")

    def __init__(self, actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], created: ObjectRef | None, max_pending: int):
        self.counts: _native.Session | None = None
        self.stand: _Stand | None = None
        self.any_order = self.weak = False  # weak: it keeps nobody, wherever it goes
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

    def leaves(self) -> tuple[str, ...]:
        """The part of a handle's pickle that makes it count."""
        if self.weak:
            stand = None
        elif self.id == running.actor_id:
            stand = running.stand or made_here.own_stand()
        elif self.counts is not None and self.counts is state.session:
            stand = self.stand or made_here.stand_for(self)
        else:
            stand = None
        if stand is None:
            return ()
        if not _serialize.note_ref(stand.ref):
            _session().pin(stand.ref)
        return stand.object_id, stand.place

    def __del__(self):
        # Anywhere, in any thread, also while the interpreter ends: it only says so.
        if self.counts is not None and made_here is not None:
            made_here.put((self.counts, self.id, self.stand))


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
        """A call that is not made yet: a node of a graph (``shoal.dag``)."""
        from shoal.dag._nodes import ClassMethodNode

        if getattr(self, "_options", {}).get("num_returns", 1) != 1:
            raise Unimplemented(f"{self._where} has several results: in a graph a call has one")
        self._check(args, kwargs)
        return ClassMethodNode(self, args, kwargs)

    def options(self, /, **options) -> _MethodWithOptions:
        """``num_returns``, ``concurrency_group``, ``name``, ``max_task_retries`` with ``retry_exceptions`` of the calls made through it."""
        options = check_call_options(options, "methods of actors")
        of = {**self._actor.options_of(self._name), **options}
        return _MethodWithOptions(self._actor, self._name, {k: v for k, v in of.items() if v is not None})

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"call {self._name}.remote(...): a method of an actor runs in the actor's process")

    def __reduce__(self):
        return getattr, (sharing(self._actor), self._name)


class _MethodWithOptions(ActorMethod):
    """One whose calls are not like most."""

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
    """Names an actor; may be passed to other actors and tasks. Calls of one caller run in the order in which they were made.

    The actor ends when no handle of it is left, in a process, on its way or in an object, and the calls that were made are done. One that
    was pickled by hand keeps it as long as the process lives that did so. What ``get_actor`` and ``current_actor`` give, and copies of
    that, keep nobody; nor does what ``get_if_exists`` finds that another process has made. A handle of itself that an actor was given does
    not keep it either, but the copies do that it gives to others.
    """

    def __init__(
        self,
        actor_id: str,
        class_name: str,
        methods: dict[str, dict[str, Any]],
        created: ObjectRef | None = None,
        max_pending: int = -1,
    ):
        # All other names are the user's, for methods.
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


_ID_NAMES = ("_actor_id", "_ray_actor_id")  # the actor's id, as in Ray, unless the class has methods of these names


def sharing(actor: _Actor) -> ActorHandle:
    """One more handle of the same actor, in the same process."""
    out = ActorHandle.__new__(ActorHandle)
    out._shoal_actor = actor
    return out


def own(handle: ActorHandle, restarts: bool = False, kept: list[_native.Ref] | None = None) -> ActorHandle:
    """The actor, which this process has made, ends with this handle and those that come of it. ``kept``: what it is made from again."""
    made_here.add(handle._shoal_actor, restarts, kept)
    return handle


def in_any_order(handle: ActorHandle) -> ActorHandle:
    """Calls that wait for an argument hold up no other call, whoever makes them."""
    handle._shoal_actor.any_order = True
    _session().in_any_order(handle._shoal_actor.id, True)
    return handle


def _count(handle: ActorHandle, object_id: str, place: str) -> None:
    """A handle that has come from elsewhere counts."""
    made_here.begin()
    session = handle._shoal_actor.counts = _session()
    handle._shoal_actor.stand = _Stand(session.hold(object_id, place), object_id, place)


def _method_of(handle: ActorHandle, name: str, options: dict[str, Any]) -> ActorMethod:
    return _MethodWithOptions(handle._shoal_actor, name, options)


def _foreign(class_name: str):
    """Refuses to unpickle an actor of a C++ program (actors/api/launch.cc writes this call as a pickle)."""
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
    handle._shoal_actor.weak = not object_id  # also of this process's own actor, which counts what it gives away of itself
    if object_id and actor_id != running.actor_id:  # its own does not keep it
        _count(handle, object_id, place)
    return in_any_order(handle) if any_order else handle


class _Made(NamedTuple):
    """An actor that ends when nothing refers to it. ``stand``: the object that stands for it, if it is counted, and whose place."""

    id: str
    class_name: str
    restarts: bool
    stand: tuple[str, str] | None = None


class _Keeps:
    """Comes as nothing, but the value that it is in keeps what these refer to."""

    def __init__(self, refs: list[_native.Ref]):
        self.refs = refs

    def __reduce__(self):
        for ref in self.refs:
            _serialize.note_ref(ref)
        return tuple, ()


class MadeHere:
    """The actors that this process has made, or has from one that did and is gone, and whose end it is to tell them. Its thread does what
    may not happen where a handle goes. Any thread."""

    MAX_TOLD = 1000  # that are remembered
    AGAIN_S = 1.0  # before one that has too many calls is told again

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._queue: SimpleQueue = SimpleQueue()
        self._lock = threading.RLock()  # who has it may be interrupted by a handle's end, or by code of a user's that the GC runs
        self._thread: threading.Thread | None = None
        self._made: dict[str, _Made] = {}
        self._kept: dict[str, list[_native.Ref]] = {}  # for those that may be started again
        self._told: deque[tuple[_Made, ObjectRef]] = deque(maxlen=self.MAX_TOLD)  # that they end
        self._held: WeakValueDictionary[str, _Actor] = WeakValueDictionary()  # what the handles share that count, of all in _made
        self.put = self._queue.put  # (session, actor, what stood for it), of a handle that is gone; which may be called anywhere

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
        """Returns when the actors were told of every handle that is gone by now."""
        if self._thread is not None:
            told = threading.Event()
            self._queue.put(told)
            told.wait(_END_S)

    def is_alive(self, handle: ActorHandle) -> bool:
        """As far as this process has heard."""
        return not _session().dead(handle._shoal_actor.id)

    def keep_on(self, handle: ActorHandle) -> bool:
        """Whether an actor that was found by its name lives on. One that this process has made ends with its last handle, and this
        is one more. One that was told to end, and that has not begun to, is told nothing after all, and ends with this handle."""
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
        except ActorDiedError:  # it has said so, or its node
            return False
        except Exception:
            return self.is_alive(handle)
        return True

    def end(self) -> None:
        """Returns when nothing of it uses the session any more."""
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

    def stand_for(self, actor: _Actor) -> _Stand | None:
        """A handle of what was made here leaves this process, for the first time: from now on all are counted. None in a forked child."""
        with self._lock:
            made = self._made.get(actor.id)
            if actor.stand is not None or made is None:
                return actor.stand
            stand = _stand(actor.counts)
            if actor.stand is not None:  # what the GC ran meanwhile has done the same
                return actor.stand
            actor.stand = stand
            self._made[actor.id] = made = made._replace(stand=actor.stand[1:])
        self._watch(actor.counts, made)
        return actor.stand

    def own_stand(self) -> _Stand:
        """A handle that this process's actor has of itself leaves it."""
        with self._lock:
            if running.stand is None:
                stand = _stand(_session())
                running.stand = running.stand or stand
            return running.stand

    def may_end(self, actor_id: str, class_name: str) -> bool:
        """Whether this process's actor, which was asked to end, may. If not, it is asked again when the handles are gone that it has given
        away of itself. Several processes may ask it."""
        with self._lock:
            if actor_id in self._made:
                return False
            stand, running.stand = running.stand, None
            if stand is None:
                return True
            made = self._made[actor_id] = _Made(actor_id, class_name, False, stand[1:])
        self.begin()
        self._watch(_session(), made)
        return False

    def all(self) -> list[_Made]:
        """The actors that another process is to have (adopt), those included that were asked to end and have not answered."""
        return [*tuple(self._made.values()), *(made for made, ref in tuple(self._told) if not ref._ref.ready)]

    def last_words(self) -> tuple[list[_Made], _Keeps]:
        """The actors that this process leaves, and the references that they may be made from again."""
        kept = [ref for refs in tuple(self._kept.values()) for ref in refs]
        return self.all(), _Keeps(kept)

    def adopt(self, session: _native.Session, made: list[_Made], words: ObjectRef) -> None:
        """They are this process's from now on, as if it had made them, and are taken out of ``made`` one by one: so it may be called again
        when it has raised (the head is away). Those without a handle outside of the process that did, end. ``words``: the value that they
        came in, and that keeps what they may be made from again."""
        self.begin()
        if any(actor.restarts for actor in made):
            words._publish()  # it may have to go along once more
        while made:
            actor = made[0]
            with contextlib.suppress(NotFound):  # the head has forgotten it
                session.know(actor.id, actor.class_name)
                self._made[actor.id] = actor
                if actor.restarts:
                    self._kept[actor.id] = [words._ref]
                if actor.stand is None:
                    self.put((session, actor.id, None))
                else:
                    self._watch(session, actor)
            del made[0]

    def _watch(self, session: _native.Session, made: _Made) -> None:
        """Waits for the end of an object that is never put. (The fetch names no owner: that one may be gone.)"""
        object_id, place = made.stand
        ref = ObjectRef(session.fetch(object_id, "0" * 16 + place[16:]))
        when_ready(ref, lambda: self._freed(session, made, ref))

    def _freed(self, session: _native.Session, made: _Made, ref: ObjectRef) -> None:
        try:
            load(ref)
        except ObjectLostError as error:
            if error.reason == "ObjectFreed":
                self.put((session, made.id, None))
            elif error.reason in ("ObjectLetGo", "ObjectLost"):  # by this node, not by the one that counts; or that one is not reached
                with contextlib.suppress(Exception):
                    self._watch(session, made)
        except Exception:  # who counted is gone, or the job has ended: so will the actor
            pass

    def _run(self, queue: SimpleQueue) -> None:
        while (released := queue.get()) is not None:
            if isinstance(released, threading.Event):
                released.set()
                continue
            session, actor_id, stand = released
            if session is state.session:  # not gone with its job; nor is this a forked child, and the actor its parent's
                with contextlib.suppress(Exception):  # the session is closed meanwhile
                    if stand is None:
                        self._tell(session, actor_id)
                    else:  # the calls that were made still need it
                        session.keep_until_answered(actor_id, stand.ref)
            released = session = stand = None

    def _tell(self, session: _native.Session, actor_id: str) -> None:
        """Behind the calls that were made: it ends when they are done."""
        made = self._made.pop(actor_id, None)
        if made is None:
            return
        with contextlib.suppress(Exception):  # the head is away: it is told once it is placed
            if session.withdraw(actor_id):
                self._kept.pop(actor_id, None)
                return
        ref = ObjectRef(session.call(actor_id, RELEASE, *_pack((), {})))
        self._told.append((made, ref))
        when_ready(ref, lambda: self._tell_again(session, made, ref))

    def _tell_again(self, session: _native.Session, made: _Made, ref: ObjectRef) -> None:
        """One that has not heard it: its connection broke, or it was started again meanwhile, or it has more calls than it takes."""
        try:
            load(ref)
        except (ActorUnavailableError, ResourceExhausted) as error:
            self._made[made.id] = made
            pause = 0.0 if isinstance(error, ActorUnavailableError) else self.AGAIN_S
            later = threading.Timer(pause, self.put, ((session, made.id, None),))
            later.daemon = True
            later.start()
            return
        except TaskCancelledError:  # somebody refers to it again
            return
        except Exception:
            pass
        self._kept.pop(made.id, None)  # it has ended, or waits for that and is not made again


made_here = MadeHere()
os.register_at_fork(after_in_child=made_here.forget)
