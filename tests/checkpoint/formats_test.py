"""Checkpoints of other programs: folders of torch.distributed.checkpoint, Hugging Face's safetensors, and state dicts."""

import json
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from internals.checkpoint import Record, export, intersect, parse, spans, tile
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from shoal import checkpoint
from shoal.exceptions import DataLoss, InvalidArgument, NotFound

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def trained(times=2, seed=0, lr=0.1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for i in range(times):
        model(torch.randn(8, 7, generator=torch.Generator().manual_seed(i))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def expect_same(a, b, its, others):
    for (name, t), u in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(t, u), name
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        for key, value in its.state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(others.state[q][key])), key
    assert its.param_groups[0]["lr"] == others.param_groups[0]["lr"]
    assert its.param_groups[0]["betas"] == others.param_groups[0]["betas"]


# ---- torch.distributed.checkpoint


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_folder_of_dcp_is_loaded(tmp_path, flat, streaming):
    model, optimizer = trained()
    named, state = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    dcp.save({"model": named, "optim": state, "step": 7}, checkpoint_id=tmp_path / "dcp")
    other, its = trained(times=1, seed=3, lr=0.5)
    checkpoint.load(tmp_path / "dcp", other, its, streaming=streaming)
    expect_same(model, other, optimizer, its)


class App(Stateful):
    """As in torch's tutorial."""

    def __init__(self, values):
        self.values = values

    def state_dict(self):
        return self.values

    def load_state_dict(self, values):
        raise AssertionError


# How programs nest a model's state dict (m), its optimizer's with names (o), flattened (f), and as the optimizer itself has it (r).
FORMS = {
    "torch's tutorial, app": lambda m, o, f, r: {"app": App({"model": m, "optim": o})},
    "app_state": lambda m, o, f, r: {"app_state": {"model": m, "optim": o}},
    "app_state, flattened": lambda m, o, f, r: {"app_state": {"model": m, "optimizer": f}},
    "train_state": lambda m, o, f, r: {"train_state": {"model": m, "optimizer": o, "step": torch.tensor(3)}},
    "state": lambda m, o, f, r: {"state": {"model": m, "optim": f}},
    "my_state.optimizer_state": lambda m, o, f, r: {"my_state": {"model_state": m, "optimizer_state": o}},
    "all in one": lambda m, o, f, r: {**m, **f},
    "torchtitan": lambda m, o, f, r: {
        **m,
        "optimizer": f,
        "train_state": {"step": torch.tensor(3), "ntokens_seen": torch.tensor(9)},
        "lr_scheduler": {"last_epoch": 3, "_step_count": torch.tensor(4)},
        "dataloader": {"dp_rank_0": b"x"},
    },
    "torchtitan before": lambda m, o, f, r: {"model": m, "optimizer": f, "train_state": {"step": torch.tensor(3)}, "step": torch.tensor(3)},
    "Lightning": lambda m, o, f, r: {"state_dict": under("model.", m), "optimizer_0": under("state.model.", f, "state.")},
    "Lightning's FSDP": lambda m, o, f, r: {"model": m, "optimizer_0": o},
    "Accelerate": lambda m, o, f, r: {"model": m, "optimizer": o},
    "a list of optimizers": lambda m, o, f, r: {"model": m, "optimizers": [o]},
    "DDP": lambda m, o, f, r: {"model": under("module.", m), "optim": o},
    "DDP, everywhere": lambda m, o, f, r: {"model": under("module.", m), "optim": under("state.module.", f, "state.")},
    "torch.compile": lambda m, o, f, r: {"model": under("_orig_mod.", m), "optim": under("state._orig_mod.", f, "state.")},
    "numbers": lambda m, o, f, r: {"model": m, "optimizer": r},
    "numbers, app_state": lambda m, o, f, r: {"app_state": {"model": m, "optimizer": r}},
    "an average first": lambda m, o, f, r: {"ema": {n: t + 1 for n, t in m.items()}, "model": m, "optim": o},
    "a model_ema": lambda m, o, f, r: {"model": m, "model_ema": {n: t + 1 for n, t in m.items()}, "optim": o},
    "an ema.model": lambda m, o, f, r: {"ema": {"model": {n: t + 1 for n, t in m.items()}}, "model": m, "optim": o},
    "another optimizer": lambda m, o, f, r: {
        "model": m,
        "optimizer_0": o,
        "optimizer_1": {"state": {"critic.weight": {"exp_avg": m["0.bias"]}}},
    },
}


def under(prefix, values, instead=""):
    return {prefix + n.removeprefix(instead) if n.startswith(instead) else n: v for n, v in values.items()}


@pytest.mark.parametrize("form", FORMS)
def test_the_model_and_its_optimizer_are_found_in_folders_of_dcp_however_they_are_nested(tmp_path, form):
    model, optimizer = trained()
    optimizer.param_groups[0]["initial_lr"] = 0.7
    named, state = get_state_dict(model, optimizer)
    flat = get_state_dict(model, optimizer, options=FLAT)[1]
    dcp.save(FORMS[form](named, state, flat, optimizer.state_dict()), checkpoint_id=tmp_path / "dcp")
    other, its = trained(times=1, seed=3, lr=0.5)
    checkpoint.load(tmp_path / "dcp", other, its)
    expect_same(model, other, optimizer, its)
    assert its.param_groups[0]["initial_lr"] == 0.7
    # An export has no model by which to find numbered parameters, or one of two models.
    left_out = ["the optimizer"] if any(word in form for word in ("numbers", "my_state", "ema", "average")) else []
    assert export(tmp_path / "dcp", tmp_path / "again", "shoal") == left_out


def test_two_models_of_equal_rank_in_a_folder_of_dcp_are_refused(tmp_path):
    model, optimizer = trained()
    named, state = get_state_dict(model, optimizer)
    dcp.save({"student": named, "teacher": {n: t + 1 for n, t in named.items()}}, checkpoint_id=tmp_path / "two")
    with pytest.raises(InvalidArgument, match=r"the model's names in several places: under 'student.' and under 'teacher.'") as e:
        checkpoint.load(tmp_path / "two", trained(seed=1)[0])
    assert e.value.reason == "SeveralModels"
    dcp.save({"model": named, "a": state, "b": state}, checkpoint_id=tmp_path / "optimizers")
    with pytest.raises(InvalidArgument, match=r"an optimizer of these parameters in several places: under 'a.' and under 'b.'"):
        checkpoint.load(tmp_path / "optimizers", *trained(seed=1))
    checkpoint.load(tmp_path / "optimizers", trained(seed=1)[0])
    dcp.save({"model": named, "optim": optimizer.state_dict()}, checkpoint_id=tmp_path / "numbers")
    its = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[2].parameters()]}])
    with pytest.raises(InvalidArgument, match=r"groups of \[6\] parameters there and has \[2, 4\] here"):
        checkpoint.load(tmp_path / "numbers", model, its)


