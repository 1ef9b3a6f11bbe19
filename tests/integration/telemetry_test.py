"""A run's folder (docs/runs.md): what ranks and driver record there."""

import math
import os
import pathlib
import time

import pytest
import recovery_loops as r
import training_loops as loops
from internals.core import process
from recorded import ACTIVITIES, recorded

from shoal.exceptions import ResourceExhausted
from shoal.train import ScalingConfig, Trainer, get_context, report, steps

NAP_S = 0.02
ANSWER_S, CALL_S = 0.6, 0.2  # seconds of the driver's answer after a death, and of on_change
STEPS = 30  # 6 epochs of training_loops


@pytest.fixture
def folder(module_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path / "run"))
    return tmp_path / "run"


def fit(loop, workers, **config):
    return Trainer(loop, train_loop_config={"epochs": 6, **config}, scaling_config=ScalingConfig(workers)).fit()


def test_each_rank_records_its_steps(folder):
    result = fit(loops.loop, 2)
    ranks = recorded(folder)
    assert [p.facts["rank"] for p in ranks] == [0, 1]
    for p in ranks:
        rows = p.rows("steps")
        assert [s["step"] for s in rows] == list(range(1, STEPS + 1))
        assert all(0 <= s["us"] - sum(s[activity] for activity in ACTIVITIES) < 20 for s in rows)  # each is cut to whole microseconds
        assert all(s[activity] > 0 for s in rows for activity in ("load", "fwd", "bwd", "opt"))
        assert p.facts["units"] == ["", "0", "3"]
        spans = p.rows("spans")
        assert [s["step"] for s in spans[:3]] == [1, 2, 3]
        seen = {(kind, unit) for kind, unit, _, _ in spans[0]["spans"]}
        assert seen >= {("fwd", 0), ("fwd", 1), ("fwd", 2), ("bwd", 1), ("bwd", 2), ("load", -1), ("opt", -1)}  # the root has no parameters
        (memory,) = p.events("memory")
        kinds, predicted = memory["kinds"], memory["predicted"]
        assert kinds["weights"] == kinds["gradients"] > 0
        assert 2 * kinds["weights"] <= kinds["optimizer"] < 2 * kinds["weights"] + 100  # two moments, and numbers of steps
        assert predicted["weights"] >= kinds["weights"] / 2
        (end,) = p.events("end")
        assert (end["code"], end["cause"]) == (0, "")
        assert p.rows("samples")[-1]["rss"] > 1 << 20
    losses = [m["values"]["loss"] for m in ranks[0].rows("metrics")]
    assert losses == [m["loss"] for m in result.metrics_history]
    assert [m["step"] for m in ranks[0].rows("metrics")] == list(range(1, STEPS + 1))
    assert not ranks[1].rows("metrics")
    (driver,) = recorded(folder, "driver")
    assert driver.events("begin")
    assert driver.events("end")[0]["code"] == 0


def naps(config):
    """Rank 1 sleeps in each forward. With more units than gradient slots the others wait for a slot. The loop has no collective calls."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from shoal.fsdp import fully_shard
    from shoal.train import State

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    for unit in (*model, model):
        fully_shard(unit)
    state = State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    slow = get_context().get_world_rank() == 1
    model[3].register_forward_hook(lambda *_: time.sleep(NAP_S) if slow else None)
    for x in steps(DataLoader(torch.randn(STEPS, 8)), state, epochs=1):
        model(x).sum().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()


def test_the_others_wait_for_a_slow_rank(folder):
    fit(naps, 2)
    fast, slow = ([s for s in p.rows("steps") if s["step"] > 1] for p in recorded(folder))
    assert all(s["fwd"] >= NAP_S * 1e6 for s in slow)
    waits = [s["gather"] + s["reduce"] + s["window"] + s["sync"] for s in fast]
    assert sum(waits) >= 0.7 * NAP_S * 1e6 * len(fast)


def slow_recovery(config):
    """The driver's answer after a death takes ANSWER_S, and the function that the user passes as on_change CALL_S."""
    from internals.train import _elastic_gang

    def build_with_a_call(config):
        state, loader = build(config)
        state.on_change = lambda change: time.sleep(CALL_S)
        return state, loader

    def get_late(reference):
        time.sleep(ANSWER_S)
        return get(reference)

    build, get = loops.build, _elastic_gang.get
    loops.build, _elastic_gang.get = build_with_a_call, get_late
    return r.steps_form(config)


def test_a_change_and_a_death_are_events_and_no_step_is_missing(folder, tmp_path):
    config = {"epochs": r.EPOCHS, "deaths": [(1, 7, "backward")], "folder": str(tmp_path)}
    Trainer(slow_recovery, train_loop_config=config, scaling_config=ScalingConfig((1, 3))).fit()
    (driver,) = recorded(folder, "driver")
    generations = driver.events("generation")
    first, second, *_ = generations  # another worker may take the dead one's place, as early as in the step of the death
    worlds = {g["generation"]: g["world"] for g in generations}
    (death,) = driver.events("death")
    assert (first["world"], second["world"], second["cause"], second["steps_lost"]) == (3, 2, "dies", 0)
    assert death["rank"] == 1
    assert second["pause_us"] == pytest.approx(sum(second["phases"].values()), abs=50)
    assert first["t"] < death["t"] < second["t"]
    # The dead one may have written no row yet, and a newcomer of the last step no end.
    ranks = [p for p in recorded(folder) if p.facts["start"] < death["t"]]
    assert len(ranks) == 3
    (dead,) = [p for p in ranks if not p.events("end")]
    assert {s["gen"] for s in dead.rows("steps")} <= {1}
    for p in ranks:
        if p is not dead:
            rows = p.rows("steps")
            assert sorted({s["step"] for s in rows}) == list(range(1, rows[-1]["step"] + 1))
            assert (1, 3) in {(s["gen"], s["world"]) for s in rows}
            assert all(s["world"] == worlds[s["gen"]] for s in rows)
            of_change = next(s for s in rows if s["gen"] > 1)
            assert of_change["sync"] >= ANSWER_S * 1e6
            assert of_change["out"] >= CALL_S * 1e6


