"""The ``shoal`` command and Python drivers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from internals.core import binary

from launching.leftovers import wait_until

_WHOLE_LINES = "import sys; sys.stdout.reconfigure(line_buffering=True, write_through=False)"
LIMIT_S = 240  # hang guard; an idle machine needs less than a tenth

# A program that runs a command, and is the parent of what outlives that command's children, as init is on a host.
INIT = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
command = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: command.terminate())
while (ended := os.wait())[0] != command.pid:
    pass
sys.exit(os.waitstatus_to_exitcode(ended[1]) & 255)
"""

# The first lines of a driver that uses the actors of actors.py.
BEGIN = f"""
import os, signal, sys, time
sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
import shoal
from launching.actors import Log
"""


@contextlib.contextmanager
def printed(folder: Path):
    """Yields the text that this process has written to descriptors 1 and 2 so far. (capfd loses output written while it reads.)"""
    paths, saved = {1: folder / "stdout", 2: folder / "stderr"}, {}
    try:
        for number, path in paths.items():
            saved[number] = os.dup(number)
            with open(path, "ab") as file:
                os.dup2(file.fileno(), number)
        yield lambda number: paths[number].read_text()
    finally:
        for number, file in saved.items():
            os.dup2(file, number)
            os.close(file)


@dataclass(frozen=True)
class Cluster:
    address: str
    session: Path

    def pids(self, role: str) -> list[int]:
        names = (p.name.partition(".")[2] for p in (self.session / "pids").glob(role + ".*"))
        return sorted(int(name) for name in names if name.isdigit())  # other files are half-written

    def pid(self, role: str) -> int:
        (pid,) = self.pids(role)
        return pid

    def kill_head(self) -> int:
        """Kills the head, and waits for the one that its node starts instead. Returns the pid of the killed one."""
        killed = self.pid("head")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: set(self.pids("head")) - {killed}, LIMIT_S, "another head")
        return killed


class Running:
    """A process whose output is read as it arrives."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path):
        self.process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self._text = {"out": "", "err": ""}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream) -> None:
        with stream:
            for line in stream:
                self._text[name] += line

    @property
    def out(self) -> str:
        return self._text["out"]

    @property
    def err(self) -> str:
        return self._text["err"]

    def said(self, text: str, within: float = LIMIT_S) -> None:
        """Waits until the process has printed `text`."""
        try:
            wait_until(lambda: text in self.out + self.err or self.process.poll() is not None, within)
        except AssertionError:
            raise AssertionError(f"it did not print {text!r} within {within:g} s: {self.out!r} {self.err!r}") from None
        if text not in self.out + self.err:
            self.code()  # its last words may not be read yet
        assert text in self.out + self.err, f"it ended with {self.process.returncode}: {self.out!r} {self.err!r}"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def code(self, within: float = LIMIT_S) -> int:
        code = self.process.wait(within)
        for reader in self._readers:
            reader.join(5)
        return code


class Command:
    """Runs ``shoal`` in a SHOAL_HOME of its own. ``before``: a prefix of each command line; ``base``: the environment."""

    def __init__(self, home: Path, before: tuple[str, ...] = (), base: Mapping[str, str] = os.environ):
        self.home = home
        self.before = before
        self._base = base
        self._running: list[Running] = []

    def env(self, **more: str) -> dict[str, str]:
        return {**self._base, "SHOAL_HOME": str(self.home), "PYTHONUNBUFFERED": "1", **more}

    def __call__(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self.before, binary(), *map(str, words)],
            env=env or self.env(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def json(self, *words: str, code: int = 0, env: dict[str, str] | None = None) -> dict:
        done = self(*words, "--json", env=env)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert done.stdout.count("\n") == 1, done.stdout
        return json.loads(done.stdout)

    def rows(self, what: str, *words: str) -> list[dict]:
        """The rows that ``shoal list`` prints."""
        return self.json("list", what, *words)["rows"]

    def start(self, *words: str, cpus: float = 4) -> Cluster:
        said = self.json("start", "--head", "--port", "0", "--num-cpus", str(cpus), *words)
        return Cluster(said["address"], Path(said["session"]))

    def popen(self, *words: str) -> Running:
        return self._keep(Running([*self.before, binary(), *map(str, words)], self.env(), self.home))

    def program(self, argv: list[str], **env: str) -> Running:
        """Starts any program in this SHOAL_HOME."""
        return self._keep(Running([*self.before, *argv], self.env(**env), self.home))

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.home.parent / "scripts" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def driver(self, text: str, **env: str) -> Running:
        """A Python program of its own process. It writes each line at once: an unbuffered print() writes the newline separately, so a
        worker's line could come between."""
        text = _WHOLE_LINES + ("" if text.startswith("\n") else "\n") + textwrap.dedent(text)
        path = self.script(text, f"driver{len(self._running)}.py")
        return self.program([sys.executable, str(path)], **env)

    def training(self, text: str) -> tuple[Running, str]:
        """Starts a driver that prints "it trains" at its first report, and waits for that. Returns it and the id of its job."""
        driver = self.driver(text)
        driver.said("it trains")
        (job,) = (r["id"] for r in self.rows("jobs") if r["state"] == "RUNNING")
        return driver, job

    def _keep(self, running: Running) -> Running:
        self._running.append(running)
        return running

    def end(self) -> None:
        """Ends processes that a failed test left running."""
        for running in self._running:
            if running.process.poll() is None:
                running.signal(signal.SIGKILL)
            running.code()


def pids_in(running) -> list[int]:
    """The numbers in the line `pids ..` that the driver prints."""
    running.said("pids ")
    wait_until(lambda: any(line.startswith("pids ") and line.endswith("\n") for line in running.out.splitlines(True)), 5)
    return [int(p) for p in next(line for line in running.out.splitlines() if line.startswith("pids ")).split()[1:]]
