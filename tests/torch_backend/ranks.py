"""Runs one function of a program of this folder on several ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from launching.ranks import ForkedRanks

_HERE = Path(__file__).resolve().parent
_MODULES = ("shoal.torch", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.fsdp")
_forked = ForkedRanks(*_MODULES, limit_s=60, OMP_NUM_THREADS="1", SHOAL_TIMEOUT="120")


def check(program: str, function: str, world_size: int, **env: str) -> str:
    """Runs the function, or several with commas between them if the program does. Fails the test with the ranks' output if a rank failed.
    Returns the output. ``world_size`` 0: the program starts its ranks itself."""
    with tempfile.TemporaryDirectory() as folder:
        done = _forked.run([_HERE / program, function, folder], world_size, TMPDIR=folder, **env)
    text = done.stdout + done.stderr
    assert done.returncode == 0, f"{function} on {world_size} ranks: exit code {done.returncode}\n{text[-8000:]}"
    return text