@pytest.mark.parametrize("prefix", ["", "module.", "a.b."])
def test_a_models_names_may_have_any_prefix(tmp_path, prefix):
    model, _ = trained()
    dcp.save({prefix + n: t for n, t in model.state_dict().items()}, checkpoint_id=tmp_path / "dcp")
    other, _ = trained(seed=1)
    checkpoint.load(tmp_path / "dcp", other)
    assert torch.equal(other[0].weight, model[0].weight)


def test_loading_a_folder_of_dcp_runs_nothing(tmp_path):
    model, _ = trained()
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "dcp")

    class Harm:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "harmed",))

    top = pickle.loads((tmp_path / "dcp" / ".metadata").read_bytes())
    top.planner_data = Harm()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(top))
    checkpoint.load(tmp_path / "dcp", trained(seed=1)[0])  # the record of the call is not used
    assert not (tmp_path / "harmed").exists()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(DataLoss, match=r"not as torch.distributed.checkpoint writes it"):
        checkpoint.load(tmp_path / "dcp", model)
    assert not (tmp_path / "harmed").exists()


def test_a_damaged_folder_of_dcp_is_an_error(tmp_path):
    model, _ = trained()
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "dcp")
    metadata, shard = tmp_path / "dcp" / ".metadata", next((tmp_path / "dcp").glob("*.distcp"))
    whole, data = metadata.read_bytes(), shard.read_bytes()
    for at in range(0, len(whole), 7):
        metadata.write_bytes(whole[:at])
        with pytest.raises(DataLoss):
            checkpoint.load(tmp_path / "dcp", model)
    top = pickle.loads(whole)
    running = {index.fqn: index for index in top.storage_data}
    top.storage_data[running["1.running_mean"]] = top.storage_data[running["1.running_var"]]
    metadata.write_bytes(pickle.dumps(top))
    with pytest.raises(DataLoss, match=r"have bytes of .* in common"):
        checkpoint.load(tmp_path / "dcp", model)
    metadata.write_bytes(whole)
    shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataLoss):
        checkpoint.load(tmp_path / "dcp", model)
    shard.unlink()
    with pytest.raises(DataLoss):
        checkpoint.load(tmp_path / "dcp", model)


