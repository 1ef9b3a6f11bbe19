"""Processes of a bench: each in a group of its own, with a time limit and a clean environment."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from report import ROOT

HERE = Path(__file__).resolve().parent
sys.path.append(str(ROOT / "tests"))  # the package launching is there
OURS = ROOT / ".venv" / "bin"
PEERS = ROOT / ".venv-peers" / "bin"
ACTOR_PEERS = ROOT / ".venv-peers-actors" / "bin"
TORCHFT = ROOT / ".venv-peers-torchft" / "bin"  # only where it can be installed


class Failed(Exception):
    pass


def environment(session_root: str, threads: int) -> dict[str, str]:
    """A copy of this environment without variables that select a running cluster, and with at most `threads` compute
    threads per process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "RAY_", "TORCHELASTIC_", "MASTER_"))}
    count = str(threads)
    kept |= {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
    return kept | {"SHOAL_HOME": session_root, "SHOAL_BINARY": str(OURS / "shoal"), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}


def run(argv, *, threads: int = 1, limit: float = 180) -> str:
    """Returns stdout of a program that must succeed; raises Failed with the end of its output."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as root:
        process = subprocess.Popen(
            [str(a) for a in argv],
            env=environment(root, threads),
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"not done within {limit:g} s") from error
            raise
    if process.returncode:
        said = [line for line in (err.strip() or out.strip()).splitlines() if line.strip()]
        raise Failed(f"exit code {process.returncode}: {' | '.join(said[-3:])}"[:600])
    return out


def _end(process) -> None:
    """Sends SIGTERM before SIGKILL: a launcher has children in process groups of their own, which it ends itself."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def torchrun(python_folder: Path, script: str, *args, world_size: int = 2) -> list:
    return [python_folder / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size), script, *args]
