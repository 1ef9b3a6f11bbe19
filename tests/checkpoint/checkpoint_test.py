"""Checkpoints of a plain process: restored values, refusals, and the leftovers of a killed save. For ranks see tests/integration."""

import hashlib
import json
import math
import os
import shutil
import signal

import pytest
import torch
from internals.checkpoint import CHUNK, diff, verify
from safetensors.torch import load_file
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from shoal import checkpoint
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, ResourceExhausted, ShoalError, Unimplemented
from shoal.optim import AdamW


def build(seed=0, hidden=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3))


def step(model, optimizer, times=1):
    for i in range(times):
        x = torch.randn(8, 7, generator=torch.Generator().manual_seed(i))
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(kind=AdamW, times=2, **options):
    model = build()
    optimizer = kind(model.parameters(), lr=0.1, **options)
    step(model, optimizer, times)
    return model, optimizer


def expect_same(a, b):
    one, two = a.state_dict(), b.state_dict()
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def files(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def shards(path, kind="model"):
    return next(path.glob(f"*/{kind}-*.safetensors"))


# ---- restored values


@pytest.mark.parametrize("loaded", [AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("saved", [AdamW, torch.optim.AdamW])
def test_training_resumes_bit_for_bit(tmp_path, saved, loaded):
    model, optimizer = trained(saved, betas=(0.8, 0.99))
    checkpoint.save(tmp_path / "c", model, optimizer, state={"step": 2, "loss": [0.1, None], "nan": float("inf")})
    other = build(seed=1)
    its = loaded(other.parameters(), lr=7.0)
    assert checkpoint.load(tmp_path / "c", other, its) == {"step": 2, "loss": [0.1, None], "nan": float("inf")}
    expect_same(model, other)
    assert (its.param_groups[0]["lr"], its.param_groups[0]["betas"]) == (0.1, (0.8, 0.99))
    if saved is not loaded:  # the two optimizers round differently
        return
    step(model, optimizer, 3)
    step(other, its, 3)
    expect_same(model, other)


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"fused": True}, {"lr": torch.tensor(0.1)}])
def test_the_options_of_torchs_adamw_are_restored(tmp_path, options):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 0.1, **options})
    step(model, optimizer, 2)
    checkpoint.save(tmp_path / "c", model, optimizer)
    other = build(seed=1)
    its = torch.optim.AdamW(other.parameters(), **options)
    if "lr" in options:
        its.param_groups[0]["lr"] = torch.tensor(0.5)
    checkpoint.load(tmp_path / "c", other, its)
    step(model, optimizer)
    step(other, its)
    expect_same(model, other)


def test_options_unknown_to_shoals_adamw_are_refused(tmp_path):
    model, optimizer = trained(torch.optim.AdamW)
    optimizer.param_groups[0]["differentiable"] = True
    checkpoint.save(tmp_path / "c", model, optimizer)
    other, another = trained()
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(Unimplemented, match=r"shoal.optim has no differentiable=True"):
        checkpoint.load(tmp_path / "c", other, another)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.AdamW, {"maximize": True}), (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.Adam, {"weight_decay": 0.1})],
)
def test_shoals_adamw_loads_the_options_of_torchs(tmp_path, kind, options):
    model, optimizer = trained(kind, **options)
    checkpoint.save(tmp_path / "c", model, optimizer)
    other, its = trained()
    checkpoint.load(tmp_path / "c", other, its)
    step(model, optimizer, 3)
    step(other, its, 3)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        if name != "0.bias":  # before a batch norm, its gradient is rounding noise
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_master_weights_are_restored(tmp_path):
    model = nn.Linear(7, 3, dtype=torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def run(of, its, times):
        for i in range(times):
            of(torch.randn(8, 7, generator=torch.Generator().manual_seed(i)).bfloat16()).float().pow(2).mean().backward()
            its.step()
            its.zero_grad()

    run(model, optimizer, 3)
    checkpoint.save(tmp_path / "c", model, optimizer)
    other = nn.Linear(7, 3, dtype=torch.bfloat16)
    its = AdamW(other.parameters())
    checkpoint.load(tmp_path / "c", other, its)
    assert torch.equal(its.state[other.weight]["master_param"], optimizer.state[model.weight]["master_param"])
    run(model, optimizer, 3)
    run(other, its, 3)
    expect_same(model, other)


def test_momentum_and_several_groups_are_restored(tmp_path):
    def make(model):
        return torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}], momentum=0.9)

    model = build()
    optimizer = make(model)
    step(model, optimizer, 2)
    checkpoint.save(tmp_path / "c", model, optimizer)
    other = build(seed=1)
    its = make(other)
    checkpoint.load(tmp_path / "c", other, its)
    step(model, optimizer)
    step(other, its)
    expect_same(model, other)


