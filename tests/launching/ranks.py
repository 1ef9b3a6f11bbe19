"""Ranks that a test starts: forked from a process that has imported torch, or new interpreters."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FORKING = ("-m", "launching.forking")  # `python -m launching.forking COUNT SCRIPT ARGS..`, and `.. torchrun OPTIONS.. SCRIPT ARGS..`
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
LIMIT_S = 240  # hang guard; an idle machine needs less than a tenth


class ForkedRanks:
    """A process that imports torch and ``modules`` once, and runs one script at a time on ranks that it forks. As a context manager it ends
    with the block, else with this program. It has to be older than a test's SHOAL_HOME, or it counts as a process that the test left.
    ``env``: further variables of all runs."""

    def __init__(self, *modules: str, limit_s: int = LIMIT_S, **env: str):
        self._env, self._limit_s = env, limit_s
        # With more threads numpy starts some when it is imported, before the fork.
        full = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **env}
        self._process = subprocess.Popen(
            [sys.executable, *FORKING, "serve", *modules],
            env=full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip
        atexit.register(self.end)

    def run(self, argv: list, ranks: int = 0, env: dict[str, str] | None = None, **more: str) -> subprocess.CompletedProcess:
        """Runs a script with its arguments on ranks with torchrun's variables. With 0 ranks it is one process, which may fork some itself.
        The first rank that fails ends the others, and the exit code is 1; it is -9 behind the limit. ``env``: instead of this process's
        environment."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {"count": ranks, "argv": [str(a) for a in argv], "env": {**(os.environ if env is None else env), **self._env, **more}}
            request |= {"out": str(out), "err": str(err), "limit_s": self._limit_s}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(argv, code, out.read_text(), err.read_text())

    def output(self, *args, **more) -> str:
        """As ``run``, of a script that has to succeed. Returns what it printed to stdout."""
        done = self.run(*args, **more)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def end(self) -> None:
        atexit.unregister(self.end)
        self._process.communicate()

    def __enter__(self) -> ForkedRanks:
        return self

    def __exit__(self, *_) -> None:
        self.end()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fresh(argv: list, ranks: int = 0, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    """Runs Python with these words as a new interpreter; with ``ranks``, as so many under torchrun, which takes a script only."""
    words = [*((*TORCHRUN, str(ranks)) if ranks else ()), *map(str, argv)]
    full = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    return subprocess.run([sys.executable, *words], env=full, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def fresh_ranks(argv: list, count: int, **env: str) -> list[subprocess.CompletedProcess]:
    """Runs Python with these words as new interpreters without a launcher that would end all with the first one. Returns their results by
    rank."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    full = {k: v for k, v in os.environ.items() if k not in ("SHOAL_NODE", "SHOAL_ADDRESS")} | path | env
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, argv)],
            env=full | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        said = [p.communicate(timeout=LIMIT_S) for p in started]
    finally:
        for p in started:
            p.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, *texts) for p, texts in zip(started, said, strict=True)]
