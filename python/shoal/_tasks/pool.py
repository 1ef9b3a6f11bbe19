"""Pools of workers that run remote functions. They grow while tasks wait and shrink when workers are idle.

actors/session/tasks/task_pool.h assigns tasks to workers and decides about repetitions. This module packs arguments, makes and ends the
workers, and judges exceptions.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Any

from shoal import _native
from shoal._actors.calls import HAND_OVER, extra_of, pack_call, results, streaming
from shoal._actors.creation import create_gang
from shoal._actors.ownership import actor_ownership
from shoal._actors.placement import fits, where
from shoal._actors.retry import Retries
from shoal._core.context import parent_call
from shoal._core.process import session, state
from shoal._objects.refs import ObjectRef, load
from shoal._objects.streams import ObjectRefGenerator
from shoal._objects.values import wait_lending
from shoal._tasks.functions import FunctionWorker, Sent
from shoal.exceptions import NotFound, ShoalError

__all__ = ["Function", "FunctionPool"]

_MAX_RETRIES = 3  # default for a task whose worker died
_END_S = 5.0  # limit for the pool thread's work at the session's end

_SEARCH_S = 1.0  # interval of a spreading pool's searches for nodes without a worker
_NODES_AT_ONCE = 16  # number of nodes that one search uses

_FEW = 16  # number of workers up to which dead ones are not removed


class Function:
    """A function with the options of its calls."""

    def __init__(self, sent: Sent, name: str, resources: dict[str, float], options: dict[str, Any]):
        self.session, self.code, self.name, self.resources = sent.session, sent.code, name, resources
        self.placed = (*where(options), options.get("runtime_env"))
        self.retries = Retries.from_options(options.get("max_retries", _MAX_RETRIES), options.get("retry_exceptions", False))
        self.number = sent.number(self.retries)
        # Device memory is released only at the end of the process.
        self.max_calls = options.get("max_calls", 1 if resources.get("GPU") else 0)
        self.extra = extra_of(options)
        self.pool: _Pool | None = None


class _Pool:
    """The workers of one set of resources, placement and environment."""

    def __init__(self, owner: FunctionPool, number: int, resources: dict[str, float], placed: tuple[dict, dict, dict | None]):
        self.number, self.resources, self.placed = number, resources, placed
        self.spread = "spread" in placed[0]  # tasks are spread over nodes: each node with room has a worker, and the workers take turns
        # Idle workers lend only CPUs. They return other resources by ending, when other jobs wait for them (wanted_back).
        lends = {name for name, amount in resources.items() if amount} == {"CPU"}
        self.native = _native.TaskPool(owner.session, owner.readiness, number, self.spread, lends)
        # Time of the next search for nodes, whether a call came since the last search, and the nodes that the last search found.
        self._search_at, self._called, self._roomy = 0.0, False, []
        self.judges: dict[int, Retries] = {}  # rules of functions whose exceptions may have to be judged
        self.empty = True  # True if it had no workers when last served
        self.asleep = False  # True if it also had no waiting task, so that there is nothing to do until it reports something
        self.workers: dict[str, ObjectRef] = {}  # by id, the results of the workers' creation; some workers may be dead
        self._many = _FEW

    def begin(self, owner: FunctionPool, function: str) -> None:
        """Makes the first worker. Raises when none can be had."""
        begun = 0
        if self.spread:
            with contextlib.suppress(ShoalError):  # a worker is requested below
                begun = self.spread_out(owner, function)
        if not begun:
            self.grow(function)

    def called(self, owner: FunctionPool) -> None:
        """Wakes the thread to search for nodes again, unless a search was made lately; for a pool that spreads."""
        if not self._called and time.monotonic() >= self._search_at:
            self._called = True
            os.eventfd_write(owner.readiness.fd, 1)

    def spread_out(self, owner: FunctionPool, function: str) -> int:
        """Makes workers on nodes that have room and no worker yet: for the waiting tasks, and one more for the next turn. Returns their
        number."""
        if owner.wanted_back:
            return 0
        now = time.monotonic()
        if now >= self._search_at:
            self._search_at, self._called = now + _SEARCH_S, False
            labels = self.placed[0].get("labels", [])
            self._roomy = [
                row["id"]
                for row in owner.session.list("nodes")
                if row["state"] == "ALIVE"
                and not row["cordoned"]
                and fits(row["labels"], labels)
                and all(row["available"].get(k, 0) >= v for k, v in self.resources.items())
            ]
            self._search_at = time.monotonic() + max(_SEARCH_S, 20 * (time.monotonic() - now))  # listing thousands of nodes takes long
        nodes = self.native.next_nodes(self._roomy)[:_NODES_AT_ONCE]
        for node in nodes:
            self.grow(function, node)
        return len(nodes)

    def grow(self, function: str, node: str = "") -> None:
        """Makes a worker, named after ``function``, on ``node`` if that is still possible. Raises when none can be had."""
        where_to, env, runtime_env = self.placed
        if node:
            where_to = {**where_to, "node": node, "soft": True}
        around = {"placed": where_to, "env": env, "runtime_env": runtime_env}
        name = _native.FUNCTION_WORKER + (f": {function[:100]}" if function else "")
        worker = create_gang(FunctionWorker, 1, resources=self.resources, name=name, **around)[0]
        if len(self.workers) >= self._many:
            for dead in [w for w in tuple(self.workers) if session().dead(w)]:
                self.workers.pop(dead, None)
            self._many = 2 * len(self.workers) + _FEW
        actor = worker._shoal_actor
        self.workers[actor.id] = actor.created
        self.native.add(actor.id, actor.created._ref, node)

    def let_go(self, worker: str) -> bool:
        """Removes a worker from the pool. Returns True if the worker's process has started and made its actor."""
        created = self.workers.pop(worker, None)
        return created is not None and created._ref.ready and not created._ref.failed

    def take(self, owner: FunctionPool, idle_s: float) -> _native.Wants:
        """Takes the native pool's requests and serves all but those for new workers, which the caller makes. Returns all of them."""
        with owner.retiring:
            wants = self.native.take_wants(idle_s)
            self.empty = wants.empty
            owner.condemn(wants.condemned)
            owner.end(self, wants.ended)
        for task in wants.raised:
            self.native.judged(task.id, self.judges[task.function].worth_another(task.raised))
        return wants

    def attend(self, owner: FunctionPool) -> bool:
        """Serves the pool's requests. Returns True if some of them must wait for room."""
        if owner.wanted_back and "group" not in self.placed[0]:
            self.native.give_back(owner.LEASE_S)
        waits = self.native.first_waiting() if self.spread else ""
        if self._called or waits:
            with contextlib.suppress(ShoalError):  # without a new worker, the existing ones run the tasks
                self.spread_out(owner, waits)
        wants = self.take(owner, owner.IDLE_S)
        owner.see_off()
        self.asleep = self.empty and not wants.workers and not self.native.first_waiting()
        if not wants.workers:
            return False
        # With ``at_once`` no task may wait for room: all workers are requested, and the head refuses those without room.
        refused = self.placed[0].get("at_once") and not self.placed[0]["soft"]
        room = wants.workers if refused else owner.room_for(self, wants.workers, wants.starting)
        try:
            for _ in range(max(room, int(wants.alone))):
                self.grow(self.native.first_waiting())
        except Exception as error:
            reason, hint = (error.reason, error.hint) if isinstance(error, ShoalError) else ("", "")
            self.native.fail_waiting(f"no worker can be had: {error}", reason or "TaskUnschedulable", hint)
        return room < wants.workers


