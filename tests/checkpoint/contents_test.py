"""The content of a model and its optimizer beside plain tensors: wrappers, extra state, options; and files that are none."""

import json
import os

import pytest
import torch
from torch import nn

from shoal import checkpoint
from shoal.exceptions import InvalidArgument, Unimplemented
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
