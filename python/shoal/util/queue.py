"""``Queue``: a first-in, first-out queue that can be passed to actors and tasks. Names are Ray's."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Iterable
from typing import Any

from shoal._actors.registry import kill
from shoal._core.context import current_call
from shoal._core.numbers import whole
from shoal._core.process import session
from shoal._driver.remote import remote
from shoal._objects.values import get, wait

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """The queue has fewer items than requested."""


class Full(queue.Full):
    """The queue has no room."""


class Queue:
    """Holds at most ``maxsize`` items (0: unlimited) in an actor that is made with ``actor_options``.

    By default ``put`` and ``get`` block; at a timeout they raise Full and Empty. Waiting calls are served in order of arrival. A process
    that ends while it waits for an item takes none.
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None):
        self.maxsize = maxsize
        self.actor = remote(_QueueActor).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def __reduce__(self):
        return _with_actor, (self.maxsize, self.actor)

    def size(self) -> int:
        return get(self.actor.qsize.remote())

    def qsize(self) -> int:
        return self.size()

    def empty(self) -> bool:
        return get(self.actor.empty.remote())

    def full(self) -> bool:
        return get(self.actor.full.remote())

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Adds an item. Raises Full without room now (``block=False``) or within ``timeout`` seconds."""
        get(self._put(item, block, timeout))

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        await self._put(item, block, timeout)

    def _put(self, item, block, timeout):
        return self.actor.put.remote(item, _limit(timeout)) if block else self.actor.put_nowait.remote(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the oldest item. Raises Empty without one now (``block=False``) or within ``timeout`` seconds."""
        return get(self._get(block, timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        return await self._get(block, timeout)

    def _get(self, block, timeout):
        return self.actor.get.remote(_limit(timeout)) if block else self.actor.get_nowait.remote()

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Adds all items, or raises Full and adds none."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        get(self.actor.put_nowait_batch.remote(list(items)))

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Takes ``num_items`` items, or raises Empty and takes none."""
        num_items = whole("num_items", num_items)
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        return get(self.actor.get_nowait_batch.remote(num_items))

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """Ends the actor: after its pending calls, at most ``grace_period_s`` later, or at once (``force``)."""
        if self.actor is None:
            return
        if force or not wait([self.actor.__ray_terminate__.remote()], timeout=grace_period_s)[0]:
            kill(self.actor)
        self.actor = None


def _with_actor(maxsize: int, actor) -> Queue:
    queue = Queue.__new__(Queue)
    queue.maxsize, queue.actor = maxsize, actor
    return queue


def _limit(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return timeout


class _QueueActor:
    def __init__(self, maxsize: int):
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        # Both in the order of their calls. A call removes its entry when it ends, also by its timeout.
        self._getters: dict[asyncio.Future, Any] = {}  # calls that wait for an item; never while there are items
        self._putters: dict[asyncio.Future, Any] = {}  # items that wait for room

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return not self._has_room(1)

    async def put(self, item, timeout=None) -> None:
        added: asyncio.Future = asyncio.get_running_loop().create_future()
        self._putters[added] = item
        self._settle()
        try:
            await self._within(added, timeout, Full)
        finally:
            self._putters.pop(added, None)

    async def get(self, timeout=None):
        given: asyncio.Future = asyncio.get_running_loop().create_future()
        self._getters[given] = current_call().incoming
        self._settle()
        try:
            return await self._within(given, timeout, Empty)
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._items.appendleft(given.result())
                self._settle()
            raise
        finally:
            self._getters.pop(given, None)

    def put_nowait(self, item) -> None:
        self.put_nowait_batch([item])

    def put_nowait_batch(self, items: list) -> None:
        if not self._has_room(len(items)):
            raise Full(f"Cannot add {len(items)} items to queue of size {self.qsize()} and maxsize {self._maxsize}.")
        self._items.extend(items)
        self._settle()

    def get_nowait(self):
        return self.get_nowait_batch(1)[0]

    def get_nowait_batch(self, num_items: int) -> list:
        if num_items > self.qsize():
            raise Empty(f"Cannot get {num_items} items from queue of size {self.qsize()}.")
        if not session().has_caller(current_call().incoming):
            raise Empty("the process that asked for items is gone")
        items = [self._items.popleft() for _ in range(num_items)]
        self._settle()
        return items

    def _has_room(self, count: int) -> bool:
        return self._maxsize <= 0 or len(self._items) + count <= self._maxsize

    def _settle(self) -> None:
        """Gives items to the calls that wait for them, and adds items that wait for room. An item goes to no process that is gone."""
        while True:
            if self._getters and self._items:
                given = next(iter(self._getters))
                call = self._getters.pop(given)
                if given.done():  # at its timeout, or cancelled
                    continue
                if session().has_caller(call):
                    given.set_result(self._items.popleft())
                else:
                    given.set_exception(Empty("the process that asked for an item is gone"))
            elif self._putters and self._has_room(1):
                added = next(iter(self._putters))
                item = self._putters.pop(added)
                if not added.done():
                    self._items.append(item)
                    added.set_result(None)
            else:
                return

    async def _within(self, future: asyncio.Future, timeout: float | None, late: type[Exception]):
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError as error:
            if future.done() and not future.cancelled():  # the result came at the moment of the timeout
                return future.result()
            raise late from error
