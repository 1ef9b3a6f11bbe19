"""Deaths in an elastic training: the driver's machine, with workers whose step records say which steps count. Random runs from a seed.

Invariants: the number of members stays within the bounds; every begun step counts, and none that a worker has not recorded; all workers of
a generation begin it with the same step; in the end each step was made once, or the training failed with a documented reason.
"""

import os
import random

import pytest

from shoal._native import committed_step
from shoal.train._driver import membership as m

SEEDS = [int(os.environ["SHOAL_SEED"])] if "SHOAL_SEED" in os.environ else range(int(os.environ.get("SHOAL_SEEDS", 2000)))
REPLAY = "replay it: bazel test --test_env=SHOAL_SEED={} //tests/simulation:deaths_test"
STEPS = 12
NAMED = (
    "it died before the first step",
    "it died when others had finished their loops",
    "no new worker could take",
)
NAMED = (*NAMED, "no worker is left", "its loop returned while")


class Ended(Exception):
    """The training has failed with a reason that the documentation names."""


class Worker:
    def __init__(self, number: int, phase: str):
        self.number, self.phase = number, phase
        self.mesh = 0  # the generation on whose mesh the model is
        self.record = 0  # the generation of the step record with which it goes on; 0: none
        self.past = 0  # the generation before, whose record is kept until a step counts
        self.prepared = 0  # the generation to which it has moved, and in which it has a record; 0: none
        self.change: m.Generation | None = None
        self.alive = True


