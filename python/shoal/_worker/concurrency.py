"""Actors that run several calls at once: on threads (``max_concurrency``) or, with ``async def`` methods, on an asyncio loop. Each of the
``concurrency_groups`` has its own threads or loop. The main thread takes the calls, so that calls of one caller and group begin in
order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from shoal._actors.calls import RELEASE
from shoal._core.context import CallInfo, concurrent_call, method_of, running
from shoal._objects import streams
from shoal._worker.built_ins import BUILT_INS
from shoal._worker.ending import ActorExit, has_left, leave, take_graph_calls
from shoal._worker.serving import arguments, end, fail_creation, refuse, reply, report_constructed
from shoal.exceptions import AsyncioActorExit

_DEFAULT = ""  # the group of methods without one
_CHECK_S = 1.0  # one wait for answers, after which the actor checks whether it must end


def is_unfinished(result) -> bool:
    """True if a method's result is to be awaited here: a coroutine or future, which cannot be pickled. A reference is a result like any
    other."""
    return isinstance(result, Coroutine) or asyncio.isfuture(result)


def serve(session, early: deque, cls: type, creating: list[tuple]) -> int:
    """Makes the actor and serves calls until it ends. Returns the exit code. ``creating``: the creating call, args and kwargs, which this
    takes out of the list and frees."""
    creation, args, kwargs = creating.pop()
    concurrency = running.settings["concurrency"]
    runner = (_OnLoop if concurrency["async"] else _OnThreads)(session, {_DEFAULT: concurrency["max_concurrency"], **concurrency["groups"]})
    running.runner = runner  # keeps unanswered calls until the process ends, because a call that is freed earlier fails as Internal
    running.unanswered.append(early)
    try:
        running.instance = runner.make(CallInfo(f"{cls.__name__}.__init__", None), cls, args, kwargs)
        runner.set_constructed()
        report_constructed(session, creation)
    except BaseException as error:
        return fail_creation(session, creation, early, error, f"{cls.__name__}.__init__")
    args = kwargs = creation = None
    session.report_cancelled()
    session.hand_on()
    while runner.code is None:
        handed = []  # holds the call until a thread takes it out; that thread answers the call
        try:
            incoming = early.popleft() if early else session.next_call()
            handed = [] if incoming is None else [incoming]
            incoming = None  # so that the call is freed before the wait for the next one
            if not handed:
                for key in session.take_cancelled():
                    runner.cancel(key)
            elif session.cancelled(handed[0]):  # cancelled before the actor was made
                session.refuse_cancelled(handed[0], runner.where(handed[0].method))
            else:
                runner.begin(handed)
        except SystemExit as error:  # raised by a signal handler
            leave(error)
            if (untaken := incoming or taken(handed)) is not None:
                runner.take_back(untaken)
    return runner.code


def taken(handed: list) -> Any:
    """Takes the call out of ``handed``; None if another thread took it first."""
    try:
        return handed.pop()
    except IndexError:
        return None


class _Runner:
    def __init__(self, session, groups: dict[str, int]):
        self.session = session
        self.sizes = groups
        self.code: int | None = None  # exit code of the process, once it is to end
        self._constructed, self._leaves = False, threading.RLock()  # reentrant: a signal handler may call leave() while it is held

    def set_constructed(self) -> None:
        with self._leaves:
            if running.ending is not None:  # the constructor has asked for the end
                raise running.ending
            self._constructed = True

    def leave(self, error: SystemExit) -> None:
        """Ends the actor after the running calls, or at once if ``error`` is a failure. Any thread may call it, repeatedly."""
        with self._leaves:
            if running.ending is not None:
                return
            running.ending = error
            if not self._constructed:  # set_constructed() raises the error later
                return
        if error.code is None or error.code != 0:
            self.end()
            return
        try:
            threading.Thread(target=self.wind_up, daemon=True, name="shoal-ending").start()
        except RuntimeError:  # no thread can be started
            self.end()

    def wind_up(self) -> None:
        """Refuses the waiting calls, and ends the process once no call runs."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends the actor now."""
        self.exit(end(self.session, None, running.ending))

    def exit(self, code: int) -> None:
        self.code = code
        self.session.stop_serving()

    def calls_itself(self) -> bool:
        """True if a call that this actor made on itself has no answer yet; the call may still be in transit."""
        return running.ending is None and not self.session.wait_calls(0.0, running.actor_id)

    def wait_for_itself(self) -> None:
        """Waits until the calls that this actor made on itself are answered, or the actor must end."""
        while running.ending is None and not self.session.wait_calls(_CHECK_S, running.actor_id):
            pass

    def take_back(self, incoming) -> None:
        """Refuses a call that was interrupted before another thread took it."""
        self.refuse_late(incoming)

    def too_late(self, incoming) -> bool:
        """Refuses the call and returns True if the actor is ending."""
        if running.ending is None:
            return False
        self.refuse_late(incoming)
        return True

    def refuse_late(self, incoming) -> None:
        """Answers at once, because a running call may wait for the caller. After a failure, a call stays unanswered and may be repeated
        after a restart."""
        if running.ending.code == 0 and incoming.method != RELEASE:
            why = f"actor {running.cls.__name__} takes no more calls, it ends: {getattr(running.ending, 'why', 'it exited with code 0')}"
            self.session.refuse(incoming, "ActorDied", why)
        else:
            running.unanswered.append(incoming)

    def refuse_leaving(self, calls: Iterable[CallInfo]) -> None:
        """Answers the calls in which exit_actor() was called, while others run, because a running call may wait for one of them."""
        while running.leaving and not all(call.over for call in calls):
            self.refuse_late(running.leaving.pop())

    def refuse_graphs(self) -> None:
        for incoming in take_graph_calls():
            self.refuse_late(incoming)

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
        return method_of(running.instance, method)

    def failed(self, incoming, error: BaseException) -> None:
        """Answers a call with an exception, raised by user code or before it ran."""
        if isinstance(error, AsyncioActorExit) or has_left():
            error = ActorExit(0)
        if isinstance(error, SystemExit):
            leave(error, incoming)
        else:
            refuse(self.session, incoming, error, self.where(incoming.method))