def test_records_have_the_values_of_plain_data():
    value = {"a": [1, -2, 2**70, 0.5, True, None], "b": ("x", b"y" * 300, "z" * 300), "c": {1, 2}, "d": {}}
    for protocol in range(1, 6):
        read = parse(pickle.dumps(value, protocol))
        if protocol >= 4:
            assert read == value
        assert (read["a"], read["b"][0], read["d"]) == (value["a"], "x", {})
    made = parse(pickle.dumps(torch.Size([3, 4])))
    assert isinstance(made, Record)
    assert (made.name, made.args) == ("torch.Size", ((3, 4),))
    for broken in (b"", b".", b"a.", b"\x80\x04K\x01", b"(t", b"\x80\x02}q\x00K\x01a."):
        with pytest.raises(ValueError, match=r"stream|operation|items|exhausted|opcode"):
            parse(broken)


# ---- Hugging Face


def test_safetensors_of_hugging_face_are_loaded(tmp_path):
    model, _ = trained()
    named = model.state_dict()
    save_file(named, tmp_path / "model.safetensors")
    other, its = trained(seed=1)
    checkpoint.load(tmp_path, other)
    assert torch.equal(other[0].weight, model[0].weight)
    with pytest.raises(InvalidArgument, match="has no optimizer"):
        checkpoint.load(tmp_path, other, its)


def test_sharded_safetensors_with_an_index_are_loaded(tmp_path):
    model, _ = trained()
    named = model.state_dict()
    names = sorted(named)
    files = {"model-00001-of-00002.safetensors": names[:4], "model-00002-of-00002.safetensors": names[4:]}
    for file, of in files.items():
        save_file({n: named[n] for n in of}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {n: file for file, of in files.items() for n in of}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    other, _ = trained(seed=1)
    checkpoint.load(tmp_path, other)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DataLoss, match=r"model-00002-of-00002.safetensors is missing"):
        checkpoint.load(tmp_path, other)
    for wrong in ({"x": "../model.safetensors"}, {"x": 3}, ["x"]):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(DataLoss, match="no index"):
            checkpoint.load(tmp_path, other)


def filled(value):
    return {n: torch.full_like(t, value) for n, t in nn.Linear(4, 3).state_dict().items()}


def expect_ones(path):
    model = nn.Linear(4, 3)
    checkpoint.load(path, model)
    assert all((t == 1).all() for t in model.state_dict().values())


@pytest.mark.parametrize("other", ["model_ema", "model.fp16", "ema", "a-00001-of-00002"])
def test_the_models_own_file_is_loaded_and_not_one_beside_it(tmp_path, other):
    save_file(filled(1), tmp_path / "model.safetensors")
    save_file(filled(2), tmp_path / f"{other}.safetensors")
    expect_ones(tmp_path)


def test_the_models_own_index_is_loaded_and_not_one_beside_it(tmp_path):
    for name, value in (("consolidated", 2), ("model", 1)):
        save_file(filled(value), tmp_path / f"{name}-00001-of-00001.safetensors")
        places = dict.fromkeys(filled(0), f"{name}-00001-of-00001.safetensors")
        (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    expect_ones(tmp_path)
    save_file(filled(2), tmp_path / "model.safetensors")  # an older one
    with pytest.raises(InvalidArgument, match=r"several models: model.safetensors.index.json and model.safetensors") as e:
        expect_ones(tmp_path)
    assert e.value.reason == "SeveralModels"


def test_files_that_no_index_joins_are_one_model_or_an_error(tmp_path):
    ones = filled(1)
    for number, name in enumerate(ones, 1):
        save_file({name: ones[name]}, tmp_path / f"part-0000{number}-of-00002.safetensors")
    expect_ones(tmp_path)
    (tmp_path / "part-00002-of-00002.safetensors").rename(tmp_path / "away")
    with pytest.raises(DataLoss, match="1 of the 2 shards of part"):
        expect_ones(tmp_path)
    (tmp_path / "part-00001-of-00002.safetensors").unlink()
    for name in ("ema", "weights"):
        save_file(ones, tmp_path / f"{name}.safetensors")
    with pytest.raises(InvalidArgument, match=r"several models: ema.safetensors and weights.safetensors"):
        expect_ones(tmp_path)


def header_of(entries, data=b"", more=b""):
    text = json.dumps(entries).encode()
    text = text[:-1] + more + b"}" if more else text
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("entries", "more"),
    [
        ({"weight": [0, 48], "bias": [0, 12]}, b""),
        ({"weight": [12, 60], "bias": [48, 60]}, b""),
        ({"weight": [0, 48], "bias": [48.0, 60]}, b""),
        ({"weight": [0, 48], "bias": [48, 60]}, b', "bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}'),
    ],
)
def test_tensors_with_the_same_bytes_or_the_same_name_are_damage(tmp_path, entries, more):
    shapes = {"weight": [3, 4], "bias": [3]}
    header = {n: {"dtype": "F32", "shape": shapes[n], "data_offsets": at} for n, at in entries.items()}
    (tmp_path / "model.safetensors").write_bytes(header_of(header, bytes(60), more))
    with pytest.raises(DataLoss, match=r"the header of model.safetensors"):
        checkpoint.load(tmp_path, nn.Linear(4, 3))


