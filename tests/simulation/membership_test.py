"""The membership of an elastic training: golden transcripts of events and actions, and random runs from a seed.

Invariants of a random run: the number of members stays within the bounds, and no worker is one twice; a change concerns living workers
and begins after the one before; a member keeps its place before those that join; every request is answered once; the training comes to
rest with the number of workers that was asked for.
"""

import os
import random

import pytest

from shoal.train._driver import membership as m
from shoal.train._driver.membership import Died, Draining, Entered, Failed, Interrupted, Membership, Placed, Queued, Ready, Returned, Scaled

SEEDS = [int(os.environ["SHOAL_SEED"])] if "SHOAL_SEED" in os.environ else range(int(os.environ.get("SHOAL_SEEDS", 2000)))
REPLAY = "replay it: bazel test --test_env=SHOAL_SEED={} //tests/simulation:membership_test"


def words(action: m.Action) -> str:
    match action:
        case m.Publish(g):
            dead = f", {list(g.dead)} dead" if g.recovers else ""
            return f"publish {g.number}: {list(g.previous)} -> {list(g.members)}{dead}"
        case m.Fail(worker, why) if why is not None:
            return f"fail {worker}: {why}"
        case m.Completed(g, cut_off):
            return f"completed {g.number}" + (", cut off" if cut_off else "")
        case m.Answer(ask, changed):
            return f"answer {ask} {'changed' if changed else 'unchanged'}"
        case m.Refuse(ask, why):
            return f"refuse {ask}: {why}"
        case m.Report(worker, cause):
            return f"report {worker}: {cause}"
    return f"{type(action).__name__.lower()} {action.worker}"


class Transcript:
    """Feeds a machine with events, and compares its actions with the expected lines."""

    def __init__(self, bounds: tuple[int, int], members: int, protected: bool = False):
        self.machine = Membership(*bounds, tuple(range(members)), bounds[1], protected=protected)

    def __call__(self, *events: m.Event) -> list[str]:
        return [words(a) for event in events for a in self.machine.step(event)]

    def entered(self, generation: int, *workers: int) -> list[str]:
        return self(*(Entered(w, generation) for w in workers))


def running(bounds=(1, 4), members=4, protected=False) -> Transcript:
    transcript = Transcript(bounds, members, protected)
    assert transcript.entered(1, *range(members))[0] == "completed 1"
    return transcript


def test_nothing_changes_before_all_workers_have_reached_their_first_step():
    t = Transcript((1, 4), 2)
    assert t(Scaled(0, 3), Entered(0, 1)) == []
    assert t(Entered(1, 1)) == ["completed 1", "create 2"]


def test_a_training_grows_with_all_new_workers_together():
    t = running(members=2)  # it wants 4, so it has asked for two more
    assert t(Placed(2), Placed(3), Ready(3)) == []
    assert t(Ready(2)) == ["publish 2: [0, 1] -> [0, 1, 2, 3]"]
    assert t.entered(2, 0, 1, 2) == []
    assert t.entered(2, 3) == ["completed 2"]


def test_a_new_worker_that_waits_for_resources_holds_nobody_up():
    t = running(members=2)
    assert t(Placed(2), Ready(2)) == []
    assert t(Queued(3)) == ["publish 2: [0, 1] -> [0, 1, 2]"]
    assert t.entered(2, 0, 1, 2) == ["completed 2"]
    assert t(Placed(3), Ready(3)) == ["publish 3: [0, 1, 2] -> [0, 1, 2, 3]"]


def test_a_training_shrinks_from_the_last_rank_and_answers_the_request():
    t = running()
    assert t(Scaled(7, 2)) == ["publish 2: [0, 1, 2, 3] -> [0, 1]"]
    assert t(Returned(3), Entered(0, 2)) == []  # a worker that leaves may return before the others go on
    assert t(Entered(1, 2)) == ["completed 2", "answer 7 changed"]
    assert t(Returned(2), Failed(3, "killed")) == []


def test_a_request_for_the_present_number_changes_nothing():
    t = running()
    assert t(Scaled(0, 4)) == ["answer 0 unchanged"]


def test_a_request_outside_of_the_bounds_is_refused():
    t = running((2, 4))
    assert t(Scaled(0, 5), Scaled(1, 1)) == [
        "refuse 0: 5 workers are outside of num_workers=(2, 4)",
        "refuse 1: 1 workers are outside of num_workers=(2, 4)",
    ]


