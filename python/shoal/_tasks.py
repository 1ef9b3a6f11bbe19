"""Remote functions: tasks on pools of workers that grow while tasks wait and shrink when they are idle.

Which worker runs what, and what is run again, is decided in actors/session/task_pool.h. Here are the function and its arguments, the
workers, and the judgement of what a function raised.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from typing import Any

from shoal import _native, _serialize
from shoal._context import parent_call
from shoal._handle import LAST_METRICS, _pack, extra_of, results
from shoal._placement import where
from shoal._refs import ObjectRef
from shoal._remote import create_gang
from shoal._retry import Retries
from shoal._runtime import session, state
from shoal._stream import ObjectRefGenerator
from shoal.exceptions import ShoalError

__all__ = ["Function", "FunctionPool", "FunctionWorker"]

_END_S = 5.0  # for what the pool's thread does, when the session ends

MAX_RETRIES = 3  # of a task whose worker died, unless its options say otherwise


class FunctionWorker:
    """Runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


class Function:
    """A function with its options as a session knows it: pickled once, and by a number."""

    _numbers = itertools.count(1)

    def __init__(self, function, name: str, resources: dict[str, float], options: dict[str, Any]):
        self.session, self.number, self.name, self.resources, self.options = session(), next(self._numbers), name, resources, options
        try:
            self.code = self.session.put(*_serialize.pack(function))
        except _serialize.UNSENDABLE as error:
            hint = "shoal.util.inspect_serializability(..) of the function shows what it refers to"
            raise TypeError(f"remote function {name} cannot be sent: {error}; {hint}") from error
        self.placed = (*where(options), options.get("runtime_env"))
        self.retries = Retries.of(options.get("max_retries", MAX_RETRIES), options.get("retry_exceptions", False))
        # Memory of a device is given back by the end of the process only.
        self.max_calls = options.get("max_calls", 1 if resources.get("GPU") else 0)
        self.extra = extra_of(options)
        self.pool: _Pool | None = None


class _Pool:
    """Workers of one amount of resources, place and environment."""

    def __init__(self, owner: FunctionPool, resources: dict[str, float], placed: tuple[dict, dict, dict | None]):
        self.resources, self.placed = resources, placed
        self.native = _native.TaskPool(owner.session, owner.readiness, 0)
        self.functions: dict[int, Function] = {}  # that may have to be judged
        self.empty = True  # of workers, when it was last looked at

    def grow(self, function: str) -> None:
        """One worker more, for this function at first. Raises when there is none to be had."""
        where_to, env, runtime_env = self.placed
        around = {"placed": where_to, "env": env, "runtime_env": runtime_env}
        name = _native.FUNCTION_WORKER + (f": {function[:100]}" if function else "")
        worker = create_gang(FunctionWorker, 1, resources=self.resources, name=name, **around)[0]
        self.native.add(worker._actor_id, worker._created._ref)

    def attend(self, owner: FunctionPool) -> bool:
        """Does what the pool wants. Whether some of that has to wait for room."""
        if owner.wanted_back and "group" not in self.placed[0]:
            self.native.give_back(owner.LEASE_S)
        workers, starting, alone, ended, condemned, raised = self.native.take_wants(owner.IDLE_S)
        for worker in condemned:
            with contextlib.suppress(Exception):
                owner.session.kill(worker)
        owner.end(ended)
        for task, function, ref in raised:
            self.native.judged(task, self.functions[function].retries.worth_another(ref))
        self.empty = alone
        if not workers:
            return False
        room = owner.room_for(self, workers, starting)
        try:
            for _ in range(max(room, int(alone))):
                self.grow(self.native.first_waiting())
        except Exception as error:
            reason, hint = (error.reason, error.hint) if isinstance(error, ShoalError) else ("", "")
            self.native.fail_waiting(f"no worker can be had: {error}", reason or "TaskUnschedulable", hint)
        return room < workers


class FunctionPool:
    """All pools of this process, and the thread that sees to them. Threads: any."""

    IDLE_S = 2.0  # then a worker gives its CPU back
    LAST_METRICS_S = 1.0  # which it has for that
    LOOK_S = 0.1  # how often the cluster is asked for room while there is none
    LEASE_S = 0.25  # for which a worker keeps what others wait for, and how often the cluster is asked whether they do

    def __init__(self):
        self.session, self.readiness = session(), _native.Readiness()
        self._lock = threading.Lock()
        self._pools: dict[tuple, _Pool] = {}
        self._ended = False
        self.wanted_back = False  # others wait for what this process's workers hold: it takes no more, and gives some back
        self._ask_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="shoal-tasks")
        self._thread.start()
        state.ending.append(self._end)

    def submit(self, function: Function, args: tuple, kwargs: dict) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        extra = function.extra
        if "stream" in extra:
            extra = extra_of(function.options)  # one of its own
        head, buffers, deps, refs = _pack(args, kwargs, extra, first=1)
        pool = function.pool or self._pool_of(function)
        retries = function.retries
        deps.insert(0, function.code)
        how = (retries.left, retries.judges_exceptions, function.max_calls, parent_call())
        ref = pool.native.submit(function.name, function.number, head, buffers, deps, *how, refs)
        return results(ref, extra, function.name)

    def end(self, workers: list[str]) -> None:
        """Kills them, who have nothing to do, once their nodes know what they have measured."""
        with contextlib.suppress(Exception):
            last = [self.session.call(w, LAST_METRICS, *_pack((), {})) for w in workers]
            if last:  # by this session: it may be left meanwhile
                self.session.wait_some(last, len(last), self.LAST_METRICS_S)
        for worker in workers:
            with contextlib.suppress(Exception):
                self.session.kill(worker)

    def _pool_of(self, function: Function) -> _Pool:
        key = (tuple(sorted(function.resources.items())), repr(function.placed))
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = _Pool(self, function.resources, function.placed)
                pool.grow(function.name)  # here, so that whoever calls first hears why there can be none
                self._pools[key] = pool
            if function.retries.judges_exceptions:
                pool.functions[function.number] = function
            function.pool = pool
        return pool

    def room_for(self, pool: _Pool, workers: int, starting: bool) -> int:
        """How many of so many workers there is room for now."""
        if "group" in pool.placed[0]:  # what is free in there only the head knows: one more may wait for it
            return 0 if starting else 1
        free = self._ask()
        if self.wanted_back:
            return 0
        needs = [free.get(k, 0) / v for k, v in pool.resources.items() if v]
        return min([workers, *(int(n + 1e-9) for n in needs)])

    def _ask(self) -> dict[str, float]:
        _, free, self.wanted_back = self.session.resources()
        self._ask_at = time.monotonic() + self.LEASE_S
        return free

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self.readiness.fd, select.POLLIN)
        wait_s = self.IDLE_S / 4
        while not self._ended:
            poll.poll(wait_s * 1000)
            if self._ended:
                return
            self.readiness.take()
            short = False
            pools = tuple(self._pools.values())
            with contextlib.suppress(Exception):  # the head is away
                if time.monotonic() >= self._ask_at and not all(pool.empty for pool in pools):
                    self._ask()
            for pool in pools:
                with contextlib.suppress(Exception):  # the session is closed
                    short |= pool.attend(self)
            busy = not all(pool.empty for pool in pools)
            wait_s = self.LOOK_S if short else self.LEASE_S if busy else self.IDLE_S / 4
            if short:
                time.sleep(0.001)

    def _end(self) -> None:
        """Returns when nothing of it uses the session any more."""
        self._ended = True
        os.eventfd_write(self.readiness.fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)
