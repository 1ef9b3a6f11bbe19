"""Units of SpmdFullyShardedDataParallel with one process per device. They run on the engine of shoal.fsdp if the rows of a batch are
independent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch import run

HERE = Path(__file__).parent
OPERATORS = {  # cases in which rows depend on each other, with the reason that is logged
    "all checkpointed, whole inputs": "no input is split over the batch",
    "checkpointed, whole inputs": "no input is split over the batch",
    "dropout": "needs it laid out in another way",
    "loss inside": "adds up over the devices",
    "mean of the batch": "adds up over the devices",
    "one rank has too few rows": "depend on how many rows it gets",
    "number of rows": "depend on how many rows it gets",
    "batch norm": "over the devices",
    "counting": "it changes calls",
    "own backward": "the backward of Normalised",
    "noise behind a gate": "draws random numbers",
    "switched": "over the devices",
    "hooked": "a module has hooks",
    "hook of a tensor": "it uses register_hook of a tensor",
    "below a reentrant checkpoint": "the backward of CheckpointFunction",
    "kept in a nested list": "it changes a list of Remembering",
    "kept in an object": "it changes a list of Remembering",
    "kept in a global": "it keeps a tensor",
    "submodule replaced": "over the devices",
    "forward replaced": "over the devices",
    "class patched": "over the devices",
}


@pytest.fixture(scope="module", params=[2, 4] if "SHOAL_SEEDS" in os.environ else [4])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("units")
    done = run([str(HERE / "units_program.py"), str(folder)], request.param, SHOAL_SPMD_DEVICES=str(request.param))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(request.param)]


def test_training_equals_plain_torch(found):
    for rank in found:
        errors = {name: what for name, what in rank.items() if isinstance(what, str)}
        assert not errors, "\n".join(errors.values())
        assert {name: gap for name, (gap, _) in rank.items() if gap > 1e-5} == {}
        assert "batch norm" in rank  # the last case is there, so all cases have run


def test_units_run_on_rows_unless_rows_depend_on_each_other(found):
    for rank in found:
        for name, (_, reason) in rank.items():
            assert (OPERATORS[name] in reason) if name in OPERATORS else reason is None, f"{name}: {reason}"
