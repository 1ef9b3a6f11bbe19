"""Calls whose results come one after the other: ``num_returns="streaming"``, the default of generators.

The worker gives each item to the node under an id that follows from the stream's, and a mark after the last. Its answer to the call comes
when the node has them all, so that a caller that has the answer knows what it will not find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal import _native, _serialize
from shoal._client import wait
from shoal._refs import ObjectRef, awaits, load, when_ready
from shoal._runtime import session as _session
from shoal._runtime import state

if TYPE_CHECKING:
    import asyncio

__all__ = ["DynamicObjectRefGenerator", "ObjectRefGenerator", "publish", "publish_async"]

_END = b"end of stream"  # no pickle
_AFTER_A_FAILURE = 2**20  # items that may be there when nobody can tell how many there are
_NOBODY = "f" * 16  # a process that is not there: what it owns is there already, or never will be


def _id_of(stream: str, k: int) -> str:
    return f"{stream[:-16]}{(int(stream[-16:], 16) + k) % 2**64:016x}"


class DynamicObjectRefGenerator:
    """What a call with ``num_returns="dynamic"`` comes to, once it is over: references to all that it yielded, in order."""

    def __init__(self, refs: list[ObjectRef]):
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


class ObjectRefGenerator:
    """References to the items of a call, in order, each as soon as the item is there: ``for ref in g`` and ``async for ref in g``.

    When the call fails, the last reference is its failure. Items that nobody takes are dropped with this object.
    """

    def __init__(self, done: ObjectRef, stream: str, where: str):
        self._done, self._stream, self._where = done, stream, where
        self._count = 0  # of items that were taken
        self._item: ObjectRef | None = None  # the one that is waited for
        self._over = False
        self._finished: asyncio.Future | None = None

    def completed(self) -> ObjectRef:
        """Ready when the call is: its failure, or the number of items."""
        return self._done

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        if not self._over:
            item = self._ahead()
            wait([item, self._done])
            if not item._ref.ready:
                item = self._fetch(_NOBODY)
                wait([item])
            if self._is_item(item):
                return self._taken(item)
            wait([self._done])
            if self._lacks(item):
                return self._taken(item)
            if self._ended_with_failure():
                return self._done
        raise StopIteration

    def __aiter__(self) -> ObjectRefGenerator:
        return self

    async def __anext__(self) -> ObjectRef:
        if not self._over:
            item = self._ahead()
            from asyncio import FIRST_COMPLETED, wait

            await wait([awaits(item), self._awaits_done()], return_when=FIRST_COMPLETED)
            if not item._ref.ready:
                item = self._fetch(_NOBODY)
                await awaits(item)
            if self._is_item(item):
                return self._taken(item)
            await self._awaits_done()
            if self._lacks(item):
                return self._taken(item)
            if self._ended_with_failure():
                return self._done
        raise StopAsyncIteration

    def _fetch(self, owner: str = "") -> ObjectRef:
        return ObjectRef(_session().fetch(_id_of(self._stream, self._count), owner), self._where)

    def _ahead(self) -> ObjectRef:
        self._item = self._item or self._fetch()
        return self._item

    @staticmethod
    def _is_item(item: ObjectRef) -> bool:
        try:
            return item._ref.value()[1] != _END
        except Exception:  # the node has no more
            return False

    def _lacks(self, item: ObjectRef) -> bool:
        """Whether there was such an item, and the node could not keep it or has lost it: then the reference says so."""
        return item._ref.failed and not self._done._ref.failed and self._count < load(self._done)

    def _awaits_done(self) -> asyncio.Future:
        """One for all items: each would be kept until the call is done."""
        from asyncio import get_running_loop

        if self._finished is None or self._finished.get_loop() is not get_running_loop():
            self._finished = awaits(self._done)
        return self._finished

    def _taken(self, item: ObjectRef) -> ObjectRef:
        _session().drop(_id_of(self._stream, self._count))
        self._count, self._item = self._count + 1, None
        return item

    def _ended_with_failure(self) -> bool:
        self._over = True
        _drop_rest(_session(), self._done, self._stream, self._count)
        return self._done._ref.failed

    def __del__(self):
        if not self._over and state.session is not None:
            with contextlib.suppress(Exception):
                when_ready(self._done, partial(_drop_rest, state.session, self._done, self._stream, self._count))

    def __reduce__(self):
        raise TypeError("an ObjectRefGenerator stays in the process that made the call: pass on the references that it gives")

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._where}, {self._count} taken)"


def _drop_rest(session: _native.Session, done: ObjectRef, stream: str, taken: int) -> None:
    with contextlib.suppress(Exception):
        left = _AFTER_A_FAILURE if done._ref.failed else load(done) + 1 - taken  # with the mark
        session.drop(_id_of(stream, taken), max(1, left))


class _Publisher:
    """The worker's side."""

    def __init__(self, session: _native.Session, stream: str):
        self._session, self._stream, self.count = session, stream, 0

    def item(self, value: Any) -> None:
        self._give(*_serialize.pack(value))
        self.count += 1

    def end(self) -> None:
        """Returns when the node has all of it."""
        self._give(_END, [], [])
        self._session.wait_all([self._session.fetch(_id_of(self._stream, self.count), _NOBODY)])

    def _give(self, head: bytes, buffers: list[memoryview], refs: list[_native.Ref]) -> None:
        self._session.give(self._session.put(head, buffers, refs), _id_of(self._stream, self.count))


def publish(session: _native.Session, values: Any, stream: str) -> int:
    """Gives away what a generator yields. Returns how many it were."""
    publisher = _Publisher(session, stream)
    try:
        if not hasattr(values, "__next__"):
            raise TypeError(f"with num_returns='streaming' a generator is returned, not {type(values).__name__}")
        for value in values:
            publisher.item(value)
    finally:
        publisher.end()
    return publisher.count


async def publish_async(session: _native.Session, values: Any, stream: str) -> int:
    """The same for an async generator."""
    publisher = _Publisher(session, stream)
    try:
        async for value in values:
            publisher.item(value)
    finally:
        publisher.end()
    return publisher.count
