"""The code blocks of a page, and a shell in which they run.

The first line of a Python program is a comment with its file's name and, behind a colon, the command that runs it. A ``text`` block behind
another one is what that prints. A comment ``<!-- not run: REASON -->`` before a block leaves it out.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from internals.core import binary

_BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FIRST_LINE = re.compile(r"# (\w+\.py)(?:: (.+))?\n")


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str
    prints: str | None = None
    not_run: str | None = None  # the reason

    @property
    def file(self) -> str:
        return self._first_line()[1]

    @property
    def command(self) -> str | None:
        return self._first_line()[2]

    def _first_line(self) -> re.Match:
        found = _FIRST_LINE.match(self.text)
        assert found, f"{self.page}: a program begins with a comment: # FILE.py: COMMAND"
        return found


def snippets_of(page: str, text: str) -> list[Snippet]:
    out: list[Snippet] = []
    for found in _BLOCK.finditer(text):
        if found["language"] == "text":
            out[-1] = replace(out[-1], prints=found["text"])
        else:
            out.append(Snippet(page, found["language"], found["text"], not_run=found["reason"]))
    return out


class Shell:
    """A folder in which `python`, `torchrun` and `shoal` are this test's programs, or those of another Python."""

    def __init__(self, folder: Path, python: str = sys.executable):
        self.folder = folder
        commands = {
            "python": python,
            "torchrun": f"{python} -m torch.distributed.run --standalone",  # --standalone: on any free port
            "shoal": binary(),
        }
        (folder / "bin").mkdir()
        for name, program in commands.items():
            wrapper = folder / "bin" / name
            wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            wrapper.chmod(0o755)

    def __call__(self, lines: str) -> str:
        """Runs command lines, the first failure ends them. Returns what they print."""
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SHOAL_BINARY": binary()}
        argv = ["bash", "-ec", lines]
        done = subprocess.run(argv, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout
