"""Remote functions: tasks on a pool of workers that grows while tasks wait and shrinks when they are idle."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal import _native
from shoal._refs import ObjectRef, callbacks
from shoal._remote import ActorHandle, _pack, create_gang, extra_of, results
from shoal._retry import Retries, raised
from shoal._runtime import session, state
from shoal._stream import ObjectRefGenerator


class FunctionWorker:
    """Runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


@dataclass(slots=True)
class _Task:
    """A call of a remote function, with what it takes to make it again."""

    function: Callable
    resources: dict[str, float]
    args: _native.Ref
    deps: list[_native.Ref]
    attempts: _native.Attempts
    retries: Retries
    max_calls: int
    result: _native.Ref = field(init=False)
    attempt: _native.Ref | None = None
    worker: _Worker | None = None

    def __post_init__(self):
        self.result = self.attempts.ref


@dataclass(slots=True)
class _Attempt:
    """One call of a task. ``number``: under which its failure would be told."""

    task: _Task
    ref: _native.Ref
    number: int

    @property
    def over(self) -> bool:
        """Its result is the task's, or the task is tried again. One that failed is not over before it is judged."""
        return self.ref.ready and (self.task.result.ready or self.task.attempt is not self.ref)


@dataclass
class _Worker:
    handle: ActorHandle
    in_flight: deque[_Attempt] = field(default_factory=deque)
    idle_since: float = field(default_factory=time.monotonic)
    calls: Counter = field(default_factory=Counter)  # by function
    made: bool = False
    retired: bool = False  # gets no more tasks
    crashed: bool = False  # and that has been charged to the task which it ran

    def settle(self, awaited) -> None:
        while self.in_flight and self.in_flight[0].over:
            awaited.forget(self.in_flight.popleft().number)
            if not self.in_flight:
                self.idle_since = time.monotonic()

    @property
    def alive(self) -> bool:
        """Has been placed and made."""
        if not self.made:
            created = self.handle._created._ref
            self.made = created.ready and not created.failed
        return self.made

    @property
    def failed(self) -> bool:
        """Will never be made."""
        created = self.handle._created._ref
        return not self.made and created.ready and created.failed


class FunctionPool:
    """One list of workers per amount of resources that a task asks for. Threads: any."""

    IDLE_S = 2.0  # then a worker gives its CPU back
    LOOK_S = 0.1  # how often, at most, the cluster is asked for room
    MAX_WORKERS = 64
    MAX_RETRIES = 3  # of a task whose worker died, unless its options say otherwise

    def __init__(self):
        self._session, self._awaited = session(), callbacks()
        self._lock = threading.Lock()
        self._pools: dict[tuple, list[_Worker]] = {}
        self._looked = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._shrink, daemon=True, name="shoal-tasks").start()
        state.ending.append(self._ended.set)

    def submit(
        self, function, name: str, resources: dict[str, float], args: tuple, kwargs: dict, options: dict[str, Any]
    ) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        extra = extra_of(options)
        head, buffers, deps = _pack((function, *args), kwargs, extra)
        task = _Task(
            function,
            resources,
            self._session.put(head, buffers),
            deps,
            _native.Attempts(name),
            Retries.of(options.get("max_retries", self.MAX_RETRIES), options.get("retry_exceptions", False)),
            # Memory of a device is given back by the end of the process only.
            options.get("max_calls", 1 if resources.get("GPU") else 0),
        )
        self._start(task)
        return results(task.result, extra, name)

    def _start(self, task: _Task) -> None:
        with self._lock:
            worker = task.worker = self._worker_for(task.resources)
            judge_raised = task.retries.judges_exceptions
            number = self._awaited.number(lambda: self._judge(task))
            task.attempt = task.attempts.start(
                self._session, worker.handle._actor_id, "run", task.args, task.deps, judge_raised, self._awaited.readiness, number
            )
            worker.in_flight.append(_Attempt(task, task.attempt, number))
            if task.max_calls:
                worker.calls[task.function] += 1
                worker.retired |= worker.calls[task.function] >= task.max_calls

    def _worker_for(self, resources: dict[str, float]) -> _Worker:
        pool = self._pools.setdefault(tuple(sorted(resources.items())), [])
        best, first, all_busy = None, None, True
        for w in tuple(pool):
            if w.in_flight:
                w.settle(self._awaited)
            if w.failed:
                pool.remove(w)
            elif w.retired:
                if not w.in_flight and w.alive:
                    self._end(pool, w)
            else:
                first = first or w
                all_busy = all_busy and bool(w.in_flight)
                # One that is not placed yet may wait for long: only the first gets tasks before it lives.
                if w.alive and (best is None or len(w.in_flight) < len(best.in_flight)):
                    best = w
        if first is None or (all_busy and len(pool) < self.MAX_WORKERS and self._room_for(resources)):
            pool.append(self._new_worker(resources))
            first = first or pool[-1]
        worker = best or first
        if self._session.dead(worker.handle._actor_id):
            pool.remove(worker)
            pool.append(worker := self._new_worker(resources))
        return worker

    def _judge(self, task: _Task) -> None:
        """A task's worker has died, or it raised what may be worth another attempt. Called when it is so, once per attempt."""
        with self._lock:
            if self._ended.is_set():
                again = False
            elif raised(task.attempt):
                again = task.retries.worth_another(task.attempt) and task.retries.take()
            elif task.worker.crashed:  # with another task: this one never began
                again = True
            else:
                task.worker.crashed = True
                again = task.retries.take()
        with contextlib.suppress(Exception):  # the session is closed, or has no room: then this failure is the result
            if again:
                self._start(task)
                return
        with contextlib.suppress(Exception):
            task.attempts.settle(self._session, task.attempt)

    def _new_worker(self, resources: dict[str, float]) -> _Worker:
        return _Worker(create_gang(FunctionWorker, 1, resources=resources, name="functions")[0])

    def _room_for(self, resources: dict[str, float]) -> bool:
        if time.monotonic() - self._looked < self.LOOK_S:
            return False
        self._looked = time.monotonic()
        free = self._session.resources()[1]
        return all(free.get(k, 0) >= v for k, v in resources.items())

    def _end(self, pool: list[_Worker], worker: _Worker) -> None:
        pool.remove(worker)
        with contextlib.suppress(Exception):
            self._session.kill(worker.handle._actor_id)

    def _shrink(self) -> None:
        while not self._ended.wait(self.IDLE_S / 4):
            with self._lock:
                for pool in self._pools.values():
                    for w in tuple(pool):
                        w.settle(self._awaited)
                        idle = not w.in_flight and w.alive
                        if idle and (w.retired or time.monotonic() - w.idle_since > self.IDLE_S):
                            self._end(pool, w)
