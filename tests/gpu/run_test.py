"""run.sh without a device: it reports that, and its programs work on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RUN = Path(__file__).parent / "run.sh"


def run(*args):
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([RUN, *args], env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_run_reports_a_missing_device():
    code, said = run()
    assert code == 2
    assert "there is no CUDA device" in said, said


def test_every_way_trains_alike_on_the_cpu():
    code, said = run("--device", "cpu")
    assert code == 0, said
    # Printed by config_t.py, ranks.py, the comparison of speeds, and device_check, which uses the fakes of CUDA and NCCL.
    assert said.count(" passed, 0 failed") == 4, said
    assert '"passed": false' not in said, said
    assert '"transport": "shm"' in said, said  # printed by ranks.py
    assert "2 passed, 0 failed" in said, said
    assert re.search(r"tokens_per_s: shoal.fsdp \d.*ratio", said), said  # printed by beside_fsdp2.py
