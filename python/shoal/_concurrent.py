"""Actors that run several calls at once: on threads (``max_concurrency``, ``concurrency_groups``) or, with ``async def`` methods, on one
asyncio loop. The main thread takes the calls, so that those of one caller begin in the order in which they were made."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from shoal import _stream
from shoal._context import CallInfo, concurrent_call, running
from shoal._handle import RELEASE
from shoal._worker import BUILT_INS, arguments, end, exit_code, fail_creation, made, refuse, reply
from shoal.actor import ActorExit
from shoal.exceptions import AsyncioActorExit

_DEFAULT = ""  # the group of methods that name none


def is_unfinished(result) -> bool:
    """Whether what a method returned is to be awaited here: an ``async def`` method's, or what could not travel anyway. Not a reference,
    which is a result like any other."""
    return isinstance(result, Coroutine) or asyncio.isfuture(result)


def serve(session, early: deque, cls: type, made_from: list[tuple]) -> int:
    """Makes the actor and serves until it ends. Returns the exit code. ``made_from``: the call that makes it, args and kwargs; taken out of
    there, and let go of."""
    creation, args, kwargs = made_from.pop()
    concurrency = running.settings["concurrency"]
    runner = (_OnLoop if concurrency["async"] else _OnThreads)(session, {_DEFAULT: concurrency["max_concurrency"], **concurrency["groups"]})
    running.runner = runner  # kept to the end: a call that is let go of is answered
    try:
        running.instance = runner.make(CallInfo(f"{cls.__name__}.__init__", None), cls, args, kwargs)
        made(session, creation)
    except BaseException as error:
        return fail_creation(session, creation, early, error, f"{cls.__name__}.__init__")
    args = kwargs = creation = None
    session.tell_cancelled()
    session.hand_on()
    while runner.code is None:
        incoming = early.popleft() if early else session.next_call()
        if incoming is not None and session.cancelled(incoming):  # before the actor was made
            session.refuse_cancelled(incoming, runner.where(incoming.method))
        elif incoming is not None:
            runner.begin(incoming)
        for key in session.take_cancelled() if incoming is None else ():
            runner.cancel(key)
        incoming = None  # with what came with it; the next one may be long in coming
    return runner.code


class _Runner:
    def __init__(self, session, groups: dict[str, int]):
        self.session = session
        self.sizes = groups
        self.code: int | None = None  # of the process, once it is to end
        self._ending = False
        self._unanswered: list = []  # what came after that: it comes to the actor's death

    def end(self, code: int) -> None:
        """From any thread."""
        self.code = code
        self.session.stop_serving()

    def ends(self, incoming) -> bool:
        """Whether this call comes too late."""
        if self._ending:
            self._unanswered.append(incoming)
        return self._ending

    def group_of(self, method: str, extra: dict[str, Any] | None) -> str:
        declared = getattr(getattr(type(running.instance), method, None), "__shoal_options__", {})
        name = (extra or {}).get("concurrency_group", declared.get("concurrency_group", _DEFAULT))
        if name not in self.sizes:
            raise ValueError(f"there is no concurrency group {name}; there are {', '.join(g for g in self.sizes if g) or 'none'}")
        return name

    def where(self, method: str) -> str:
        return f"{type(running.instance).__name__}.{method}"

    def function(self, method: str):
        if method in BUILT_INS:
            return lambda *args, **kwargs: BUILT_INS[method](running.instance, *args, **kwargs)
        return getattr(running.instance, method)

    def failed(self, incoming, error: BaseException) -> None:
        """Of a call: whatever was raised, by user code or on the way to it."""
        if isinstance(error, AsyncioActorExit):
            error = ActorExit(0)
        if isinstance(error, SystemExit):
            self._ending = True  # first: whoever hears of it may call again at once
            self.end(end(self.session, incoming, error))
        else:
            refuse(self.session, incoming, error, self.where(incoming.method))


class _OnThreads(_Runner):
    """Each group has threads of its own and a queue."""

    def __init__(self, session, groups: dict[str, int]):
        super().__init__(session, groups)
        self._pools = {name: ThreadPoolExecutor(size, thread_name_prefix=f"shoal-{name or 'calls'}") for name, size in groups.items()}
        self._waiting: dict[Future, Any] = {}  # with their calls: those that are not done

    def make(self, call: CallInfo, cls: type, args: tuple, kwargs: dict):
        concurrent_call.set(call)
        return cls(*args, **kwargs)

    def begin(self, incoming) -> None:
        if incoming.method == RELEASE:
            threading.Thread(target=self._release, args=(incoming,), daemon=True, name="shoal-release").start()
            return
        try:
            args, kwargs, extra = arguments(incoming)
            incoming.let_go_of_arguments()  # its context, which tasks that it starts inherit, has it
            pool = self._pools[self.group_of(incoming.method, extra)]
        except Exception as error:
            self.failed(incoming, error)
            return
        future = pool.submit(self._run, incoming, extra, args, kwargs)
        self._waiting[future] = incoming
        future.add_done_callback(self._waiting.pop)

    def _release(self, incoming) -> None:
        """Once what came before is done."""
        while waiting := tuple(self._waiting):
            wait(waiting)
        self._run(incoming, None, (), {})

    def cancel(self, key: tuple[int, int]) -> None:
        """What runs on a thread cannot be stopped."""
        for future, incoming in tuple(self._waiting.items()):
            if incoming.key == key and future.cancel():
                self.session.refuse_cancelled(incoming, self.where(incoming.method))

    def _run(self, incoming, extra: dict[str, Any] | None, args: tuple, kwargs: dict) -> None:
        if self.ends(incoming):
            return
        concurrent_call.set(CallInfo(self.where(incoming.method), extra, incoming))
        self.session.began(incoming)
        try:
            reply(self.session, incoming, self.function(incoming.method)(*args, **kwargs), extra)
        except BaseException as error:
            self.failed(incoming, error)
        finally:
            concurrent_call.set(None)  # what came with the call is given back now, not when this thread's next one comes


class _OnLoop(_Runner):
    """All methods run on one asyncio loop, in a thread of its own; as many as a group's size are between their begin and their end."""

    def __init__(self, session, groups: dict[str, int]):
        super().__init__(session, groups)
        self._groups = {name: asyncio.Semaphore(size) for name, size in groups.items()}
        self._tasks: dict[asyncio.Task, Any] = {}  # with their calls; asyncio itself keeps tasks only weakly
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, daemon=True, name="shoal-asyncio").start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except SystemExit as error:  # of a task that the user began
            self.end(exit_code(error))
        except BaseException:
            traceback.print_exc()
            self.end(1)

    def make(self, call: CallInfo, cls: type, args: tuple, kwargs: dict):
        async def made():
            concurrent_call.set(call)
            try:
                return cls(*args, **kwargs), None
            except BaseException as error:
                return None, error

        instance, error = asyncio.run_coroutine_threadsafe(made(), self.loop).result()
        if error is not None:
            raise ActorExit(0) if isinstance(error, AsyncioActorExit) else error
        return instance

    def begin(self, incoming) -> None:
        self.loop.call_soon_threadsafe(self._begin, incoming)

    def _begin(self, incoming) -> None:
        if self.ends(incoming):
            return
        if incoming.method == RELEASE:
            self._releasing = self.loop.create_task(self._release(incoming))
            return
        try:
            args, kwargs, extra = arguments(incoming)
            incoming.let_go_of_arguments()  # its context, which tasks that it starts inherit, has it
            group = self._groups[self.group_of(incoming.method, extra)]
        except Exception as error:
            self.failed(incoming, error)
            return
        task = self.loop.create_task(self._run(incoming, extra, group, args, kwargs))
        self._tasks[task] = incoming
        task.add_done_callback(self._done)

    async def _release(self, incoming) -> None:
        """Once what came before is done."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        await self._run(incoming, None, contextlib.nullcontext(), (), {})

    def _done(self, task: asyncio.Task) -> None:
        incoming = self._tasks.pop(task)
        if task.cancelled():
            self.session.refuse_cancelled(incoming, self.where(incoming.method))

    def cancel(self, key: tuple[int, int]) -> None:
        self.loop.call_soon_threadsafe(self._cancel, key)

    def _cancel(self, key: tuple[int, int]) -> None:
        for task, incoming in self._tasks.items():
            if incoming.key == key:
                task.cancel()

    async def _run(self, incoming, extra: dict[str, Any] | None, group, args: tuple, kwargs: dict) -> None:
        concurrent_call.set(CallInfo(self.where(incoming.method), extra, incoming))
        async with group:
            self.session.began(incoming)
            try:
                result = self.function(incoming.method)(*args, **kwargs)
                if is_unfinished(result):
                    result = await result
                if "stream" in (extra or {}):
                    result, extra = await _stream.publish_async(self.session, incoming, result, extra["stream"]), None
                elif inspect.isasyncgen(result):
                    result = [value async for value in result]
                reply(self.session, incoming, result, extra)
            except asyncio.CancelledError as error:
                if self.session.cancelled(incoming):
                    raise
                self.failed(incoming, error)
            except BaseException as error:
                self.failed(incoming, error)