@dataclass(eq=False, slots=True)
class _Leaving:
    """A worker that is to end: after its report of what it leaves, or at ``until`` at the latest. A worker that was not asked ends at
    once."""

    worker: str
    words: ObjectRef | None = None
    until: float = 0.0
    needed: bool = False  # it reported that it is still needed
    actors: list | None = None  # the reported actors, without those adopted already

    def waits(self) -> bool:
        return self.words is not None and not self.words._ref.ready and time.monotonic() < self.until

    def request_report(self, session: _native.Session) -> None:
        self.words = ObjectRef(session.call(self.worker, HAND_OVER, *pack_call((), {"within": FunctionPool.NEEDED_S}), None, -1))
        self.until = time.monotonic() + FunctionPool.HAND_OVER_S

    def read(self) -> bool:
        """True if the worker reported that it is still needed, and must be asked again."""
        self.needed = False
        if self.actors is None and self.words is not None and self.words._ref.ready:
            with contextlib.suppress(Exception):  # the worker has died, and with it the actors that it made
                said = load(self.words)
                self.needed, self.actors = said is None, said and said[0]
        return self.needed

    def end(self, session: _native.Session) -> None:
        """Ends the worker; raises if that must be tried again. A worker without a report is killed. The actors that it made end with it,
        because no process would count their handles."""
        if self.actors is None:
            session.kill(self.worker)
        else:
            actor_ownership.adopt(session, self.actors, self.words)
            session.retire(self.worker)


