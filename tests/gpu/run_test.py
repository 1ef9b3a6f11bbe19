"""run.sh without a device: it reports that, and its programs work on the CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import run as driver
import torch

RUN = Path(__file__).parent / "run.sh"


def run(*args):
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([RUN, *args], env=environment, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_run_reports_a_missing_device():
    code, said = run()
    assert code == 2
    assert "there is no CUDA device" in said, said


def test_every_part_passes_on_the_cpu_and_its_figures_are_in_one_json(tmp_path):
    code, said = run("--device", "cpu", "--json", str(tmp_path / "results.json"))
    assert code == 0, said
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["versions"]["torch"] == torch.__version__
    by_part = {part["part"]: part for part in results["parts"]}
    assert {part["state"] for part in by_part.values()} == {"passed"}, said
    ranks = by_part["1, 2 and 4 ranks on one device"]["figures"]
    assert {(f["case"], f["world"]) for f in ranks} >= {("fp32", 2), ("bf16, accumulated", 2), ("replicas", 4)}, ranks
    assert all(f["passed"] for f in ranks)
    assert {f["transport"] for f in ranks if f["world"] > 1} == {"shm"}
    assert all(by_part["a worker joins, dies in a gather, and is replaced"]["figures"][-1]["checks"].values())
    beside = by_part["125 million parameters in small units, beside FSDP2"]["figures"]
    assert beside[-1]["ours/FSDP2"]["tokens_per_s"] > 0
    assert re.search(r"tokens_per_s: shoal.fsdp \d.*ratio", said), said


def test_a_part_that_takes_too_long_is_ended_with_what_it_has_printed(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\nprint('{\"before\": 1}', flush=True)\ntime.sleep(1000)\n")
    result = driver.run(driver.Part("slow", 2, str(slow)), ())
    assert (result["state"], result["figures"]) == ("out of time", [{"before": 1}])


def test_a_binary_that_was_not_built_is_skipped():
    assert driver.run(driver.Part("none", 2, "tests/gpu/no_such_binary"), ())["state"] == "skipped"
