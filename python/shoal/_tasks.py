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
from dataclasses import dataclass
from typing import Any

from shoal import _native, _serialize
from shoal._client import _wait
from shoal._context import parent_call
from shoal._handle import LAST_WORDS, _pack, extra_of, made_here, results, streaming
from shoal._placement import fits, where
from shoal._refs import ObjectRef, load
from shoal._remote import create_gang
from shoal._retry import Retries
from shoal._runtime import session, state
from shoal._stream import ObjectRefGenerator
from shoal.exceptions import NotFound, ShoalError

__all__ = ["Function", "FunctionPool", "FunctionWorker", "Sent"]

_END_S = 5.0  # for what the pool's thread does, when the session ends

_LOOK_AT_NODES_S = 1.0  # how often a pool that spreads looks for nodes without a worker,
_NODES_AT_ONCE = 16  # and for how many of them

_FEW = 16  # workers, among which the dead ones are not looked for

MAX_RETRIES = 3  # of a task whose worker died, unless its options say otherwise


class FunctionWorker:
    """Runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


class Sent:
    """A function as a session knows it, whatever the options of its calls: pickled once, and by a number."""

    _numbers = itertools.count(1)

    def __init__(self, function, name: str, identity: bytes):
        self.session, self._by_judgement = session(), {}
        try:
            head, buffers, refs = _serialize.pack_function(function)
            # Bytes behind a pickle's end are no part of it: workers know functions by it (shoal._worker).
            number = next(self._numbers).to_bytes(_serialize.NUMBER_BYTES, "big")
            self.code = self.session.put(head + identity + (number if _serialize.is_large(head, buffers) else b""), buffers, refs)
        except _serialize.UNSENDABLE as error:
            hint = "shoal.util.inspect_serializability(..) of the function shows what it refers to"
            raise TypeError(f"remote function {name} cannot be sent: {error}; {hint}") from error

    def number(self, retries: Retries) -> int:
        """One for calls whose failures are judged alike, since a pool asks for a judgement by it."""
        judgement = retries.exceptions if retries.judges_exceptions else False
        return self._by_judgement.setdefault(judgement, next(self._numbers))


class Function:
    """One with its options."""

    def __init__(self, sent: Sent, name: str, resources: dict[str, float], options: dict[str, Any]):
        self.session, self.code, self.name, self.resources = sent.session, sent.code, name, resources
        self.placed = (*where(options), options.get("runtime_env"))
        self.retries = Retries.of(options.get("max_retries", MAX_RETRIES), options.get("retry_exceptions", False))
        self.number = sent.number(self.retries)
        # Memory of a device is given back by the end of the process only.
        self.max_calls = options.get("max_calls", 1 if resources.get("GPU") else 0)
        self.extra = extra_of(options)
        self.pool: _Pool | None = None


class _Pool:
    """Workers of one amount of resources, place and environment."""

    def __init__(self, owner: FunctionPool, number: int, resources: dict[str, float], placed: tuple[dict, dict, dict | None]):
        self.number, self.resources, self.placed = number, resources, placed
        self.spread = "spread" in placed[0]  # over nodes, each of which has a worker and its turn
        # An idle worker gives back other resources than CPUs by its end alone: then others have to be asked for theirs (wanted_back).
        lends = {name for name, amount in resources.items() if amount} == {"CPU"}
        self.native = _native.TaskPool(owner.session, owner.readiness, number, self.spread, lends)
        self._look_at, self._called, self._roomy = 0.0, False, []  # at the nodes; since then; what was seen
        self.judges: dict[int, Retries] = {}  # of functions whose failures may have to be judged
        self.empty = True  # of workers, when it was last looked at
        self.asleep = False  # nor did anything wait for some: there is nothing to see to until it says so
        self.workers: dict[str, ObjectRef] = {}  # and what tells whether they are made; some may be dead
        self._many = _FEW

    def begin(self, owner: FunctionPool, function: str) -> None:
        """The first worker. Raises when there is none to be had."""
        begun = 0
        if self.spread:
            with contextlib.suppress(ShoalError):  # one is asked for below
                begun = self.spread_out(owner, function)
        if not begun:
            self.grow(function)

    def called(self, owner: FunctionPool) -> None:
        """Has the thread of a pool that spreads look at the nodes again, if it has not lately."""
        if not self._called and time.monotonic() >= self._look_at:
            self._called = True
            os.eventfd_write(owner.readiness.fd, 1)

    def spread_out(self, owner: FunctionPool, function: str) -> int:
        """Workers on nodes that have room for one and none yet: for what waits, and one more, whose turn it is then. How many."""
        if owner.wanted_back:
            return 0
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at, self._called = now + _LOOK_AT_NODES_S, False
            labels = self.placed[0].get("labels", [])
            self._roomy = [
                row["id"]
                for row in owner.session.list("nodes")
                if row["state"] == "ALIVE"
                and not row["cordoned"]
                and fits(row["labels"], labels)
                and all(row["available"].get(k, 0) >= v for k, v in self.resources.items())
            ]
            self._look_at = time.monotonic() + max(_LOOK_AT_NODES_S, 20 * (time.monotonic() - now))  # of thousands that takes a while
        nodes = self.native.next_nodes(self._roomy)[:_NODES_AT_ONCE]
        for node in nodes:
            self.grow(function, node)
        return len(nodes)

    def grow(self, function: str, node: str = "") -> None:
        """One worker more, for this function at first, there if that is still possible. Raises when there is none to be had."""
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
        """Whether it is made."""
        created = self.workers.pop(worker, None)
        return created is not None and created._ref.ready and not created._ref.failed

    def take(self, owner: FunctionPool, idle_s: float) -> tuple[int, bool, bool]:
        """Does all that the pool wants but to make workers. Returns (how many, whether some are not made yet, whether there is
        none that has its CPUs)."""
        with owner.retiring:
            workers, starting, alone, self.empty, ended, condemned, raised = self.native.take_wants(idle_s)
            owner.condemn(condemned)
            owner.end(self, ended)
        for task, function, ref in raised:
            self.native.judged(task, self.judges[function].worth_another(ref))
        return workers, starting, alone

    def attend(self, owner: FunctionPool) -> bool:
        """Does what the pool wants. Whether some of that has to wait for room."""
        if owner.wanted_back and "group" not in self.placed[0]:
            self.native.give_back(owner.LEASE_S)
        waits = self.native.first_waiting() if self.spread else ""
        if self._called or waits:
            with contextlib.suppress(ShoalError):  # those that are there do
                self.spread_out(owner, waits)
        workers, starting, alone = self.take(owner, owner.IDLE_S)
        owner.see_off()
        self.asleep = self.empty and not workers and not self.native.first_waiting()
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


@dataclass(eq=False, slots=True)
class _Leaving:
    """A worker that is to end: when it has said what it leaves, at ``until`` at the latest; at once, if it was not asked."""

    worker: str
    words: ObjectRef | None = None
    until: float = 0.0
    needed: bool = False  # it has said so
    made: list | None = None  # what it has said, less what is this process's already

    def waits(self) -> bool:
        return self.words is not None and not self.words._ref.ready and time.monotonic() < self.until

    def ask(self, session: _native.Session) -> None:
        self.words = ObjectRef(session.call(self.worker, LAST_WORDS, *_pack((), {"within": FunctionPool.NEEDED_S}), None, -1))
        self.until = time.monotonic() + FunctionPool.LAST_WORDS_S

    def read(self) -> bool:
        """Whether it has said that it is still needed, and is to be asked again."""
        self.needed = False
        if self.made is None and self.words is not None and self.words._ref.ready:
            with contextlib.suppress(Exception):  # it has died meanwhile; what it made has, too
                said = load(self.words)
                self.needed, self.made = said is None, said and said[0]
        return self.needed

    def end(self, session: _native.Session) -> None:
        """Raises when that has to be tried again. One that says nothing is killed: what it made ends with it, as nobody would ever count
        who has that."""
        if self.made is None:
            session.kill(self.worker)
        else:
            made_here.adopt(session, self.made, self.words)
            session.retire(self.worker)


class FunctionPool:
    """All pools of this process, and the thread that sees to them. Threads: any."""

    IDLE_S = 2.0  # then a worker ends; its CPUs are lent before that
    LAST_WORDS_S = 30.0  # in which it has to answer when it is asked what it leaves,
    NEEDED_S = 5.0  # which is that it is needed when calls that it has made are open for so long. It is asked again then
    LOOK_S = 0.1  # how often the cluster is asked for room while there is none
    AGAIN_S = 1.0  # before it is tried again to end those who are to
    LEASE_S = 0.25  # for which a worker keeps what others wait for, and how often the cluster is asked whether they do

    def __init__(self):
        self.session, self.readiness = session(), _native.Readiness()
        self._lock, self.retiring = threading.RLock(), threading.Lock()  # a user's code that the GC runs may call what has no pool yet
        self._pools: dict[tuple, _Pool] = {}
        self._numbers = itertools.count(1)  # of pools, by which they say that they want something
        self._numbered: dict[int, _Pool] = {}
        self._awake: dict[_Pool, None] = {}  # those to see to, in the order in which they became that
        self._leaving: list[_Leaving] = []  # under retiring
        self._again_at, self._looked_at = 0.0, time.monotonic()
        self._ended = False
        self.wanted_back = False  # others wait for what this process's workers hold: it takes no more, and gives some back
        self._ask_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="shoal-tasks")
        self._thread.start()
        state.ending.append(self._end)

    def submit(self, function: Function, args: tuple, kwargs: dict) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        extra, items = streaming(function.extra, function.name) if function.extra else (function.extra, None)
        head, buffers, deps, refs = _pack(args, kwargs, extra, first=1)
        pool = function.pool or self._pool_of(function)
        retries = function.retries
        deps.insert(0, function.code)
        how = (retries.left, retries.judges_exceptions, function.max_calls, parent_call())
        ref = pool.native.submit(function.name, function.number, head, buffers, deps, *how, refs)
        if pool.spread:
            pool.called(self)
        return results(ref, extra, function.name, items)

    def condemn(self, workers: list[str]) -> None:
        """They are to be killed."""
        self._leaving.extend(map(_Leaving, workers))

    def end(self, pool: _Pool, workers: list[str]) -> None:
        """Ends workers that have nothing to do. Those that are made say first what they leave, which see_off waits for. The others leave
        nothing."""
        for worker in workers:
            leaving = _Leaving(worker)
            with contextlib.suppress(Exception):  # the session is closed
                if pool.let_go(worker):
                    self.ask(leaving)
            self._leaving.append(leaving)

    def ask(self, leaving: _Leaving) -> None:
        """Asks a worker that is to end what it leaves."""
        leaving.ask(self.session)
        self.readiness.add(self.session, leaving.words._ref, 0)
        self.session.hand_over()

    def see_off(self) -> None:
        """Ends those who have said what they leave, or have nothing to say: the actors that they made are this process's from then on. Who
        cannot be ended, since the head is away, stays to be."""
        with self.retiring:
            self._overlook_own_silence()
            for leaving in tuple(self._leaving):
                if time.monotonic() < self._again_at:
                    return
                if leaving.waits():
                    continue
                try:
                    if leaving.read():
                        self.ask(leaving)
                        continue
                    leaving.end(self.session)
                except NotFound:
                    pass  # it is over, long since
                except Exception:
                    self._leaving.append(leaving)  # others come first the next time
                    self._again_at = time.monotonic() + self.AGAIN_S
                self._leaving.remove(leaving)

    def _overlook_own_silence(self) -> None:
        """Time in which this process stood still says nothing of those that it has asked."""
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        if now - before > self.LAST_WORDS_S / 2:
            for leaving in self._leaving:
                leaving.until += now - before

    def idle(self) -> bool:
        """Whether no worker is left of this process's."""
        return not self._leaving and all(pool.empty for pool in tuple(self._pools.values()))

    def last_words(self, until: float) -> bool:
        """Until then those that ran functions for this process, which have nothing to do any more, may say theirs. Whether all have: as
        long as one is there this process is needed."""
        for pool in tuple(self._pools.values()):
            pool.take(self, 0.0)
        while (leaving := tuple(self._leaving)) and (left := until - time.monotonic()) > 0:
            if words := [each.words._ref for each in leaving if each.words is not None]:
                _wait(self.session.wait_some, all, left, words, len(words))
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
                    pool.begin(self, function.name)  # here, so that whoever calls first hears why there can be none
                except BaseException:
                    if not pool.workers:  # with one it is seen to, and found by the next call: Ctrl-C, or an alarm
                        del self._pools[key], self._numbered[pool.number]
                    raise
                finally:
                    self._awake[pool] = None  # it has a worker now
            if function.retries.judges_exceptions:
                pool.judges[function.number] = function.retries
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
            for number in self.readiness.take():
                if (pool := self._numbered.get(number)) is not None:
                    self._awake[pool] = None
            short = False
            self.see_off()  # first: there is room then
            pools = tuple(self._awake.copy())  # which is made at once
            with contextlib.suppress(Exception):  # the head is away
                if time.monotonic() >= self._ask_at and not all(pool.empty for pool in pools):
                    self._ask()
            for pool in pools:
                del self._awake[pool]  # before it is looked at: who adds a worker meanwhile wakes it
                pool.asleep = False
                with contextlib.suppress(Exception):  # the session is closed
                    short |= pool.attend(self)
                if not pool.asleep:
                    self._awake[pool] = None
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
