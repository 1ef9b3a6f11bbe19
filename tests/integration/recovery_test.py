"""The death of a worker in an elastic training: no step is lost, and none is made twice."""

import os
import random
import signal
import threading
from pathlib import Path

import pytest
import recovery_loops as r
import training_loops as loops
from client_fixtures import *  # noqa: F403

from shoal.exceptions import ActorDiedError, Unimplemented
from shoal.train import ScalingConfig, Trainer, WorkerLost

EPOCHS = r.EPOCHS


def fit(tmp_path, loop, deaths, bounds, on_report=None, **config):
    config = {"epochs": EPOCHS, "deaths": deaths, "folder": str(tmp_path), **config}
    trainer = Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig(bounds), on_report=on_report)
    return trainer.fit()


def check(result, epochs=EPOCHS):
    r.check(result.metrics_history, result.returns, epochs)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_ours(pid):
    while pid > 1 and pid != os.getpid():
        pid = parent_of(pid)
    return pid == os.getpid()


def records():
    """Step records, and memories of optimizer states, that this test's processes have open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        if not is_ours(int(process.name)):
            continue
        for fd in process.glob("fd/*"):
            try:
                target = os.readlink(fd)
            except OSError:
                continue
            if "/record-" in target or "/arrays-" in target:
                found.add(target)
    return found


@pytest.mark.parametrize("moment", r.MOMENTS)
def test_a_death_at_any_moment_of_a_step_changes_nothing(tmp_path, moment):
    result = fit(tmp_path, r.steps_form, [(1, 3, moment)], (1, 3))
    check(result)
    assert result.changes[0].died == (1,)
    assert (result.changes[0].workers_before, result.changes[0].workers) == (3, 2)
    assert records() == set()
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer) or t.name == "shoal-train-watch"]


@pytest.mark.parametrize("moment", ["forward", "backward", "committed", "end"])
def test_an_ordinary_loop_runs_again_in_the_same_process(tmp_path, moment):
    result = fit(tmp_path, r.loop_form, [(0, 3, moment)], (1, 2))
    check(result)
    assert result.changes[0].died == (0,)
    draws = [m["draw"] for m in result.metrics_history]
    assert len(set(draws)) == len(draws)  # the seed that the loop sets again does not count


def test_the_last_worker_goes_on_alone_and_a_replacement_joins(tmp_path):
    result = fit(tmp_path, r.steps_form, [(0, 4, "backward")], (1, 2), changes=[8])  # step 8 waits for the replacement
    check(result)
    assert [(c.workers_before, c.workers) for c in result.changes] == [(2, 1), (1, 2)]


def test_fewer_workers_than_the_minimum_wait_for_a_replacement(tmp_path):
    result = fit(tmp_path, r.steps_form, [(1, 4, "backward")], (2, 2))
    check(result)
    assert [(c.workers_before, c.workers) for c in result.changes] == [(2, 2)]


def test_a_death_in_the_first_step_after_a_planned_change(tmp_path):
    def on_report(metrics):
        if metrics["step"] == 3:
            trainer.scale(2)

    config = {"epochs": EPOCHS, "deaths": [(1, 4, "forward")], "folder": str(tmp_path), "changes": [3]}
    trainer = Trainer(r.steps_form, train_loop_config=config, scaling_config=ScalingConfig((1, 3)), on_report=on_report)
    result = trainer.fit()
    check(result)
    assert [(c.workers_before, c.workers) for c in result.changes[:2]] == [(3, 2), (2, 1)]


def test_an_ordinary_loop_ends_below_the_minimum(tmp_path):
    with pytest.raises(WorkerLost, match="worker 1 is lost, and a loop that runs again cannot go on with fewer workers than the minimum"):
        fit(tmp_path, r.loop_form, [(1, 3, "backward")], (2, 2))


@pytest.mark.parametrize("deaths", [[(0, 3, "backward"), (1, 3, "backward")], [(0, 3, "committed"), (1, 5, "forward")]])
def test_two_deaths(tmp_path, deaths):
    result = fit(tmp_path, r.steps_form, deaths, (1, 3))
    check(result)
    assert len([w for c in result.changes for w in c.died]) == 2


def test_a_death_in_the_first_step_that_only_some_survivors_have_recorded(tmp_path):
    result = fit(tmp_path, r.steps_form, [(1, 1, "recorded"), (2, 1, "late")], (1, 3))
    check(result)
    assert result.changes[0].died == (1,)


@pytest.mark.parametrize("connecting", [False, True])
def test_a_survivor_dies_before_the_others_meet_it(tmp_path, connecting):
    result = fit(tmp_path, r.steps_form_with_a_death_in_the_meeting, [(2, 3, "forward")], (1, 3), connecting=connecting)
    check(result)
    assert (result.changes[0].died, result.changes[0].workers) == ((1, 2), 1)


def test_a_death_ends_the_wait_of_a_worker_that_waits_for_another_survivor(tmp_path):
    result = fit(tmp_path, r.steps_form, [(3, 3, "begin")], (1, 4))  # rank 1 waits for rank 0 then
    check(result)
    assert result.changes[0].died == (3,)


@pytest.mark.skipif("SHOAL_SEEDS" not in os.environ, reason="random moments: ./dev test --all")
def test_workers_are_killed_at_random_moments(tmp_path):
    seed = int(os.environ.get("SHOAL_SEED", random.randrange(1 << 30)))
    print(f"SHOAL_SEED={seed}")
    moments, killed = random.Random(seed), []

    def kill(pid):
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    def on_report(metrics):
        if len(metrics["pids"]) > 1 and len(killed) < 5 and moments.random() < 0.2:
            threading.Timer(moments.random() * 0.02, kill, (moments.choice(metrics["pids"]),)).start()

    try:
        result = fit(tmp_path, r.steps_form, [], (1, 3), on_report, epochs=30)
    except WorkerLost as error:
        if "another mesh" in str(error):  # a second death has come while the workers changed their places
            return
        raise
    check(result, 30)
    assert killed


def test_all_workers_die(tmp_path):
    with pytest.raises((WorkerLost, ActorDiedError), match="SIGKILL"):
        fit(tmp_path, r.steps_form, [(0, 3, "forward")], (1, 2), victims="gang")


def step_that_fails(config):
    from shoal.train import run

    state, loader = loops.build({})

    def step(batch, state):
        raise RuntimeError("a mistake in the step")

    run(step, loader, state)


def test_an_error_of_the_step_itself_is_the_trainings():
    with pytest.raises(RuntimeError, match="a mistake in the step"):
        Trainer(step_that_fails, train_loop_config={}, scaling_config=ScalingConfig((1, 2))).fit()


def loop_with_an_optimizer_of_a_plain_module(config):
    import torch

    from shoal.train import State, steps

    state, loader = loops.build({})
    other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    for _ in steps(loader, State(**state.objects, other=other)):
        pass


def test_an_optimizer_of_a_module_that_is_not_sharded_is_refused():
    with pytest.raises(Unimplemented, match="an optimizer of parameters that are not sharded"):
        Trainer(loop_with_an_optimizer_of_a_plain_module, train_loop_config={}, scaling_config=ScalingConfig((1, 1))).fit()
