"""Trainings with ``deterministic=True``: the same bits for any number of workers, through changes and deaths."""

import functools
import os

import deterministic_loops as d
import pytest

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.train import ScalingConfig, Trainer

pytestmark = pytest.mark.usefixtures("module_cluster")

EPOCHS, STEPS = 4, 20
MOMENTUM = ("SGD", {"momentum": 0.9})
CONFIGS = {
    "plain": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "readers": {"readers": 2},
    "sgd": {"optimizer": MOMENTUM},
    "double": {"double": True},
}
ALL = [(workers, name) for workers in (2, 3, 4) for name in CONFIGS]
SLICE = [(workers, "plain") for workers in (2, 3, 4)] + [(3, name) for name in CONFIGS if name != "plain"]  # 3: parts of unequal sizes


def fit(workers, loop=d.loop_form, on_report=None, folder="", deaths=(), logical_ranks=4, initial=None, **config):
    config = {"epochs": EPOCHS, "deaths": list(deaths), "folder": str(folder), **config}
    scaling = ScalingConfig(workers, deterministic=True, logical_ranks=logical_ranks, initial_workers=initial)
    trainer = Trainer(loop, train_loop_config=config, scaling_config=scaling, on_report=on_report and (lambda m: on_report(trainer, m)))
    return trainer.fit()


@functools.cache
def reference(name):
    return fit(1, **CONFIGS[name])


def check(result, name="plain", expected=None):
    expected = expected or reference(name)
    assert [m["step"] for m in expected.metrics_history] == list(range(1, STEPS + 1))
    for got, wanted in zip(result.metrics_history, expected.metrics_history, strict=True):
        assert got == wanted  # floats, bit for bit
    for returned in result.returns:
        assert returned == expected.returns[0]


@pytest.mark.parametrize(("workers", "name"), ALL if "SHOAL_SEEDS" in os.environ else SLICE)
def test_any_fixed_number_of_workers_gives_the_same_bits(workers, name):
    check(fit(workers, **CONFIGS[name]), name)


def test_workers_stand_at_their_places_in_the_tree_and_parts_may_have_no_sample():
    expected = fit(1, logical_ranks=8)
    check(fit(5, logical_ranks=8), expected=expected)  # five workers have 1, 1, 2, 2 and 2 logical ranks; the last batch has 5 samples
    assert expected.metrics_history[:5] != reference("plain").metrics_history[:5]


def test_the_reference_learns_and_draws_dropout():
    history = reference("plain").metrics_history
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    assert all(m["norm"] > 0.5 for m in history[:3])  # so gradients are clipped
    assert reference("plain").returns[0]["bits"] != reference("bf16").returns[0]["bits"]
    assert history[:5] != reference("sgd").metrics_history[:5]


@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_changes_of_the_number_of_workers_change_no_bit(name):
    changes = {2: 2, 5: 4, 8: 3, 11: 1, 14: 2}

    def scale(trainer, metrics):
        if metrics["step"] in changes:
            trainer.scale(changes[metrics["step"]])

    result = fit((1, 4), on_report=scale, changes=list(changes), **CONFIGS[name])
    assert [c.workers for c in result.changes] == [2, 4, 3, 1, 2]
    check(result, name)


@pytest.mark.parametrize("moment", ["earlier", "between", "recorded", "committed", "inside", "after"])
def test_a_death_changes_no_bit(tmp_path, moment):
    result = fit((1, 3), d.steps_form, folder=tmp_path, deaths=[(2, 7, moment)])  # rank 2 of 3 has two of four logical ranks
    assert result.changes[0].died == (2,)
    check(result)


def test_changes_and_a_death_within_accumulated_gradients_change_no_bit(tmp_path):
    def scale(trainer, metrics):
        if metrics["step"] == 4:
            trainer.scale(2)

    expected = fit(1, accumulates=3)
    result = fit((1, 3), d.steps_form, scale, tmp_path, [(0, 11, "between")], changes=[4], accumulates=3)
    assert [(c.step, c.workers, c.died) for c in result.changes[:2]] == [(6, 2, ()), (9, 1, (0,))]
    check(result, expected=expected)


def test_a_death_under_mixed_precision_changes_no_bit(tmp_path):
    result = fit((1, 4), d.steps_form, folder=tmp_path, deaths=[(0, 4, "committed"), (1, 9, "between")], bf16=True)
    assert sum(len(c.died) for c in result.changes) == 2
    check(result, "bf16")


def test_a_loop_that_runs_again_after_a_death_gives_the_same_bits(tmp_path):
    result = fit((1, 2), folder=tmp_path, deaths=[(0, 6, "earlier")])
    assert result.changes[0].died == (0,)
    check(result)


@pytest.mark.parametrize(("workers", "devices"), [(4, "own groups"), (4, True)])
def test_a_model_outside_of_arenas_has_the_bits_of_one_in_arenas(workers, devices):
    check(fit(workers, devices=devices))


@pytest.mark.parametrize("workers", range(1, 5) if "SHOAL_SEEDS" in os.environ else [3])
def test_outside_of_arenas_any_number_of_workers_gives_the_same_bits(workers):
    check(fit(workers, devices=True))


def test_outside_of_arenas_a_worker_with_few_parts_repeats_its_last_one_and_no_other_pass():
    check(fit(3, devices=True, evaluates="last"), expected=fit(1, evaluates="last"))
    with pytest.raises(Unimplemented, match="each part of a batch but the last has one forward of the model"):
        fit(3, devices=True, evaluates="each")


def test_outside_of_arenas_changes_of_the_number_of_workers_change_no_bit():
    changes = {3: 3, 7: 1, 11: 2}

    def scale(trainer, metrics):
        if metrics["step"] in changes:
            trainer.scale(changes[metrics["step"]])

    result = fit((1, 3), on_report=scale, initial=2, changes=list(changes), devices=True)
    assert [c.workers for c in result.changes] == [3, 1, 2]
    check(result)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("torch", Unimplemented, "does not know if an element's update by torch.optim.adamw.AdamW depends on the shards"),
        ("muon", Unimplemented, "does not know if an element's update by shoal.optim"),
        ("statistics", Unimplemented, "running statistics of BatchNorm1d"),
        ("half", InvalidArgument, "travel in bfloat16"),
        ("copies", InvalidArgument, "is trained and not sharded"),
        ("replicas", Unimplemented, "not one with replicas"),
        ("backward", Unimplemented, "a second backward pass ran in one part"),
        ("accumulates", Unimplemented, "set_requires_gradient_sync"),
    ],
)
def test_what_depends_on_the_workers_is_refused(kind, error, message):
    with pytest.raises(error, match=message):
        Trainer(d.unfit, train_loop_config=kind, scaling_config=ScalingConfig(2, deterministic=True)).fit()


def test_the_number_of_logical_ranks_is_a_power_of_two_that_the_workers_can_divide():
    assert ScalingConfig((1, 3), deterministic=True).logical_ranks == 4
    assert ScalingConfig(1, deterministic=True).logical_ranks == 1
    with pytest.raises(InvalidArgument, match="up to 5 workers cannot divide 4 logical ranks"):
        ScalingConfig((2, 5), deterministic=True, logical_ranks=4)
    for wrong in (0, 3, 128, "4"):
        with pytest.raises(InvalidArgument, match="power of two from 1 to 64"):
            ScalingConfig(1, deterministic=True, logical_ranks=wrong)
    with pytest.raises(InvalidArgument, match="without deterministic=True has no effect"):
        ScalingConfig(1, logical_ranks=4)
