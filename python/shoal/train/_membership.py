"""The membership of an elastic training, as a pure machine: ``step(event)`` returns actions. It has no clock and does no I/O.

Workers are numbered in the order in which they are created. The driver (``_run.py``) performs the actions and reports what happens.
One change is under way at a time: from its Publish until every worker of the new generation has reported Entered.

A member's death begins a recovery. The others stop their step and report the generation whose mesh their model is on (Interrupted). Once
all have, a generation of the survivors is published, which continues from that mesh.
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
class Died:
    """A worker's process has ended."""

    worker: int
    cause: str


@dataclass(frozen=True)
class Interrupted:
    """A worker has stopped its step, because another one is gone. ``generation``: its model and its step record are of this one's mesh; 0:
    it has no record."""

    worker: int
    generation: int


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


Event = Scaled | Queued | Placed | Ready | Failed | Died | Interrupted | Entered | Returned | Draining

# ---- actions ----


@dataclass(frozen=True)
class Generation:
    """The workers from a generation on, in the order of their ranks, and those of the generation before. ``dead``: those among ``previous``
    whose processes have ended. ``recovers``: the step under way is finished, if it counts, or run again."""

    number: int
    members: tuple[int, ...]
    previous: tuple[int, ...]
    dead: tuple[int, ...] = ()
    recovers: bool = False

    @property
    def joining(self) -> tuple[int, ...]:
        return tuple(w for w in self.members if w not in self.previous)

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(w for w in self.previous if w not in self.members and w not in self.dead)

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
    """The training cannot go on without this worker. ``why``: the reason why it cannot recover from a death, else None."""

    worker: int
    why: str | None = None


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
    that no loop of failures arises. ``protected``: the training survives deaths."""

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
    protected: bool = False
    gone: dict[int, str] = field(default_factory=dict)  # dead workers of this generation and of the next, with the causes
    stopped: dict[int, int] = field(default_factory=dict)  # in a recovery: the generation that each survivor has reported
    left: set[int] = field(default_factory=set)  # workers that have left in the present change
    recovering: bool = False
    highest: int = 1  # number of the latest generation that was published

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
            case Died(worker, cause):
                actions += self._died(worker, cause)
            case Interrupted(worker, generation):
                self.stopped[worker] = generation
            case Entered(worker, generation) if self.published is not None and generation == self.published.number:
                actions += self._entered(worker)
            case Returned(worker) if worker in self.new:
                actions += self._failed(worker, "its loop returned before its first step")
            case Returned(worker) if self.published is not None and worker in self.published.leaving:
                self.left.add(worker)
            case Returned(worker) if worker in self.members or (self.published is not None and worker in self.published.members):
                actions += self._end("the training has ended")
                if self.recovering and any(w in self.members for w in self.gone):
                    actions += self._fail_recovery("its loop returned while the others were to run a step again", worker)
        return actions + self._decide()

    def needs(self, worker: int) -> bool:
        """Returns False for a worker that has left."""
        return worker in self.members or (self.published is not None and worker in self.published.union)

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
            if self.recovering and len([w for w in self.members if w not in self.gone]) < self.minimum:
                return [*actions, *self._fail_recovery(f"no new worker could take its place: {cause}")]
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
        self.gone = {w: cause for w, cause in self.gone.items() if w in done.members}
        self.left.clear()
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

    # ---- deaths ----

    def _died(self, worker: int, cause: str) -> list[Action]:
        takes_part = self.members if self.published is None else (*self.published.previous, *self.published.members)
        if worker in self.new or worker not in takes_part or worker in self.left or worker in self.gone:
            return self._failed(worker, cause) if worker in self.new else []
        self.gone[worker] = cause
        if not self.protected or self.number == 0 or self.ended:
            why = None
            if self.protected:
                why = "it died before the first step" if self.number == 0 else "it died when others had finished their loops"
            return self._fail_recovery(why, worker)
        self.recovering = True
        return []

    def _fail_recovery(self, why: str | None, worker: int | None = None) -> list[Action]:
        worker = next(iter(self.gone)) if worker is None else worker
        self.recovering = False
        return [*self._end(self.gone.get(worker, "a worker died")), Fail(worker, why)]

    def _recover(self) -> list[Action]:
        """Returns the generation of the survivors, once all of them have stopped."""
        change = self.published
        alive = [w for w in self.members if w not in self.gone and w not in self.left]
        if any(w not in self.stopped for w in alive):
            return []
        if not alive:
            return self._fail_recovery("no worker is left that has a part of the model")
        meshes = {self.stopped[w] for w in alive}
        actions: list[Action] = []
        if change is not None and meshes == {change.number}:
            if any(w not in self.stopped and w not in self.gone for w in change.joining):
                return []  # they have their parts by now, and stop, too
            self.members, self.number = change.members, change.number
        elif meshes != {self.number}:
            return self._fail_recovery("it died while the workers moved to another mesh, and the others are not all on the same one")
        elif self.left:
            return self._fail_recovery("it died while the workers moved to another mesh, and one had left already")
        elif change is not None:
            actions = [Remove(w) for w in change.joining if w not in self.gone]
            self.published = None
        survivors = tuple(w for w in self.members if w not in self.gone)
        ready = tuple(w for w, phase in self.new.items() if phase is Phase.READY)[: max(0, self.minimum - len(survivors))]
        if len(survivors) + len(ready) < self.minimum:
            self.target = max(self.target, self.minimum)
            return actions + self._adjust(len(survivors))
        dead = tuple(w for w in self.members if w in self.gone)
        for worker in ready:
            del self.new[worker]
        self.published = Generation(self.highest + 1, survivors + ready, self.members, dead, recovers=True)
        self.highest, self.entered, self.recovering = self.highest + 1, set(), False
        self.stopped.clear()
        return [*actions, Publish(self.published)]

    # ---- decisions ----

    def _decide(self) -> list[Action]:
        if self.recovering and not self.ended:
            return self._recover()
        if self.ended or self.published is not None:
            return []
        actions = self._drop_drained()
        stay = tuple(w for w in self.members if w not in self.draining)
        actions += self._adjust(len(stay))
        if (generation := self._next(stay)) is not None:
            for worker in generation.joining:
                del self.new[worker]
            self.published, self.entered, self.highest = generation, set(), generation.number
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
        return Generation(self.highest + 1, members, self.members)
