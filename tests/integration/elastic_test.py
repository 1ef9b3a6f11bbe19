"""Elastic trainings: workers come and go between two steps, and the losses stay those of a training of fixed size."""

import accumulating_loops as a
import pytest
import torch
import training_loops as loops
from internals.train import driver_run

import shoal
from shoal.exceptions import ActorDiedError, ActorUnavailableError, InvalidArgument, ShoalError, TaskError, Unimplemented
from shoal.train import Change, ScalingConfig, State, Trainer, get_context, report, steps
from shoal.train._state import check_elastic

pytestmark = pytest.mark.usefixtures("module_cluster")

EPOCHS = 6  # an epoch has 5 steps


class Scaler:
    """Calls ``scale`` after given steps. The loop waits there until the change is published, so that it comes at the next step."""

    def __init__(self, changes, loop=loops.loop, bounds=(1, 4), **config):
        self.changes, self.answers = dict(changes), []
        config = {"epochs": EPOCHS, "changes": list(changes), **config}
        self.trainer = Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig(bounds), on_report=self.reported)

    def reported(self, metrics):
        if metrics["step"] in self.changes:
            self.answers.append(self.trainer.scale(self.changes[metrics["step"]]))


@pytest.mark.parametrize("shard", [True, False])
def test_losses_are_those_of_a_fixed_size_while_workers_come_and_go(shard):
    changes = {1: 2, 4: 4, 7: 3, 12: 1, 17: 2}
    scaler = Scaler(changes, loop=loops.loop if shard else loop_of_copies, shard=shard)
    result = scaler.trainer.fit()
    history = result.metrics_history
    assert [m["workers"] for m in history] == [4] + [2] * 3 + [4] * 3 + [3] * 5 + [1] * 5 + [2] * 13
    everything = list(range(loops.NUM_SAMPLES))
    assert {e: sorted(s) for e, s in loops.samples_by_epoch(history).items()} == dict.fromkeys(range(EPOCHS), everything)
    assert [m["loss"] for m in history] == pytest.approx(loops.plain_run([m["samples"] for m in history]), rel=1e-5)
    assert [m["lr"] for m in history] == pytest.approx([1e-2 * 0.9 ** (step // 7) for step in range(1, 31)])
    assert [(c.generation, c.workers_before, c.workers) for c in result.changes] == [
        (2, 4, 2), (3, 2, 4), (4, 4, 3), (5, 3, 1), (6, 1, 2)
    ]  # fmt: skip
    assert [c.step for c in result.changes] == list(changes)
    assert shoal.get(scaler.answers) == result.changes
    assert all(c.seconds > 0 for c in result.changes)
    if shard:  # the workers share the memory of parameters and states
        assert all(c.moved_bytes == 0 for c in result.changes)
    assert all(sum(c.phases.values()) == pytest.approx(c.seconds) for c in result.changes)
    first, last = result.returns  # the second one joined last: it draws the same random numbers from there on
    assert (first["rank"], last["rank"], first["world"], last["world"]) == (0, 1, 2, 2)
    assert first["seen"] == [2, 4, 3, 1, 2]
    assert last["seen"] == [2]
    assert first["step"] == last["step"] == 30
    if shard:  # a change leaves nothing behind
        assert first["ending"] == last["ending"]


@pytest.mark.parametrize("reduced", ["each", "late", "kept"])
def test_changes_wait_for_the_step_of_the_optimizer(reduced):
    result = Scaler({4: 1, 8: 3}, a.accumulating_form, (1, 3), reduced=reduced, epochs=3).trainer.fit()
    if reduced != "kept":  # there the weights of all parts are those of the last batch
        a.check_accumulated(result.metrics_history, epochs=3)
    assert [(c.step, c.workers) for c in result.changes] == [(6, 1), (9, 3)]


def loop_of_copies(config):
    """A loop over a model that is not sharded: each worker has a copy, and adds the gradients up by itself."""
    import torch.distributed as dist

    state, loader = loops.build(config)
    seen = []
    state.on_change = lambda change: seen.append(change.workers)

    def weigh(p):
        p.grad.mul_(state.samples / state.global_samples)
        dist.all_reduce(p.grad)

    for p in state.model.parameters():
        p.register_post_accumulate_grad_hook(weigh)
    for batch in steps(loader, state, epochs=config["epochs"]):
        report(loops.train_step(state, batch))
        if state.step in config["changes"]:
            shoal.wait([state.gang._next], timeout=120)
    return {"rank": get_context().get_world_rank(), "world": get_context().get_world_size(), "seen": seen, "step": state.step}


class Listener:
    """Keeps what a tracker gets, in order."""

    def __init__(self):
        self.calls = []
        self.on_begin = self.on_change = self.on_end = self.calls.append

    def __call__(self, metrics):
        self.calls.append(metrics)


def test_a_training_begins_with_initial_workers_and_keeps_that_number_until_scale():
    def reported(metrics):
        if metrics["step"] == 8:
            trainer.scale(3)

    scaling = ScalingConfig((1, 4), initial_workers=2)
    config = {"epochs": EPOCHS, "changes": [8]}
    listener = Listener()
    trainer = Trainer(loops.loop, train_loop_config=config, scaling_config=scaling, on_report=[reported, listener])
    result = trainer.fit()
    assert [m["workers"] for m in result.metrics_history] == [2] * 8 + [3] * 22
    assert listener.calls == [config, *result.metrics_history[:8], *result.changes, *result.metrics_history[8:], None]


@pytest.mark.parametrize(("bounds", "initial"), [((1, 4), 5), ((2, 4), 1), ((1, 4), "2"), (4, 2)])
def test_initial_workers_are_within_the_bounds(bounds, initial):
    with pytest.raises(InvalidArgument, match="is no number within num_workers="):
        ScalingConfig(bounds, initial_workers=initial)


def test_new_workers_get_the_generators_of_random_numbers():
    result = Scaler({2: 1, 5: 3}).trainer.fit()
    assert len({r["random"] for r in result.returns}) == 1  # each loop draws once, behind its last step


def test_the_same_number_changes_nothing_and_other_numbers_are_refused():
    errors = []

    class Refused(Scaler):
        def reported(self, metrics):
            super().reported(metrics)
            if metrics["step"] != 2:
                return
            for wrong in (0, 5, "3", None):
                with pytest.raises(InvalidArgument, match="is no number of workers from 1 to 4"):
                    self.trainer.scale(wrong)
                errors.append(wrong)

    scaler = Refused({2: 4})
    scaler.trainer._config["changes"] = []
    result = scaler.trainer.fit()
    assert errors == [0, 5, "3", None]
    assert result.changes == []
    assert shoal.get(scaler.answers) == [Change(1, 4, 4)]


def test_scale_needs_an_elastic_training_that_runs():
    with pytest.raises(InvalidArgument, match="trains nothing now"):
        Scaler({}).trainer.scale(2)
    errors = []

    def scale(metrics):
        try:
            trainer.scale(2)
        except InvalidArgument as error:
            errors.append(str(error))

    with pytest.raises(TypeError, match="on_report is a function, a tracker or a list of these, not int"):
        Trainer(loop_that_reports_once, on_report=[scale, 1])
    trainer = Trainer(loop_that_reports_once, scaling_config=ScalingConfig(1), on_report=scale)
    trainer.fit()
    assert len(errors) == 1
    assert "fixed at 1" in errors[0]


def loop_that_reports_once():
    report({})


@pytest.mark.parametrize("bounds", [(0, 2), (3, 2), (1, 2, 3), ("1", "2"), ()])
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(InvalidArgument, match="num_workers is a number from 1 on, or"):
        ScalingConfig(bounds)


def loop_whose_newcomers_fail(config):
    if get_context().get_world_size() == 1:  # a new worker, before it joins
        raise ValueError("no disk on this host")
    state, loader = loops.build(config)
    for batch in steps(loader, state, epochs=1_000_000):
        report(loops.train_step(state, batch))
        if state.step in config["changes"][:1]:
            shoal.wait([state.gang._next], timeout=120)
        ends = bool(shoal.get(config["log"].all.remote())) if get_context().get_world_rank() == 0 else False
        if state.mean(ends) > 0:
            break
    return get_context().get_world_size()


def test_a_new_worker_whose_loop_fails_does_not_stop_the_training(log, capfd):

    class Logged(Scaler):
        def reported(self, metrics):
            super().reported(metrics)
            if len(self.answers) == 2 and shoal.wait(self.answers[1:], timeout=0)[0]:
                log.add.remote("the request has failed")

    scaler = Logged({1: 2, 3: 4}, loop=loop_whose_newcomers_fail, bounds=(2, 4), log=log)
    result = scaler.trainer.fit()
    with pytest.raises(InvalidArgument, match=r"(?s)the number of workers was not changed: .*no disk on this host"):
        shoal.get(scaler.answers[1])
    assert [c.workers for c in result.changes] == [2]
    assert result.returns == [2, 2]
    assert len(result.failures) == 1
    assert "no disk on this host" in result.failures[0]
    assert "failed before it joined, and the training goes on" in capfd.readouterr().err


def loop_that_leaves_noisily(config):
    state, loader = loops.build(config)
    try:
        for batch in steps(loader, state, epochs=config["epochs"]):
            report(loops.train_step(state, batch))
            if state.step in config["changes"]:
                shoal.wait([state.gang._next], timeout=120)
    except Exception:
        raise AssertionError("a worker that leaves raises no Exception") from None
    finally:
        if get_context().get_world_rank() > 0:
            raise ValueError("an error while the loop unwinds")
    return state.step


def test_an_error_in_the_loop_of_a_worker_that_leaves_is_not_the_trainings():
    assert Scaler({2: 1}, loop=loop_that_leaves_noisily, bounds=(1, 2)).trainer.fit().returns == [5 * EPOCHS]


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_an_embedding_that_renormalises_its_rows_is_refused_by_name(kind):
    model = torch.nn.ModuleDict({"words": kind(4, 2, max_norm=1.0)})
    with pytest.raises(Unimplemented, match=rf"the forward of {kind.__name__} 'words' in model writes to its weight \(max_norm=1\)"):
        check_elastic(State(model=model))
    check_elastic(State(model=kind(4, 2)))


def loop_that_dies(config):
    import os
    import signal

    state, loader = loops.build(config)
    for batch in steps(loader, state, epochs=config["epochs"]):
        report(loops.train_step(state, batch))
        if state.step == 3 and get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_fails_a_training_without_protection_with_the_first_cause():
    trainer = Trainer(loop_that_dies, train_loop_config={"epochs": EPOCHS}, scaling_config=ScalingConfig((1, 2), protect=False))
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        trainer.fit()


@pytest.mark.parametrize("dies", [True, False])
def test_a_broken_connection_to_a_worker_may_be_its_death(monkeypatch, dies):
    """The connections of a lost host can break before the head reports the loss."""
    plain, seen = driver_run.failure, []

    def failure(ref, where):
        error = plain(ref, where)
        if isinstance(error, ActorDiedError if dies else TaskError):
            seen.append(ref)
            return ActorUnavailableError("the connection broke") if ref is seen[0] else error
        return error

    monkeypatch.setattr(driver_run, "failure", failure)
    loop = loop_that_dies if dies else loop_that_fails
    trainer = Trainer(loop, train_loop_config={"epochs": EPOCHS}, scaling_config=ScalingConfig((1, 2)))
    if dies:
        assert trainer.fit().changes[0].died
    else:
        with pytest.raises(ShoalError, match=r"the connection broke|an error of the loop"):  # the error of either rank
            trainer.fit()
    assert seen


def loop_that_fails(config):
    raise ValueError("an error of the loop")


def loop_with_a_list(config):
    for batch in steps([1, 2, 3], State()):
        report({"batch": batch})


def test_an_elastic_training_reports_a_loader_that_cannot_be_divided():
    with pytest.raises(InvalidArgument, match=r"takes a torch\.utils"):
        Trainer(loop_with_a_list, train_loop_config={}, scaling_config=ScalingConfig((1, 2))).fit()


def loop_that_reports_a_tensor_of_a_device(config):
    import torch

    on_device, of_torch, pickled = torch.ones(2), torch.Tensor.device, torch.Tensor.__reduce_ex__

    def refuse(tensor, protocol):
        assert tensor is not on_device, "pickled as a tensor of a device, which the driver may not have"
        return pickled(tensor, protocol)

    torch.Tensor.device = property(lambda t: torch.device("cuda") if t is on_device else of_torch.__get__(t))
    torch.Tensor.__reduce_ex__ = refuse
    report({"parts": [on_device]})


def test_a_report_brings_tensors_of_devices_in_the_hosts_memory():
    result = Trainer(loop_that_reports_a_tensor_of_a_device, train_loop_config={}, scaling_config=ScalingConfig(1)).fit()
    assert torch.equal(result.metrics["parts"][0], torch.ones(2))
