"""Loaders and checkpoints of several processes: what happens on one rank reaches all ranks, and a checkpoint is complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from launch import run

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder after the part ``first``, run by two processes with two devices each. It ended with the death of one process."""
    made = tmp_path_factory.mktemp("saving")
    done = run([str(HERE / "saving_program.py"), str(made), "first"], 2, SHOAL_SPMD_DEVICES="4")
    assert len(list(made.glob("first.*"))) == 2, done.stderr
    assert "rank 1 ended with -9" in done.stderr, done.stderr
    return made


@pytest.fixture(scope="module")
def first(folder):
    return [json.loads((folder / f"first.{rank}").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def then(folder, first):
    """The results of the part ``then``, run by three processes with one device each."""
    done = run([str(HERE / "saving_program.py"), str(folder), "then"], 3, SHOAL_SPMD_DEVICES="3")
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"then.{rank}").read_text()) for rank in range(3)]


@pytest.mark.parametrize(
    ("what", "text", "of_the_last"),
    [
        ("other shape", "float32 of shape (8, 2) on rank 1 and float32 of shape (4, 2) on other ranks", None),
        ("uneven", "on rank 1 the loader raises MarkError", "shape = torch.Size([5, 2]), local_runtime_device_count = 2"),
        ("ends", "on rank 1 the loader ends, on other ranks it continues", None),
        ("raises", "on rank 1 the loader raises OSError: the disk is gone, on other ranks it continues", "the disk is gone"),
        ("shards", "on rank 1: Shards must be provided for all local devices: 1 shards for 2 devices", None),
    ],
)
def test_a_loader_error_on_one_rank_is_raised_on_all(first, what, text, of_the_last):
    errors = [f["loaders"][what] for f in first]
    assert text in errors[0][1]
    assert (of_the_last or text) in errors[1][1]


def test_loaders_continue_after_errors(first):
    assert [f["loaders"]["afterwards"] for f in first] == [None, None]


def test_a_checkpoint_has_the_values_at_the_time_of_the_call(first):
    for f in first:
        assert f["saved"] == [True, False, True, False, True, False, True]
        assert f["steps"] == [4, 6]  # the manager keeps the two latest steps
        assert f["restored"] == f["values"]["4"] == first[0]["values"]["4"]
        assert f["values"]["4"] != f["values"]["5"]


def test_a_signal_to_one_rank_saves_on_all(first):
    for f in first:
        assert f["should save"] == [False, False]
        assert f["should save after a signal"] == [True, True]
        assert f["saved after a signal"]
        assert f["steps after a signal"] == [6, 9]


def test_a_failed_write_is_raised_on_all_and_keeps_earlier_checkpoints(first):
    for f in first:
        for failed in ("a write failed", "another one"):
            assert f[failed][0] == "CheckpointException"
            assert "the disk is gone" in f[failed][1]
        assert f["steps after failures"] == [6, 9]
        assert f["a name that is none"] == ["ValueError", "embedded null byte"]


def test_a_death_while_saving_keeps_the_earlier_checkpoints(first, then):
    for t in then:
        assert t["steps"] == [6, 9]
        assert t["restored"] == first[0]["restored"]  # the values that were saved as step 9


def test_another_number_of_processes_resumes(then, folder):
    for t in then:
        assert t["steps afterwards"] == [9, 10]
        assert t["folders"] == ["10", "9"]


def test_plain_torch_reads_the_checkpoints(then, folder):
    state = {
        "model": {name: torch.empty(shape) for name, shape in {"0.weight": (6, 5), "0.bias": 6, "2.weight": (3, 6), "2.bias": 3}.items()}
    }
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder / "steps" / "10"), no_dist=True)
    assert [t.tolist() for t in state["model"].values()] == then[0]["restored"]["model"]


# Where the program runs, as (devices, processes of torchrun, ranks of the controller).
PLACES = {"one process": (4, 0, 0), "more devices": (8, 0, 0), "two processes": (2, 2, 0), "a controller": (4, 0, 2)}


def manage(place: str, *words: str) -> list[str]:
    """The lines that manager_program.py prints when it runs in this place."""
    devices, processes, workers = PLACES[place]
    env = {"SHOAL_SPMD_DEVICES": str(devices), "SHOAL_SPMD_WORKERS": str(workers)}
    done = run([str(HERE / "manager_program.py"), *words], processes, **env)
    assert done.returncode == 0, done.stderr
    assert "torch.distributed is disabled" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("group", ["gloo", "xla"])
def test_a_manager_uses_the_programs_process_group(group, tmp_path):
    saved = manage("one process", str(tmp_path), "save", group)
    assert saved[0] == "[] [1, 2]"
    assert manage("more devices", str(tmp_path), "restore", group) == ["[1, 2] [1, 2, 3]", *saved[1:]]


@pytest.mark.parametrize(("of", "to"), [("one process", "two processes"), ("two processes", "more devices")])
def test_a_manager_restores_a_checkpoint_of_other_processes(of, to, tmp_path):
    saved = manage(of, str(tmp_path), "save", "xla")
    assert manage(to, str(tmp_path), "restore", "xla") == ["[1, 2] [1, 2, 3]", *saved[1:]]


@pytest.mark.parametrize(("of", "to"), [("one process", "a controller"), ("a controller", "more devices")])
def test_a_controllers_manager_restores_and_saves_as_one_process(of, to, tmp_path, home):
    saved = manage(of, str(tmp_path), "save", "xla")
    assert manage(to, str(tmp_path), "restore", "xla") == ["[1, 2] [1, 2, 3]", *saved[1:]]
