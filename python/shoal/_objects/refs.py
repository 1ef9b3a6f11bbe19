"""``ObjectRef``: a value, present or pending, and the notifications of its arrival.

asyncio is imported on the first await only: its import takes a third as long as this package's.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import select
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal import _native
from shoal._core import serialize
from shoal._core.ids import JobID, TaskID
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal.exceptions import ShoalError, TaskError, Unavailable

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

__all__ = [
    "ObjectRef",
    "ResultRef",
    "Waitable",
    "awaits",
    "callbacks",
    "load",
    "new_object_id",
    "when_gone",
    "when_ready",
    "when_ready_for_pools",
]


def new_object_id() -> str:
    """Returns a new id of this job: 32 hexadecimal digits, of which the first half is the job's."""
    return f"{_session().job}{os.urandom(8).hex()}"


def _travelling() -> _native.Session:
    """Returns the session for a reference that is to be pickled. It opens none, because a new session would not have the value."""
    if state.session is None and not state.forked:
        hint = "get its value and pickle that, before shutdown()"
        raise Unavailable(
            "this reference belongs to a cluster that this process has left: its value cannot be fetched", reason="Closed", hint=hint
        )
    return _session()


class Waitable:
    """The base class of everything that ``wait`` accepts."""

    __slots__ = ()


