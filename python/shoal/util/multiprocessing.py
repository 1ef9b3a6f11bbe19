"""``Pool``: the interface of Python's ``multiprocessing.Pool`` over actors of a cluster. Arguments that Python's has not are Ray's.

Import it by ``from shoal.util.multiprocessing import Pool`` in place of ``from multiprocessing import Pool``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from multiprocessing import TimeoutError
from typing import Any

from shoal._actors.actor_class import ActorClass
from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core.process import session
from shoal._driver.cluster import cluster_resources, is_initialized
from shoal._driver.init import init
from shoal._objects.refs import ObjectRef, when_ready_for_pools
from shoal._objects.values import get, wait
from shoal.exceptions import ActorHandleNotFoundError, TaskError

__all__ = ["AsyncResult", "Pool", "TimeoutError"]


class _Process:
    def __init__(self, initializer: Callable | None, initargs: tuple):
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Callable, items: list[tuple[tuple, dict]]) -> list[tuple[bool, Any]]:
        """Returns (True if it raised, its result or exception) for each item."""
        out: list[tuple[bool, Any]] = []
        for args, kwargs in items:
            try:
                out.append((False, function(*args, **kwargs)))
            except SystemExit as error:  # returned as a TaskError, which ends neither this process nor the one that takes the result
                text, where = "".join(traceback.format_exception(error)), getattr(function, "__name__", repr(function))
                out.append((True, TaskError(error, text, where, os.getpid())))
            except Exception as error:
                out.append((True, error))
        return out


class AsyncResult:
    """The result of calls in flight."""

    def __init__(self, refs: list[ObjectRef], single: bool, callback: Callable | None = None, error_callback: Callable | None = None):
        self._refs, self._single, self._callbacks = refs, single, (callback, error_callback)
        self._left = len(refs)
        if callback is not None or error_callback is not None:
            for ref in refs:
                when_ready_for_pools(ref, self._one_is_there)
            if not refs and callback is not None:
                callback([])

    def _one_is_there(self) -> None:  # called by the one thread of all pools, so without a lock
        self._left -= 1
        if self._left:
            return
        callback, error_callback = self._callbacks
        try:
            result = self.get()
        except Exception as error:
            if error_callback is not None:
                error_callback(error)
        else:
            if callback is not None:
                callback(result)

    def wait(self, timeout: float | None = None) -> None:
        if self._refs:
            wait(self._refs, num_returns=len(self._refs), timeout=timeout)

    def ready(self) -> bool:
        return all(ref._ref.ready for ref in self._refs)

    def successful(self) -> bool:
        """True if all calls succeeded. ValueError before it is ready."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        try:
            self.get()
        except Exception:
            return False
        return True

    def get(self, timeout: float | None = None) -> Any:
        """Returns the result, or raises the first exception in the order of the calls. TimeoutError when it is not ready in time."""
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        values = [_value(item) for ref in self._refs for item in get(ref)]
        return values[0] if self._single else values


def _left(refs: deque[ObjectRef]) -> deque[ObjectRef]:
    """Removes the finished references at the start; each is inspected once."""
    while refs and refs[0]._ref.ready:
        refs.popleft()
    return refs


def _value(item: tuple[bool, Any]) -> Any:
    raised, value = item
    if raised:
        raise value
    return value