class FunctionPool:
    """All pools of this process, with the thread that serves them. Thread-safe."""

    IDLE_S = 2.0  # idle time after which a worker ends; it lends its CPUs earlier
    HAND_OVER_S = 30.0  # limit for a worker's report of what it leaves
    NEEDED_S = 5.0  # time after which a worker with open calls reports that it is needed, to be asked again
    REQUEST_S = 0.1  # interval of requests for room while there is none
    AGAIN_S = 1.0  # pause before another attempt to end workers
    LEASE_S = 0.25  # time for which a worker keeps resources that other jobs request; interval of the checks for such requests

    def __init__(self):
        self.session, self.readiness = session(), _native.Readiness()
        self._lock, self.retiring = threading.RLock(), threading.Lock()  # reentrant: the GC may run user code that makes a pool
        self._pools: dict[tuple, _Pool] = {}
        self._numbers = itertools.count(1)  # numbers of pools, by which ``readiness`` names those that want service
        self._numbered: dict[int, _Pool] = {}
        self._awake: dict[_Pool, None] = {}  # pools to serve, in the order of their requests
        self._leaving: list[_Leaving] = []  # guarded by retiring
        self._again_at, self._checked_at = 0.0, time.monotonic()
        self._ended = False
        self.wanted_back = False  # other jobs wait for the resources of this process, so it makes no workers, and ends some
        self._request_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="shoal-tasks")
        self._thread.start()
        state.ending.append(self._end)

    def submit(self, function: Function, args: tuple, kwargs: dict) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        extra, items = streaming(function.extra, function.name) if function.extra else (function.extra, None)
        head, buffers, deps, refs = pack_call(args, kwargs, extra, first=1)
        pool = function.pool or self._pool_of(function)
        retries = function.retries
        deps.insert(0, function.code)
        how = (retries.left, retries.judges_exceptions, function.max_calls, parent_call())
        ref = pool.native.submit(function.name, function.number, head, buffers, deps, *how, refs)
        if pool.spread:
            pool.called(self)
        return results(ref, extra, function.name, items)

    def condemn(self, workers: list[str]) -> None:
        """Marks workers that must be killed."""
        self._leaving.extend(map(_Leaving, workers))

    def end(self, pool: _Pool, workers: list[str]) -> None:
        """Ends idle workers. A worker whose process exists is asked which actors it leaves, and see_off() waits for this report. Other
        workers leave nothing."""
        for worker in workers:
            leaving = _Leaving(worker)
            with contextlib.suppress(Exception):  # the session is closed
                if pool.let_go(worker):
                    self.request_report(leaving)
            self._leaving.append(leaving)

    def request_report(self, leaving: _Leaving) -> None:
        """Asks a worker that is to end for a report of the actors that it leaves."""
        leaving.request_report(self.session)
        self.readiness.add(self.session, leaving.words._ref, 0)
        self.session.hand_over()

    def see_off(self) -> None:
        """Ends the workers that have reported, or have nothing to report. This process adopts the actors that they made. If a worker cannot
        be ended because the head is away, a later call tries again."""
        with self.retiring:
            self._overlook_own_silence()
            for leaving in tuple(self._leaving):
                if time.monotonic() < self._again_at:
                    return
                if leaving.waits():
                    continue
                try:
                    if leaving.read():
                        self.request_report(leaving)
                        continue
                    leaving.end(self.session)
                except NotFound:
                    pass  # ended long ago
                except Exception:
                    self._leaving.append(leaving)  # moves it to the end of the list, so that other workers are ended first
                    self._again_at = time.monotonic() + self.AGAIN_S
                self._leaving.remove(leaving)

    def _overlook_own_silence(self) -> None:
        """Extends the deadlines of workers by the time for which this process itself stood still."""
        now, before = time.monotonic(), self._checked_at
        self._checked_at = now
        if now - before > self.HAND_OVER_S / 2:
            for leaving in self._leaving:
                leaving.until += now - before

    def idle(self) -> bool:
        """True if this process has no workers left."""
        return not self._leaving and all(pool.empty for pool in tuple(self._pools.values()))

    def hand_over(self, until: float) -> bool:
        """Ends idle workers of this process, which may report until ``until``. Returns True if none is left: with a worker left, this
        process is still needed."""
        for pool in tuple(self._pools.values()):
            pool.take(self, 0.0)
        while (leaving := tuple(self._leaving)) and (left := until - time.monotonic()) > 0:
            if words := [each.words._ref for each in leaving if each.words is not None]:
                wait_lending(self.session.wait_some, all, left, words, len(words))
            self.see_off()
            if self._leaving:
                time.sleep(max(0.0, min(until, self._again_at) - time.monotonic()))
        return not self._leaving

    def _pool_of(self, function: Function) -> _Pool:
        key = (tuple(sorted(function.resources.items())), repr(function.placed))
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools.setdefault(key, _Pool(self, next(self._numbers), function.resources, function.placed))
                self._numbered[pool.number] = pool
                try:
                    pool.begin(self, function.name)  # begun in this thread, so that the first caller gets the error
                except BaseException:
                    if not pool.workers:  # after an interrupt (Ctrl-C, an alarm), a pool with a worker serves the next call
                        del self._pools[key], self._numbered[pool.number]
                    raise
                finally:
                    self._awake[pool] = None  # makes the thread serve the pool, which has a worker now
            if function.retries.judges_exceptions:
                pool.judges[function.number] = function.retries
            function.pool = pool
        return pool

    def room_for(self, pool: _Pool, workers: int, starting: bool) -> int:
        """Returns the number of workers, at most ``workers``, for which there is room now."""
        if "group" in pool.placed[0]:  # only the head has the group's free resources: one worker at a time may wait for them
            return 0 if starting else 1
        free = self._free_resources()
        if self.wanted_back:
            return 0
        needs = [free.get(k, 0) / v for k, v in pool.resources.items() if v]
        return min([workers, *(int(n + 1e-9) for n in needs)])

    def _free_resources(self) -> dict[str, float]:
        resources = self.session.resources()
        self.wanted_back = resources.wanted_back
        self._request_at = time.monotonic() + self.LEASE_S
        return resources.available

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self.readiness.fd, select.POLLIN)
        wait_s = self.IDLE_S / 4
        while not self._ended:
            poll.poll(wait_s * 1000)
            if self._ended:
                return
            for number in self.readiness.take():
                if (pool := self._numbered.get(number)) is not None:
                    self._awake[pool] = None
            short = False
            self.see_off()  # first, because it makes room
            pools = tuple(self._awake.copy())  # an atomic copy
            with contextlib.suppress(Exception):  # the head is away
                if time.monotonic() >= self._request_at and not all(pool.empty for pool in pools):
                    self._free_resources()
            for pool in pools:
                del self._awake[pool]  # removed before it is served, so that a call made meanwhile adds it again
                pool.asleep = False
                with contextlib.suppress(Exception):  # the session is closed
                    short |= pool.attend(self)
                if not pool.asleep:
                    self._awake[pool] = None
            busy = not all(pool.empty for pool in pools)
            wait_s = self.REQUEST_S if short else self.LEASE_S if busy else self.IDLE_S / 4
            if short:
                time.sleep(0.001)

    def _end(self) -> None:
        """Ends the pool's thread and waits until it has stopped, at most ``_END_S`` seconds. The thread itself does not wait."""
        self._ended = True
        os.eventfd_write(self.readiness.fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)
