"""One run of a training loop, in the driver: its workers, their reports, and the changes of their number."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal._actors.creation import create_gang
from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core import serialize
from shoal._core.telemetry import event
from shoal._distributed.buddies import buddies
from shoal._objects.refs import ObjectRef, load
from shoal._printable import say
from shoal.exceptions import ActorDiedError, ActorUnavailableError, InvalidArgument, TaskError
from shoal.train._actor import TrainWorker
from shoal.train._changes import Change, Pause, Transition
from shoal.train._chaos.status import status_of
from shoal.train._driver import membership as m
from shoal.train._driver.listeners import Listeners
from shoal.train._driver.reports import Reports
from shoal.train._driver.watches import Doubts, Watches
from shoal.train._launch.causes import is_about_another_rank
from shoal.train._ranks import Place, environments
from shoal.train._scaling_config import ScalingConfig
from shoal.train._worker import Role, WorkerLost

REPORTS = "TrainReports"  # the class name of the driver's actor
METHODS = {name: {} for name in ("report", "entered", "ready", "interrupted", "doubted", "lost", "leaves", "scale", "seen", "status")}
_NOTICE_S = 2.0  # maximum wait for the cause of an ActorDiedError, and for the death that explains an interrupted step
_NOTICE_FROM_NODES_S = 15.0  # the same for several nodes: the head counts a node as dead once it has missed heartbeats for some seconds
_POLL_S = 1.0  # seconds between two queries of the cluster's nodes


@dataclass(frozen=True)
class Setup:
    """The unchanging part of a run: the loop, and the facts of the training. ``settings``: variables of the workers' processes."""

    loop: Callable
    config: dict[str, Any] | None
    listeners: Listeners
    scaling: ScalingConfig
    settings: dict[str, str]


@dataclass
class _Entry:
    """A worker, from the view of the driver. ``placed``: the place that a new worker is to report; ``run``: its loop's result."""

    handle: ActorHandle
    place: Place | None = None
    placed: ObjectRef | None = None
    run: ObjectRef | None = None
    probe: ObjectRef | None = None  # after the connection for ``run`` broke: a call that shows if the worker is dead
    open_call: Any = None  # the worker's call that waits for the next generation