class _OnThreads(_Runner):
    """Runs each group's calls on threads of its own, with a queue."""

    def __init__(self, session, groups: dict[str, int]):
        super().__init__(session, groups)
        self._pools = {name: ThreadPoolExecutor(size, thread_name_prefix=f"shoal-{name or 'calls'}") for name, size in groups.items()}
        self._calls: dict[CallInfo, list] = {}  # unfinished calls, each with the list by which begin() got it
        self._fewer, self._awaited = threading.Condition(), False  # notified when _calls shrinks, if a thread waits for that
        self._releasing: threading.Thread | None = None

    def make(self, call: CallInfo, cls: type, args: tuple, kwargs: dict):
        concurrent_call.set(call)
        return cls(*args, **kwargs)

    def begin(self, handed: list) -> None:
        incoming = handed[0]
        if self.too_late(incoming):
            return
        if incoming.method == RELEASE:
            releasing = threading.Thread(target=self._release, args=(incoming,), daemon=True, name="shoal-release")
            releasing.start()
            self._releasing = releasing
            return
        try:
            args, kwargs, extra = arguments(incoming)
            incoming.let_go_of_arguments()  # frees them: the call's context, which its tasks inherit, keeps ``incoming``
            pool = self._pools[self.group_of(incoming.method, extra)]
        except BaseException as error:
            self.failed(incoming, error)
            return
        call = CallInfo(self.where(incoming.method), extra, incoming)
        self._calls[call] = handed  # before the call can run, because wind_up waits for the calls in it
        try:
            pool.submit(self._take, handed, call, args, kwargs)
        except RuntimeError as error:  # no thread can be started, but an existing one may take the call
            if self._withdrawn(call, handed):
                self.failed(incoming, error)

    def take_back(self, incoming) -> None:
        for call in tuple(self._calls):
            if call.incoming is incoming:
                self._call_ended(call)
        super().take_back(incoming)

    def _call_ended(self, call: CallInfo) -> None:
        self._calls.pop(call, None)
        if self._awaited:
            with self._fewer:
                self._fewer.notify_all()

    def _release(self, incoming) -> None:
        """Runs the release after the earlier calls, and after the calls that they made on this actor."""
        self._awaited = True
        while self._calls or self.calls_itself():
            with self._fewer:
                self._fewer.wait_for(lambda: not self._calls)
            self.wait_for_itself()
        self._run(CallInfo(self.where(incoming.method), None, incoming), (), {})

    def wind_up(self) -> None:
        for call, handed in tuple(self._calls.items()):
            if self._withdrawn(call, handed):
                self.refuse_late(call.incoming)
        self.refuse_graphs()
        self._awaited = True
        with self._fewer:
            while self._calls:
                self.refuse_leaving(tuple(self._calls))
                self._fewer.wait()
        if self._releasing is not None:  # the releasing thread uses the instance
            self._releasing.join()
        self.end()

    def cancel(self, key: tuple[int, int]) -> None:
        """Withdraws a call that has not begun; a call that runs on a thread cannot be stopped."""
        for call, handed in tuple(self._calls.items()):
            if call.incoming.key == key and self._withdrawn(call, handed):
                self.session.refuse_cancelled(call.incoming, call.where)

    def _withdrawn(self, call: CallInfo, handed: list) -> bool:
        """True if the call will not run, and this caller is the first to withdraw it."""
        if taken(handed) is None:
            return False
        self._call_ended(call)
        return True

    def _take(self, handed: list, call: CallInfo, args: tuple, kwargs: dict) -> None:
        if taken(handed) is None:
            return
        try:
            self._run(call, args, kwargs)
        finally:
            self._call_ended(call)

    def _run(self, call: CallInfo, args: tuple, kwargs: dict) -> None:
        incoming = call.incoming
        if self.too_late(incoming):
            return
        concurrent_call.set(call)
        self.session.began(incoming)
        try:
            reply(self.session, incoming, self.function(incoming.method)(*args, **kwargs), call.extra, call)
        except BaseException as error:
            call.over = True
            self.failed(incoming, error)
        finally:
            concurrent_call.set(None)  # so that the arguments are freed now, and not at this thread's next call


