"""The membership of an elastic training, as a pure machine: ``step(event)`` returns actions. It has no clock and does no I/O.

Workers are numbered in the order in which they are created. The driver (``_run.py``) performs the actions and reports what happens.
One change is under way at a time: from its Publish until every worker of the new generation has reported Entered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

# ---- events ----


@dataclass(frozen=True)
class Scaled:
    """A user asks for ``workers`` workers. ``ask``: names the request in Answer and Refuse."""

    ask: int
    workers: int


@dataclass(frozen=True)
class Queued:
    """A new worker waits for resources, so that the time of its start is unknown."""

    worker: int


@dataclass(frozen=True)
class Placed:
    """A new worker's process runs, and its loop begins."""

    worker: int


@dataclass(frozen=True)
class Ready:
    """A new worker has reached its first step."""

    worker: int


@dataclass(frozen=True)
class Failed:
    """A worker has died, or its loop has raised an error."""

    worker: int
    cause: str


@dataclass(frozen=True)
class Entered:
    """A worker has entered a generation and goes on training."""

    worker: int
    generation: int


@dataclass(frozen=True)
class Returned:
    """A worker's loop has returned."""

    worker: int


@dataclass(frozen=True)
class Draining:
    """These workers run on nodes that leave. It replaces the set of the last such event."""

    workers: frozenset[int]


Event = Scaled | Queued | Placed | Ready | Failed | Entered | Returned | Draining

# ---- actions ----


@dataclass(frozen=True)
class Generation:
    """The workers from a generation on, in the order of their ranks, and those of the generation before."""

    number: int
    members: tuple[int, ...]
    previous: tuple[int, ...]

    @property
    def joining(self) -> tuple[int, ...]:
        return tuple(w for w in self.members if w not in self.previous)

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(w for w in self.previous if w not in self.members)

    @property
    def union(self) -> tuple[int, ...]:
        """All workers that take part in the change: the new generation's, then those that leave."""
        return self.members + self.leaving


@dataclass(frozen=True)
class Create:
    worker: int


@dataclass(frozen=True)
class Remove:
    """A new worker is not needed any more. Its process has to end."""

    worker: int


@dataclass(frozen=True)
class Publish:
    """All workers of ``generation.union`` have to get this generation; they enter it at the next boundary."""

    generation: Generation


@dataclass(frozen=True)
class Completed:
    """Every worker of the generation trains in it."""

    generation: Generation


@dataclass(frozen=True)
class Answer:
    """The request is fulfilled. ``changed`` is False if the number of workers was right already."""

    ask: int
    changed: bool


@dataclass(frozen=True)
class Refuse:
    ask: int
    why: str


@dataclass(frozen=True)
class Report:
    """A new worker failed before it joined. The training goes on as it is."""

    worker: int
    cause: str


@dataclass(frozen=True)
class Fail:
    """The training cannot go on without this worker."""

    worker: int


Action = Create | Remove | Publish | Completed | Answer | Refuse | Report | Fail


class Phase(Enum):
    """The progress of a new worker."""

    QUEUED = "waits for resources"
    PREPARES = "starts, or runs up to its first step"
    READY = "waits for its generation"