class Run:
    """Serves the workers' calls until all loops have returned. All methods but ``scale`` belong to the thread of ``fit``."""

    def __init__(self, session: Any, setup: Setup, membership: m.Membership, handles: list[ActorHandle], record: Any = None):
        self._session, self._setup, self._membership = session, setup, membership
        self._telemetry = record  # the driver's part of the run's folder
        self._workers = dict(zip(membership.members, map(_Entry, handles), strict=True))
        self.queue = session.host_queue(REPORTS)
        session.know(self.queue, REPORTS)
        self.driver = ActorHandle(self.queue, REPORTS, METHODS)
        self.history: list[dict[str, Any]] = []  # reports of rank 0
        self.changes: list[Change] = []
        self.failures: list[str] = []  # errors of new workers that did not join
        self._places: dict[int, Place] = {}  # places of all workers so far, also of dead ones
        self._members = {1: membership.members}  # by generation
        self._unions: dict[int, tuple[int, ...]] = {}  # by generation: the workers that take part in the change to it
        self._scale_calls: dict[int, Any] = {}  # calls of ``scale`` that wait for their answer, by request
        self._paused: list[Pause] = []  # the workers' parts in the present change
        self._starting: dict[str, int] = {}  # new workers by their actors' ids, until they run or are found to wait for resources
        self._ended: set[int] = set()  # workers whose loop has ended
        self._dead: set[int] = set()  # workers whose process has ended
        self._interrupted: dict[int, int] = {}  # by worker that has stopped its step and waits for a recovery: the number of its wait
        self._broken: dict[int, int] = {}  # by worker that may be dead, because its connection broke: the number of this doubt
        self._doubts = Doubts(self._doubt)
        self._watches = Watches(self._dead, self._reply)
        self._reports = Reports(self._members, self._ended, self._dead, self._interrupted, self._reply, self._refuse, self._record)
        self._on_report = self._reports.add
        self._draining: frozenset[str] = frozenset()  # ids of nodes that drain

    # ---- for other threads ----

    def scale(self, workers: int) -> ObjectRef:
        return self.driver.scale.remote(workers)

    # ---- the run ----

    def actors(self) -> list[ActorHandle]:
        """All actors in the order in which they have to end: the driver's last, because reports go to it."""
        return [*(w.handle for w in self._workers.values()), self.driver]

    def start(self) -> None:
        """Starts the loops of the first workers, once all their processes run."""
        members = self._membership.members
        places = [self._workers[w].handle.place.remote() for w in members]
        self._session.wait_all([place._ref for place in places])
        for rank, (w, place) in enumerate(zip(members, places, strict=True)):
            self._workers[w].place = load(place, f"rank {rank} of {len(places)}")
        given = self._environments([self._workers[w].place for w in members])
        for w, environment in zip(members, given, strict=True):
            self._start_loop(w, environment)

    def _environments(self, places: list[Place]) -> list[dict[str, str]]:
        return environments(places, self._setup.scaling.elastic)

    def _start_loop(self, worker: int, environment: dict[str, str], newcomer: bool = False) -> None:
        setup, entry = self._setup, self._workers[worker]
        if setup.scaling.elastic and setup.scaling.shares_devices:
            environment = environment | {"SHOAL_DEVICE_TRANSPORT": "cuda_ipc"}
        role = Role(number=worker, environment=environment, scaling=setup.scaling, newcomer=newcomer)
        entry.run = entry.handle.run.remote(setup.loop, setup.config, role, self.driver)

    def serve(self) -> None:
        """Answers calls until the loops of all members have returned. Raises the first cause if the training fails."""
        stop = threading.Event()
        watching = threading.Thread(target=self._watch_cluster, args=(stop,), name="shoal-train-watch", daemon=True)
        if self._setup.scaling.elastic:
            watching.start()
        try:
            while True:
                refs = [r._ref for r in self._pending()]
                incoming = self._session.next_report(self.queue, self._session.tally(refs), 0)
                if incoming is not None:
                    args, _ = serialize.loads(*incoming.args)
                    getattr(self, f"_on_{incoming.method}")(incoming, *args)
                self._take_results()
                self._reports.check()
                if self._ended.issuperset(self._membership.members):
                    return
        finally:
            stop.set()
            if watching.ident is not None:
                watching.join(_POLL_S)

    def close(self) -> None:
        self._doubts.close()
        self._session.close_queue(self.queue)

    def returns(self) -> list[Any]:
        return [load(self._workers[w].run) for w in self._membership.members]

    def _pending(self) -> list[ObjectRef]:
        """The results that are awaited: of workers that do not run yet, and of loops that have not ended."""
        placed = [w.placed for w in self._workers.values() if w.placed is not None]
        runs = [w.probe or w.run for n, w in self._workers.items() if n not in self._ended]
        return placed + [run for run in runs if run is not None]

    def _take_results(self) -> None:
        for number, w in list(self._workers.items()):
            if number not in self._workers:  # the failure of another one has removed it
                continue
            if w.placed is not None and w.placed._ref.ready:
                self._take_place(number, w)
            if w.run is not None and w.run._ref.ready and number not in self._ended and not self._may_be_dead(number, w):
                self._ended.add(number)
                error = failure(w.run, f"worker {number}")
                died = None if w.probe is None else failure(w.probe, f"worker {number}")
                if isinstance(died, ActorDiedError):
                    error = died
                if error is None:
                    self._step(m.Returned(number))
                else:
                    self._fail(number, error)
            if number in self._ended and not self._membership.needs(number):
                self._remove(number)

    def _may_be_dead(self, number: int, w: _Entry) -> bool:
        """True while a broken connection to the worker may yet be its death. A lost host's connections can break before the head reports
        the loss."""
        if w.probe is None:
            error = failure(w.run, f"worker {number}")
            if not isinstance(error, ActorUnavailableError) or isinstance(error, TaskError):
                return False
            w.probe = w.handle.place.remote()
            self._broken[number] = self._doubts.begin(number, _NOTICE_FROM_NODES_S)
        return number in self._broken and not w.probe._ref.ready

    def _take_place(self, number: int, w: _Entry) -> None:
        placed, w.placed = w.placed, None
        self._starting.pop(w.handle._shoal_actor.id, None)
        try:
            w.place = load(placed, f"worker {number}")
        except Exception as error:
            self._fail(number, error)
            return
        self._start_loop(number, self._environments([w.place])[0], newcomer=True)
        self._step(m.Placed(number))
        self._step(m.Draining(_on_nodes(self._workers, self._draining)))

    # ---- calls ----

    def _reply(self, incoming: Any, value: Any) -> None:
        self._session.reply(incoming, *serialize.dumps(value))

    def _refuse(self, incoming: Any, error: BaseException) -> None:
        self._session.reply(incoming, *serialize.dump_exception(error, incoming.method), raised=True)

    def _record(self, metrics: dict[str, Any]) -> None:
        self.history.append(metrics)
        self._setup.listeners(metrics)

    def _on_entered(self, incoming: Any, worker: int, generation: int, place: Place, pause: Pause, reports: int) -> None:
        self._workers[worker].place, self._workers[worker].open_call = place, incoming
        self._places[worker] = place
        self._paused.append(pause)
        self._reports.continue_at(reports)
        self._step(m.Entered(worker, generation))

    def _on_ready(self, incoming: Any, worker: int, place: Place) -> None:
        if (w := self._workers.get(worker)) is not None:  # else it has been removed
            w.place = self._places[worker] = place
            w.open_call = incoming
            self._step(m.Ready(worker))

    def _fail(self, worker: int, error: BaseException) -> None:
        if not isinstance(error, ActorDiedError) or isinstance(error, TaskError):
            self._step(m.Failed(worker, _text(error)))
            return
        rank = self._membership.members.index(worker) if worker in self._membership.members else None
        self._note("death", worker=worker, rank=rank, cause=str(error)[:500])
        self._dead.add(worker)  # the node reports deaths, so this worker's process has ended
        self._watches.died(worker)
        self._reports.check()
        self._step(m.Died(worker, _text(error)))

    def _on_status(self, incoming: Any) -> None:
        places = {n: w.place for n, w in self._workers.items() if w.place is not None}
        self._reply(incoming, status_of(self._membership, self._setup.scaling, places, self._reports, self.changes))

    def _on_lost(self, incoming: Any, worker: int, generation: int, begun: bool) -> None:
        self._watches.add(incoming, worker, (self._members if begun else self._unions)[generation])

    def _on_leaves(self, incoming: Any, worker: int) -> None:
        """Called by a worker that leaves, once the change is complete. After the answer it drops its part of the model."""
        self._step(m.Returned(worker))
        self._reply(incoming, None)

    def _on_interrupted(self, incoming: Any, worker: int, generation: int, again: bool, place: Place) -> None:
        if (w := self._workers.get(worker)) is None:
            return
        w.place, w.open_call = place, incoming
        nodes = {self._places[w].node for w in self._membership.taking_part() if w in self._places}
        self._interrupted[worker] = self._doubts.begin(worker, _NOTICE_FROM_NODES_S if len(nodes) > 1 else _NOTICE_S)
        self._reports.check()
        self._step(m.Interrupted(worker, generation, again))

    def _doubt(self, worker: int, ticket: int) -> None:
        with contextlib.suppress(Exception):  # the training may have ended
            self.driver.doubted.remote(worker, ticket)

    def _on_doubted(self, incoming: Any, worker: int, ticket: int) -> None:
        """Ends the wait for the death that a broken connection suggests. Refuses a recovery if no worker has died: the error that
        interrupted the step is the worker's own."""
        self._reply(incoming, None)
        if self._broken.get(worker) == ticket:
            del self._broken[worker]
        if self._interrupted.get(worker) == ticket and not self._membership.recovering:
            del self._interrupted[worker]
            self._refuse(self._workers[worker].open_call, InvalidArgument("no worker has died", reason="NobodyDied"))

    def _on_scale(self, incoming: Any, workers: int) -> None:
        if not self._setup.scaling.elastic:
            self._refuse(
                incoming,
                InvalidArgument(
                    "the number of this training's workers is fixed",
                    hint="pass ScalingConfig(num_workers=(minimum, maximum)), and use steps",
                ),
            )
            return
        request = len(self._scale_calls)
        self._scale_calls[request] = incoming
        self._step(m.Scaled(request, workers))

    def _on_seen(self, incoming: Any, draining: list[str], queued: list[str]) -> None:
        self._reply(incoming, None)
        for actor in queued:
            if (worker := self._starting.pop(actor, None)) is not None:
                self._step(m.Queued(worker))
        self._draining = frozenset(draining)
        self._step(m.Draining(_on_nodes(self._workers, self._draining)))

    # ---- changes ----

    def _step(self, event: m.Event) -> None:
        for action in self._membership.step(event):
            match action:
                case m.Create(worker):
                    self._create(worker)
                case m.Remove(worker):
                    self._remove(worker)
                case m.Publish(generation):
                    self._publish(generation)
                case m.Completed(generation, cut_off):
                    self._completed(generation, cut_off)
                case m.Answer(request, changed):
                    size = len(self._membership.members)
                    unchanged = Change(self._membership.number, size, size)
                    self._reply(self._scale_calls[request], self.changes[-1] if changed else unchanged)
                case m.Refuse(request, why):
                    self._refuse(self._scale_calls[request], InvalidArgument(f"the number of workers was not changed: {why}"))
                case m.Report(worker, cause, again):
                    self.failures.append(cause)
                    then = "another one takes its place" if again else "the training goes on without it; scale again to retry"
                    say(f"shoal: worker {worker} failed before it joined, and {then}:\n{cause}")
                    self._remove(worker)
                case m.Dismiss(worker):
                    self._interrupted.pop(worker, None)
                    self._refuse(self._workers[worker].open_call, InvalidArgument("the change is made", reason="Left"))
                case m.Fail(worker, why):
                    if why is not None:
                        raise _lost(worker, self._workers.get(worker), why)
                    raise _first_cause(self._session, self._membership, self._workers)

    def _create(self, worker: int) -> None:
        handle = create_gang(TrainWorker, 1, resources=self._setup.scaling.resources, torch=True, env=self._setup.settings)[0]
        self._workers[worker] = _Entry(handle, placed=handle.place.remote())
        self._starting[handle._shoal_actor.id] = worker

    def _remove(self, worker: int) -> None:
        with contextlib.suppress(Exception):
            handle = self._workers.pop(worker).handle
            self._starting.pop(handle._shoal_actor.id, None)
            kill(handle)

    def _publish(self, g: m.Generation) -> None:
        self._members[g.number], self._unions[g.number], self._paused = g.members, g.union, []
        change = Change(g.number, len(g.previous), len(g.members), died=_died(g))
        keeps_group = g.union == g.previous and not g.recovers  # the process group of the generation that ends has the same ranks
        union = self._environments([self._workers[w].place for w in g.union])
        final = self._environments([self._workers[w].place for w in g.members])
        heirs = _heirs(g, self._places, self._workers, self._setup.scaling.replicated)
        owners = tuple(g.union.index(heirs.get(w, w)) for w in g.previous)
        for rank, w in enumerate(g.union):
            transition = Transition(
                change,
                None if keeps_group else union[rank],
                final[rank] if rank < len(final) else None,
                owners,
                g.previous.index(w) if w in g.previous else None,
                len(g.joining),
                g.recovers,
                g.base,
                g.again,
                tuple(g.previous.index(dead) for dead, heir in heirs.items() if heir == w),
            )
            self._reply(self._workers[w].open_call, transition)
        self._interrupted.clear()

    def _note(self, kind: str, **fields: Any) -> None:
        if self._telemetry is not None:
            event(kind, self._telemetry, **fields)

    def _completed(self, g: m.Generation, cut_off: bool) -> None:
        if g.number == 1:
            self._note("generation", generation=1, world=len(g.members), cause="begins", workers=g.members)
            if self._setup.scaling.elastic:
                bounds = f"{self._membership.minimum} to {self._membership.maximum}"
                say(f"shoal: {len(g.members)} of {bounds} workers train; shoal scale {self._session.job} --workers N changes that")
            return
        longest, moved = max(self._paused, key=lambda p: p.seconds, default=Pause()), sum(p.moved_bytes for p in self._paused)
        change = Change(g.number, len(g.previous), len(g.members), longest.seconds, moved, _died(g), longest.phases, longest.step, cut_off)
        self.changes.append(change)
        say(f"shoal: {change}")
        self._note(
            "generation",
            generation=g.number,
            world=len(g.members),
            cause="dies" if change.died else "joins" if g.joining else "leaves",
            workers=g.members,
            died=change.died,
            pause_us=int(change.seconds * 1e6),
            phases={name: int(seconds * 1e6) for name, seconds in change.phases.items()},
            bytes=change.moved_bytes,
            step=change.step,
            steps_lost=0,
            cut_off=cut_off,
        )
        self._setup.listeners.change(change)

    def _watch_cluster(self, stop: threading.Event) -> None:
        """Looks for nodes that drain, and for new workers that wait for resources, and reports both to the thread of ``fit``."""
        before: tuple[list[str], list[str]] = ([], [])
        while not stop.wait(_POLL_S):
            with contextlib.suppress(Exception):  # a head that is away answers later
                draining = sorted(r["id"] for r in self._session.list("nodes") if r.get("draining"))
                queued, starting = [], set(self._starting)
                if starting:
                    waiting = (r["id"] for r in self._session.list("actors") if r["state"] == "PENDING")
                    queued = sorted(starting.intersection(waiting))
                if (draining, queued) != before:
                    before = draining, queued
                    self.driver.seen.remote(draining, queued)


