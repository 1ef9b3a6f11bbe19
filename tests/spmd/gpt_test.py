"""A GPT under SpmdFullyShardedDataParallel has plain torch's losses. They have the same bits in one process, in several, and under a
controller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch import run

PROGRAM = str(Path(__file__).parent / "gpt_steps.py")
CONFIG = os.environ.get("GPT_CONFIG", "T")


def losses(*arguments: str, processes: int = 0, **env: str) -> list[float]:
    done = run([PROGRAM, CONFIG, "20", *arguments], processes, **env)
    assert done.returncode == 0, done.stderr
    assert "operator by operator" not in done.stderr
    return [float.fromhex(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def plain():
    return losses("plain")


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_losses_equal_plain_torch_in_all_ways_of_running(devices, plain, home):
    one = losses(SHOAL_SPMD_DEVICES=str(devices))
    assert len(one) == len(plain) == 20
    assert max(abs(a - b) for a, b in zip(one, plain, strict=True)) <= 1e-5
    assert one[-1] < one[0]
    if devices > 1:
        assert losses(processes=devices, SHOAL_SPMD_DEVICES=str(devices)) == one
        assert losses(SHOAL_SPMD_WORKERS=str(devices), SHOAL_SPMD_DEVICES=str(devices)) == one