class ObjectRef(Waitable):
    """A value, present or pending: the result of ``put`` and of remote calls.

    As a top-level argument of a call it is replaced by its value; inside another object it stays a reference. The node serves copies in
    other processes. It keeps a value that was sent away while a reference to it exists in a process, in transit or in an object. A
    reference pickled by hand keeps the value while the pickling process lives. Copies of one reference are equal. It can be awaited.
    """

    __slots__ = ("__weakref__", "_id", "_owner", "_ref", "_task", "_where")

    def __init__(self, ref: _native.Ref, where: str = "", object_id: str = "", owner: str = "", task: str = ""):
        self._ref, self._where, self._id, self._owner = ref, where, object_id, owner
        self._task = task  # number of the owner's call, if the owner is another process

    def _named(self) -> str:
        """Returns the id, which is made on request: most references never need one."""
        if not self._id:
            # Without a session the id only has to be unique.
            fresh = new_object_id() if state.session is not None else "0" * 16 + os.urandom(8).hex()
            name = fresh[:16] + self._ref.known_as(fresh[16:])
            with _first:
                self._id = self._id or name
        return self._id

    def _publish(self) -> str:
        if not self._owner:
            session, name = _travelling(), self._named()
            with _first:
                if not self._owner:
                    session.publish(self._ref, name)
                    self._owner = session.place
        return self._id

    __class_getitem__ = classmethod(types.GenericAlias)

    def hex(self) -> str:
        return self._named()

    def job_id(self) -> JobID:
        """The id of the job that made the value."""
        return JobID(self._named()[:16])

    def task_id(self) -> TaskID:
        """The id of the call that gave it, equal to ``get_runtime_context().get_task_id()`` in that call. Nil for an object that was
        put."""
        number = self._number()
        return TaskID((self._owner or _travelling().place)[:16] + number) if number else TaskID.nil()

    def _number(self) -> str:
        """The number of its call among the calls of its owner, or "" for an object that was put."""
        return self._task or self._ref.task

    def is_nil(self) -> bool:
        return False

    def binary(self) -> bytes:
        return bytes.fromhex(self._named())

    def future(self) -> concurrent.futures.Future:
        """Returns a ``concurrent.futures.Future`` of the value."""
        from concurrent.futures import Future

        future: Future = Future()
        _for_users.get().add(self, lambda: _settle(future, self))  # in the thread that runs callbacks of user code
        return future

    def as_future(self) -> asyncio.Future:
        """Returns a future of the value on the running asyncio loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        future = loop.create_future()
        if self._ref.ready:
            _settle(future, self)
        else:
            _of_loop(loop).add(self, partial(_settle, future, self))
        return future

    def __await__(self) -> Generator[Any, None, Any]:
        if self._ref.ready:
            return load(self)
        return (yield from self.as_future().__await__())

    def __eq__(self, other) -> bool:
        return self is other or (isinstance(other, ObjectRef) and bool(self._id) and self._id == other._id)

    def __hash__(self) -> int:
        return hash(self._named())

    def __reduce__(self):
        object_id = self._publish()
        if not serialize.note_ref(self._ref):
            _travelling().pin(self._ref)
        return _fetch, (object_id, self._where, self._owner, self._number())

    def __copy__(self) -> ObjectRef:
        return self

    def __deepcopy__(self, memo: dict) -> ObjectRef:
        """Returns the reference itself: it is immutable, and stays in this process."""
        return self

    def __repr__(self) -> str:
        state = "pending" if not self._ref.ready else "failed" if self._ref.failed else "ready"
        return f"ObjectRef({self._where or 'put'}, {state})"


class ResultRef:
    """A result that ``get`` accepts but that is fetched in another way, as those of a compiled graph."""

    __slots__ = ("__weakref__",)

    def get(self, timeout: float | None = None) -> Any:
        raise NotImplementedError


_first = threading.RLock()  # guards first ids and copies; reentrant because a signal handler may interrupt its holder


class _Afar(ObjectRef):
    """A reference to another node's value that this process has not used: passing it on needs no copy. The first use turns it into an
    ObjectRef."""

    __slots__ = ()

    @property
    def _ref(self) -> _native.Ref:
        ref = _session().borrow(self._id, self._owner)
        with _first:
            if type(self) is not _Afar:  # another thread has fetched it meanwhile
                return _get_ref(self)
            _set_ref(self, ref)
            self.__class__ = ObjectRef
        return ref

    def __reduce__(self):
        held = _get_ref(self)
        if not serialize.note_ref(held):
            _travelling().pin(held)
        return _fetch, (self._id, self._where, self._owner, self._task)

    def _number(self) -> str:
        return self._task

    def __repr__(self) -> str:
        return f"ObjectRef({self._where or 'put'}, on another node)"


_get_ref, _set_ref = ObjectRef._ref.__get__, ObjectRef._ref.__set__


def _fetch(object_id: str, where: str, owner: str, task: str = "") -> ObjectRef:
    session = _session()
    if owner[16:] == session.node:
        return ObjectRef(session.borrow(object_id, owner), where, object_id, owner, task)
    out = ObjectRef(session.hold(object_id, owner), where, object_id, owner, task)
    out.__class__ = _Afar
    return out


def load(ref: ObjectRef, where: str = "") -> Any:
    """Returns the value of a ready reference, or raises its error. ``where`` is added to the error's context."""
    try:
        head, buffers = ref._ref.value()
    except ShoalError as error:  # an error of the runtime: the value has not arrived
        error.context = (*error.context, *([where] if where else []))
        raise
    value = serialize.loads(head, buffers)
    if not ref._ref.raised:
        return value
    if isinstance(value, ShoalError):
        value.context = (*value.context, *([where] if where else []))
    raise value.as_instance_of_cause() if isinstance(value, TaskError) else value


def awaits(ref: ObjectRef) -> asyncio.Future:
    """Returns a future of the running loop that is set to None once the value is present or has failed."""
    from asyncio import get_running_loop

    loop = get_running_loop()
    future = loop.create_future()
    if ref._ref.ready:
        future.set_result(None)
    else:
        _of_loop(loop).add(ref, partial(_notify, future))
    return future


def _notify(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)


def _settle(future, ref: ObjectRef) -> None:
    """Sets the result of an asyncio or thread future, which may be cancelled by now."""
    from concurrent.futures import InvalidStateError

    if future.done():
        return
    try:
        value, error = load(ref), None
    except BaseException as raised:
        value, error = None, raised
    if isinstance(error, StopIteration):  # not accepted by asyncio futures
        cause, error = error, RuntimeError(f"a remote call raised {error!r}")
        error.__cause__ = cause
    with contextlib.suppress(InvalidStateError):  # cancelled at this moment by another thread
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def when_gone(worker: str, callback: Callable[[], None]) -> None:
    """Calls back when a process of this node has ended. It fetches an object that only that process could make, but never makes. The node
    fails the fetch when the process ends."""
    when_ready(ObjectRef(_session().fetch(new_object_id(), worker)), callback)