def _died(g: m.Generation) -> tuple[int, ...]:
    return tuple(sorted(g.dead + g.unjoined))


def _on_nodes(workers: dict[int, _Entry], nodes: frozenset[str]) -> frozenset[int]:
    return frozenset(n for n, w in workers.items() if w.place is not None and w.place.node in nodes)


# ---- failures ----


def _first_cause(session: Any, membership: m.Membership, workers: dict[int, _Entry]) -> BaseException:
    """Returns the original error among those of failed ranks. An error may only report that another rank has died or failed, whose own
    error arrives later. So this waits up to ``_NOTICE_S`` seconds for another error."""
    members = membership.members if membership.published is None else membership.published.union
    runs = [workers[w].run for w in members if w in workers]
    until = time.monotonic() + _NOTICE_S
    while True:
        errors = [e for e in (failure(r, f"rank {rank} of {len(runs)}") for rank, r in enumerate(runs)) if e is not None]
        own = [e for e in errors if not is_about_another_rank(e)]
        left = until - time.monotonic()
        running = [r._ref for r in runs if not r._ref.ready]
        if own or left <= 0 or not running:
            return (own or errors)[0]
        session.wait_some(running, 1, left)


def _heirs(g: m.Generation, places: dict[int, Place], workers: dict[int, _Entry], replicated: bool) -> dict[int, int]:
    """By dead worker: the survivor that adopts its shard. The survivor is on the same node, whose memory has the shard. If there is none, a
    survivor on the node of the buddy adopts the replica."""
    alive = [w for w in g.previous if w not in g.dead]
    found = buddies([places[w].node for w in g.previous]) if replicated else (-1,) * len(g.previous)
    heirs: dict[int, int] = {}
    for dead in g.dead:
        there = [w for w in alive if places[w].node == places[dead].node]
        buddy = found[g.previous.index(dead)]
        if not there and buddy >= 0:
            holder = g.previous[buddy]  # no other process may adopt the replica while this one lives
            there = [holder] if holder in alive else [w for w in alive if places[w].node == places[holder].node]
        if not there:
            raise _lost(dead, workers.get(dead), _why_lost(None if buddy < 0 else g.previous[buddy]))
        heirs[dead] = min(there, key=list(heirs.values()).count)
    return heirs


def _why_lost(buddy: int | None) -> str:
    if buddy is None:
        return "no other worker of the training runs on its node, whose memory has its part of the model"
    return f"its node has no worker left, and neither has that of its buddy, worker {buddy}, with the replica of its part of the model"


def _lost(worker: int, entry: _Entry | None, why: str) -> WorkerLost:
    """Returns the error for a death that the training does not survive."""
    cause = None if entry is None or entry.run is None else failure(entry.run, f"worker {worker}")
    return WorkerLost(
        f"worker {worker} is lost, and the training cannot go on: {why}. {'' if cause is None else _text(cause)}".rstrip(),
        hint="start the training again from its last checkpoint",
    )


def failure(run: ObjectRef, where: str) -> BaseException | None:
    if not (run._ref.ready and run._ref.failed):
        return None
    try:
        load(run, where)
    except BaseException as error:
        return error
    return None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
