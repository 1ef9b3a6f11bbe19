"""The content of a model and its optimizer beside plain tensors: wrappers, extra state, options; and files that are none."""

import json
import os
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from internals.checkpoint import Ranks, _Loading, _plan, contents_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shoal import checkpoint
from shoal.exceptions import DataLoss, InvalidArgument, Unimplemented
from shoal.optim import AdamW


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def trained(kind=AdamW):
    model = build()
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.randn(8, 7)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_options_that_a_new_group_lacks_are_restored(tmp_path):
    model, optimizer = trained(torch.optim.AdamW)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    optimizer.param_groups[0]["title"] = "all"
    checkpoint.save(tmp_path / "c", model, optimizer)
    other = build(seed=1)
    its = torch.optim.AdamW(other.named_parameters(), lr=7.0)
    checkpoint.load(tmp_path / "c", other, its)
    assert its.param_groups[0]["initial_lr"] == 0.1
    assert its.param_groups[0]["title"] == "all"
    assert its.param_groups[0]["param_names"] == [n for n, _ in other.named_parameters()]
    torch.optim.lr_scheduler.LambdaLR(its, lambda _: 0.5, last_epoch=3)


def wrapped(model, how):
    if how == "compiled":
        return torch.compile(model)
    if how == "a compiled part":
        model[0] = torch.compile(model[0])
    return torch.nn.DataParallel(torch.compile(model)) if how == "both" else model


@pytest.mark.parametrize("loaded", ["plain", "both"])
@pytest.mark.parametrize("saved", ["plain", "compiled", "a compiled part", "both"])
def test_wrapped_models_and_plain_ones_load_each_others_checkpoints(tmp_path, saved, loaded):
    model, optimizer = trained()
    checkpoint.save(tmp_path / "c", wrapped(model, saved), optimizer)
    assert next(iter(checkpoint.read_manifest(tmp_path / "c").tensors)) == "0.bias"
    checkpoint.save(tmp_path / "dict", wrapped(trained()[0], saved).state_dict())
    for path in ("c", "dict"):
        other = build(seed=1)
        its = AdamW(other.parameters())
        checkpoint.load(tmp_path / path, wrapped(other, loaded), its if path == "c" else None)
        assert torch.equal(other[0].weight, model[0].weight)
        assert torch.equal(other[2].bias, model[2].bias)


def rewrite(path, **changes):
    manifest = checkpoint.read_manifest(path)
    (path / "manifest.json").write_text(replace(manifest, **changes).to_json())


def test_an_option_that_would_replace_the_parameters_of_a_group_is_damage(tmp_path):
    model, optimizer = trained()
    checkpoint.save(tmp_path, model, optimizer)
    (group,) = checkpoint.read_manifest(tmp_path).groups
    rewrite(tmp_path, groups=(replace(group, options={**group.options, "params": []}),))
    with pytest.raises(DataLoss, match=r"is inconsistent.*options"):
        checkpoint.load(tmp_path, model, optimizer)
    assert optimizer.param_groups[0]["params"]


def test_names_of_wrappers_inside_of_a_model_are_taken_out_of_earlier_checkpoints(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.DataParallel(nn.Linear(2, 1)))

    def longer(of):
        return {name.replace("1.", "1.module."): value for name, value in of.items()}

    model, other = build(), build()
    optimizer, its = AdamW(model.parameters()), AdamW(other.parameters())
    model[1].module(model[0](torch.ones(1, 2))).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path, model, optimizer)
    saved = checkpoint.read_manifest(tmp_path)
    groups = tuple(replace(g, parameters=tuple(longer(dict.fromkeys(g.parameters)))) for g in saved.groups)
    rewrite(tmp_path, tensors=longer(saved.tensors), optimizer_state=longer(saved.optimizer_state), groups=groups)
    checkpoint.load(tmp_path, other, its)
    assert torch.equal(other[1].module.weight, model[1].module.weight)
    assert torch.equal(its.state[other[1].module.weight]["exp_avg"], optimizer.state[model[1].module.weight]["exp_avg"])