def test_a_later_request_replaces_an_earlier_one():
    t = running((1, 4), 4)
    t(Scaled(0, 2))
    assert t(Scaled(1, 4)) == ["refuse 0: a later request asks for 4 workers"]
    assert t.entered(2, 0, 1) == ["completed 2", "create 4", "create 5"]
    assert t(Scaled(2, 2)) == ["refuse 1: a later request asks for 2 workers", "remove 5", "remove 4", "answer 2 unchanged"]


def test_a_new_worker_that_fails_changes_no_generation_and_stops_the_growth():
    t = running(members=2)
    t(Placed(2), Placed(3), Scaled(0, 4))
    assert t(Failed(2, "its loop raised")) == ["report 2: its loop raised", "refuse 0: its loop raised", "remove 3"]
    assert t.machine.number == 1
    assert t(Scaled(1, 3)) == ["create 4"]


def test_a_new_worker_whose_loop_returns_without_a_step_counts_as_failed():
    t = running(members=3)
    assert t(Placed(3), Returned(3)) == ["report 3: its loop returned before its first step"]


def test_a_member_that_dies_fails_the_training():
    t = running()
    assert t(Scaled(0, 2), Failed(3, "SIGKILL")) == ["publish 2: [0, 1, 2, 3] -> [0, 1]", "refuse 0: SIGKILL", "fail 3"]


def test_workers_on_a_draining_node_leave_and_are_replaced():
    t = running((1, 3), 3)
    assert t(Draining(frozenset({0}))) == ["create 3", "publish 2: [0, 1, 2] -> [1, 2]"]
    assert t.entered(2, 1, 2) == ["completed 2"]
    assert t(Placed(3), Ready(3)) == ["publish 3: [1, 2] -> [1, 2, 3]"]


def test_too_few_workers_wait_for_the_replacement_of_a_draining_one():
    t = running((2, 2), 2)
    assert t(Draining(frozenset({0}))) == ["create 2"]
    assert t(Placed(2), Ready(2)) == ["publish 2: [0, 1] -> [1, 2]"]


def test_the_end_of_the_training_removes_new_workers_and_refuses_requests():
    t = running(members=2)
    assert t(Scaled(0, 4), Placed(2), Returned(0)) == ["remove 2", "remove 3", "refuse 0: the training has ended"]
    assert t(Ready(2), Scaled(1, 1)) == ["refuse 1: the training has ended"]


def test_the_survivors_of_a_death_go_on_once_all_have_stopped_and_a_replacement_joins_later():
    t = running((1, 3), 3, protected=True)
    assert t(Interrupted(0, 1), Died(1, "SIGKILL")) == []
    assert t(Interrupted(2, 1)) == ["publish 2: [0, 1, 2] -> [0, 2], [1] dead"]
    assert t.entered(2, 0, 2) == ["completed 2", "create 3"]
    assert t(Placed(3), Ready(3)) == ["publish 3: [0, 2] -> [0, 2, 3]"]


def test_fewer_survivors_than_the_minimum_wait_for_a_replacement():
    t = running((2, 2), 2, protected=True)
    assert t(Died(0, "SIGKILL"), Interrupted(1, 1)) == ["create 2"]
    assert t(Placed(2)) == []
    assert t(Ready(2)) == ["publish 2: [0, 1] -> [1, 2], [0] dead"]
    assert t.entered(2, 1, 2) == ["completed 2"]


def test_a_replacement_that_fails_is_replaced_and_the_third_in_a_row_ends_a_training_with_too_few_workers():
    t = running((2, 2), 2, protected=True)
    t(Died(0, "SIGKILL"), Interrupted(1, 1))
    assert t(Failed(2, "no disk")) == ["report 2: no disk", "create 3"]
    assert t(Placed(3), Died(3, "SIGKILL")) == ["report 3: SIGKILL", "create 4"]
    assert t(Failed(4, "SIGSEGV")) == ["report 4: SIGSEGV", "fail 0: no new worker could take its place: no disk (3 in a row)"]


