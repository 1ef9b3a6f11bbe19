"""The facts of torch_xla's SPMD in Shoal, one by one, with the devices split over several processes that run in step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from launch import run

HERE = Path(__file__).parent
PROGRAM = """
import json, sys, warnings

warnings.filterwarnings("ignore")
import walk

found = walk.failures()
if walk.xr.process_index() == 0:
    print(json.dumps(found))
"""
# Numbers of devices and processes. The facts for 2, 3 and 6 devices are left out: they concern only index ranges and counts.
SLICE = "8 over 2, 4 over 4"


@pytest.mark.parametrize("case", os.environ.get("SHOAL_SPMD_WALKS", SLICE).split(", "))
def test_binding_facts_hold_in_every_process(case, tmp_path):
    devices, processes = case.split(" over ")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run([str(tmp_path / "program.py")], int(processes), SHOAL_SPMD_DEVICES=devices)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{devices} devices of {processes} processes: {sum(found['held'].values())} facts hold: {found['held']}")
    assert found["failed"] == [], "\n".join(found["failed"])
    assert found["held"]["sharding"] > 0
