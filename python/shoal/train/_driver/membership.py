"""The membership of an elastic training, as a pure machine: ``step(event)`` returns actions. It has no clock and does no I/O.

Workers are numbered in the order in which they are created. The driver (``run.py``) performs the actions and reports what happens.
One change is under way at a time: from its Publish until every worker of the new generation has reported Entered.

A member's death begins a recovery. The others stop their step and report the generation whose mesh their model is on (Interrupted). Once
all have, a generation of the survivors is published, which continues from that mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

# ---- events ----


@dataclass(frozen=True)
class _OfWorker:
    worker: int


@dataclass(frozen=True)
class Scaled:
    """A user asks for ``workers`` workers. ``request_id``: names the request in Answer and Refuse."""

    request_id: int
    workers: int


class Queued(_OfWorker):
    """A new worker waits for resources, so the time of its start is unknown."""


class Placed(_OfWorker):
    """A new worker's process runs, and its loop begins."""


class Ready(_OfWorker):
    """A new worker has reached its first step."""


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
    """A worker has stopped its step, because another one has died. ``generation``: the latest generation in which, as this worker knows,
    every worker has a step record; 0: none. During a change another worker may report the new generation: then this worker, which has not
    learned of that yet, goes on with the new one, too. ``again``: its loop has to run again, and builds its model anew."""

    worker: int
    generation: int
    again: bool = False


@dataclass(frozen=True)
class Entered:
    """A worker has entered a generation and goes on training."""

    worker: int
    generation: int


class Returned(_OfWorker):
    """A worker's loop has returned."""


@dataclass(frozen=True)
class Draining:
    """These workers run on nodes that leave. The set replaces that of the last such event."""

    workers: frozenset[int]


Event = Scaled | Queued | Placed | Ready | Failed | Died | Interrupted | Entered | Returned | Draining

# ---- actions ----


@dataclass(frozen=True)
class Generation:
    """The workers of a new generation, in the order of their ranks, and the workers of the generation before. ``dead``: those among
    ``previous`` whose processes have ended. ``recovers``: the step under way is finished, if it counts, or run again. ``base``: the number
    of the generation before. ``again``: the loops of the workers have to run again. ``unjoined``: new workers that have died in a change
    that was dropped."""

    number: int
    members: tuple[int, ...]
    previous: tuple[int, ...]
    dead: tuple[int, ...] = ()
    recovers: bool = False
    base: int = 0
    again: bool = False
    unjoined: tuple[int, ...] = ()

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


class Create(_OfWorker):
    """A new worker has to start."""


class Remove(_OfWorker):
    """A new worker is not needed any more. Its process has to end."""


@dataclass(frozen=True)
class Publish:
    """All workers of ``generation.union`` have to get this generation; they enter it at the next boundary."""

    generation: Generation


@dataclass(frozen=True)
class Completed:
    """Every worker of the generation trains in it. ``cut_off``: not every worker does, because another one has died, but all go on from
    this generation."""

    generation: Generation
    cut_off: bool = False


@dataclass(frozen=True)
class Answer:
    """The request is fulfilled. ``changed`` is False if the training already had this number of workers."""

    request_id: int
    changed: bool


@dataclass(frozen=True)
class Refuse:
    request_id: int
    why: str


@dataclass(frozen=True)
class Report:
    """A new worker failed before it joined. The training goes on as it is. ``again``: another one takes its place."""

    worker: int
    cause: str
    again: bool = False


class Dismiss(_OfWorker):
    """A worker that leaves has stopped during the change, which is complete. The others need nothing from it."""


@dataclass(frozen=True)
class Fail:
    """The training cannot go on without this worker. ``why``: the reason why it cannot recover from a death, else None."""

    worker: int
    why: str | None = None


Action = Create | Remove | Publish | Completed | Answer | Refuse | Report | Dismiss | Fail

_TRIES = 3  # new workers in a row that are lost before one joins


class Phase(Enum):
    """The progress of a new worker."""

    QUEUED = "waits for resources"
    PREPARES = "starts, or runs up to its first step"
    READY = "waits for its generation"