@pytest.mark.parametrize("data", [b"", b"short", bytes(100), b"\xff" * 100, (50).to_bytes(8, "little") + b"{" * 50])
def test_a_file_that_is_no_safetensors_is_an_error(tmp_path, data):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(DataLoss):
        checkpoint.load(tmp_path, nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["a" * 5000, "state." * 300 + "weight"])
def test_names_that_would_take_long_to_compare_are_refused(tmp_path, name):
    values = {**filled(1), name: torch.ones(1)}
    save_file(values, tmp_path / "model.safetensors")
    dcp.save(values, checkpoint_id=tmp_path / "dcp")
    for path in (tmp_path, tmp_path / "dcp"):
        with pytest.raises(DataLoss, match="more than 4096 characters or 256 parts"):
            checkpoint.load(path, nn.Linear(4, 3))


def test_tied_weights_may_be_saved_under_either_name(tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    model = make()
    named = {n: t.clone() for n, t in model.state_dict().items() if n != "0.weight"}
    save_file(named, tmp_path / "model.safetensors")
    other = make()
    checkpoint.load(tmp_path, other)
    assert torch.equal(other[0].weight, model[0].weight)


# ---- state dicts


def test_state_dicts_are_saved_and_loaded_without_a_module(tmp_path):
    model, _ = trained()
    checkpoint.save(tmp_path / "c", {"model": model.state_dict(), "extra": {"ema": torch.arange(4.0)}}, state={"step": 1})
    other = {"model": trained(seed=1)[0].state_dict(), "extra": {"ema": torch.zeros(4)}}
    assert checkpoint.load(tmp_path / "c", other) == {"step": 1}
    assert torch.equal(other["extra"]["ema"], torch.arange(4.0))
    assert torch.equal(other["model"]["0.weight"], model[0].weight)
    with pytest.raises(NotFound):
        checkpoint.load(tmp_path / "nothing", other)


# ---- boxes


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 4), (1, 5, 1, 2)])
def test_spans_are_the_elements_of_a_range_in_order(shape):
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for begin in range(numbers.numel() + 1):
        for end in range(begin, numbers.numel() + 1):
            boxes = list(spans(shape, begin, end))
            found = [numbers[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].reshape(-1) for box in boxes]
            assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == list(range(begin, end))
            assert len(boxes) <= 2 * max(1, len(shape))


def test_boxes_tile_a_tensor_or_not():
    assert tile((4, 3), [((0, 0), (1, 3)), ((1, 0), (3, 3))])
    assert tile((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 2)), ((2, 2), (2, 2))])
    assert tile((), [((), ())])
    assert tile((0, 3), [])
    assert not tile((4, 3), [((0, 0), (2, 3)), ((1, 0), (2, 3))])
    assert not tile((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 2)), ((2, 1), (2, 2))])
    assert not tile((4,), [((0,), (5,))])
    assert not tile((4,), [((0,), (2,))])
    assert not tile((), [((), ()), ((), ())])
    assert intersect(((0, 2), (4, 4)), ((3, 0), (4, 3))) == ((3, 2), (1, 1))
    assert intersect(((0,), (2,)), ((2,), (2,))) is None
