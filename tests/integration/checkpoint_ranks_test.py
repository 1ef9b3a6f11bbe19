"""Checkpoints over ranks: some ranks save, and more or fewer ranks read; a failure on one rank is an error on all."""

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

import shoal
from shoal import checkpoint
from shoal.exceptions import DataLoss, InvalidArgument, TaskError
from shoal.train import ScalingConfig, Trainer


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


def build(seed=0):
    """A model whose rows no world size divides, some with fewer rows than ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 13), nn.Sequential(nn.Tanh(), nn.Linear(13, 5)), nn.Linear(5, 1), nn.BatchNorm1d(1))


def make(config, seed=0):
    import shoal.optim
    from shoal.fsdp import fully_shard

    model = build(seed)
    fully_shard(model[1])
    fully_shard(model)
    kind = shoal.optim.AdamW if config["optimizer"] == "shoal" else torch.optim.AdamW
    return model, kind(model.parameters(), lr=0.05)


def step(model, optimizer):
    model(torch.randn(8, 7, generator=torch.Generator().manual_seed(1))).pow(3).sum().backward()  # the same batch on each rank
    optimizer.step()
    optimizer.zero_grad()


def whole(model, optimizer):
    """Gathers all parameters and optimizer state."""
    found = {n: getattr(t, "full_tensor", lambda t=t: t)().detach().clone() for n, t in model.state_dict().items()}
    for n, p in model.named_parameters():
        for key, t in optimizer.state[p].items():
            found[f"{n}/{key}"] = getattr(t, "full_tensor", lambda t=t: t)().clone()
    return found


def saving(config):
    model, optimizer = make(config)
    step(model, optimizer)
    step(model, optimizer)
    with torch.no_grad():  # this evaluation leaves the root's parameters unsharded when the checkpoint is saved
        model(torch.zeros(2, 7))
    checkpoint.save(config["path"], model, optimizer, state={"step": 2})
    return whole(model, optimizer)


def loading(config):
    model, optimizer = make(config, seed=1)
    if config["late"]:  # the model has taken a step of its own, so that load() has to open the write window
        step(model, optimizer)
        with torch.no_grad():
            model(torch.zeros(2, 7))
    state = checkpoint.load(config["path"], model, optimizer)
    loaded = whole(model, optimizer)
    with torch.no_grad():
        model.eval()
        return state, loaded, model(torch.ones(3, 7))


def run(loop, world, **config):
    config = {"optimizer": "shoal", "late": False, **config}
    return Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=world)).fit().returns


def expect_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By kind of optimizer: the path of a checkpoint that two ranks saved, and its whole content."""
    made = {}
    for optimizer in ("shoal", "torch"):
        path = str(tmp_path_factory.mktemp(optimizer) / "c")
        made[optimizer] = path, run(saving, 2, path=path, optimizer=optimizer)[0]
    return made


@pytest.mark.parametrize(("optimizer", "world"), [("shoal", 1), ("shoal", 2), ("shoal", 3), ("shoal", 4), ("torch", 3), ("torch", 1)])
def test_a_checkpoint_of_two_ranks_loads_on_any_number(saved, optimizer, world):
    path, contents = saved[optimizer]
    assert checkpoint.read_manifest(path).world_size == 2
    for rank, (state, loaded, _) in enumerate(run(loading, world, path=path, optimizer=optimizer, late=rank_is_late(world))):
        assert state == {"step": 2}, rank
        expect_same(loaded, contents)


def rank_is_late(world):
    return world in (2, 3)


def test_plain_and_sharded_models_load_each_others_checkpoints(saved, tmp_path):
    path, contents = saved["torch"]
    model = build(seed=1)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.load(path, model, optimizer)
    expect_same(whole(model, optimizer), contents)
    checkpoint.save(tmp_path / "plain", model, optimizer, state={})
    model.eval()
    expected = model(torch.ones(3, 7))
    for _, loaded, output in run(loading, 3, path=str(tmp_path / "plain"), optimizer="torch"):
        expect_same(loaded, contents)
        torch.testing.assert_close(output, expected)


def test_four_ranks_save_the_same_values_as_two(saved, tmp_path):
    def again(config):
        model, optimizer = make(config, seed=1)
        checkpoint.load(config["path"], model, optimizer)
        checkpoint.save(config["to"], model, optimizer, state={})

    path, contents = saved["shoal"]
    run(again, 4, path=path, to=str(tmp_path / "four"))
    expect_same(run(loading, 2, path=str(tmp_path / "four"))[0][1], contents)


