"""``shoal.ray.run`` on a real Ray of two nodes. Not part of ``bazel test //...``: it installs Ray (requirements-launchers.txt)."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from launching.commands import LIMIT_S, Running
from launching.leftovers import alive, wait_until

HERE = Path(__file__).parent
PROGRAMS = str(HERE / "ray_programs.py")
LIBRARIES = next(p for p in (Path("tests/libraries"), HERE.parent / "libraries") if p.exists())


@pytest.fixture(scope="module")
def env(python, module_home):
    """The environment of drivers of a cluster of Ray, which ends with the module. Its leftovers are an error."""
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    env |= {"HF_HUB_OFFLINE": "1", "SHOAL_TIMEOUT": "60"}
    env["PYTHONPATH"] = os.pathsep.join([str(LIBRARIES.resolve()), os.environ.get("PYTHONPATH", "")])
    folder = module_home.parent / "ray"  # a short path: it has sockets
    words = [python, PROGRAMS, "cluster", str(folder)]
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ray:
        said = next((line for line in ray.stdout if line.startswith("ADDRESS")), "")
        assert said, "the cluster of Ray did not start"
        yield env | {"RAY_ADDRESS": said.split()[1]}
        ray.stdin.close()
        ray.wait(LIMIT_S)


@pytest.fixture
def outcome(python, env, module_home):
    """Runs a case of the programs in a driver of its own, and returns its result. At the end, no session of Shoal is left."""

    def run(case: str, **more: str):
        done = subprocess.run([python, PROGRAMS, case], env=env | more, capture_output=True, text=True, timeout=LIMIT_S * 3)
        said = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
        assert said, f"{done.stdout[-3000:]}{done.stderr[-5000:]}"
        wait_until(lambda: not list(module_home.iterdir()), 5, "the end of the ranks' nodes")
        return json.loads(said.partition(" ")[2])

    return run


def test_ranks_of_two_nodes_train_to_the_losses_of_one_process(outcome):
    got = outcome("trains")
    assert got["losses"] == pytest.approx(got["expected"], rel=1e-5)
    assert got["reports"]
    assert got["left"] == []
    found = [[r[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")] for r in got["returns"]]
    assert found == [["0", "0", "2", "0", "2"], ["1", "1", "2", "0", "2"], ["2", "0", "2", "1", "2"], ["3", "1", "2", "1", "2"]]


def test_metrics_are_those_of_their_report(outcome):
    history, reports, returned = outcome("keeps_reports")
    assert history == reports == [[0, 1.0], [1, 2.0], [2, 3.0]]
    assert returned == 4.0


def test_a_value_that_the_driver_cannot_load_is_no_death(outcome):
    got = outcome("is_unreadable")
    end = " cannot be read in the driver: ModuleNotFoundError: No module named 'only_in_ranks'\n  hint: install "
    assert got["result"]["text"].startswith(f"rank 0 of 2: its result{end}")
    assert got["report"]["text"].startswith(f"rank 0 of 1: its report{end}")
    assert got["report on its way"]["text"].startswith(f"rank 0: its report{end}")
    assert "the value that it returned, of type frame, cannot be sent" in got["cannot be sent"]["text"]
    assert all(failure["left"] == [] for failure in got.values())


def test_an_error_names_its_rank_and_its_first_cause_comes_first(outcome):
    got = outcome("raises")
    assert {"TaskError", "ValueError"} <= set(got["classes"])
    assert got["text"].startswith("rank 1 of 2 raised\nTraceback")
    assert 0 < got["text"].index("KeyError: 'the first cause'") < got["text"].index("ValueError: the second one")
    assert got["left"] == []


def test_the_death_of_an_actor_is_named_in_one_sentence(outcome):
    got = outcome("dies")
    assert "ActorDiedError" in got["classes"]
    assert got["text"].startswith("rank 1 of 2, process ")
    assert " died, and the other ranks have ended with it. Ray's reason: " in got["text"]
    assert "\n" not in got["text"]
    assert got["left"] == []


def test_runs_that_cannot_begin_are_refused(outcome):
    got = outcome("is_refused")
    assert got["too many"]["text"].startswith(
        "Ray has not placed 8 ranks with 2 CPU each (PACK) within 1 s: free on its 2 nodes are 4 of 4 CPU\n  hint: ask for less"
    )
    assert "ResourceExhausted" in got["too many"]["classes"]
    assert "shoal.ray.run has a fixed number of ranks" in got["elastic"]["text"]
    assert "placement_strategy is one of PACK, SPREAD" in got["strategy"]["text"]
    assert "use_gpu=True, and torch" in got["no device"]["text"]
    assert got["no resource"]["text"].startswith("resources_per_worker={'CPU': 0} leaves a rank without any resource")
    assert "InvalidArgument" in got["no resource"]["classes"]
    assert all(failure["left"] == [] for failure in got.values())


def test_a_process_that_does_not_start_ends_the_wait(outcome, tmp_path):
    got = outcome("does_not_start", TEST_FOLDER=str(tmp_path / "go"))
    assert got["text"].startswith("rank 0 of 1 has its resources, but its process has not started within 3 s")
    assert "DeadlineExceeded" in got["classes"]
    assert got["left"] == []


def test_variables_of_the_job_come_before_those_of_the_driver(outcome):
    assert outcome("has_variables", SHOAL_TIMEOUT="40", SHOAL_FSDP="0") == [["50", "0"]]


def test_a_killed_driver_leaves_nothing(python, env, module_home, outcome):
    driver = Running([python, PROGRAMS, "goes_on"], env, module_home.parent)
    for rank in range(2):
        driver.said(f"rank {rank} trains in process ")
    words = driver.out.split()
    ranks = [int(words[n + 1]) for n, word in enumerate(words) if word == "process"]
    driver.signal(signal.SIGKILL)
    driver.code()
    wait_until(lambda: not any(map(alive, ranks)), 20, "the end of the ranks")
    wait_until(lambda: not list(module_home.iterdir()), 5, "the end of their node")
    assert outcome("nothing") == []


def test_libraries_shard_with_shoal_as_under_torchrun(python, env, outcome):
    got = outcome("libraries", SHOAL_FSDP="1", OMP_NUM_THREADS="1")
    for name, returns in got.items():
        assert all(sharded for _, sharded in returns)
        words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(LIBRARIES / "programs.py"), name]
        torchrun = subprocess.run(
            words, env=env | {"SHOAL_FSDP": "1", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=LIMIT_S
        )
        expected = next(line for line in torchrun.stdout.splitlines() if line.startswith("LOSSES"))
        assert returns[0][0] == pytest.approx(json.loads(expected[len("LOSSES ") : expected.rindex("]") + 1]), rel=1e-6)