class _Awaited:
    """Callbacks by the numbers under which a Readiness reports their references. A thread that sleeps on the Readiness cannot
    serve connections; ``_hand_over`` leaves them to another thread."""

    def __init__(self):
        self.readiness = _native.Readiness()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)

    def number(self, callback: Callable[[], None]) -> int:
        number = next(self._numbers)
        self._callbacks[number] = callback
        return number

    def add(self, ref: ObjectRef, callback: Callable[[], None]) -> None:
        number = self.number(callback)
        try:
            self.readiness.add(_session(), ref._ref, number)
        except BaseException:
            del self._callbacks[number]
            raise

    def forget(self, number: int) -> None:
        self._callbacks.pop(number, None)

    def deliver(self) -> None:
        for number in self.readiness.take():
            callback = self._callbacks.pop(number, None)
            try:
                if callback is not None:
                    callback()
            except SystemExit:  # ignored, as in any thread
                pass
            except BaseException:
                traceback.print_exc()


def _hand_over() -> None:
    session = state.session
    if session is not None:
        with contextlib.suppress(ShoalError):  # the session is closed meanwhile
            session.hand_over()


class _OfLoop(_Awaited):
    """Calls back on an asyncio loop. A callback settles its first argument, a future."""

    _FEW = _many = 64  # number of callbacks up to which cancelled futures are not removed

    def __init__(self, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self._loop = weakref.ref(loop)
        self._leaving = False
        contextvars.Context().run(loop.add_reader, self.readiness.fd, self.deliver)  # an empty context, not that of the first call

    def add(self, ref: ObjectRef, callback: partial) -> None:
        super().add(ref, callback)
        if len(self._callbacks) >= self._many:
            for number in [n for n, c in self._callbacks.items() if c.args[0].done()]:
                del self._callbacks[number]
            self._many = 2 * len(self._callbacks) + self._FEW
        if not self._leaving:  # once per turn of the loop, after the ready handlers have made their calls
            self._leaving = True
            self._loop().call_soon(self._leave)

    def _leave(self) -> None:
        self._leaving = False
        _hand_over()


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = weakref.WeakKeyDictionary()


def _of_loop(loop: asyncio.AbstractEventLoop) -> _OfLoop:
    awaited = _loops.get(loop)
    if awaited is None:
        awaited = _loops[loop] = _OfLoop(loop)
    return awaited


class _Thread(_Awaited):
    """Calls back in its own thread, which sleeps until a reference is ready."""

    def __init__(self):
        super().__init__()
        threading.Thread(target=self._run, daemon=True, name="shoal-callbacks").start()

    def add(self, ref: ObjectRef, callback: Callable[[], None]) -> None:
        super().add(ref, callback)
        _hand_over()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self.readiness.fd, select.POLLIN)
        while True:
            poll.poll()
            self.deliver()


class _Once:
    """A thread of this process, made on the first use."""

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._thread: _Thread | None = None
        self._lock = threading.Lock()

    def get(self) -> _Thread:
        with self._lock:
            if self._thread is None:
                self._thread = _Thread()
            return self._thread


# Three threads, because callbacks may wait. A callback of user code may wait for a call that needs this package's thread; a callback of a
# pool, for a call that needs both other threads.
_for_us, _for_users, _for_pools = _Once(), _Once(), _Once()


def callbacks() -> _Thread:
    """The thread of this package's own callbacks."""
    return _for_us.get()


def when_ready(ref: ObjectRef, callback: Callable[[], None]) -> None:
    """Calls back in this package's thread once the value is present or has failed, even if it is already."""
    callbacks().add(ref, callback)


def when_ready_for_pools(ref: ObjectRef, callback: Callable[[], None]) -> None:
    """As ``when_ready``, in the thread that runs users' callbacks of ``util.multiprocessing``."""
    _for_pools.get().add(ref, callback)


def _after_fork_in_child() -> None:
    global _first
    _first = threading.RLock()
    for each in (_for_us, _for_users, _for_pools):
        each.forget()
    _loops.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