def test_a_part_of_a_wrapped_model_may_have_the_name_module(tmp_path):
    model, other = (nn.Sequential(OrderedDict(module=nn.Linear(2, 2), last=nn.Linear(2, 1))) for _ in range(2))
    checkpoint.save(tmp_path, model)
    checkpoint.load(tmp_path, nn.DataParallel(other))
    assert torch.equal(other.module.weight, model.module.weight)


class Counting(nn.Linear):
    """Has an extra state of every kind of value, in a new tensor each time, as of a quantization."""

    def __init__(self, amax):
        super().__init__(2, 2)
        self.seen = {"amax": torch.full((3,), amax), "history": [1, (2, None), {"raw": b"\x00\xff"}], "name": "e4m3", "on": True}

    def get_extra_state(self):
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.seen.items()}

    def set_extra_state(self, state):
        self.seen = state


class Quantized(Counting):
    def get_extra_state(self):
        return self.seen["amax"].clone()

    def set_extra_state(self, state):
        self.seen = {"amax": state}


@pytest.mark.parametrize("kind", [Counting, Quantized])
@pytest.mark.parametrize("streaming", [True, False])
def test_the_extra_state_of_modules_is_restored(tmp_path, kind, streaming):
    model, other = nn.Sequential(kind(4.0)), nn.Sequential(kind(5.0))
    checkpoint.save_async(tmp_path / "c", model, state={"step": 1}).wait()
    assert checkpoint.load(tmp_path / "c", other, streaming=streaming) == {"step": 1}
    assert torch.equal(other[0].seen.pop("amax"), model[0].seen["amax"])
    if kind is Counting:
        assert other[0].seen.items() < model[0].seen.items()
    with pytest.raises(InvalidArgument, match=r"the model has not, 0._extra_state"):
        checkpoint.load(tmp_path / "c", nn.Sequential(nn.Linear(2, 2)))
    checkpoint.save(tmp_path / "d", nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(InvalidArgument, match=r"it lacks 0._extra_state"):
        checkpoint.load(tmp_path / "d", model)
    model[0].get_extra_state = lambda: {"odd": object()}
    type(model[0]).get_extra_state, kept = lambda self: object(), type(model[0]).get_extra_state
    with pytest.raises(Unimplemented, match=r"0._extra_state has a object"):
        checkpoint.save(tmp_path / "e", model)
    type(model[0]).get_extra_state = kept


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir, lambda path: os.symlink(path, path)])
def test_a_manifest_that_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "manifest.json")
    for action in (lambda: checkpoint.load(tmp_path, build()), lambda: checkpoint.save(tmp_path, build())):
        with pytest.raises(InvalidArgument) as e:
            action()
        assert e.value.reason == "CheckpointUnreadable"


def test_a_later_format_is_an_error(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "shoal.checkpoint", "version": 4}))
    with pytest.raises(Unimplemented, match="version 4"):
        checkpoint.load(tmp_path, build())


def test_a_checkpoint_in_the_cache_of_hugging_face_is_loaded(tmp_path):
    snapshot = tmp_path / "models--x" / "snapshots" / "0a"
    checkpoint.save(snapshot / "c", build())
    (tmp_path / "models--x" / "blobs").mkdir()
    for number, file in enumerate([f for f in snapshot.rglob("*") if f.is_file()]):
        blob = tmp_path / "models--x" / "blobs" / str(number)
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, file.parent))
    checkpoint.load(snapshot / "c", build())


# ---- states of the optimizer


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh, layers):
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
    for layer in layers:
        model[layer].weight = nn.Parameter(distribute_tensor(model[layer].weight.detach(), mesh, [Shard(0)]))
    return model, torch.optim.AdamW(model.parameters())


