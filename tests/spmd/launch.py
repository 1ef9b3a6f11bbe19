"""Starts a program as one process, or as several under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys


def run(program: list[str], processes: int = 0, **env: str) -> subprocess.CompletedProcess:
    """The program as one process, or as several under torchrun, which end soon after they do not make the same calls."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes else []
    full = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "SHOAL_TIMEOUT": "120", **env}
    return subprocess.run([sys.executable, *launcher, *program], env=full, capture_output=True, text=True, check=False)