def test_loading_an_unstepped_optimizer_clears_the_state(tmp_path):
    model, optimizer = trained(times=0)
    checkpoint.save(tmp_path / "c", model, optimizer)
    other, its = trained(times=3)
    checkpoint.load(tmp_path / "c", other, its)
    step(model, optimizer)
    step(other, its)
    expect_same(model, other)


def test_tied_parameters_are_saved_once_and_stay_tied(tmp_path):
    def make():
        model = build()
        model.again = nn.Linear(5, 3)
        model.again.weight = model[2].weight
        return model

    model = make()
    checkpoint.save(tmp_path / "c", model)
    assert checkpoint.read_manifest(tmp_path / "c").tied == {"again.weight": "2.weight"}
    other = make()
    with torch.no_grad():
        other[2].weight.zero_()
    checkpoint.load(tmp_path / "c", other)
    assert other.again.weight is other[2].weight
    expect_same(model, other)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Parameter(torch.arange(6).reshape(2, 3).to(torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("view", torch.arange(10)[2:5])
        self.register_buffer("same_memory", self.view.detach())
        self.register_buffer("not_saved", torch.ones(1), persistent=False)


def test_other_dtypes_empty_tensors_scalars_and_views_are_restored(tmp_path):
    model, other = Odd(), Odd()
    checkpoint.save(tmp_path / "c", model)
    with torch.no_grad():
        other.low.zero_(), other.scalar.zero_(), other.view.zero_()
    checkpoint.load(tmp_path / "c", other)
    expect_same(model, other)


def test_the_safetensors_library_reads_the_shards(tmp_path):
    model, _ = trained()
    checkpoint.save(tmp_path / "c", model)
    other = build(seed=1)
    other.load_state_dict(load_file(shards(tmp_path / "c")))
    expect_same(model, other)


def test_equal_contents_are_equal_bytes_and_old_checkpoints_are_deleted(tmp_path):
    model, optimizer = trained()
    checkpoint.save(tmp_path / "a", model, optimizer, state={"step": 2})
    checkpoint.save(tmp_path / "b", build(), None, state={"step": 0})
    for _ in range(2):  # the second time over an equal checkpoint
        checkpoint.save(tmp_path / "b", *trained(), state={"step": 2})
        assert files(tmp_path / "a") == files(tmp_path / "b")


# ---- refusals


def test_a_missing_checkpoint_is_not_found(tmp_path):
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "nothing" / "below"):
        with pytest.raises(NotFound, match="no checkpoint in") as e:
            checkpoint.load(path, build())
        assert (e.value.code, e.value.reason) == ("NotFound", "CheckpointMissing")
        assert e.value.hint


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format": "other"}', b"\x80\x04pickle", b"[" * 100_000])
def test_a_foreign_manifest_is_refused_and_never_overwritten(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text)
    for action in (lambda: checkpoint.load(tmp_path, build()), lambda: checkpoint.save(tmp_path, build())):
        with pytest.raises(InvalidArgument, match="no checkpoint of Shoal") as e:
            action()
        assert e.value.reason == "NotACheckpoint"
    assert files(tmp_path) == {"manifest.json": text}


def _make_version_2(path):
    """Rewrites a manifest as version 2 had it: SHA-256 of the pieces."""

    def change(body):
        del body["hash"]
        body["version"] = 2
        states = [v["tensor"] for of in body["optimizer_state"].values() for v in of.values() if "tensor" in v]
        for t in [*body["tensors"].values(), *states]:
            for p in t["pieces"]:
                data = (path / body["folder"] / p["file"]).read_bytes()[p["at"] :]
                size = math.prod(p["shape"]) * getattr(torch, t["dtype"]).itemsize
                del p["hashes"]
                p["sha256"] = [hashlib.sha256(data[:size]).hexdigest()]

    _change_manifest(change)(path)


def test_a_checkpoint_of_version_2_is_verified_by_its_own_hashes_and_replaced(tmp_path):
    model, optimizer = trained()
    for name in ("old", "new"):
        checkpoint.save(tmp_path / name, model, optimizer, state={"step": 2})
    _make_version_2(tmp_path / "old")
    found = build(1)
    its = AdamW(found.parameters())
    assert checkpoint.load(tmp_path / "old", found, its) == {"step": 2}
    expect_same(model, found)
    assert verify(tmp_path / "old").problems == []
    assert diff(tmp_path / "old", tmp_path / "new") == []
    DAMAGES["a flipped bit in a tensor"](tmp_path / "old")
    assert verify(tmp_path / "old").problems
    with pytest.raises(DataLoss, match="is damaged"):
        checkpoint.load(tmp_path / "old", found)
    checkpoint.save(tmp_path / "old", model, optimizer, state={"step": 2})
    assert files(tmp_path / "old") == files(tmp_path / "new")


def _edit(change):
    """Damages one shard file."""

    def damage(path):
        file = shards(path)
        data = bytearray(file.read_bytes())
        file.write_bytes(change(data))

    return damage


def _flip(data, at):
    data[at] ^= 1
    return data


def _shards_of_another(path):
    other = path.parent / "other"
    torch.manual_seed(9)
    checkpoint.save(other, build(seed=9))
    shutil.copy(shards(other), shards(path))


def _edit_manifest(old, new, sign=False):
    def damage(path):
        file = path / "manifest.json"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
        if sign:
            from internals.checkpoint import _checksum

            body = json.loads(file.read_text())
            del body["sha256"]
            file.write_text(json.dumps({**body, "sha256": _checksum(body)}))

    return damage


def _change_manifest(change):
    def damage(path):
        from internals.checkpoint import _checksum

        file = path / "manifest.json"
        body = json.loads(file.read_text())
        del body["sha256"]
        change(body)
        file.write_text(json.dumps({**body, "sha256": _checksum(body)}))

    return damage


def _instead(make):
    def damage(path):
        file = shards(path)
        shutil.move(file, path.parent / "copy")
        make(file)

    return damage


DAMAGES = {
    "a FIFO": _instead(os.mkfifo),
    "a device": _instead(lambda file: file.symlink_to("/dev/zero")),
    "a folder": _instead(lambda file: file.mkdir()),
    "a link out of the folder": _instead(lambda file: file.symlink_to(file.parent.parent.parent / "copy")),
    "a header that has half a byte": _change_manifest(lambda m: next(iter(m["files"].values())).update(header_bytes=1.5)),
    "extra state of no kind": _change_manifest(lambda m: m.update(extra={"0.bias": {"list": 3}})),
    "a flipped bit in a tensor": _edit(lambda d: _flip(d, -1)),
    "a flipped bit in the header's length": _edit(lambda d: _flip(d, 0)),
    "a flipped bit in the header": _edit(lambda d: _flip(d, 20)),
    "half of a shard": _edit(lambda d: d[: len(d) // 2]),
    "an empty shard": _edit(lambda d: b""),
    "a shard of zeros": _edit(lambda d: bytes(len(d))),
    "no shard": lambda path: shards(path).unlink(),
    "the shard of another model": _shards_of_another,
    "a changed manifest": _edit_manifest('"world_size": 1', '"world_size": 2'),
    "half of a manifest": lambda path: os.truncate(path / "manifest.json", 2000),
    "a shape that is no shape": _change_manifest(lambda m: m["tensors"]["0.bias"].update(shape=[-5])),
    "pieces that leave rows out": _change_manifest(lambda m: m["tensors"]["0.bias"]["pieces"][0].update(offset=[1], shape=[4])),
    "pieces that overlap": _change_manifest(lambda m: m["tensors"]["0.bias"]["pieces"].append(m["tensors"]["0.bias"]["pieces"][0])),
    "a piece beyond its file": _change_manifest(lambda m: m["tensors"]["0.bias"]["pieces"][0].update(at=10**9)),
    "a piece inside of the header": _change_manifest(lambda m: m["tensors"]["0.bias"]["pieces"][0].update(at=8)),
    "a piece without a hash": _change_manifest(lambda m: m["tensors"]["0.bias"]["pieces"][0].update(hashes=[])),
    "a hash of another kind": _change_manifest(lambda m: m.update(hash="sha256")),
    "a hash that nobody knows": _change_manifest(lambda m: m.update(hash="crc")),
    "a piece of the wrong bytes": _change_manifest(
        lambda m: m["tensors"]["0.bias"]["pieces"][0].update(at=m["tensors"]["2.bias"]["pieces"][0]["at"])
    ),
    "a path out of the folder": _edit_manifest('"file": "model-', '"file": "../model-', sign=True),
    "a field nobody knows": _edit_manifest('"tied"', '"tidy"', sign=True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_and_changes_nothing(tmp_path, damage):
    path = tmp_path / "c"
    checkpoint.save(path, *trained())
    DAMAGES[damage](path)
    model, optimizer = trained(times=1)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(DataLoss, match="is damaged") as e:
        checkpoint.load(path, model, optimizer)
    assert e.value.reason == "CheckpointDamaged"
    assert str(path) in str(e.value)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    checkpoint.save(path, *trained())  # a damaged checkpoint does not prevent the next save
    checkpoint.load(path, model, optimizer)


def test_a_flipped_bit_at_any_byte_is_an_error(tmp_path):
    path = tmp_path / "c"
    model = nn.Linear(2, 1)
    checkpoint.save(path, model, state={"step": 1})
    every = [f for f in path.rglob("*") if f.is_file()]
    assert len(every) == 2
    for file in every:
        data = file.read_bytes()
        for at in range(len(data)):
            file.write_bytes(_flip(bytearray(data), at))
            with pytest.raises(ShoalError) as e:  # a flip in the manifest's format makes the folder a foreign one
                checkpoint.load(path, model)
            assert isinstance(e.value, (DataLoss, InvalidArgument, Unimplemented)), (file, at)
        file.write_bytes(data)
    assert checkpoint.load(path, model) == {"step": 1}


class Large(nn.Module):
    """A tensor of several chunks, which a load reads into its place, behind a small one."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(5, generator=generator))
        self.large = nn.Parameter(torch.randn(2 * CHUNK // 4 + 1111, generator=generator))


def test_each_chunk_of_a_large_tensor_comes_to_its_place_and_is_verified(tmp_path):
    model, found = Large(0), Large(1)
    checkpoint.save(tmp_path, model)
    checkpoint.load(tmp_path, found)
    expect_same(model, found)
    shard = shards(tmp_path)
    begin = json.loads((tmp_path / "manifest.json").read_text())["tensors"]["large"]["pieces"][0]["at"]
    for at in (0, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, model.large.nbytes - 1):
        _flip_on_disk(shard, begin + at)
        with pytest.raises(DataLoss, match="the bytes of large"):
            checkpoint.load(tmp_path, found)
        _flip_on_disk(shard, begin + at)
    checkpoint.load(tmp_path, found)


def _flip_on_disk(path, at):
    with path.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 4]))


def test_another_models_checkpoint_is_refused_by_name(tmp_path):
    checkpoint.save(tmp_path / "c", *trained())
    with pytest.raises(InvalidArgument, match=r"0.weight is float32\[5, 7\] there and float32\[6, 7\] here"):
        checkpoint.load(tmp_path / "c", build(hidden=6))
    model = build()
    model.extra = nn.Linear(1, 1)
    with pytest.raises(InvalidArgument, match=r"it lacks extra.bias, extra.weight"):
        checkpoint.load(tmp_path / "c", model)
    with pytest.raises(InvalidArgument, match=r"the model has not, 1.bias, 1.num_batches_tracked, 1.running_mean and 4 more"):
        checkpoint.load(tmp_path / "c", build()[:1])
    with pytest.raises(InvalidArgument, match=r"float32.* there and float64"):
        checkpoint.load(tmp_path / "c", build().double())
    model = build()
    with pytest.raises(InvalidArgument, match="parameter groups"):
        checkpoint.load(tmp_path / "c", model, AdamW(model[0].parameters()))
    checkpoint.save(tmp_path / "c", model)
    with pytest.raises(InvalidArgument, match="has no optimizer"):
        checkpoint.load(tmp_path / "c", model, AdamW(model.parameters()))


def test_values_that_cannot_be_restored_are_refused(tmp_path):
    for state in ({"x": torch.ones(1)}, {"x": (1, 2)}, {1: 2}, [1], {"x": [{2: 1}]}):
        with pytest.raises(InvalidArgument, match="state"):
            checkpoint.save(tmp_path / "c", build(), state=state)
    model = build()
    with pytest.raises(InvalidArgument, match="not the model's"):
        checkpoint.save(tmp_path / "c", model, AdamW(build().parameters()))
    optimizer = AdamW(model.parameters())
    optimizer.param_groups[0]["odd"] = object()
    with pytest.raises(Unimplemented, match="odd is a object"):
        checkpoint.save(tmp_path / "c", model, optimizer)
    model.pair = torch.nn.Parameter(TwoTensor(torch.ones(1), torch.ones(1)))
    with pytest.raises(Unimplemented, match="pair is a TwoTensor"):
        checkpoint.save(tmp_path / "c", model)


def test_an_unwritable_folder_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(InvalidArgument) as e:
            checkpoint.save(path, build())
        assert e.value.reason == "CheckpointUnwritable"


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path):
    import resource

    checkpoint.save(tmp_path / "c", build(), state={"which": "old"})
    large = nn.Linear(1000, 1000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # "File too large" stands for a full disk
    try:
        with pytest.raises((InvalidArgument, ResourceExhausted)) as e:
            checkpoint.save(tmp_path / "c", large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert isinstance(e.value, ShoalError)
    assert checkpoint.load(tmp_path / "c", build()) == {"which": "old"}
