"""Imports of programs at their start, and of the interpreter that workers are forked from."""

import os
import subprocess
import sys

import torch  # noqa: F401  as in the interpreter that workers with torch are forked from

from shoal import _zygote


def test_drivers_and_commands_start_without_torch():
    """`shoal scale`, `shoal chaos`, `shoal submit` and `shoal migrate` run these modules."""
    names = "shoal.train, shoal.ray, shoal.train._scale_command, shoal.train._chaos.__main__, shoal._submitting, shoal.dag"
    names += ", shoal._scripts.__main__, shoal.util, shoal.job_submission"
    subprocess.run([sys.executable, "-c", f"import sys, {names}; assert 'torch' not in sys.modules"], check=True)


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # as if it were not installed
import shoal.ray
from shoal.exceptions import NotFound
assert shoal.ray.run.__module__ == "shoal.ray._run"
try:
    shoal.ray.run(print)
except NotFound as error:
    assert error.hint == 'pip install "ray"', error
else:
    sys.exit("no error")
"""


def test_ray_is_optional():
    subprocess.run([sys.executable, "-c", "import sys, shoal, shoal.ray; assert 'ray' not in sys.modules"], check=True)
    subprocess.run([sys.executable, "-c", WITHOUT_RAY], check=True)


def test_a_worker_with_other_values_of_variables_that_torch_reads_once_is_a_fresh_interpreter(monkeypatch):
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])  # /proc/self/task: torch has threads in the test's own process
    monkeypatch.setenv("TORCH_LOGS", "all")
    for env in ({}, {"TORCH_LOGS": "all"}, {"TORCHELASTIC_RUN_ID": "1", "OMP_NUM_THREADS": "3"}):
        assert _zygote._can_be_forked(env), env
    for env in ({"TORCH_LOGS": "dynamo"}, {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, {"PYTORCH_JIT": "0"}):
        assert not _zygote._can_be_forked(env), env