def test_replacements_that_die_in_the_change_count_until_one_has_joined():
    t = running((2, 2), 2, protected=True)
    t(Died(0, "SIGKILL"), Interrupted(1, 1))
    assert t(Failed(2, "no disk"), Ready(3)) == ["report 2: no disk", "create 3", "publish 2: [0, 1] -> [1, 3], [0] dead"]
    assert t(Died(3, "SIGKILL"), Interrupted(1, 1)) == ["create 4"]
    assert t(Ready(4)) == ["publish 3: [0, 1] -> [1, 4], [0] dead"]
    assert t.entered(3, 1, 4) == ["completed 3"]
    t(Died(4, "SIGKILL"), Interrupted(1, 3))
    assert t(Failed(5, "no disk")) == ["report 5: no disk", "create 6"]
    t(Ready(6), Died(6, "SIGKILL"))
    assert t(Interrupted(1, 3)) == ["create 7"]
    t(Ready(7))
    assert t(Died(7, "SIGKILL"), Interrupted(1, 3)) == ["fail 4: no new worker could take its place: no disk (3 in a row)"]


def test_a_second_death_in_a_recovery_begins_it_again_from_the_same_mesh():
    t = running((1, 3), 3, protected=True)
    t(Died(1, "SIGKILL"), Interrupted(0, 1), Interrupted(2, 1))
    assert t(Died(0, "SIGKILL"), Interrupted(2, 1)) == ["publish 3: [0, 1, 2] -> [2], [0, 1] dead"]
    assert t.entered(3, 2) == ["completed 3", "create 3", "create 4"]


def test_after_a_death_in_a_change_all_go_back_unless_one_knows_that_the_generation_has_begun():
    t = running((1, 3), 3, protected=True)
    t(Scaled(0, 2))
    assert t(Died(1, "SIGKILL"), Interrupted(0, 1), Interrupted(2, 1)) == ["publish 3: [0, 1, 2] -> [0, 2], [1] dead"]
    t = running((1, 3), 3, protected=True)
    t(Scaled(0, 2))
    assert t(Died(1, "SIGKILL"), Interrupted(0, 2), Interrupted(2, 1)) == [
        "completed 2, cut off",
        "dismiss 2",
        "publish 3: [0, 1] -> [0], [1] dead",
    ]
    t = running((1, 3), 3, protected=True)
    t(Scaled(0, 2))
    assert t(Returned(2), Died(1, "SIGKILL"), Interrupted(0, 1)) == ["completed 2, cut off", "publish 3: [0, 1] -> [0], [1] dead"]


def test_a_worker_that_has_stopped_in_the_change_in_which_it_leaves_goes_when_the_others_have_entered():
    t = running((1, 3), 3, protected=True)
    t(Scaled(0, 1), Died(2, "SIGKILL"), Interrupted(1, 1))
    assert t.entered(2, 0) == ["completed 2", "dismiss 1", "answer 0 changed"]
    t = running((1, 3), 3, protected=True)
    t(Scaled(0, 1), Died(2, "SIGKILL"))
    assert t.entered(2, 0) == ["completed 2", "answer 0 changed"]
    assert t(Interrupted(1, 1)) == ["dismiss 1"]


def test_a_generation_that_has_begun_waits_for_its_new_workers_to_stop():
    t = running((1, 3), 2, protected=True)
    t(Placed(2), Ready(2))
    assert t(Died(0, "SIGKILL"), Interrupted(1, 2)) == []
    assert t(Interrupted(2, 0)) == ["completed 2, cut off", "publish 3: [0, 1, 2] -> [1, 2], [0] dead"]


def test_new_workers_whose_processes_end_are_replaced_until_the_third_in_a_row():
    t = running((1, 2), 1, protected=True)
    assert t(Placed(1), Died(1, "SIGKILL")) == ["report 1: SIGKILL", "create 2"]
    assert t(Died(2, "SIGKILL")) == ["report 2: SIGKILL", "create 3"]
    assert t(Died(3, "SIGKILL")) == ["report 3: SIGKILL"]


def test_the_loops_run_again_if_that_of_one_survivor_does():
    t = running((1, 3), 3, protected=True)
    t(Died(1, "SIGKILL"), Interrupted(0, 1), Interrupted(2, 1, again=True))
    assert t.machine.published.again


def test_a_new_worker_that_dies_in_the_change_in_which_it_joins_leaves_the_others_where_they_were():
    t = running((1, 3), 2, protected=True)
    t(Placed(2), Ready(2))
    assert t(Died(2, "SIGKILL"), Interrupted(0, 1), Interrupted(1, 1)) == ["publish 3: [0, 1] -> [0, 1], [] dead"]
    assert t.machine.published.unjoined == (2,)


def test_without_protection_a_death_fails_the_training():
    t = running((1, 3), 3)
    assert t(Died(1, "SIGKILL")) == ["fail 1"]


