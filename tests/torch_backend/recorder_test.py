"""Dumps of the flight recorder, read by torch's own analyzer, and the answers for torch's debug server."""

import pickle
from pathlib import Path

import pytest
from launching.ranks import ForkedRanks
from torch.distributed.flight_recorder import fr_trace

PROGRAM = str(Path(__file__).resolve().parent / "recorder_program.py")
WORLD = 3
_forked = ForkedRanks("torch.distributed.fsdp", limit_s=60, OMP_NUM_THREADS="1")  # without shoal.torch, which reads variables


@pytest.fixture
def run(tmp_path):
    """Runs a function of the program on the ranks, and returns the folder of their dumps."""

    def run(function, **more):
        folder = tmp_path / "traces"
        folder.mkdir()
        variables = {"TORCH_FR_BUFFER_SIZE": "200", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_"} | more
        done = _forked.run([PROGRAM, function, tmp_path], WORLD, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return run


def analyzed(folder):
    """Returns the database that the analyzer makes of dumps."""
    fr_trace.main([str(folder), "--prefix", "rank_", "-o", str(folder.parent / "db")])
    with open(folder.parent / "db", "rb") as file:
        _, database = pickle.load(file)
    return database


def test_the_analyzer_matches_every_operation(run):
    database = analyzed(run("every_operation"))
    assert [c for c in database.collectives if not c.pass_check] == []
    names = [c.collective_name.removeprefix("gloo:") for c in database.collectives]
    assert names[:15] == [
        "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_v", "_all_gather_base", "reduce_scatter", "reduce_scatter_v",
        "_reduce_scatter_base", "gather", "scatter", "all_to_all", "all_to_all", "all_reduce", "barrier",
    ]  # fmt: skip
    assert sorted(g.desc for g in database.groups) == ["default_pg", "the pair"]
    assert {c.collective_state for c in database.collectives} == {"completed"}


def test_the_analyzer_names_the_rank_that_is_late(run):
    database = analyzed(run("a_rank_is_late"))
    (late,) = [c for c in database.collectives if not c.pass_check or c.missing_ranks]
    assert late.missing_ranks == {1}
    assert (late.collective_name, late.collective_state, late.input_sizes) == ("gloo:all_reduce", "started", [[5]])
    assert any(frame["name"] == "a_rank_is_late" for frame in late.collective_frames)


def test_the_analyzer_names_ranks_that_call_another_collective(run):
    database = analyzed(run("ranks_call_different_collectives"))
    (wrong,) = [c for c in database.collectives if c.mismatch_collectives]
    assert {c.collective_name for c in [wrong, *wrong.mismatch_collectives.values()]} == {"gloo:all_reduce", "gloo:broadcast"}
    assert {str(c.type_of_mismatch).split()[2] for c in wrong.mismatch_collectives.values()} == {"COLLECTIVE_TYPE_MISMATCH,"}


def test_a_debugger_sees_a_rank_that_waits(run):
    run("a_debugger_sees_a_rank_that_waits")


def test_nothing_is_recorded_without_the_variable(run):
    with pytest.raises(AssertionError, match="nothing is recorded in this process"):
        run("every_operation", TORCH_FR_BUFFER_SIZE="0")
