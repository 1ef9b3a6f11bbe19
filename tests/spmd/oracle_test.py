"""The facts of torch_xla's SPMD in Shoal, one by one. Each number of devices has a process of its own."""

from __future__ import annotations

import json

import pytest
from launching.ranks import fresh

PROGRAM = """
import json
from walk import failures
print(json.dumps(failures()))
"""


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 6, 8])
def test_binding_facts_hold(num_devices):
    done = fresh(["-c", PROGRAM], SHOAL_SPMD_DEVICES=str(num_devices), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{num_devices} devices: {found['held']}")
    assert found["failed"] == [], "\n".join(found["failed"])
