"""Starts a program as one process, or as several with a launcher's variables."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from forked_ranks import Server

_LIMIT_S = 600  # hang guard; an idle machine needs less than a tenth
_PATHS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
# This server forks programs. It starts before the first test, so that it is no leftover of a test.
_server = Server(["shoal.spmd", "shoal.spmd.xla_model", "shoal.spmd.fsdp", "torch.distributed.checkpoint"], **_PATHS)
atexit.register(_server.end)


def run(program: list[str], processes: int = 0, *, fresh: bool = False, **env: str) -> subprocess.CompletedProcess:
    """Runs a script and its arguments as one process, or as several, which end soon after their calls diverge.

    ``fresh``: in new interpreters, several under torchrun; then the program may be options of Python.
    """
    full = {**os.environ, **_PATHS, "SHOAL_TIMEOUT": "120", **env}
    if fresh:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes else []
        return subprocess.run([sys.executable, *launcher, *program], env=full, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        code = _server.run(processes, program, full, str(out), str(err), _LIMIT_S)
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())