def test_each_fit_of_a_folder_has_an_id(folder):
    for _ in range(2):
        fit(loops.loop, 1, epochs=1)
    ids = [[begin["fit"] for p in recorded(folder, role) for begin in p.events("begin")] for role in ("driver", "rank")]
    assert sorted(ids[0]) == sorted(ids[1])
    assert len({*ids[0]}) == 2


def test_the_driver_obeys_a_runtime_env(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    given = {"SHOAL_RUN_FOLDER": str(other), "SHOAL_RECORD": "0"}
    monkeypatch.setattr(process.state, "runtime_env", {"env_vars": given})
    fit(loops.loop, 1, epochs=1)
    assert not [*tmp_path.iterdir()]
    del given["SHOAL_RECORD"]
    fit(loops.loop, 1, epochs=1)
    assert [len(recorded(other, role)) for role in ("driver", "rank")] == [1, 1]
    assert not folder.exists()


def two_models(config):
    import torch

    from shoal.fsdp import fully_shard

    models = [fully_shard(torch.nn.Linear(n, n, bias=False)) for n in (4, 16)]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], momentum=0.9)
    optimizer.state["of the user"] = 3
    for n, m in zip((4, 16), models, strict=True):
        m(torch.ones(1, n)).sum().backward()
    optimizer.step()
    model = fully_shard(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    odd = torch.optim.SGD(model.parameters(), lr=0.1)
    odd.state = None
    odd.step()


def test_memory_is_counted_for_each_model(folder):
    fit(two_models, 1)
    (rank,) = recorded(folder)
    kinds = [e["kinds"] for e in rank.events("memory")]
    assert kinds == [{"weights": 4 * n * n, "gradients": 4 * n * n, "optimizer": 4 * n * n} for n in (4, 16)]


def spoilt(config):
    """Rank 1 reports two losses that are NaN. The gradients are NaN in steps 6 to 10."""
    import torch

    from shoal.fsdp import fully_shard
    from shoal.optim import clip_grad_norm_

    model = fully_shard(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = get_context().get_world_rank()
    for step in range(1, 12):
        (model(torch.ones(1, 4)).sum() * (math.nan if 6 <= step < 11 else 1)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report({"loss": math.nan if rank == 1 and step in (3, 4) else 1.0, "other": math.nan})


def test_numbers_that_are_not_finite_are_few_events_of_their_rank(folder):
    fit(spoilt, 2)
    first, second = ([(e["kind"], e["what"], e["step"]) for e in p.rows("events") if "finite" in e["kind"]] for p in recorded(folder))
    norms = [*(("not_finite", "grad_norm", step) for step in (6, 7, 8)), ("finite", "grad_norm", 11)]
    assert first == norms
    assert second == [("not_finite", "loss", 3), ("not_finite", "loss", 4), ("finite", "loss", 5), *norms]


def slow_save(config):
    """The disk of rank 1 is slow."""
    import torch
    from internals.checkpoint import _disk

    from shoal import checkpoint
    from shoal.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    if get_context().get_world_rank() == 1:
        sync = _disk.disk.sync
        _disk.disk.sync = lambda fd: (time.sleep(ANSWER_S), sync(fd))
    checkpoint.save(config["path"], model)


def test_the_time_of_a_save_is_apart_from_its_waits(folder, tmp_path):
    fit(slow_save, 2, path=str(tmp_path / "saved"))
    (fast,), (slow,) = (p.events("save") for p in recorded(folder))
    assert fast["us"] - fast["own_us"] >= ANSWER_S * 1e6 / 2
    assert slow["own_us"] >= ANSWER_S * 1e6


def test_a_training_that_cannot_begin_leaves_no_folder(module_cluster, module_home, monkeypatch):
    monkeypatch.delenv("SHOAL_RUN_FOLDER", raising=False)
    runs = pathlib.Path(os.environ["SHOAL_HOME"], "runs")
    with pytest.raises(ResourceExhausted):
        Trainer(loops.loop, scaling_config=ScalingConfig(1, resources_per_worker={"CPU": 1000})).fit()
    assert not [*runs.iterdir()]
    Trainer(loops.loop, train_loop_config={"epochs": 1}).fit()
    (made,) = runs.iterdir()
    assert [len(recorded(made, role)) for role in ("driver", "rank")] == [1, 1]


def test_recording_is_switched_off_by_a_variable(module_cluster, folder, monkeypatch):
    monkeypatch.setenv("SHOAL_RECORD", "0")
    fit(loops.loop, 1)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_ends_no_training(module_cluster, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_RUN_FOLDER", str(tmp_path / "file"))
    assert len(fit(loops.loop, 1).metrics_history) == STEPS
    assert "this process records nothing" in capfd.readouterr().err
