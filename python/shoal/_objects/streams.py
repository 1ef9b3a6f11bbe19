"""Calls with a stream of results: ``num_returns="streaming"``, the default of generators.

The worker sends each item to the caller over the call's connection, before the answer (actors/session/references/streams.h). A holder of
the answer therefore has all items. After its arrival an item is a result like any other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Generator, Iterator

from shoal import _native
from shoal._core import serialize
from shoal._core.ids import TaskID
from shoal._core.process import session as _session
from shoal._objects.refs import ObjectRef, Waitable, awaits
from shoal._objects.values import wait
from shoal.exceptions import ShoalError

__all__ = ["DynamicObjectRefGenerator", "ObjectRefGenerator", "publish", "publish_async"]

_RETRY_S = 0.002  # pause before another attempt while the caller's connection is full


class DynamicObjectRefGenerator:
    """The finished result of a call with ``num_returns="dynamic"``: references to all items that it yielded, in order."""

    def __init__(self, refs: list[ObjectRef]):
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


class ObjectRefGenerator(Waitable):
    """References to the items of a call, in order, as the items arrive: ``for ref in g`` and ``async for ref in g``.

    If the call fails, the last reference is its failure; earlier items stay. Items that are not taken are dropped with this object.
    Several threads may take items; each item goes to one of them.
    ``wait`` accepts it, too: it is ready when ``next`` would not block.
    """

    _id = ""  # a generator has no copies, so it needs no id

    def __init__(self, where: str):
        self._session, self._where = _session(), where
        self._stream: int = self._session.open_stream()
        self._answer: ObjectRef
        self._count = 0  # number of taken items
        self._item: ObjectRef | None = None  # the next item, once requested
        self._over = False
        self._lock = threading.Lock()  # guards the taking of items; never held during a wait

    def _follow(self, answer: _native.Ref) -> ObjectRefGenerator:
        """Attaches the generator to its call; ``answer`` is the reference to the call's answer."""
        self._answer = ObjectRef(answer, self._where)
        self._session.follow_stream(self._stream, answer)
        return self

    def task_id(self) -> TaskID:
        """The id of the call."""
        return self._answer.task_id()

    def completed(self) -> ObjectRef:
        """The reference to the call's answer: the number of items, or its failure."""
        return self._answer

    def next_ready(self) -> bool:
        """True if ``next`` would return an item at once. False also at the end."""
        return not self._over and self._ahead()._ref.ready and not self._at_end()

    def is_finished(self) -> bool:
        """True if all items were taken and the call is over."""
        return self._over or self._at_end()

    def _at_end(self) -> bool:
        item = self._ahead()._ref
        return item.ready and _is_end(item) and not self._answer._ref.failed

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        while not self._over:
            item = self._ahead()
            wait([item])
            if (taken := self._taken(item)) is not None:
                return taken
        raise StopIteration

    def __aiter__(self) -> ObjectRefGenerator:
        return self

    async def __anext__(self) -> ObjectRef:
        while not self._over:
            item = self._ahead()
            await awaits(item)
            if (taken := self._taken(item)) is not None:
                return taken
        raise StopAsyncIteration

    @property
    def _ref(self) -> _native.Ref:
        return self._ahead()._ref

    def _ahead(self) -> ObjectRef:
        """The reference to the next item. It is ready when the item has arrived, or the call is over without another item."""
        with self._lock:
            if self._item is None:
                self._item = ObjectRef(self._session.next_item(self._stream), self._where)
                self._item._ref.follows(self._answer._ref)
            return self._item

    def _taken(self, item: ObjectRef) -> ObjectRef | None:
        """Returns the reference for ``next``, or None at the end or if another thread took the item."""
        with self._lock:
            if self._over or self._item is not item:
                return None
            if not _is_end(item._ref):
                self._session.take_item(self._stream)
                self._count, self._item = self._count + 1, None
                return item
            self._over = True
            self._session.close_stream(self._stream)
            return self._answer if self._answer._ref.failed else None

    def __del__(self):
        with contextlib.suppress(Exception):  # the session may be closed, or the call could not be made
            if not self._over:
                self._session.close_stream(self._stream)

    def __reduce__(self):
        raise TypeError("an ObjectRefGenerator stays in the process that made the call: pass on the references that it gives")

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._where}, {self._count} taken)"


def _is_end(item: _native.Ref) -> bool:
    if not item.failed:
        return False
    try:
        item.value()
    except ShoalError as error:
        return error.reason == "StreamOver"
    return False


class CallerGone(Exception):
    """Raised in a call that yields when no process takes its items any more."""


def publish(session: _native.Session, incoming: _native.Incoming, values: Iterator, stream: int) -> int:
    """Sends a generator's items, on the worker's side, and returns their number. A generator that is not exhausted is closed."""
    count = 0
    with _closing(values):
        for value in values:
            item = None if session.cancelled(incoming) else session.item(*serialize.pack(value, what=serialize.YIELDED))
            if item is None or session.give_item(incoming, stream, count, item, True) is None:
                raise CallerGone
            count += 1
    return count


async def publish_async(session: _native.Session, incoming: _native.Incoming, values: AsyncGenerator | Iterator, stream: int) -> int:
    """The same on an asyncio loop, which continues while the caller's connection is full."""
    from asyncio import sleep

    count = 0
    async with contextlib.aclosing(values if isinstance(values, AsyncGenerator) else _asynchronous(values)) as items:
        async for value in items:
            if session.cancelled(incoming):
                raise CallerGone
            item = session.item(*serialize.pack(value, what=serialize.YIELDED))
            while not (given := session.give_item(incoming, stream, count, item, False)):
                if given is None:
                    raise CallerGone
                await sleep(_RETRY_S)
            count += 1
    return count


async def _asynchronous(values: Iterator) -> AsyncGenerator:
    with _closing(values):
        for value in values:
            yield value


def _closing(values: Iterator) -> contextlib.AbstractContextManager:
    """Makes the generator's ``finally`` run when the call ends, not at garbage collection."""
    if not hasattr(values, "__next__"):
        raise TypeError(f"with num_returns='streaming' a generator is returned, not {type(values).__name__}")
    return contextlib.closing(values) if isinstance(values, Generator) else contextlib.nullcontext()
