"""``Queue``: a first-in, first-out queue that can be passed to actors and tasks. Names are Ray's."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable
from typing import Any

from shoal._actors.registry import kill
from shoal._core.numbers import whole
from shoal._driver.remote import remote
from shoal._objects.values import get, wait

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """The queue has fewer items than requested."""


class Full(queue.Full):
    """The queue has no room."""


class Queue:
    """Holds at most ``maxsize`` items (0: unlimited) in an actor that is made with ``actor_options``.

    By default ``put`` and ``get`` block; at a timeout they raise Full and Empty. Waiting calls are served in order of arrival.
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
        self.maxsize = maxsize
        self.queue: asyncio.Queue = asyncio.Queue(maxsize)

    def qsize(self) -> int:
        return self.queue.qsize()

    def empty(self) -> bool:
        return self.queue.empty()

    def full(self) -> bool:
        return self.queue.full()

    async def put(self, item, timeout=None) -> None:
        try:
            await asyncio.wait_for(self.queue.put(item), timeout)
        except asyncio.TimeoutError as error:
            raise Full from error

    async def get(self, timeout=None):
        try:
            return await asyncio.wait_for(self.queue.get(), timeout)
        except asyncio.TimeoutError as error:
            raise Empty from error

    def put_nowait(self, item) -> None:
        self.put_nowait_batch([item])

    def put_nowait_batch(self, items: list) -> None:
        if self.maxsize > 0 and len(items) + self.qsize() > self.maxsize:
            raise Full(f"Cannot add {len(items)} items to queue of size {self.qsize()} and maxsize {self.maxsize}.")
        for item in items:
            self.queue.put_nowait(item)

    def get_nowait(self):
        return self.get_nowait_batch(1)[0]

    def get_nowait_batch(self, num_items: int) -> list:
        if num_items > self.qsize():
            raise Empty(f"Cannot get {num_items} items from queue of size {self.qsize()}.")
        return [self.queue.get_nowait() for _ in range(num_items)]