@dataclass
class Membership:
    """``members``: the workers of the current generation by rank, at first those that the training starts with. ``target``: the number of
    workers that the training should have; as many as fit take part. A new worker whose loop fails lowers the target to the present number,
    so that failures do not repeat for ever. So does the third new worker in a row whose process ends. While the others wait for it, because
    they are fewer than ``minimum``, a failed loop counts like an ended process, and the third one in a row ends the training.
    ``protected``: the training survives deaths."""

    minimum: int
    maximum: int
    members: tuple[int, ...]
    target: int
    number: int = 0
    new: dict[int, Phase] = field(default_factory=dict)
    published: Generation | None = None
    entered: set[int] = field(default_factory=set)
    draining: frozenset[int] = frozenset()
    request: Scaled | None = None
    moved: bool = False  # the number of workers has changed since the current request
    ended: bool = False
    next_worker: int = 0
    protected: bool = False
    dead: dict[int, str] = field(default_factory=dict)  # dead workers of this generation and of the next, with the causes
    stopped: dict[int, Interrupted] = field(default_factory=dict)  # in a recovery: what each survivor has reported
    left: set[int] = field(default_factory=set)  # workers that have left in the present change
    recovering: bool = False
    highest: int = 1  # number of the latest generation that was published
    lost: list[str] = field(default_factory=list)  # the causes of new workers in a row that were lost before one joined

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
            case Interrupted(worker) if not self.needs(worker):  # it was to leave in a change that all others have made
                actions.append(Dismiss(worker))
            case Interrupted(worker):
                self.stopped[worker] = event
            case Entered(worker, generation) if self.published is not None and generation == self.published.number:
                actions += self._entered(worker)
            case Returned(worker) if worker in self.new:
                actions += self._failed(worker, "its loop returned before its first step")
            case Returned(worker) if self.published is not None and worker in self.published.leaving:
                self.left.add(worker)
            case Returned(worker) if worker in self.members or (self.published is not None and worker in self.published.members):
                actions += self._end("the training has ended")
                if self.recovering and any(w in self.taking_part() for w in self.dead):
                    actions += self._fail_recovery("its loop returned while the others were to run a step again", worker)
        return actions + self._decide()

    def needs(self, worker: int) -> bool:
        """Returns False for a worker that has left."""
        return worker in self.members or (self.published is not None and worker in self.published.union)

    def taking_part(self) -> tuple[int, ...]:
        """All workers of the present generation, and those of the change that is under way. Some occur twice."""
        return self.members if self.published is None else (*self.published.previous, *self.published.members)

    # ---- events ----

    def _scaled(self, event: Scaled) -> list[Action]:
        if self.ended:
            return [Refuse(event.request_id, "the training has ended")]
        if not self.minimum <= event.workers <= self.maximum:
            return [Refuse(event.request_id, f"{event.workers} workers are outside of num_workers=({self.minimum}, {self.maximum})")]
        replaced = [] if self.request is None else [Refuse(self.request.request_id, f"a later request asks for {event.workers} workers")]
        self.request, self.target, self.moved = event, event.workers, False
        return replaced

    def _failed(self, worker: int, cause: str, ended: bool = False) -> list[Action]:
        """``ended``: its process has ended, else its loop has failed."""
        if worker in self.new:
            del self.new[worker]
            waited_for = self.recovering and len([w for w in self.members if w not in self.dead]) < self.minimum
            if ended or waited_for:
                self.lost.append(cause)
                if len(self.lost) < _TRIES:
                    return [Report(worker, cause, again=True)]
            actions: list[Action] = [Report(worker, cause)]
            return actions + (self._fail_recovery(self._no_place_taken()) if waited_for else self._stop_growing(cause))
        needed = self.members if self.published is None else self.published.union
        return [*self._end(cause), Fail(worker)] if worker in needed else []

    def _no_place_taken(self) -> str:
        return f"no new worker could take its place: {self.lost[0]}" + (f" ({len(self.lost)} in a row)" if len(self.lost) > 1 else "")

    def _stop_growing(self, cause: str) -> list[Action]:
        self.lost.clear()
        self.target = min(self.target, max(len([w for w in self.members if w not in self.draining and w not in self.dead]), self.minimum))
        if self.request is None or self.request.workers <= self.target:
            return []
        refused, self.request = self.request.request_id, None
        return [Refuse(refused, cause)]

    def _entered(self, worker: int) -> list[Action]:
        self.entered.add(worker)
        change = self.published
        if not self.entered.issuperset(change.members):
            return []
        self.members, self.number, self.published, self.moved = change.members, change.number, None, True
        self.dead = {w: cause for w, cause in self.dead.items() if w in change.members}
        self.recovering = self.recovering and bool(self.dead)  # no recovery for a leaving worker: the others have its part
        self.left.clear()
        if change.joining:
            self.lost.clear()
        self.draining = self.draining.intersection(change.members)
        return [Completed(change), *(Dismiss(w) for w in change.leaving if self.stopped.pop(w, None) is not None)]

    def _end(self, why: str) -> list[Action]:
        if self.ended:
            return []
        self.ended = True
        actions: list[Action] = [Remove(w) for w in self.new]
        self.new.clear()
        if self.request is not None:
            actions.append(Refuse(self.request.request_id, why))
            self.request = None
        return actions

    # ---- deaths ----

    def _died(self, worker: int, cause: str) -> list[Action]:
        if worker in self.new or worker not in self.taking_part() or worker in self.left or worker in self.dead:
            return self._failed(worker, cause, ended=True) if worker in self.new else []
        self.dead[worker] = cause
        if not self.protected or self.number == 0 or self.ended:
            why = None
            if self.protected:
                why = "it died before the first step" if self.number == 0 else "it died when others had finished their loops"
            return self._fail_recovery(why, worker)
        self.recovering = True
        if self.published is not None and worker in self.published.joining:
            self.lost.append(cause)
        return []

    def _fail_recovery(self, why: str | None, worker: int | None = None) -> list[Action]:
        worker = next(iter(self.dead)) if worker is None else worker
        self.recovering = False
        return [*self._end(self.dead.get(worker, "a worker died")), Fail(worker, why)]

    def _recover(self) -> list[Action]:
        """Returns the generation of the survivors, once all of them have stopped."""
        alive = [w for w in self.members if w not in self.dead and w not in self.left]
        if any(w not in self.stopped for w in alive):
            return []
        actions: list[Action] = []
        if (change := self.published) is not None:
            if not alive and any(w not in self.stopped and w not in self.dead for w in change.joining):
                return []  # all old workers are gone: only the new ones know if the generation has begun
            if not self._has_begun(change):
                actions = [Remove(w) for w in change.joining if w not in self.dead]
            elif any(w not in self.stopped and w not in self.dead for w in change.joining):
                return []  # these new workers have their parts of the model, and will report that they have stopped
            else:
                actions = [Completed(change, cut_off=True), *(Dismiss(w) for w in change.leaving if w in self.stopped)]
                self.members, self.number = change.members, change.number
                self.dead = {w: cause for w, cause in self.dead.items() if w in change.members}
            self.published = None
            self.left.clear()
        return actions + self._go_on()

    def _has_begun(self, change: Generation) -> bool:
        """Returns True if every worker of the change has a step record of its generation: one worker has reported this, or has left. The
        former step records exist until a step of the new generation counts. So without such a report all go back."""
        reports = [self.stopped[w] for w in change.union if w in self.stopped]
        return bool(self.left) or any(r.generation == change.number for r in reports)

    def _go_on(self) -> list[Action]:
        """Publishes the generation of the survivors, or creates the workers that are missing for it."""
        survivors = tuple(w for w in self.members if w not in self.dead)
        if not survivors:
            return self._fail_recovery("no worker is left that has a part of the model")
        ready = tuple(w for w, phase in self.new.items() if phase is Phase.READY)[: max(0, self.minimum - len(survivors))]
        missing = self.minimum - len(survivors) - len(ready)
        if missing > 0 and len(self.lost) >= _TRIES:
            return self._fail_recovery(self._no_place_taken())
        if missing > 0:
            self.target = max(self.target, self.minimum)
            return self._adjust(len(survivors))
        actions = self._stop_growing(self.lost[-1]) if len(self.lost) >= _TRIES else []
        dead = tuple(w for w in self.members if w in self.dead)
        unjoined = tuple(w for w in self.dead if w not in self.members)
        again = any(self.stopped[w].again for w in survivors)
        for worker in ready:
            del self.new[worker]
        self.published = Generation(self.highest + 1, survivors + ready, self.members, dead, True, self.number, again, unjoined)
        self.highest, self.entered, self.recovering = self.highest + 1, set(), False
        self.stopped.clear()
        return [*actions, Publish(self.published)]

    # ---- decisions ----

    def _decide(self) -> list[Action]:
        if self.recovering and not self.ended:
            return self._recover()
        if self.ended or self.published is not None:
            return []
        drained = [w for w in self.new if w in self.draining]
        for w in drained:
            del self.new[w]
        actions: list[Action] = [Remove(w) for w in drained]
        staying = tuple(w for w in self.members if w not in self.draining)
        actions += self._adjust(len(staying))
        if (generation := self._next(staying)) is not None:
            for worker in generation.joining:
                del self.new[worker]
            self.published, self.entered, self.highest = generation, set(), generation.number
            return [*actions, Publish(generation)]
        if self.request is not None and len(self.members) == self.request.workers:
            actions.append(Answer(self.request.request_id, self.moved))
            self.request = None
        return actions

    def _adjust(self, num_staying: int) -> list[Action]:
        """Creates missing workers, or removes surplus new ones, first those that are furthest from being ready."""
        actions: list[Action] = []
        while num_staying + len(self.new) < self.target:
            self.new[self.next_worker] = Phase.PREPARES
            actions.append(Create(self.next_worker))
            self.next_worker += 1
        order = list(Phase)
        while self.new and num_staying + len(self.new) > self.target:
            worker = min(self.new, key=lambda w: (order.index(self.new[w]), -w))
            del self.new[worker]
            actions.append(Remove(worker))
        return actions

    def _next(self, staying: tuple[int, ...]) -> Generation | None:
        """Returns the generation to publish now. A change waits for new workers that prepare, so that they join together. Workers on a
        draining node do not wait, unless too few workers would stay."""
        preparing = Phase.PREPARES in self.new.values()
        urgent = len(staying) < len(self.members) and len(staying) >= self.minimum
        if preparing and not urgent:
            return None
        ready = tuple(w for w, phase in self.new.items() if phase is Phase.READY)
        members = (staying + ready)[: self.target]
        if members == self.members or len(members) < self.minimum:
            return None
        return Generation(self.highest + 1, members, self.members, base=self.number)
