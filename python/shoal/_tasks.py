"""Remote functions: tasks on a pool of workers that grows while tasks wait and shrinks when they are idle."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from shoal._client import ObjectRef, kill
from shoal._remote import ActorHandle, _call, create_gang
from shoal._runtime import session, state


class FunctionWorker:
    """Runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


@dataclass
class _Worker:
    handle: ActorHandle
    in_flight: deque = field(default_factory=deque)
    idle_since: float = field(default_factory=time.monotonic)

    def settle(self) -> None:
        while self.in_flight and self.in_flight[0]._ref.ready:
            self.in_flight.popleft()
            self.idle_since = time.monotonic()

    @property
    def alive(self) -> bool:
        created = self.handle._created._ref
        return created.ready and not created.failed


class FunctionPool:
    """One list of workers per amount of resources that a task asks for, and place. Threads: any."""

    IDLE_S = 2.0  # then a worker gives its CPU back
    LOOK_S = 0.1  # how often, at most, the cluster is asked for room
    MAX_WORKERS = 64

    def __init__(self):
        self._lock = threading.Lock()
        self._pools: dict[tuple, list[_Worker]] = {}
        self._looked = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._shrink, daemon=True, name="shoal-tasks").start()
        state.ending.append(self._ended.set)

    def submit(self, function, name: str, resources: dict[str, float], placed: tuple[dict, dict], args: tuple, kwargs: dict) -> ObjectRef:
        """``placed``: of ``_placement.where``."""
        with self._lock:
            key = (tuple(sorted(resources.items())), repr(placed))
            pool = self._pools.setdefault(key, [])
            pool[:] = [w for w in pool if not (w.handle._created._ref.ready and w.handle._created._ref.failed)]
            for w in pool:
                w.settle()
            if not pool or (all(w.in_flight for w in pool) and len(pool) < self.MAX_WORKERS and self._room_for(resources, pool, placed)):
                pool.append(self._new_worker(resources, placed))
            # One that is not placed yet may wait for long: only the first gets tasks before it lives.
            worker = min([w for w in pool if w.alive] or pool[:1], key=lambda w: len(w.in_flight))
            if session().dead(worker.handle._actor_id):
                pool.remove(worker)
                pool.append(worker := self._new_worker(resources, placed))
            ref = _call(worker.handle._actor_id, "run", name, (function, *args), kwargs)
            worker.in_flight.append(ref)
            return ref

    def _new_worker(self, resources: dict[str, float], placed: tuple[dict, dict]) -> _Worker:
        return _Worker(create_gang(FunctionWorker, 1, resources=resources, name="functions", placed=placed[0], env=placed[1])[0])

    def _room_for(self, resources: dict[str, float], pool: list[_Worker], placed: tuple[dict, dict]) -> bool:
        if "group" in placed[0]:  # what is free in there only the head knows: one more may wait for it
            return all(w.alive for w in pool)
        if time.monotonic() - self._looked < self.LOOK_S:
            return False
        self._looked = time.monotonic()
        free = session().resources()[1]
        return all(free.get(k, 0) >= v for k, v in resources.items())

    def _shrink(self) -> None:
        while not self._ended.wait(self.IDLE_S / 4):
            with self._lock:
                for pool in self._pools.values():
                    for w in list(pool):
                        w.settle()
                        if not w.in_flight and w.alive and time.monotonic() - w.idle_since > self.IDLE_S:
                            pool.remove(w)
                            with contextlib.suppress(Exception):
                                kill(w.handle)
