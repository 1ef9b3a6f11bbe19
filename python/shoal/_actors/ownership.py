"""The state of an actor's handles, their count, and the request to end an actor that has none left.

An actor ends with its last counted handle on any node (``ActorOwnership``). The creator's handle and its copies count, those of
``get_actor`` do not. While only the creating process has handles, no node counts them. When the first one leaves that process, an object
without a value is made that stands for the actor (its lifetime token). Each handle then has a counted reference to that object. When the
object is freed, the creating process asks the actor to end. An actor counts the handles of itself that it gave away in the same way. It
ends once it was asked to end and these handles are gone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from shoal import _native
from shoal._actors.calls import RELEASE, pack_call
from shoal._core import serialize
from shoal._core.context import running
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._objects.refs import ObjectRef, load, new_object_id, when_ready
from shoal._objects.values import wait
from shoal.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NotFound,
    ObjectLostError,
    PendingCallsLimitExceeded,
    ResourceExhausted,
    TaskCancelledError,
)

__all__ = ["ActorOwnership", "HandleState", "LifetimeToken", "actor_ownership"]

_END_S = 5.0  # limit in seconds for the work of this class's thread at the session's end


class LifetimeToken(NamedTuple):
    """The object that represents an actor, with a reference to it."""

    ref: _native.Ref
    object_id: str
    place: str  # owner's process and node; that node counts the references


def _lifetime_token(session: _native.Session) -> LifetimeToken:
    object_id, place = new_object_id(), session.place
    return LifetimeToken(session.hold(object_id, place), object_id, place)


class HandleState:
    """The state that a handle and its methods share. ``counts``: the session that is notified when the handle is gone (None: the handle
    does not count). ``token``: the counted object, once a handle has left the creating process."""

    __slots__ = ("__weakref__", "any_order", "class_name", "counts", "created", "id", "max_pending", "methods", "pending", "token", "weak")

    def __init__(self, actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], created: ObjectRef | None, max_pending: int):
        self.counts: _native.Session | None = None
        self.token: LifetimeToken | None = None
        self.any_order = self.weak = False  # weak: neither the handle nor its copies keep the actor
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
        if self.pending.total - self.pending.ready >= self.max_pending:
            raise PendingCallsLimitExceeded(f"max_pending_calls={self.max_pending} calls wait for actor {self.class_name}")
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


class _Owned(NamedTuple):
    """An actor that ends when no handle is left. ``token``: id and place of its lifetime token, if it has one."""

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
    """The actors that this process asks to end: actors that it made, and actors that it adopted from a process that is gone. Its thread
    does the work that must not run in a handle's ``__del__``. Thread-safe."""

    MAX_REPORTED = 1000  # requests to end that are remembered
    AGAIN_S = 1.0  # pause before an overloaded actor is asked again

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._queue: SimpleQueue = SimpleQueue()
        self._lock = threading.RLock()  # reentrant: a handle's __del__, or user code run by the GC, may interrupt its holder
        self._thread: threading.Thread | None = None
        self._owned: dict[str, _Owned] = {}
        self._kept: dict[str, list[_native.Ref]] = {}  # references of restartable actors
        self._ending: deque[tuple[_Owned, ObjectRef]] = deque(maxlen=self.MAX_REPORTED)  # requests to end, with their answers
        self._held: WeakValueDictionary[str, HandleState] = WeakValueDictionary()  # by actor in _owned: the state of its counted handles
        self.put = self._queue.put  # takes (session, actor, token) of a handle that is gone; may be called in any thread and by the GC

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
            sent = threading.Event()
            self._queue.put(sent)
            sent.wait(_END_S)

    def if_alive(self, actor: HandleState) -> HandleState | None:
        """Returns ``actor``, or None once a report of its death has reached this process."""
        return None if _session().dead(actor.id) else actor

    def keep_on(self, actor: HandleState) -> HandleState | None:
        """Returns the state for a handle of an actor that was found by name, or None if the actor does not stay alive. If this process
        made it, that handle counts as one more. A request to end that the actor has not begun is cancelled; the actor then ends with the
        handle."""
        if (held := self._held.get(actor.id)) is not None:
            return self.if_alive(held)
        self.settle()
        session = _session()
        ending = next((each for each in reversed(tuple(self._ending)) if each[0].id == actor.id), None)
        if ending is None:
            return self.if_alive(actor)
        owned, ref = ending
        session.cancel(ref._ref, False, False)
        wait([ref], timeout=_END_S)
        try:
            if ref._ref.ready:
                load(ref)
        except TaskCancelledError:
            with contextlib.suppress(ValueError):
                self._ending.remove(ending)
            self.add(actor, owned.restarts, None)
        except ActorDiedError:  # reported by the actor or its node
            return None
        except Exception:
            return self.if_alive(actor)
        return actor

    def end(self) -> None:
        """Returns when the release thread no longer uses the session."""
        thread, self._thread = self._thread, None
        self.put(None)
        self._owned.clear()
        self._kept.clear()
        self._ending.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)

    def add(self, actor: HandleState, restarts: bool, kept: list[_native.Ref] | None) -> None:
        self.begin()
        self._owned[actor.id] = _Owned(actor.id, actor.class_name, restarts)
        if kept:
            self._kept[actor.id] = kept
        self._held[actor.id] = actor
        actor.counts = _session()

    def token_for(self, actor: HandleState) -> LifetimeToken | None:
        """Makes the lifetime token when a handle of an actor made here first leaves this process. Returns None in a forked child."""
        with self._lock:
            owned = self._owned.get(actor.id)
            if actor.token is not None or owned is None:
                return actor.token
            token = _lifetime_token(actor.counts)
            if actor.token is not None:  # the GC may have run code that set it meanwhile
                return actor.token
            actor.token = token
            self._owned[actor.id] = owned = owned._replace(token=actor.token[1:])
        self._watch(actor.counts, owned)
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
            if actor_id in self._owned:
                return False
            token, running.token = running.token, None
            if token is None:
                return True
            owned = self._owned[actor_id] = _Owned(actor_id, class_name, False, token[1:])
        self.begin()
        self._watch(_session(), owned)
        return False

    def all(self) -> list[_Owned]:
        """The actors that another process is to adopt, including those that have not answered a request to end."""
        return [*tuple(self._owned.values()), *(owned for owned, ref in tuple(self._ending) if not ref._ref.ready)]

    def hand_over(self) -> tuple[list[_Owned], _Keeps]:
        """The actors that this process leaves, and the references needed to make them again."""
        kept = [ref for refs in tuple(self._kept.values()) for ref in refs]
        return self.all(), _Keeps(kept)

    def adopt(self, session: _native.Session, actors: list[_Owned], words: ObjectRef) -> None:
        """Takes over actors of a process that ends. It removes them from ``actors`` one by one, so that it may be called again after it
        raised (the head is away). Actors without a handle outside of that process end. ``words``: the value that contained ``actors``; it
        keeps the references needed to make them again."""
        self.begin()
        if any(actor.restarts for actor in actors):
            words._publish()  # this process may have to pass it on
        while actors:
            actor = actors[0]
            with contextlib.suppress(NotFound):  # the head has removed it already
                session.know(actor.id, actor.class_name)
                self._owned[actor.id] = actor
                if actor.restarts:
                    self._kept[actor.id] = [words._ref]
                if actor.token is None:
                    self.put((session, actor.id, None))
                else:
                    self._watch(session, actor)
            del actors[0]

    def _watch(self, session: _native.Session, actor: _Owned) -> None:
        """Waits for the end of the actor's lifetime token: the fetch of an object without a value fails when the object is freed. The fetch
        names no owner, because the owner may be gone."""
        object_id, place = actor.token
        ref = ObjectRef(session.fetch(object_id, "0" * 16 + place[16:]))
        when_ready(ref, lambda: self._freed(session, actor, ref))

    def _freed(self, session: _native.Session, actor: _Owned, ref: ObjectRef) -> None:
        try:
            load(ref)
        except ObjectLostError as error:
            if error.reason == "ObjectFreed":
                self.put((session, actor.id, None))
            # The object was freed on this node only, or the node that counts it is unreachable.
            elif error.reason in ("ObjectLetGo", "ObjectLost"):
                with contextlib.suppress(Exception):
                    self._watch(session, actor)
        except Exception:  # the counting process is gone or the job has ended; the actor ends as well
            pass

    def _run(self, queue: SimpleQueue) -> None:
        while (released := queue.get()) is not None:
            if isinstance(released, threading.Event):
                released.set()
                continue
            session, actor_id, token = released
            if session is state.session:  # not after the session's end, and not in a forked child, whose parent has the actor
                with contextlib.suppress(Exception):  # the session may be closed meanwhile
                    if token is None:
                        self._release(session, actor_id)
                    else:  # calls without an answer still need the handle's reference to the token
                        session.keep_until_answered(actor_id, token.ref)
            released = session = token = None

    def _release(self, session: _native.Session, actor_id: str) -> None:
        """Asks an actor to end after the calls made so far."""
        actor = self._owned.pop(actor_id, None)
        if actor is None:
            return
        with contextlib.suppress(Exception):  # no head answers, so the call below ends the actor once it is placed
            if session.withdraw(actor_id):
                self._kept.pop(actor_id, None)
                return
        ref = ObjectRef(session.call(actor_id, RELEASE, *pack_call((), {})))
        self._ending.append((actor, ref))
        when_ready(ref, lambda: self._release_again(session, actor, ref))

    def _release_again(self, session: _native.Session, actor: _Owned, ref: ObjectRef) -> None:
        """Repeats a request that failed: the connection broke, the actor was restarted, or it has too many calls."""
        try:
            load(ref)
        except (ActorUnavailableError, ResourceExhausted) as error:
            self._owned[actor.id] = actor
            pause = 0.0 if isinstance(error, ActorUnavailableError) else self.AGAIN_S
            later = threading.Timer(pause, self.put, ((session, actor.id, None),))
            later.daemon = True
            later.start()
            return
        except TaskCancelledError:  # a new handle exists (keep_on)
            return
        except Exception:
            pass
        self._kept.pop(actor.id, None)  # it has ended, or will end without a restart


actor_ownership = ActorOwnership()
os.register_at_fork(after_in_child=actor_ownership.forget)