@dataclass
class Membership:
    """``members``: the workers of the current generation by rank, at first those that the training starts with. ``target``: the number
    of workers that the training should have; as many as fit take part. A new worker that fails lowers the target to the present number, so
    that no loop of failures arises."""

    minimum: int
    maximum: int
    members: tuple[int, ...]
    target: int
    number: int = 0
    new: dict[int, Phase] = field(default_factory=dict)
    published: Generation | None = None
    entered: set[int] = field(default_factory=set)
    draining: frozenset[int] = frozenset()
    ask: Scaled | None = None
    moved: bool = False  # the number of workers has changed since the current request
    ended: bool = False
    next_worker: int = 0

    def __post_init__(self) -> None:
        self.next_worker = max(self.members) + 1
        self.published = Generation(1, self.members, ())  # nothing changes before all have reached their first step

    def step(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        match event:
            case Scaled():
                actions += self._scaled(event)
            case Queued(worker) if worker in self.new:
                self.new[worker] = Phase.QUEUED
            case Placed(worker) if worker in self.new:
                self.new[worker] = Phase.PREPARES
            case Ready(worker) if worker in self.new:
                self.new[worker] = Phase.READY
            case Draining(workers):
                self.draining = workers
            case Failed(worker, cause):
                actions += self._failed(worker, cause)
            case Entered(worker, generation) if self.published is not None and generation == self.published.number:
                actions += self._entered(worker)
            case Returned(worker) if worker in self.new:
                actions += self._failed(worker, "its loop returned before its first step")
            case Returned(worker) if worker in self.members and (self.published is None or worker not in self.published.leaving):
                actions += self._end("the training has ended")
        return actions + self._decide()

    # ---- events ----

    def _scaled(self, event: Scaled) -> list[Action]:
        if self.ended:
            return [Refuse(event.ask, "the training has ended")]
        if not self.minimum <= event.workers <= self.maximum:
            return [Refuse(event.ask, f"{event.workers} workers are outside of num_workers=({self.minimum}, {self.maximum})")]
        replaced = [] if self.ask is None else [Refuse(self.ask.ask, f"a later request asks for {event.workers} workers")]
        self.ask, self.target, self.moved = event, event.workers, False
        return replaced

    def _failed(self, worker: int, cause: str) -> list[Action]:
        if worker in self.new:
            del self.new[worker]
            actions: list[Action] = [Report(worker, cause)]
            self.target = min(self.target, max(len([w for w in self.members if w not in self.draining]), self.minimum))
            if self.ask is not None and self.ask.workers > self.target:
                actions.append(Refuse(self.ask.ask, cause))
                self.ask = None
            return actions
        needed = self.members if self.published is None else self.published.union
        return [*self._end(cause), Fail(worker)] if worker in needed else []

    def _entered(self, worker: int) -> list[Action]:
        self.entered.add(worker)
        done = self.published
        if not self.entered.issuperset(done.members):
            return []
        self.members, self.number, self.published, self.moved = done.members, done.number, None, True
        self.draining = self.draining.intersection(done.members)
        return [Completed(done)]

    def _end(self, why: str) -> list[Action]:
        if self.ended:
            return []
        self.ended = True
        actions: list[Action] = [Remove(w) for w in self.new]
        self.new.clear()
        if self.ask is not None:
            actions.append(Refuse(self.ask.ask, why))
            self.ask = None
        return actions

    # ---- decisions ----

    def _decide(self) -> list[Action]:
        if self.ended or self.published is not None:
            return []
        actions = self._drop_drained()
        stay = tuple(w for w in self.members if w not in self.draining)
        actions += self._adjust(len(stay))
        if (generation := self._next(stay)) is not None:
            for worker in generation.joining:
                del self.new[worker]
            self.published, self.entered = generation, set()
            return [*actions, Publish(generation)]
        if self.ask is not None and len(self.members) == self.ask.workers:
            actions.append(Answer(self.ask.ask, self.moved))
            self.ask = None
        return actions

    def _drop_drained(self) -> list[Action]:
        gone = [w for w in self.new if w in self.draining]
        for w in gone:
            del self.new[w]
        return [Remove(w) for w in gone]

    def _adjust(self, stay: int) -> list[Action]:
        """Creates missing workers, or removes new ones that are too many: first those that are furthest from being ready."""
        actions: list[Action] = []
        while stay + len(self.new) < self.target:
            self.new[self.next_worker] = Phase.PREPARES
            actions.append(Create(self.next_worker))
            self.next_worker += 1
        order = list(Phase)
        while self.new and stay + len(self.new) > self.target:
            worker = min(self.new, key=lambda w: (order.index(self.new[w]), -w))
            del self.new[worker]
            actions.append(Remove(worker))
        return actions

    def _next(self, stay: tuple[int, ...]) -> Generation | None:
        """Returns the generation to publish now. A change waits for new workers that prepare, so that they join together. Workers on a
        draining node do not wait, unless too few workers would stay."""
        preparing = Phase.PREPARES in self.new.values()
        urgent = len(stay) < len(self.members) and len(stay) >= self.minimum
        if preparing and not urgent:
            return None
        ready = tuple(w for w, phase in self.new.items() if phase is Phase.READY)
        members = (stay + ready)[: self.target]
        if members == self.members or len(members) < self.minimum:
            return None
        return Generation(self.number + 1, members, self.members)