def test_a_shard_damaged_for_one_rank_fails_on_all(saved, tmp_path):
    import shutil

    path, _ = saved["shoal"]
    broken = tmp_path / "broken"
    shutil.copytree(path, broken)
    file = next(broken.glob("*/model-rank-1-of-2.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x77")

    def failing(config):
        model, optimizer = make(config, seed=1)
        step(model, optimizer)
        before = whole(model, optimizer)
        with pytest.raises(DataLoss, match="is damaged"):
            checkpoint.load(config["path"], model, optimizer)
        after = whole(model, optimizer)
        step(model, optimizer)  # after the failed load, all ranks can train on
        return all(torch.equal(before[n], after[n]) for n in before)

    assert run(failing, 2, path=str(broken)) == [True, True]


def test_an_unwritable_folder_on_rank_0_fails_on_all(tmp_path):
    (tmp_path / "file").touch()

    def failing(config):
        model, optimizer = make(config)
        try:
            checkpoint.save(config["path"], model, optimizer)
        except InvalidArgument as error:
            return error.reason, list(error.context)
        return None

    answers = run(failing, 3, path=str(tmp_path / "file"))
    assert [reason for reason, _ in answers] == ["CheckpointUnwritable"] * 3
    assert answers[1][1] == ["rank 0"]


@pytest.mark.parametrize("what", ["save", "open", "load"])
def test_any_error_on_one_rank_is_raised_on_all(saved, tmp_path, what):
    def failing(config):
        import torch.distributed as dist
        from internals.checkpoint import _load, _save

        def fail(*_):
            raise MemoryError("no memory for this part")

        model, optimizer = make(config)
        if dist.get_rank() == 1 and config["what"] == "open":
            _save.open_store = fail  # as where one host lacks a package
        elif dist.get_rank() == 1:
            _save.write_file = _load._match_model = fail
        try:
            if config["what"] != "load":
                checkpoint.save(config["to"], model, optimizer)
            else:
                checkpoint.load(config["path"], model, optimizer)
        except MemoryError as error:
            return type(error) is MemoryError, str(error)
        return None

    answers = run(failing, 3, what=what, path=saved["shoal"][0], to=str(tmp_path / "c"))
    assert [own for own, _ in answers] == [False, True, False]
    for _, text in answers:
        assert "no memory for this part" in text
    assert "in fail" in answers[0][1]
    assert "rank 1" in answers[2][1]


def test_a_death_while_saving_keeps_the_previous_checkpoint(saved, tmp_path):
    path = str(tmp_path / "c")

    def dying(config):
        import torch.distributed as dist
        from internals.checkpoint import _save

        model, optimizer = make(config)
        checkpoint.save(config["path"], model, optimizer, state={"which": "old"})
        step(model, optimizer)
        if dist.get_rank() == 1:
            _save.write_file = lambda *_: os._exit(7)
        checkpoint.save(config["path"], model, optimizer, state={"which": "new"})

    with pytest.raises((TaskError, shoal.exceptions.ShoalError)):
        run(dying, 2, path=path)
    assert len(list(Path(path).glob(".saving-*"))) == 1
    assert run(loading, 3, path=path)[0][0] == {"which": "old"}


def test_an_asynchronous_save_has_the_values_of_its_call_on_every_rank(tmp_path):
    """The thread is held back, so that the next writes have to copy the values first."""

    def training(config):
        go, run_thread = threading.Event(), threading.Thread.run
        threading.Thread.run = lambda self: (self.name == "shoal-checkpoint" and go.wait(60), run_thread(self))
        model, optimizer = make(config)
        step(model, optimizer)
        found = []
        for how in ("step", "write", "load"):
            expected = whole(model, optimizer)
            pending = checkpoint.save_async(f"{config['path']}/{how}", model, optimizer, state={"how": how})
            if how == "step":
                step(model, optimizer)
            elif how == "write":
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(2)
            else:
                go.set()  # load waits for the save under way
                checkpoint.load(config["path"] + "/step", model, optimizer)
            assert pending.done() == (how == "load")
            go.set()
            pending.wait()
            go.clear()
            found.append(expected)
        go.set()
        checkpoint.save_async(f"{config['path']}/last", model, optimizer, state={"how": "last"})  # the worker waits for it
        return [*found, whole(model, optimizer)]

    contents = run(training, 2, path=str(tmp_path))[0]
    for how, expected in zip(("step", "write", "load", "last"), contents, strict=True):
        state, loaded, _ = run(loading, 1, path=str(tmp_path / how))[0]
        assert state == {"how": how}
        expect_same(loaded, expected)


def test_an_asynchronous_save_that_fails_on_one_rank_fails_on_all(tmp_path):
    def failing(config):
        import torch.distributed as dist
        from internals.checkpoint import _save

        model, optimizer = make(config)
        step(model, optimizer)
        checkpoint.save(config["path"], model, optimizer, state={"which": "old"})
        if dist.get_rank() == 1:
            if config["what"] == "plan":
                optimizer.param_groups[0]["odd"] = object()
            else:
                _save.write_file = lambda *_: os.fsync(10**6)
        pending = checkpoint.save_async(config["path"], model, optimizer, state={"which": "new"})
        step(model, optimizer)
        try:
            pending.wait()
        except shoal.exceptions.ShoalError as error:
            return error.code
        return None

    for what, code in (("plan", "Unimplemented"), ("write", "InvalidArgument")):
        assert run(failing, 2, path=str(tmp_path / what), what=what) == [code, code]
        assert run(loading, 1, path=str(tmp_path / what))[0][0] == {"which": "old"}


@pytest.mark.parametrize("backend", ["gloo", "shoal"])
def test_a_save_in_which_a_rank_came_too_late_fails_no_later_one(tmp_path, backend):
    def training(config):
        import torch.distributed as dist
        from internals.checkpoint import _saving

        import shoal.torch  # noqa: F401  registers the backend

        dist.init_process_group(config["backend"])
        model, optimizer = make(config)
        step(model, optimizer)
        run_save, go = _saving.PendingSave._run, threading.Event()

        def run_late(self):
            if dist.get_rank() == 1:
                go.wait(60)
            self._ranks.group.set_timeout(timedelta(seconds=2))  # only now: making the group may take longer on a busy machine
            run_save(self)

        _saving.PendingSave._run = run_late
        pending = checkpoint.save_async(f"{config['path']}/late", model, optimizer)
        _saving.PendingSave._run = run_save
        if dist.get_rank() == 1:
            dist.barrier()  # rank 0 has given up
        go.set()
        with pytest.raises(Exception):  # noqa: B017, PT011  each rank and backend has its own
            pending.wait()
        if dist.get_rank() == 0:
            dist.barrier()
        checkpoint.save_async(f"{config['path']}/next", model, optimizer, state={"which": "next"})
        checkpoint.wait()
        return pending._ranks.failed

    assert run(training, 2, path=str(tmp_path), backend=backend) == [True, True]
    assert run(loading, 1, path=str(tmp_path / "next"))[0][0] == {"which": "next"}


def states_of(p, times):
    """The states of an optimizer in 8 bits: a scale for each row, twice, a table, one value of all ranks."""
    from torch.distributed.tensor import DTensor, Replicate

    def on_mesh(t, placements, *shape):
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(t * times, p.device_mesh, placements, shape=torch.Size(shape), stride=stride, run_check=False)

    rows = torch.arange(p.to_local().shape[0]) + 1.0
    return {
        "codes": torch.zeros_like(p, dtype=torch.int8),
        "scale": on_mesh(rows.reshape(-1, 1), p.placements, p.shape[0], 1),
        "offset": on_mesh(rows, p.placements, p.shape[0]),
        "columns": on_mesh(torch.full((1, 3), 7.0), [Replicate()], 1, 3),
        "table": torch.arange(4.0) * times,
        "step": torch.tensor(3.0 * times),
    }


def keeping_states_of_other_shapes(config):
    model, optimizer = make(config)
    saved = optimizer.state[model[0].weight] = states_of(model[0].weight, 1)
    checkpoint.save(config["path"], model, optimizer)
    for streaming in (False, True):
        other, its = make(config, seed=1)
        if streaming:
            its.state[other[0].weight] = states_of(other[0].weight, 0)
        checkpoint.load(config["path"], other, its, streaming=streaming)
        for key, value in saved.items():
            found = its.state[other[0].weight][key]
            assert getattr(found, "placements", None) == getattr(value, "placements", None), key
            assert torch.equal(getattr(found, "_local_tensor", found), getattr(value, "_local_tensor", value)), key


def test_states_of_other_shapes_than_their_parameters_are_sharded_as_they_were(tmp_path):
    run(keeping_states_of_other_shapes, 2, path=str(tmp_path / "c"), optimizer="torch")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.load(tmp_path / "c", model, optimizer)
    assert optimizer.state[model[0].weight]["scale"].flatten().tolist() == [1.0, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6]


def saving_what_differs(config):
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    model, optimizer = make(config)
    step(model, optimizer)
    state = optimizer.state[model[0].weight]

    def attempt(of=model, its=optimizer):
        for save in (checkpoint.save, lambda *words: checkpoint.save_async(*words).wait()):
            with pytest.raises(InvalidArgument) as e:
                save(config["path"], of, its)
        found.append(f"{e.value.reason}: {e.value.message}".partition(" between")[0].partition(", which")[0])

    for seen in (torch.full((3,), float(rank)), torch.ones(3 + rank), *([torch.ones(1)] if rank != 1 else [None])):
        state |= {"seen": seen}
        if seen is None:
            del state["seen"]
        attempt()
    state.pop("seen", None)
    optimizer.param_groups[0]["factor"] = float(rank)
    attempt()
    del optimizer.param_groups[0]["factor"]
    attempt({"model": model.state_dict(), "random": torch.tensor([rank])}, None)
    model[3].running_mean.fill_(rank)  # a batch norm has means of its rank's data
    checkpoint.save(config["path"], model.state_dict())
    checkpoint.save(config["path"], model, optimizer)
    return found


def test_values_that_a_checkpoint_has_once_may_not_differ_by_rank(tmp_path):
    differ = ["0.weight/seen differs"] * 2 + ["rank 1 has no 0.weight/seen", "factor of the optimizer's group 0 differs", "random differs"]
    found = run(saving_what_differs, 3, path=str(tmp_path / "c"), optimizer="torch")
    assert found == [[f"RanksDiffer: {what}" for what in differ]] * 3
    assert not list((tmp_path / "c").glob(".saving*"))
    checkpoint.load(tmp_path / "c", model := build(seed=1))
    assert model[3].running_mean.item() == 0


def saving_a_model_of_ddp(config):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    of = checkpoint.Checkpoints(config["path"], keep=2)
    for number in range(4):
        step(model, optimizer)
        of.save(number, model, optimizer, state={"at": number})
    checkpoint.wait()
    if dist.get_rank() == 1:
        checkpoint.save(f"{config['path']}/alone", model, optimizer)
    dist.barrier()
    other = build(seed=1)
    assert of.load(other, torch.optim.AdamW(other.parameters())) == (3, {"at": 3})
    expect_same(other.state_dict(), model.module.state_dict())
    return of.steps()


def test_every_rank_or_one_of_a_model_of_ddp_may_save_it(tmp_path):
    assert run(saving_a_model_of_ddp, 3, path=str(tmp_path / "run")) == [[2, 3]] * 3
    checkpoint.load(tmp_path / "run" / "alone", build())


def saving_beside_groups_of_some_ranks(config):
    import functools

    import torch.distributed as dist

    from shoal.checkpoint import Checkpoints

    dist.new_group = functools.partial(dist.new_group, timeout=timedelta(seconds=30))
    dist.new_group([0])  # a group of one rank alone, as of one that logs
    model, optimizer = make(config)
    step(model, optimizer)
    run = Checkpoints(config["path"], on_preemption=True, every=5)
    asked = [run.should_save(n) for n in (1, 5)]
    run.save(5, model, optimizer).wait()
    return asked, run.steps()


def test_ranks_may_have_different_numbers_of_groups(tmp_path):
    assert run(saving_beside_groups_of_some_ranks, 3, path=str(tmp_path / "run")) == [([False, True], [5])] * 3


def test_any_mesh_loads_what_any_other_saved(tmp_path):
    """Meshes of one and two dims, and replicas: each part is written once, and the values are those of the whole tensors."""

    def tensors(values, dims, placements):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import distribute_tensor

        mesh = init_device_mesh("cpu", dims, mesh_dim_names=("a", "b")[: len(dims)])
        return {n: distribute_tensor(v, mesh, placements) for n, v in values.items()}

    def moving(config):
        from torch.distributed.tensor import Replicate, Shard

        layouts = {
            "rows": ((4,), [Shard(0)]),
            "columns": ((4,), [Shard(1)]),
            "hybrid": ((2, 2), [Replicate(), Shard(0)]),
            "replicas": ((2, 2), [Shard(1), Replicate()]),
            "both": ((2, 2), [Shard(0), Shard(1)]),
            "copies": ((4,), [Replicate()]),
        }
        torch.manual_seed(0)
        values = {f"t{i}": torch.randn(shape) for i, shape in enumerate([(7, 5), (8, 4), (3, 9, 2), (2, 1), (1, 6)])}
        for saved, (dims, placements) in layouts.items():
            checkpoint.save(f"{config['path']}/{saved}", tensors(values, dims, placements))
            for loaded, layout in layouts.items():
                found = tensors({n: torch.zeros_like(v) for n, v in values.items()}, *layout)
                checkpoint.load(f"{config['path']}/{saved}", found)
                assert all(torch.equal(found[n].full_tensor(), v) for n, v in values.items()), (saved, loaded)
        return True

    assert run(moving, 4, path=str(tmp_path)) == [True] * 4
    for path in tmp_path.iterdir():
        manifest = checkpoint.read_manifest(path)
        elements = sum(f.num_bytes - f.header_bytes for f in manifest.files.values()) // 4
        assert elements == 35 + 32 + 54 + 2 + 6, path
        plain = {f"t{i}": torch.zeros(shape) for i, shape in enumerate([(7, 5), (8, 4), (3, 9, 2), (2, 1), (1, 6)])}
        checkpoint.load(path, plain)
        torch.manual_seed(0)
        assert torch.equal(plain["t0"], torch.randn(7, 5))