class _Lane:
    """A concurrency group's asyncio loop, in its own thread: a blocking call delays no other group."""

    def __init__(self, name: str, size: int, serve: Callable[[_Lane], None]):
        self.turns = asyncio.Semaphore(size)
        self.tasks: dict[asyncio.Task, CallInfo] = {}  # the tasks' calls, for this loop's thread only; asyncio itself keeps tasks weakly
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=serve, args=(self,), daemon=True, name="-".join(filter(None, ["shoal-asyncio", name]))).start()

    def do(self, function: Callable, *args) -> None:
        """Schedules ``function`` on the loop, from any thread; functions run in order."""
        self.loop.call_soon_threadsafe(function, *args)

    async def settled(self) -> None:
        """Returns once the current calls are done."""
        while self.tasks:
            await asyncio.wait(tuple(self.tasks))


class _OnLoop(_Runner):
    """Runs each group's calls on an asyncio loop, at most the group's size at once."""

    def __init__(self, session, groups: dict[str, int]):
        super().__init__(session, groups)
        self._lanes = {name: _Lane(name, size, self._serve) for name, size in groups.items()}
        self._main = self._lanes[_DEFAULT]
        self.loop = self._main.loop  # the loop on which the actor is made
        self._making: Future | None = None
        self._taken = 0  # number of calls taken
        self._over = threading.Event()  # set when a call is done
        self._releasing: asyncio.Task | None = None

    def _serve(self, lane: _Lane) -> None:
        asyncio.set_event_loop(lane.loop)
        while self.code is None:
            try:
                lane.loop.run_forever()
            except SystemExit as error:  # raised by a user's task; calls go on
                leave(error)
            except BaseException as error:
                traceback.print_exc()
                self.exit(1)
                if self._making is not None and not self._making.done():
                    self._making.set_exception(error)

    def make(self, call: CallInfo, cls: type, args: tuple, kwargs: dict):
        async def make():
            concurrent_call.set(call)
            try:
                if not inspect.iscoroutinefunction(cls.__init__):
                    return cls(*args, **kwargs), None
                instance = cls.__new__(cls, *args, **kwargs)
                await instance.__init__(*args, **kwargs)
                return instance, None
            except BaseException as error:
                return None, error

        self._making = asyncio.run_coroutine_threadsafe(make(), self.loop)
        instance, error = self._making.result()
        self._making = None
        if error is not None:
            raise ActorExit(0) if isinstance(error, AsyncioActorExit) else error
        return instance

    def loop_of(self, method: str) -> asyncio.AbstractEventLoop:
        return self._lanes[self.group_of(method, None)].loop

    def begin(self, handed: list) -> None:
        self._taken += 1
        incoming = handed[0]
        if len(self._lanes) == 1 or incoming.method == RELEASE:
            self._main.do(self._begin, handed)
        elif (loaded := self._load(incoming)) is not None:  # on this thread: the default group's loop may be blocked
            loaded[0].do(self._take, handed, *loaded)

    def _begin(self, handed: list) -> None:
        if (incoming := taken(handed)) is None:
            return
        if incoming.method == RELEASE:
            if not self.too_late(incoming):
                self._releasing = self.loop.create_task(self._release(incoming))
        elif (loaded := self._load(incoming)) is not None:
            self._start(incoming, *loaded)

    def _take(self, handed: list, *loaded) -> None:
        if (incoming := taken(handed)) is not None:
            self._start(incoming, *loaded)

    def _load(self, incoming) -> tuple[_Lane, CallInfo, tuple, dict] | None:
        """Unpickles the arguments. Returns None, after answering the call, if that failed or the actor is ending."""
        if self.too_late(incoming):
            return None
        try:
            args, kwargs, extra = arguments(incoming)
            incoming.let_go_of_arguments()  # frees them: the call's context, which its tasks inherit, keeps ``incoming``
            return self._lanes[self.group_of(incoming.method, extra)], CallInfo(self.where(incoming.method), extra, incoming), args, kwargs
        except BaseException as error:
            self.failed(incoming, error)
            return None

    def _start(self, incoming, lane: _Lane, call: CallInfo, args: tuple, kwargs: dict) -> None:
        if self.too_late(incoming):
            return
        task = lane.loop.create_task(self._run(call, lane.turns, args, kwargs))
        lane.tasks[task] = call
        task.add_done_callback(lambda task: self._call_ended(lane, task))

    async def _release(self, incoming) -> None:
        """Runs the release after the earlier calls, and after the calls that they made on this actor."""
        taken = -1
        while taken != self._taken or self.calls_itself():
            await self.loop.run_in_executor(None, self.wait_for_itself)
            taken = self._taken
            for lane in self._lanes.values():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(lane.settled(), lane.loop))
        await self._run(CallInfo(self.where(incoming.method), None, incoming), contextlib.nullcontext(), (), {})

    def wind_up(self) -> None:
        for lane in self._lanes.values():
            lane.do(self._withdraw, lane)
        self.refuse_graphs()
        while True:
            self._over.clear()
            # Begun calls are in lane.tasks; later ones are refused by too_late().
            calls = [call for lane in self._lanes.values() for call in tuple(lane.tasks.values())]
            if not calls:
                break
            self.refuse_leaving(calls)
            self._over.wait()
        if self._releasing is not None:  # the releasing task uses the instance
            asyncio.run_coroutine_threadsafe(asyncio.wait([self._releasing]), self.loop).result()
        self.end()

    def _withdraw(self, lane: _Lane) -> None:
        for task, call in lane.tasks.items():
            if not call.began:
                task.cancel()

    def _call_ended(self, lane: _Lane, task: asyncio.Task) -> None:
        call = lane.tasks[task]
        if task.cancelled():
            if running.ending is not None and not call.began and not self.session.cancelled(call.incoming):
                self.refuse_late(call.incoming)
            else:
                self.session.refuse_cancelled(call.incoming, call.where)
        del lane.tasks[task]  # after the answer, because the process may end once no task is left
        if running.ending is not None:
            self._over.set()

    def cancel(self, key: tuple[int, int]) -> None:
        for lane in self._lanes.values():
            lane.do(self._cancel, lane, key)

    def _cancel(self, lane: _Lane, key: tuple[int, int]) -> None:
        for task, call in lane.tasks.items():
            if call.incoming.key == key:
                task.cancel()

    async def _run(self, call: CallInfo, group, args: tuple, kwargs: dict) -> None:
        concurrent_call.set(call)
        incoming, extra = call.incoming, call.extra
        async with group:
            if self.too_late(incoming):
                return
            call.began = True
            self.session.began(incoming)
            try:
                result = self.function(incoming.method)(*args, **kwargs)
                if is_unfinished(result):
                    result = await result
                if "stream" in (extra or {}):
                    result, extra = await streams.publish_async(self.session, incoming, result, extra["stream"]), None
                elif inspect.isasyncgen(result):
                    result = [value async for value in result]
                reply(self.session, incoming, result, extra, call)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and self.session.cancelled(incoming):
                    raise
                call.over = True
                self.failed(incoming, error)