def step(model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


def kinds(model, optimizer):
    return {key: isinstance(t, DTensor) for key, t in optimizer.state[model[0].weight].items()}


def test_states_of_a_plain_parameter_are_sharded_if_it_is_sharded_now(tmp_path, mesh):
    model, optimizer = sharded(mesh, [1])
    step(model, optimizer)
    optimizer.state[model[0].weight]["scale"] = torch.ones(2, 1)
    checkpoint.save(tmp_path, model, optimizer)
    other, its = sharded(mesh, [0, 1])
    checkpoint.load(tmp_path, other, its)
    assert kinds(other, its) == {"step": False, "exp_avg": True, "exp_avg_sq": True, "scale": True}
    step(other, its)


def test_plain_states_of_earlier_checkpoints_stay_plain(tmp_path, mesh):
    """Their manifests call plain states replicated."""
    model, optimizer = sharded(mesh, [0, 1])
    optimizer.state[model[0].weight] = {"table": torch.arange(4.0)}
    checkpoint.save(tmp_path, model, optimizer)
    table = replace(checkpoint.read_manifest(tmp_path).optimizer_state["0.weight"]["table"], sharding="Replicate()")
    rewrite(tmp_path, world_size=2, optimizer_state={"0.weight": {"table": table}, "1.weight": {}})
    other, its = sharded(mesh, [0, 1])
    checkpoint.load(tmp_path, other, its)
    assert kinds(other, its) == {"table": False}


def test_the_saved_options_decide_where_scalars_of_the_optimizer_lie(tmp_path, monkeypatch):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step(model, optimizer)
    checkpoint.save(tmp_path, model, optimizer)
    seen = set()
    monkeypatch.setattr(_Loading, "_moment", lambda self, name, key, saved, p, on_device: seen.add(on_device))
    checkpoint.load(tmp_path, model, torch.optim.AdamW(model.parameters(), fused=False))
    assert seen == {True}


# ---- values that ranks have alike


def facts(model, optimizer=None):
    """Returns all that a rank of two compares with the other."""
    ranks = Ranks([])
    ranks.size = 2
    return _plan.Plan(contents_of(model), optimizer, None, ranks).facts


def test_buffers_and_extra_state_may_differ_by_rank_also_in_a_state_dict():
    model, other = nn.Sequential(build(), Counting(4.0)), nn.Sequential(build(), Counting(5.0))
    other[1].load_state_dict(model[1].state_dict())
    other[0][1].running_mean.fill_(7)
    other[1].seen = {**model[1].seen, "amax": torch.zeros(3), "name": "e5m2"}
    assert facts(model) == facts(other)
    ours, theirs = ({"model": m[0].state_dict(), "scale": torch.ones(1)} for m in (model, other))
    assert facts(ours) == facts(theirs)
    theirs["scale"] += 1
    assert facts(ours) != facts(theirs)
    assert facts(dict(model[0].named_parameters())) == facts(dict(other[0].named_parameters()))
    with torch.no_grad():
        other[0][0].bias += 1
    for of in (lambda m: m, lambda m: m[0].state_dict(keep_vars=True)):
        assert facts(of(model)) != facts(of(other))


def test_states_of_an_optimizer_may_not_differ_by_rank():
    model, optimizer = trained()
    before = facts(model, optimizer)
    assert before == facts(model, optimizer)
    optimizer.state[model[0].weight]["exp_avg"].data[1] += 1
    assert before != facts(model, optimizer)


def test_a_frozen_parameter_is_read_again_only_after_a_write(monkeypatch):
    model, read, digest = build(), [], _plan._digest
    monkeypatch.setattr(_plan, "_digest", lambda t: read.append(tuple(t.shape)) or digest(t))
    model[0].weight.requires_grad_(False)
    first = facts(model)
    assert facts(model) == first
    assert read.count((5, 7)) == 1
    assert read.count((3, 5)) == 2
    model[0].weight[2, 3] += 1
    changed = facts(model)
    assert [name for name in first if first[name] != changed[name]] == ["0.weight"]
    model[0].weight.data = torch.zeros(5, 7)
    assert facts(model)["0.weight"] != changed["0.weight"]


@pytest.mark.parametrize(
    "t", [torch.randn(9, 8).T, torch.randn(1, 70, 3).transpose(0, 2), torch.randn(5, 4, 3)[:, ::2], torch.ones(9)[::9]]
)
def test_a_digest_copies_blocks_of_bounded_size(monkeypatch, t):
    whole = _plan._digest(t.contiguous())
    monkeypatch.setattr(_plan, "CHUNK", 32)
    blocks = list(_plan._blocks(t))
    assert max(b.nbytes for b in blocks) <= 32
    assert torch.equal(torch.cat(blocks), t.flatten())
    assert _plan._digest(t) == whole
