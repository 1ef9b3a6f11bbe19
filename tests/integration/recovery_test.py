"""The death of a worker in an elastic training: no step is lost, and none is made twice."""

import os
import random
import signal
import threading
from pathlib import Path

import accumulating_loops as a
import pytest
import recovery_loops as r
import training_loops as loops
from launching.leftovers import wait_until

from shoal.exceptions import ActorDiedError, Unimplemented
from shoal.train import ScalingConfig, Trainer, WorkerLost
from shoal.train._driver import run as _run

pytestmark = pytest.mark.usefixtures("module_cluster")

EPOCHS = r.EPOCHS
WHOLE = "SHOAL_SEEDS" in os.environ  # ./dev test --all; otherwise a slice


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


def records(names=("/record-", "/arrays-")):
    """Memories with such names that this test's processes have open, by default step records and optimizer states."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        if not is_ours(int(process.name)):
            continue
        for fd in process.glob("fd/*"):
            try:
                target = os.readlink(fd)
            except OSError:
                continue
            if any(name in target for name in names):
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


@pytest.mark.parametrize(("reduced", "again"), [("late", False), ("each", True)])
def test_a_step_of_several_batches_runs_again_from_its_first_batch(tmp_path, reduced, again):
    result = fit(tmp_path, a.accumulating_form, [(1, 5, "between")], (1, 2), reduced=reduced, again=again)
    a.check_accumulated(result.metrics_history, EPOCHS)
    assert (result.changes[0].died, result.changes[0].step) == ((1,), 3)
    assert all(c.step % a.ACCUMULATED == 0 for c in result.changes)


def test_a_loop_written_for_torchrun_survives_two_deaths(tmp_path):
    result = fit(tmp_path, r.torchrun_form, [(0, 3, "backward"), (1, 8, "forward")], (1, 3))
    check(result)
    assert [len(c.died) for c in result.changes if c.died] == [1, 1]


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


def test_a_death_between_two_epochs_of_which_one_survivor_is_in_the_second(tmp_path):
    result = fit(tmp_path, r.steps_form_with_a_death_between_epochs, [], (1, 3))
    check(result)
    assert result.changes[0].died == (2,)


def test_a_death_while_survivors_are_at_both_ends_of_code_between_two_loops_ends_the_training(tmp_path):
    with pytest.raises(WorkerLost, match="at both ends of the program's code between two loops"):
        fit(tmp_path, r.steps_form_with_a_death_between_epochs, [], (1, 3), **{"an epoch each": True})


def test_a_death_ends_the_wait_of_a_worker_that_waits_for_another_survivor(tmp_path):
    result = fit(tmp_path, r.steps_form, [(3, 3, "begin")], (1, 4))  # rank 1 waits for rank 0 then
    check(result)
    assert result.changes[0].died == (3,)


def test_a_death_while_one_worker_is_in_run_and_another_one_between_two_calls_of_it(tmp_path):
    result = fit(tmp_path, r.two_runs_form, [(1, 10, "end"), (2, 10, "in run"), (0, 10, "between runs")], (1, 3))
    check(result)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["0-10-between runs", "1-10-end", "2-10-in run"]
    assert result.changes[0].died == (1,)


@pytest.mark.parametrize(
    ("form", "deaths"),
    [
        ("loop_form", [(2, 3, "backward")]),
        ("two_runs_form", [(1, 10, "end"), (2, 10, "in run"), (0, 10, "between runs")]),
    ],
)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_before_the_loops_have_run_again(tmp_path, form, deaths, victim):
    if form == "loop_form":
        victim //= 2
    result = fit(tmp_path, r.form_with_a_death_before_the_loops_have_run_again, deaths, (1, 3), form=form, victim=victim)
    check(result)
    assert (tmp_path / "died").exists()
    assert [c.workers for c in result.changes[:2]] == [2, 1]


@pytest.mark.parametrize("dies", [False, True])
def test_a_death_when_some_loops_have_run_again(tmp_path, dies):
    form = r.form_with_a_death_when_some_loops_have_run_again
    result = fit(tmp_path, form, [(3, 3, "backward")], (1, 4), dies=dies)
    check(result)
    assert (tmp_path / "passed").exists()
    assert [c.workers for c in result.changes[:2]] == [3, 1 if dies else 2]


# By name of a change: its generation, the deaths in steps, the steps at which the number of workers changes (0: worker 2 is on a node that
# drains, and is replaced), and the victims by number.
CHANGES = {
    "recovery": (2, [(2, 3, "backward")], {}, (0, 1)),
    "shrink": (2, [], {3: 2}, (2, 0, 1)),
    "growth": (3, [], {3: 2, 6: 3}, (3, 0, 1)),
    "exchange": (2, [], {3: 0}, (0, 2, 3)),
}
FORMS = ("steps_form", "loop_form")
IN_CHANGES = [
    (change, phase, form)
    for change in CHANGES
    for turn, phase in enumerate(r.PHASES)
    for form in (FORMS if WHOLE or change == "exchange" else (FORMS[turn // 2 % 2],))
    if phase != "sent" or change in ("growth", "exchange")  # there is a newcomer
    if form == "steps_form" or change != "exchange"  # a loop that runs again needs the minimum of workers
    if WHOLE or turn % 2 == list(CHANGES).index(change) % 2
]
ON_DEVICES = [("shrink", "moved", "loop_form"), ("growth", "entered", "loop_form"), ("exchange", "recorded", "steps_form")]


@pytest.mark.parametrize(
    ("change", "phase", "form", "devices"),
    [(*case, False) for case in IN_CHANGES] + [(*case, True) for case in (IN_CHANGES if WHOLE else ON_DEVICES)],
)
def test_a_death_in_a_change_of_the_workers(tmp_path, monkeypatch, change, phase, form, devices):
    generation, deaths, sizes, victims = CHANGES[change]
    monkeypatch.setenv("SHOAL_TIMEOUT", "60")
    turn = r.PHASES.index(phase)
    for victim in victims if WHOLE else [victims[turn // 2 % len(victims)]]:
        death = {"victim": victim, "generation": generation, "phase": phase}
        die_in_change(tmp_path / str(victim), monkeypatch, form, deaths, sizes, devices=devices, **death)


def die_in_change(folder, monkeypatch, form, deaths, sizes, devices, **death):
    def on_report(metrics):
        if (size := sizes.get(metrics["step"])) is not None and size > 0:
            trainer.scale(size)
        elif size == 0:
            drained.add(2)
            trainer._active.driver.seen.remote([], [])
        if metrics["step"] == 5 * EPOCHS:
            of_the_first_mesh.extend(name for name in records(["/record-"]) if "//mesh-" in name)

    folder.mkdir()
    drained, of_the_first_mesh = set(), []
    monkeypatch.setattr(_run, "_on_nodes", lambda workers, nodes: frozenset(drained.intersection(workers)))
    config = {"epochs": EPOCHS, "deaths": deaths, "folder": str(folder), "changes": list(sizes), "form": form, "devices": devices, **death}
    scaling = ScalingConfig((3, 3) if 0 in sizes.values() else (1, 3))
    trainer = Trainer(r.form_with_a_death_in_a_change, train_loop_config=config, scaling_config=scaling, on_report=on_report)
    result = trainer.fit()
    check(result)
    leaves = deaths == [] and death["victim"] == 2
    assert (folder / "died").exists() or (leaves and death["phase"] in ("recorded", "entered"))
    assert not (folder / "waited in vain").exists()
    died = {rank for rank, *_ in deaths} | {death["victim"]}
    assert leaves or {w for c in result.changes for w in c.died} == died
    assert leaves or of_the_first_mesh == []
    wait_until(lambda: not records(), 60, "the end of all step records")  # a dead worker's may last as long as its training


@pytest.mark.skipif(not WHOLE, reason="random moments: ./dev test --all")
def test_workers_are_killed_at_random_moments(tmp_path):
    seed = int(os.environ.get("SHOAL_SEED", random.randrange(1 << 30)))
    print(f"SHOAL_SEED={seed}")
    moments, victims = random.Random(seed), []

    def on_report(metrics):
        others = [pid for pid in metrics["pids"] if pid not in victims]
        if len(others) > 1 and len(victims) < 5 and moments.random() < 0.2:
            victims.append(moments.choice(others))
            threading.Timer(moments.random() * 0.02, os.kill, (victims[-1], signal.SIGKILL)).start()

    result = fit(tmp_path, r.steps_form, [], (1, 3), on_report, epochs=30)
    check(result, 30)
    assert victims


def test_all_workers_die_and_their_memory_ends_with_them(tmp_path):
    parameters = ["/unit-"]
    before = records(parameters)

    def on_report(metrics):
        assert records()
        assert records(parameters) > before

    with pytest.raises((WorkerLost, ActorDiedError), match="SIGKILL"):
        fit(tmp_path, r.steps_form, [(0, 3, "forward")], (1, 2), on_report, victims="gang")
    wait_until(lambda: not records() and records(parameters) <= before, 60, "the end of all memory of a training that has failed")


def test_replacements_that_fail_or_die_are_replaced_while_the_others_wait(tmp_path):
    result = fit(tmp_path, r.steps_form_with_lost_replacements, [(1, 4, "backward")], (2, 2), fails=2, dies=3)
    check(result)
    assert [(c.workers_before, c.workers, c.died) for c in result.changes] == [(2, 2, (1,))]
    assert ["no disk" in result.failures[0], "SIGKILL" in result.failures[1], len(result.failures)] == [True, True, 2]


def test_the_third_replacement_in_a_row_that_fails_ends_the_training(tmp_path):
    with pytest.raises(WorkerLost, match=r"(?s)worker 1 is lost.*no new worker could take its place: .*no disk.*\(3 in a row\)"):
        fit(tmp_path, r.steps_form_with_lost_replacements, [(1, 4, "backward")], (2, 2), fails=2, dies=3, fails_too=4)


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


@pytest.mark.parametrize("moment", r.MOMENTS if WHOLE else ["forward", "backward", "committed", "inside"])
def test_a_death_on_devices_at_any_moment_of_a_step_changes_nothing(tmp_path, moment):
    result = fit(tmp_path, r.steps_form, [(1, 3, moment)], (1, 3), devices=True)
    check(result)
    assert result.changes[0].died == (1,)
    assert (result.changes[0].workers_before, result.changes[0].workers) == (3, 2)
    assert records() == set()


OPTIMIZERS = [("torch.AdamW", {}), ("torch.SGD", {"momentum": 0.9}), ("torch.NAdam", {}), ("torch.AdamW", {"fused": True})]
COPIED = [(o, m) for o in OPTIMIZERS for m in r.MOMENTS] if WHOLE else [*zip(OPTIMIZERS[:2], ("committed", "inside"), strict=True)]


@pytest.mark.parametrize(("optimizer", "moment"), COPIED)
def test_a_death_on_devices_with_an_optimizer_of_torch_changes_nothing(tmp_path, optimizer, moment):
    result = fit(tmp_path, r.steps_form, [(1, 3, moment)], (1, 3), devices=True, optimizer=optimizer, changes=[8])
    r.check(result.metrics_history, result.returns, optimizer=optimizer)
    assert (result.changes[0].died, result.changes[0].workers, result.changes[1].workers) == ((1,), 2, 3)
    assert records() == set()


@pytest.mark.parametrize("moment", r.MOMENTS if WHOLE else ["committed"])
def test_a_death_on_devices_with_a_grad_scaler_changes_nothing(tmp_path, capfd, moment):
    result = fit(tmp_path, r.steps_form, [(1, 3, moment)], (1, 3), devices=True, scales=True, changes=[8])
    check(result)
    assert (result.changes[0].died, result.changes[1].workers) == ((1,), 3)
    said = []
    lines = ("MB where each step's rows and states arrive", "MB of rows and states per step, updates copied in")
    wait_until(lambda: said.extend(capfd.readouterr()) or all(line in "".join(said) for line in lines), 60, "the lines of costs")


@pytest.mark.parametrize(("devices", "dies"), [(True, 0), ("own groups", 1)])  # rank 0 has then been in a group of the same ranks
def test_a_replacement_joins_a_training_on_devices(tmp_path, devices, dies):
    result = fit(tmp_path, r.steps_form, [(dies, 4, "backward")], (1, 2), changes=[8], devices=devices)
    check(result)
    assert [(c.workers_before, c.workers) for c in result.changes] == [(2, 1), (1, 2)]


@pytest.mark.parametrize("step", [4, 5])  # within an epoch, and the last one of it
@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_death_on_devices_beside_the_next_forward(tmp_path, moment, step):
    result = fit(tmp_path, r.quiet_form_with_a_late_copy, [], (1, 3), devices=True, moment=moment, step=step)
    for returned in result.returns:
        r.check(returned["log"], result.returns)
    assert result.changes[0].died == (1,)
