"""Runs one function of a program of this folder on several ranks, which are forked from a process that has imported torch."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from pathlib import Path

from forked_ranks import Server

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 60  # hang guard; an idle machine needs less than a tenth
_ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path]), "SHOAL_TIMEOUT": "120"}
_server = Server(["shoal.torch", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.fsdp"], **_ENV)
atexit.register(_server.end)


def run(program: str, function: str, world_size: int, **env: str) -> tuple[int, str]:
    """Returns the exit code, which is 0 if the function returned on every rank, and the ranks' output."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        full = {**os.environ, **_ENV, "TMPDIR": folder, **env}
        code = _server.run(world_size, [str(_HERE / program), function, folder], full, str(out), str(out) + ".err", _LIMIT_S)
        return code, out.read_text() + Path(str(out) + ".err").read_text()


def check(program: str, function: str, world_size: int, **env: str) -> str:
    """Runs the function, or several with commas between them if the program does. Fails the test with the ranks' output if a rank failed.
    Returns the output."""
    code, text = run(program, function, world_size, **env)
    assert code == 0, f"{function} on {world_size} ranks: exit code {code}\n{text[-8000:]}"
    return text