class World:
    """Each worker is a process that makes its next move at a random moment. A death may come between any two moves."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.bounds = (self.random.randint(1, 2), self.random.randint(2, 5))
        first = self.random.randint(*self.bounds)
        self.rate = self.random.choice([0.002, 0.01, 0.03])
        self.machine = m.Membership(*self.bounds, tuple(range(first)), self.bounds[1], protected=True)
        self.workers = {w: Worker(w, "begin") for w in range(first)}
        self.members = {1: tuple(range(first))}
        self.records: dict[tuple[int, int], list[int]] = {}  # by generation and worker: (recorded, begun, finished); they outlive it
        self.bases: dict[int, int] = {}  # by generation: the one from whose mesh it continues
        self.committed: dict[int, int] = {1: 0}  # by generation: the step with which it begins
        self.boundary: dict[int, int] = {}  # by generation: the step before which the workers leave it
        self.unconfirmed: list[int] = []
        self.deaths, self.asks = 0, 0
        self.reported: list[int] = []  # dead workers, by the changes that have been completed
        self.served = set(range(first))  # workers that have been members

    # ---- the driver ----

    def feed(self, event: m.Event) -> None:
        for action in self.machine.step(event):
            self.perform(action)

    def perform(self, action: m.Action) -> None:
        match action:
            case m.Create(worker):
                self.workers[worker] = Worker(worker, "new")
            case m.Remove(worker):
                self.workers[worker].alive = False
            case m.Dismiss(worker):
                assert self.workers[worker].phase == "stopped"
                self.workers[worker].phase = "left"
            case m.Publish(g):
                self.publish(g)
            case m.Completed(g):
                self.reported += g.dead + g.unjoined
                self.served.update(g.members)
                self.served.difference_update(g.leaving)
            case m.Fail(_, why):
                assert why is not None
                assert any(reason in why for reason in NAMED), why
                if "no worker is left" in why:
                    staying = [w for w in self.workers.values() if w.phase not in ("leaves", "left")]
                    assert not any(w.alive and w.record for w in staying), "one could go on"
                raise Ended(why)

    def publish(self, g: m.Generation) -> None:
        self.members[g.number] = g.members
        assert self.bounds[0] <= len(g.members) <= self.bounds[1]
        assert all(not self.workers[w].alive for w in g.dead)
        for w in g.union:
            self.workers[w].change = g
            if g.recovers and w in g.previous:
                self.continue_from(self.workers[w], g.base)
            if self.workers[w].phase in ("ready", "stopped"):
                self.workers[w].phase = "meet"
        if not g.recovers:
            generation = self.workers[g.previous[0]].record
            assert generation == g.base
            under_way = {w: self.workers[w].phase in ("record", "commit", "update") for w in g.previous}
            self.boundary[generation] = max(self.records[generation, w][2] + under_way[w] for w in g.previous) + 1
            if any(self.workers[w].phase == "done" for w in g.previous):  # the loops end before another boundary
                del self.boundary[generation]

    # ---- the workers ----

    def lost(self, generation: int) -> bool:
        return any(not self.workers[w].alive for w in self.members[generation])

    def stop(self, w: Worker) -> None:
        w.phase = "stopped"
        self.feed(m.Interrupted(w.number, w.record))

    def continue_from(self, w: Worker, base: int) -> None:
        """After a death: begins the generation for which the worker is prepared, or goes back."""
        if w.prepared == base:
            w.record = base
        assert w.record == base, (w.record, w.prepared, base)
        w.mesh, w.prepared, w.past = w.record, 0, 0
        for u in self.members[base]:  # all records are there
            assert (base, u) in self.records

    def move(self, w: Worker) -> bool:
        """Makes the worker's next move. Returns False if it waits."""
        return getattr(self, "on_" + w.phase)(w)

    def on_new(self, w: Worker) -> bool:
        self.feed(m.Placed(w.number))
        if w.alive:
            w.phase = "ready"
            self.feed(m.Ready(w.number))
        return True

    def waits(self, w: Worker) -> bool:
        return False

    on_ready = on_stopped = on_left = on_done = waits

    def on_begin(self, w: Worker) -> bool:
        """Makes a record on the present mesh."""
        w.mesh = w.mesh or 1
        self.records[w.mesh, w.number] = [self.committed[w.mesh]] * 3
        w.prepared, w.phase = w.mesh, "entering"
        return True

    def on_entering(self, w: Worker) -> bool:
        """Enters its generation once all have a record."""
        missing = [other for other in self.members[w.mesh] if (w.mesh, other) not in self.records]
        if missing:
            left = any(self.workers[other].phase == "stopped" for other in missing)
            return self.stop(w) or True if left or self.lost(w.mesh) else False
        w.past, w.record, w.prepared, w.phase = w.record, w.mesh, 0, "parting"
        return True

    def on_parting(self, w: Worker) -> bool:
        """Waits for those that leave, unless one of the change is gone."""
        union = [self.workers[u] for u in (w.change.union if w.change else ())]
        whole = all(u.alive and u.phase != "stopped" for u in union)
        if whole and any(u.number in w.change.leaving and u.phase not in ("leaves", "left") for u in union):
            return False
        w.phase, w.change = "compute", None
        self.feed(m.Entered(w.number, w.mesh))
        return True

    def on_leaves(self, w: Worker) -> bool:
        """Leaves once all have a record, and takes its own along."""
        g = w.change
        missing = [other for other in g.members if (g.number, other) not in self.records]
        if any(self.workers[other].phase == "stopped" for other in missing):
            return self.stop(w) or True
        if missing:
            return self.broken(w)
        self.feed(m.Returned(w.number))
        if w.phase == "leaves":
            del self.records[w.record, w.number]
            w.phase = "left"
        return True

    def on_compute(self, w: Worker) -> bool:
        members, step = self.members[w.mesh], self.records[w.mesh, w.number][2] + 1
        if w.past and step > self.committed[w.mesh] + 1:
            self.records.pop((w.past, w.number), None)
            w.past = 0
        if self.lost(w.mesh):
            self.stop(w)
            return True
        if any(self.records[w.mesh, other][2] < step - 1 for other in members):
            return False
        if w.change is not None and not w.change.recovers and self.boundary.get(w.mesh) == step:
            w.phase = "meet"
        elif step <= STEPS:
            w.phase = "record"
        else:
            w.phase = "done"
            self.feed(m.Returned(w.number))
        return True

    def on_record(self, w: Worker) -> bool:
        self.records[w.mesh, w.number][0] += 1
        w.phase = "commit"
        return True

    def on_commit(self, w: Worker) -> bool:
        own = self.records[w.mesh, w.number]
        missing = [other for other in self.members[w.mesh] if self.records[w.mesh, other][0] < own[0]]
        if missing:
            return self.stop(w) or True if self.lost(w.mesh) else False
        own[1] += 1
        w.phase = "update"
        return True

    def on_update(self, w: Worker) -> bool:
        self.records[w.mesh, w.number][2] += 1
        w.phase = "compute"
        return True

    def broken(self, w: Worker) -> bool:
        """Stops the worker if another one of its change is gone. It then changes nothing more."""
        if any(not self.workers[u].alive for u in w.change.union):
            self.stop(w)
            return True
        return False

    def on_meet(self, w: Worker) -> bool:
        g = w.change
        if self.broken(w):
            return True
        if any(self.workers[u].phase not in ("meet", "settled", "begin", "entering", "parting", "leaves", "left") for u in g.union):
            return False
        if g.number not in self.committed:
            base = g.base
            words = [tuple(self.records[base, u]) for u in g.previous]
            self.committed[g.number] = committed = committed_step(words, True)
            assert max(begun for _, begun, _ in words) <= committed <= min(recorded for recorded, _, _ in words)
            assert g.recovers or all(w == (committed,) * 3 for w in words), words
            self.bases[g.number] = base
        committed = self.committed[g.number]
        for u in (w.number, *(g.dead if w.number == min(u for u in g.previous if u not in g.dead) else ())):
            if u in g.previous:  # own records, and adopted ones
                record = self.records[self.bases[g.number], u]
                assert committed - record[2] in (0, 1), (committed, record)
                assert record[2] == committed or record[0] == committed
                record[:] = [committed] * 3
        w.phase = "settled"
        return True

    def on_settled(self, w: Worker) -> bool:
        g = w.change
        passed = all(self.workers[u].phase in ("settled", "begin", "entering", "parting", "compute", "leaves", "left") for u in g.union)
        if not passed or (any(not self.workers[u].alive for u in g.union) and self.random.random() < 0.5):
            return self.broken(w)
        there = [u for u in g.previous if self.workers[u].phase != "left"]
        assert all(self.records[self.bases[g.number], u] == [self.committed[g.number]] * 3 for u in there)
        if w.number in g.members:
            w.mesh, w.phase = g.number, "begin"
        else:
            w.phase = "leaves"
        return True

    # ---- a run ----

    def kill(self, w: Worker) -> None:
        w.alive = False
        self.deaths += 1
        self.unconfirmed.append(w.number)

    def run(self) -> None:
        while True:
            alive = [w for w in self.workers.values() if w.alive]
            if alive and self.random.random() < self.rate and self.deaths < 6:
                self.kill(self.random.choice(alive))
            elif self.asks < 6 and self.random.random() < 0.01:
                self.asks += 1
                self.feed(m.Scaled(self.asks, self.random.randint(*self.bounds)))
            elif self.unconfirmed and self.random.random() < 0.2:
                dead = self.unconfirmed.pop(0)
                self.feed(m.Died(dead, "SIGKILL"))
            else:
                self.random.shuffle(alive)
                if not any(self.move(w) for w in alive if w.alive) and not self.unconfirmed:
                    return


def check(seed: int) -> str:
    world = World(seed)
    try:
        world.run()
    except Ended as error:
        return str(error)
    generation = next(w.mesh for w in world.workers.values() if w.phase == "done")
    members = world.members[generation]
    assert len(set(world.reported)) == len(world.reported), "a death is reported twice"
    ended = {w.number for w in world.workers.values() if w.alive or w.phase in ("left", "leaves")}
    assert world.served - ended - set(world.reported) <= set(members), "a death is not reported"
    assert all(world.workers[w].phase == "done" for w in members), "a worker is stuck"
    assert [world.records[generation, w] for w in members] == [[STEPS] * 3] * len(members), "not every step was made once"
    return ""


@pytest.mark.parametrize("first", range(0, len(SEEDS), 500))
def test_random_deaths_lose_no_step_and_repeat_none(first):
    outcomes = []
    for seed in SEEDS[first : first + 500]:
        try:
            outcomes.append(check(seed))
        except Exception as error:
            raise AssertionError(REPLAY.format(seed)) from error
    assert len(SEEDS) == 1 or outcomes.count("") > len(outcomes) * 2 // 3