class Pool:
    """A pool of ``processes`` actors (default: one per CPU of the cluster), made with ``ray_remote_args``. By default they
    request no CPU, as in Ray. ``initializer`` runs first in each. A new actor replaces one that has run ``maxtasksperchild``
    chunks of calls, or has died. A function's SystemExit is an exception of its call.
    ``ray_address``: the address for ``init``, if the process is not connected. ValueError for more processes than CPUs."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable | None = None,
        initargs: Iterable[Any] | None = None,
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ):
        del context  # Ray's argument, without effect there as well
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be callable")
        if not is_initialized():
            init(ray_address)
        cpus = int(cluster_resources().get("CPU", 0))
        processes = cpus if processes is None else processes
        if processes <= 0:
            raise ValueError("a pool has at least one process")
        if processes > cpus:
            raise ValueError(f"a pool of {processes} processes, and the cluster has {cpus} CPUs")
        self._actor_class = ActorClass(_Process, {"num_cpus": 0, **(ray_remote_args or {})})
        self._arguments = (initializer, tuple(initargs or ()))
        self._limit = maxtasksperchild
        self._actors: list[ActorHandle] = [self._process() for _ in range(processes)]
        self._begun = [0] * processes  # number of chunks begun, per actor
        self._running: list[deque[ObjectRef]] = [deque() for _ in range(processes)]  # chunks per actor, in its order of execution
        self._retired: list[tuple[ActorHandle, deque[ObjectRef]]] = []  # replaced actors, until their chunks are done
        self._submitting = threading.RLock()  # reentrant: callbacks may submit
        self._open = True

    def _process(self) -> ActorHandle:
        return self._actor_class.remote(*self._arguments)

    def _submit(self, function: Callable, items: list[tuple[tuple, dict]]) -> ObjectRef:
        """Submits a chunk to the actor with the fewest unfinished chunks."""
        with self._submitting:
            self._retired = [(actor, refs) for actor, refs in self._retired if _left(refs)]
            k = min(range(len(self._actors)), key=lambda k: len(_left(self._running[k])))
            is_used_up = self._limit is not None and self._begun[k] >= self._limit
            if is_used_up or session().dead(self._actors[k]._shoal_actor.id):
                self._retired.append((self._actors[k], self._running[k]))
                self._actors[k], self._begun[k], self._running[k] = self._process(), 0, deque()
            self._begun[k] += 1
            ref = self._actors[k].run.remote(function, items)
            self._running[k].append(ref)
            return ref

    def _check(self) -> None:
        if not self._open:
            raise ValueError("Pool not running")

    def _calls(self, iterable: Iterable, star: bool) -> Iterator[tuple[tuple, dict]]:
        return ((tuple(item) if star else (item,), {}) for item in iterable)

    def _map(self, function: Callable, iterable: Iterable, chunksize: int | None, star: bool, *callbacks: Callable | None) -> AsyncResult:
        self._check()
        calls = list(self._calls(iterable, star))
        size = chunksize or max(1, -(-len(calls) // (4 * len(self._actors))))
        refs = [self._submit(function, calls[k : k + size]) for k in range(0, len(calls), size)]
        return AsyncResult(refs, False, *callbacks)

    def apply(self, func: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        callback: Callable | None = None,
        error_callback: Callable | None = None,
    ) -> AsyncResult:
        self._check()
        return AsyncResult([self._submit(func, [(tuple(args or ()), dict(kwargs or {}))])], True, callback, error_callback)

    def map(self, func: Callable, iterable: Iterable, chunksize: int | None = None) -> list:
        return self._map(func, iterable, chunksize, False).get()

    def map_async(
        self,
        func: Callable,
        iterable: Iterable,
        chunksize: int | None = None,
        callback: Callable | None = None,
        error_callback: Callable | None = None,
    ) -> AsyncResult:
        return self._map(func, iterable, chunksize, False, callback, error_callback)

    def starmap(self, func: Callable, iterable: Iterable, chunksize: int | None = None) -> list:
        return self._map(func, iterable, chunksize, True).get()

    def starmap_async(
        self,
        func: Callable,
        iterable: Iterable,
        chunksize: int | None = None,
        callback: Callable | None = None,
        error_callback: Callable | None = None,
    ) -> AsyncResult:
        return self._map(func, iterable, chunksize, True, callback, error_callback)

    def imap(self, func: Callable, iterable: Iterable, chunksize: int = 1) -> _Results:
        """Returns an iterator over results in order. The iterable is read as results are taken."""
        self._check()
        return _Results(self, func, iterable, chunksize, ordered=True)

    def imap_unordered(self, func: Callable, iterable: Iterable, chunksize: int = 1) -> _Results:
        """Returns an iterator over results in order of arrival."""
        self._check()
        return _Results(self, func, iterable, chunksize, ordered=False)

    def close(self) -> None:
        """Refuses further calls."""
        self._open = False

    def terminate(self) -> None:
        """Ends the actors at once."""
        self.close()
        for actor in (*self._actors, *(actor for actor, _ in self._retired)):
            with contextlib.suppress(ActorHandleNotFoundError):  # already ended by shutdown()
                kill(actor)

    def join(self) -> None:
        """Waits until all calls are done, then ends the actors; for use after ``close``."""
        if self._open:
            raise ValueError("Pool is still running")
        refs = [r for refs in (*self._running, *(refs for _, refs in self._retired)) for r in refs]
        if refs:
            wait(refs, num_returns=len(refs))
        self.terminate()

    def __enter__(self) -> Pool:
        self._check()
        return self

    def __exit__(self, *exc) -> None:
        self.terminate()

    def __reduce__(self):
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")


class _Results:
    """An iterator over results; ``next(timeout)`` raises TimeoutError when none arrives in time."""

    def __init__(self, pool: Pool, function: Callable, iterable: Iterable, chunksize: int, ordered: bool):
        if chunksize < 1:
            raise ValueError(f"chunksize is at least 1, not {chunksize}")
        self._calls, self._size, self._ordered = pool._calls(iterable, star=False), chunksize, ordered
        self._submit = partial(pool._submit, function)
        self._chunks: deque[ObjectRef] = deque()
        self._items: deque[tuple[bool, Any]] = deque()
        for _ in range(2 * len(pool._actors)):
            self._begin()

    def _begin(self) -> None:
        if calls := list(islice(self._calls, self._size)):
            self._chunks.append(self._submit(calls))

    def __iter__(self) -> _Results:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        if not self._items:
            if not self._chunks:
                raise StopIteration
            ready, _ = wait([self._chunks[0]] if self._ordered else list(self._chunks), timeout=timeout)
            if not ready:
                raise TimeoutError
            self._chunks.remove(ready[0])
            self._begin()
            self._items.extend(get(ready[0]))
        return _value(self._items.popleft())
