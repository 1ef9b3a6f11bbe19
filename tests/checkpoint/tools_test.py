"""`shoal checkpoint`: ls, verify, export and diff, on checkpoints of every format."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from internals.checkpoint import _inspect
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from shoal import checkpoint
from shoal.checkpoint import Checkpoints
from shoal.checkpoint.__main__ import main

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


@pytest.fixture
def saved(tmp_path):
    model, optimizer = trained()
    checkpoint.save(tmp_path / "c", model, optimizer, state={"step": 2})
    return tmp_path / "c", model, optimizer


def shoal(capsys, *words):
    """Returns (exit code, output), the output parsed where it is JSON."""
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, json.loads(out.out) if "--json" in words else out.out + out.err


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_ls_shows_tensors_and_their_total(saved, capsys):
    path, _, _ = saved
    code, text = shoal(capsys, "ls", path)
    assert code == 0
    assert "0.weight" in text
    assert "0.weight/exp_avg" in text
    assert "state: step" in text
    found = shoal(capsys, "ls", path, "--json")[1]
    assert found["state"] == {"step": 2}
    rows = {r["name"]: r for r in found["tensors"]}
    assert rows["0.weight"] == {
        "name": "0.weight",
        "dtype": "float32",
        "shape": [5, 7],
        "sharding": "Replicate()",
        "pieces": 1,
        "bytes": 140,
    }
    assert found["bytes"] == sum(r["bytes"] for r in rows.values())


def test_ls_shows_the_steps_of_a_run(tmp_path, capsys):
    of = Checkpoints(tmp_path / "run", keep=2, best="loss")
    for step in range(3):
        of.save(step, trained()[0], metrics={"loss": 1.5 - step}).wait()
    code, text = shoal(capsys, "ls", tmp_path / "run")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == ["step", "1", "2"]
    assert "loss=-0.5" in text
    assert [r["step"] for r in shoal(capsys, "ls", tmp_path / "run", "--json")[1]["steps"]] == [1, 2]


def test_verify_finds_every_damage(saved, capsys):
    path = saved[0]
    code, text = shoal(capsys, "verify", path)
    assert code == 0
    assert "is sound" in text
    shards = sorted(path.glob("*/*.safetensors"))
    originals = [f.read_bytes() for f in shards]
    for file, data in zip(shards, originals, strict=True):
        for at in (*range(0, len(data), 97), len(data) - 1):
            file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            code, found = shoal(capsys, "verify", path, "--json")
            assert (code, found["sound"], len(found["problems"])) == (1, False, 1), (file, at)
        file.write_bytes(data[:-1])
        assert "bytes, not" in shoal(capsys, "verify", path)[1]
        file.write_bytes(data)
    for file in shards:
        file.unlink()
    assert len(shoal(capsys, "verify", path, "--json")[1]["problems"]) == 2
    (path / "manifest.json").write_bytes(b"")
    code, text = shoal(capsys, "verify", path)
    assert code == 2
    assert "holds no checkpoint" in text
    assert shoal(capsys, "verify", path / "nothing")[0] == 1


def test_verify_raises_the_error_of_bytes_that_it_could_not_read(saved, monkeypatch):
    def fail(*_):
        raise ConnectionResetError("the object store went away")

    monkeypatch.setattr(_inspect.Reader, "verify_piece", fail)
    with pytest.raises(ConnectionResetError, match="went away"):
        _inspect.verify(saved[0])


@pytest.mark.parametrize("size", ["5GB", "200"])
def test_export_to_hugging_face_is_read_by_its_library(saved, tmp_path, capsys, size):
    path, model, _ = saved
    assert shoal(capsys, "export", path, tmp_path / "hf", "--max-shard-size", size)[0] == 0
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    tensors = {}
    for file in files:
        tensors |= load_file(file)
    other = trained(seed=1)[0]
    other.load_state_dict(tensors)
    assert same(model, other)
    index = tmp_path / "hf" / "model.safetensors.index.json"
    if size == "5GB":
        assert [f.name for f in files] == ["model.safetensors"]
        assert not index.exists()
    else:
        assert len(files) == 2
        places = json.loads(index.read_text())
        assert places["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
        assert {n for n, f in places["weight_map"].items() if f == files[0].name} == set(load_file(files[0]))
    again = trained(seed=2)[0]
    checkpoint.load(tmp_path / "hf", again)
    assert same(model, again)
    code, text = shoal(capsys, "export", path, tmp_path / "hf")
    assert code == 2
    assert "exists" in text


def test_export_to_dcp_is_read_by_torch(saved, tmp_path, capsys):
    path, model, optimizer = saved
    assert shoal(capsys, "export", path, tmp_path / "dcp", "--format", "dcp")[0] == 0
    other, its = trained(times=1, seed=1, lr=0.5)
    named, states = get_state_dict(other, its, options=FLAT)
    state_dict = {"model": named, "optim": states, "state": {"step": 0}}
    dcp.load(state_dict, checkpoint_id=tmp_path / "dcp")
    set_state_dict(other, its, model_state_dict=state_dict["model"], optim_state_dict=state_dict["optim"], options=FLAT)
    assert same(model, other)
    assert its.param_groups[0]["lr"] == 0.1
    assert torch.equal(its.state[other[0].weight]["exp_avg_sq"], optimizer.state[model[0].weight]["exp_avg_sq"])
    assert state_dict["state"] == {"step": 2}
    again, its = trained(times=1, seed=2)
    checkpoint.load(tmp_path / "dcp", again, its)
    assert same(model, again)
    assert torch.equal(its.state[again[2].bias]["exp_avg"], optimizer.state[model[2].bias]["exp_avg"])


def test_export_to_one_rank_from_every_format(saved, tmp_path, capsys):
    path, model, optimizer = saved
    for source in ("shoal", "dcp", "hf"):
        assert shoal(capsys, "export", path, tmp_path / source, "--format", source)[0] == 0
        assert shoal(capsys, "export", tmp_path / source, tmp_path / f"from-{source}", "--format", "shoal")[0] == 0
        other, its = trained(times=1, seed=3)
        checkpoint.load(tmp_path / f"from-{source}", other, its if source != "hf" else None)
        assert same(model, other)
        if source != "hf":
            assert torch.equal(its.state[other[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
        assert shoal(capsys, "verify", tmp_path / f"from-{source}")[0] == 0


def test_a_prefix_selects_a_part_of_the_model(tmp_path, capsys):
    model, _ = trained()
    checkpoint.save(tmp_path / "c", {"model": model.state_dict(), "ema": model.state_dict()})
    assert shoal(capsys, "export", tmp_path / "c", tmp_path / "hf", "--prefix", "ema.")[0] == 0
    other = trained(seed=1)[0]
    other.load_state_dict(load_file(tmp_path / "hf" / "model.safetensors"))
    assert same(model, other)
    code, text = shoal(capsys, "export", tmp_path / "c", tmp_path / "none", "--prefix", "nothing.")
    assert code == 2
    assert "no tensors whose names begin with 'nothing.'" in text
    assert not (tmp_path / "none").exists()


def test_export_of_a_damaged_checkpoint_leaves_no_target(saved, tmp_path, capsys):
    path = saved[0]
    file = next(path.glob("*/model-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x77")
    for kind in ("hf", "dcp"):
        code, text = shoal(capsys, "export", path, tmp_path / kind, "--format", kind)
        assert code == 1, kind
        assert "is damaged" in text
        assert not (tmp_path / kind).exists()


def test_diff_names_what_differs(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_inspect, "_SLAB", 40)  # several slabs of a tensor
    path, model, optimizer = saved
    assert shoal(capsys, "diff", path, path) == (0, "no difference\n")
    with torch.no_grad():
        model[0].weight[3, 2] += 0.25
    optimizer.param_groups[0]["lr"] = 0.5
    model.register_buffer("extra", torch.ones(2))
    del model[1].num_batches_tracked
    checkpoint.save(tmp_path / "d", model, optimizer, state={"step": 3})
    code, text = shoal(capsys, "diff", path, tmp_path / "d")
    assert code == 1
    assert text.splitlines() == [
        "0.weight: elements differ by up to 0.25",
        f"1.num_batches_tracked: only in {path}",
        f"extra: only in {tmp_path / 'd'}",
        "groups.0.weight.lr: value 0.1 there, 0.5 here",
        "state.step: value 2 there, 3 here",
    ]
    found = shoal(capsys, "diff", path, tmp_path / "d", "--json")[1]["differences"]
    assert [d["what"] for d in found] == ["value", "extra", "missing", "value", "value"]


def test_diff_compares_formats(saved, tmp_path, capsys):
    path, model, _ = saved
    shoal(capsys, "export", path, tmp_path / "dcp", "--format", "dcp")
    code, text = shoal(capsys, "diff", path, tmp_path / "dcp")
    assert code == 1
    assert text == f"state.step: only in {path}\n"  # load() takes a model and an optimizer from such folders
    shoal(capsys, "export", path, tmp_path / "hf")
    model_only = tmp_path / "model"
    checkpoint.save(model_only, model)
    assert shoal(capsys, "diff", model_only, tmp_path / "hf") == (0, "no difference\n")


def test_an_export_names_what_it_leaves_out(saved, tmp_path, capsys, recwarn):
    path = saved[0]
    assert "lack the optimizer and the state (step) of" in shoal(capsys, "export", path, tmp_path / "hf")[1]
    text = shoal(capsys, "export", path, tmp_path / "dcp", "--format", "dcp")[1]
    assert "lack the state (step; torch.distributed.checkpoint.load has it, as 'state') of" in text
    assert not [w for w in recwarn if "single process" in str(w.message)]
    assert "lack" not in shoal(capsys, "export", path, tmp_path / "shoal", "--format", "shoal")[1]
    found = shoal(capsys, "export", path, tmp_path / "part", "--format", "shoal", "--prefix", "0.", "--json")[1]
    assert found["left_out"] == ["the optimizer"]
    assert "lack the optimizer of" in shoal(capsys, "export", tmp_path / "dcp", tmp_path / "from-dcp")[1]


def test_a_command_ends_without_a_word_when_nothing_reads_its_output(saved):
    command = [sys.executable, "-m", "shoal.checkpoint", "ls", str(saved[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # before it has imported torch
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.parametrize("size", ["", "0", "-5", "5 TB", "x"])
def test_a_wrong_size_is_refused(saved, tmp_path, capsys, size):
    code, text = shoal(capsys, "export", saved[0], tmp_path / "hf", f"--max-shard-size={size}")
    assert code == 2
    assert "is no size" in text
