"""``get``, ``put``, ``wait`` and ``cancel``: values by reference. Names and semantics are Ray's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from shoal import _native
from shoal._core import serialize
from shoal._core.numbers import flag, number, whole
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._objects.refs import ObjectRef, ResultRef, Waitable, load
from shoal.exceptions import GetTimeoutError, Unimplemented

__all__ = ["cancel", "get", "put", "wait", "wait_lending"]


def put(value: Any, *, _owner: Any = None, _tensor_transport: str | None = None) -> ObjectRef:
    """Stores a value: up to 100 KiB in this process, larger ones in shared memory, which other processes read without a copy. Raises
    ObjectStoreFullError when neither memory nor the disk (for values moved to files) has room."""
    if _owner is not None:
        raise ValueError("put() has no _owner any more, as in Ray: a value belongs to the process that puts it")
    if _tensor_transport is not None:
        raise Unimplemented(
            "_tensor_transport of put() is not in this release", hint="tensors are put as they are; shoal.collective sends them"
        )
    if isinstance(value, ObjectRef):
        raise TypeError("put() of an ObjectRef: it is a reference already")
    return ObjectRef(_session().put(*serialize.pack(value, what="the value that was put")))


_SHORT_S = 0.002  # seconds; a shorter wait is not reported to the node. In a chain of tasks that wait for each other, each adds that time


def wait_lending(waits, enough, timeout: float | None, *what):
    """Calls ``waits(*what, timeout)``. A remote function that waits longer than a moment lends its CPUs to other tasks."""
    if not state.lends or threading.current_thread() is not threading.main_thread():
        return waits(*what, timeout)
    end = None if timeout is None else time.monotonic() + timeout
    result = waits(*what, _SHORT_S if timeout is None else min(timeout, _SHORT_S))
    if enough(result) or (timeout is not None and timeout <= _SHORT_S):
        return result
    _session().set_blocked(True)
    try:
        return waits(*what, None if end is None else max(0.0, end - time.monotonic()))
    finally:
        _session().set_blocked(False)


def get(object_refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Returns the value of a reference, or the values of a list of references, in order.

    Raises the exception of the remote code (an instance of both its own class and TaskError) or ActorDiedError. Raises GetTimeoutError
    after ``timeout`` seconds (None or -1: never). For a list it raises the first failure without waiting for the others. ValueError for
    anything but a reference, TypeError for a list with other elements.

    Arrays are read-only; those of 4096 bytes and more lie in shared memory. Tensors do, too, but torch has no read-only tensors: a write
    copies the pages, and only this value sees it.
    """
    refs = object_refs  # Ray's name of the argument
    if timeout is None and type(refs) is ObjectRef and refs._ref.ready:  # the fast path
        return load(refs)
    timeout = None if timeout is None or timeout == -1 else number("timeout", timeout)  # checked here, to keep the path above fast
    single = isinstance(refs, ObjectRef)
    if not single and isinstance(refs, ResultRef):
        return refs.get(timeout)
    if not single and isinstance(refs, Waitable):  # a generator is its own value
        return refs
    wanted = [refs] if single else list(refs) if isinstance(refs, (list, tuple)) else None
    if wanted and all(isinstance(r, ResultRef) for r in wanted):
        return [r.get(timeout) for r in wanted]
    if wanted is None:
        raise ValueError(f"get() takes an ObjectRef or a list of them, not {type(refs).__name__}")
    others = [r for r in wanted if not isinstance(r, ObjectRef)]
    if others:
        raise TypeError(f"get() takes a list of ObjectRefs, but the list has an element of type {type(others[0]).__name__}")
    if timeout is not None and timeout < 0:
        raise ValueError("a timeout is not negative")
    natives = [r._ref for r in wanted]
    ready, failed = _native.settled(natives)
    if not ready:
        if not wait_lending(_session().wait_all, bool, timeout, natives):
            late = [repr(r) for r in wanted if not r._ref.ready]
            raise GetTimeoutError(f"not ready within {timeout:g} s: {', '.join(late[:5])}{' ...' if len(late) > 5 else ''}")
        failed = _native.settled(natives)[1]
    if failed >= 0:  # raised before the pending values arrive
        load(wanted[failed])
    values = [load(r) for r in wanted]
    return values[0] if single else values


def wait(
    ray_waitables: list[ObjectRef], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Returns (ready, rest) once ``num_returns`` are ready or ``timeout`` seconds are over. ``ready`` has at most ``num_returns`` elements;
    both keep the given order. References of dead actors are ready. An ObjectRefGenerator is ready if its next item has arrived or it is
    exhausted."""
    del fetch_local  # values of one host are local
    refs = ray_waitables  # Ray's name of the argument
    if not isinstance(refs, list) or not all(isinstance(r, Waitable) for r in refs):
        raise TypeError("wait() takes a list of ObjectRefs and ObjectRefGenerators")
    if timeout is not None and timeout < 0:
        raise ValueError("a timeout is not negative")
    num_returns = whole("num_returns", num_returns)
    timeout = None if timeout is None else number("timeout", timeout)
    if not refs:
        return [], []
    if len({r._id or id(r) for r in refs}) != len(refs):  # copies of a reference share its id
        raise ValueError("wait() takes each ObjectRef once")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"num_returns is between 1 and the number of references ({len(refs)})")
    natives = [r._ref for r in refs]
    if _native.settled(natives)[0]:  # so that it works after shutdown as well
        return refs[:num_returns], refs[num_returns:]
    flags = wait_lending(_session().wait_some, lambda flags: sum(flags) >= num_returns, timeout, natives, num_returns)
    ready = [r for r, f in zip(refs, flags, strict=True) if f][:num_returns]
    chosen = {id(r) for r in ready}
    return ready, [r for r in refs if id(r) not in chosen]


def cancel(ray_waitable, *, force: bool = False, recursive: bool = True) -> None:
    """Cancels a call: ``get`` of its result, and of results that depend on it, raises TaskCancelledError.

    A call that has not begun never runs. A running remote function gets a KeyboardInterrupt, or with ``force`` its process ends. An ``async
    def`` method is cancelled like an asyncio task. Any other running method continues, and its result is valid. ``recursive``: the
    unfinished calls that the cancelled call made are cancelled as well. For an ``ObjectRefGenerator`` the remaining items are cancelled.
    Finished calls and values of ``put`` are not affected. ValueError for ``force`` with a method of an actor.

    The call's owner cancels it. This waits up to 30 seconds for another process (DeadlineExceeded); a dead owner is no error.
    """
    ref = getattr(ray_waitable, "_answer", ray_waitable)  # the completion reference of an ObjectRefGenerator
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"ray.cancel() only supported for object refs. For actors, try ray.kill(). Got: {type(ray_waitable)}.")
    session, recursive, force = _session(), flag("recursive", recursive), flag("force", force)
    if not ref._owner:
        session.cancel(ref._ref, recursive, force)
    elif type(ref) is not ObjectRef or not ref._ref.ready:  # by id: the reference may be a copy, even of one that this process owns
        session.cancel_elsewhere(ref._id, ref._owner, recursive, force)
