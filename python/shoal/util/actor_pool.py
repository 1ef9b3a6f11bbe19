"""``ActorPool``: work for a fixed number of actors. Names and semantics are Ray's."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shoal._objects.refs import ObjectRef
from shoal._objects.values import get, wait
from shoal.exceptions import ActorDiedError, OutOfMemoryError

__all__ = ["ActorPool"]


class ActorPool:
    """Gives each actor one call at a time; further calls wait until a result is taken. ``fn(actor, value)`` returns a reference. An actor
    whose result shows its death gets no more calls. If no actor is left, waiting calls do not run."""

    def __init__(self, actors: Iterable[Any]):
        self._idle = list(actors)
        self._busy: dict[ObjectRef, tuple[int, Any, Any]] = {}  # number of the call, actor, result of fn
        self._refs: dict[int, ObjectRef] = {}  # untaken results, by number
        self._waiting: deque[tuple[Callable, Any]] = deque()
        self._begun = 0  # number of calls so far
        self._taken = 0  # the number of the next result in order

    def map(self, fn: Callable[[Any, Any], ObjectRef], values: Iterable[Any]) -> Iterator[Any]:
        """Returns an iterator over results in the order of the values. Earlier submissions are dropped. Without iteration not all calls
        run."""
        self._drop()
        return self._all(fn, values, self.get_next)

    def map_unordered(self, fn: Callable[[Any, Any], ObjectRef], values: Iterable[Any]) -> Iterator[Any]:
        """Returns an iterator over results in order of arrival. Otherwise the same as map."""
        self._drop()
        return self._all(fn, values, self.get_next_unordered)

    def _drop(self) -> None:
        while self.has_next():
            with contextlib.suppress(Exception):  # an unwanted or late result
                self.get_next_unordered(timeout=0, ignore_if_timedout=True)  # get_next would refuse results that were skipped

    def _all(self, fn, values: Iterable[Any], take: Callable[[], Any]) -> Iterator[Any]:
        for value in values:
            self.submit(fn, value)

        def results():
            while self.has_next():
                yield take()

        return results()

    def submit(self, fn: Callable[[Any, Any], ObjectRef], value: Any) -> None:
        """Makes a call on the next idle actor."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.pop()
        refs = fn(actor, value)
        ref = refs[0] if isinstance(refs, list) else refs  # several results of one call arrive together
        self._busy[ref] = (self._begun, actor, refs)
        self._refs[self._begun] = ref
        self._begun += 1

    def has_next(self) -> bool:
        """True if there are results to take."""
        return bool(self._busy)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Returns the next result in the order of submission. TimeoutError when it is late; with ``ignore_if_timedout`` it is also skipped,
        and its actor gets the next call. StopIteration when there is none, ValueError after get_next_unordered took a later one."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        if self._taken >= self._begun:
            raise ValueError("It is not allowed to call get_next() after get_next_unordered().")
        ref = self._refs[self._taken]
        late = timeout is not None and not wait([ref], timeout=timeout)[0]
        return self._take(ref, late, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Returns any result. Otherwise the same as get_next."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        ready, _ = wait(list(self._busy), timeout=timeout)
        return self._take(ready[0] if ready else next(iter(self._busy)), not ready, ignore_if_timedout)

    def _take(self, ref: ObjectRef, late: bool, ignore: bool) -> Any:
        if late and not ignore:
            raise TimeoutError("Timed out waiting for result")
        number, actor, refs = self._busy.pop(ref)
        del self._refs[number]
        self._taken = max(self._taken, number + 1)
        if late:
            self._return(actor)
            raise TimeoutError(f"Timed out waiting for result. The task {ref} has been ignored.")
        alive = True
        try:
            return get(refs)
        except (ActorDiedError, OutOfMemoryError):
            alive = False
            raise
        finally:
            self._return(actor, alive)

    def _return(self, actor: Any, alive: bool = True) -> None:
        if alive:
            self._idle.append(actor)
        if self._waiting and self._idle:
            self.submit(*self._waiting.popleft())

    def has_free(self) -> bool:
        """True if an actor is idle and no call waits."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any | None:
        """Takes an idle actor out of the pool, or returns None."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Adds an actor. ValueError if it is in the pool already."""
        if actor in self._idle or any(actor == a for _, a, _ in self._busy.values()):
            raise ValueError("Actor already belongs to current ActorPool")
        self._return(actor)