class World:
    """A random driver: it performs the actions, and each worker makes its next move at a random moment."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.bounds = (self.random.randint(1, 3), self.random.randint(3, 6))
        first = self.random.randint(*self.bounds)
        self.machine = Membership(*self.bounds, tuple(range(first)), self.bounds[1])
        self.moves: dict[int, m.Event] = {w: Entered(w, 1) for w in range(first)}  # the next move of each worker
        self.alive, self.asks, self.answered = set(range(first)), 0, set()
        self.published: m.Generation | None = m.Generation(1, tuple(range(first)), ())

    def feed(self, event: m.Event) -> None:
        for action in self.machine.step(event):
            self.perform(action)
        assert self.bounds[0] <= len(self.machine.members) <= self.bounds[1]
        assert len(set(self.machine.members)) == len(self.machine.members)

    def perform(self, action: m.Action) -> None:
        match action:
            case m.Create(worker):
                assert worker not in self.alive
                self.alive.add(worker)
                self.moves[worker] = self.random.choice([Placed, Queued])(worker)
            case m.Remove(worker):
                assert worker not in self.machine.members
                self.alive.discard(worker)
                self.moves.pop(worker, None)
            case m.Publish(g):
                assert self.published is None, "two changes at a time"
                assert self.bounds[0] <= len(g.members) <= self.bounds[1]
                assert set(g.union) <= self.alive
                assert [w for w in g.previous if w in g.members] == list(g.members[: len(g.members) - len(g.joining)])
                self.published = g
                self.moves |= {w: Entered(w, g.number) for w in g.members} | {w: Returned(w) for w in g.leaving}
            case m.Completed(g, _):
                assert g == self.published
                self.published = None
            case m.Answer(ask, _) | m.Refuse(ask, _):
                assert ask not in self.answered
                self.answered.add(ask)
            case m.Report(worker, _):
                self.alive.discard(worker)
                self.moves.pop(worker, None)
            case m.Fail():
                raise AssertionError("no member has failed")

    def move(self) -> None:
        if not self.moves:
            return
        worker = self.random.choice(sorted(self.moves))
        event = self.moves.pop(worker)
        if isinstance(event, Placed):
            self.moves[worker] = Ready(worker)
        if isinstance(event, Queued):
            self.moves[worker] = Placed(worker)
        if isinstance(event, Returned):
            self.alive.discard(worker)
        if isinstance(event, Placed | Ready) and self.random.random() < 0.1:
            self.moves.pop(worker, None)
            event = Failed(worker, "a fault")
        self.feed(event)

    def disturb(self) -> None:
        if self.random.random() < 0.7:
            self.feed(Scaled(self.asks, self.random.randint(*self.bounds)))
            self.asks += 1
        else:
            members = sorted(self.machine.members)
            self.feed(Draining(frozenset(self.random.sample(members, self.random.randint(0, len(members) - 1)))))

    def settle(self) -> None:
        for _ in range(1000):
            if not self.moves:
                return
            self.move()
        raise AssertionError("it does not come to rest")


def check(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.disturb() if world.random.random() < 0.15 else world.move()
    world.feed(Draining(frozenset()))
    wanted = world.random.randint(*world.bounds)
    for _ in range(30):  # a new worker that fails ends a request, so ask again
        world.feed(Scaled(world.asks, wanted))
        world.asks += 1
        world.settle()
        if len(world.machine.members) == wanted:
            break
    assert len(world.machine.members) == wanted
    assert world.answered == set(range(world.asks))


@pytest.mark.parametrize("first", range(0, len(SEEDS), 500))
def test_random_runs_keep_the_bounds_and_come_to_rest(first):
    for seed in SEEDS[first : first + 500]:
        try:
            check(seed)
        except Exception as error:
            raise AssertionError(REPLAY.format(seed)) from error


def test_a_loop_that_ends_before_the_others_have_entered_its_generation_ends_the_training():
    machine = m.Membership(1, 3, (0, 1), 3, protected=True)
    for worker in (0, 1):
        machine.step(m.Entered(worker, 1))
    [publish] = [a for a in machine.step(m.Ready(2)) if isinstance(a, m.Publish)]
    assert publish.generation.members == (0, 1, 2)
    for event in (m.Entered(2, 2), m.Returned(2), m.Entered(0, 2), m.Entered(1, 2)):
        machine.step(event)
    assert machine.ended
    [fail] = [a for a in machine.step(m.Died(1, "SIGKILL")) if isinstance(a, m.Fail)]
    assert fail.why == "it died when others had finished their loops"
