"""Every snippet of README.md, python/README.md and docs/, run as it stands there.

The first line of a Python program is a comment with its file's name and the command that runs it. A ``text`` block behind a program is
what that prints. ``.ci/run`` runs the README's ``./dev`` lines; indented lines need other hosts, a wheel or etcd.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from internals.core import binary

ROOT = next(p for p in (Path(), Path(__file__).parents[2]) if (p / "README.md").exists())
PAGES = [Path("README.md"), Path("python/README.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str
    prints: str | None = None

    @property
    def file(self) -> str:
        return self._first_line()[1]

    @property
    def command(self) -> str:
        return self._first_line()[2]

    def _first_line(self) -> re.Match:
        found = re.match(r"# (\w+\.py): (.+)\n", self.text)
        assert found, f"{self.page}: a program begins with a comment: # FILE.py: COMMAND"
        return found


def snippets_of(page: Path) -> list[Snippet]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    out = []
    for language, text in found:
        if language == "text":
            out[-1] = Snippet(str(page), out[-1].language, out[-1].text, text)
        else:
            out.append(Snippet(str(page), language, text))
    return out


SNIPPETS = [s for page in PAGES for s in snippets_of(page)]
PROGRAMS = [s for s in SNIPPETS if s.language == "python"]
TRAIN = next(s for s in PROGRAMS if s.file == "train.py")


@pytest.fixture
def run(home, tmp_path):
    """Runs a command line in a folder of its own. There `python`, `torchrun` and `shoal` are this test's programs, and train.py is the
    README's."""
    commands = {
        "python": sys.executable,
        "torchrun": f"{sys.executable} -m torch.distributed.run --standalone",  # --standalone: on any free port
        "shoal": binary(),
    }
    for name, program in commands.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        wrapper = tmp_path / "bin" / name
        wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    (tmp_path / TRAIN.file).write_text(TRAIN.text)

    def call(line: str) -> str:
        env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SHOAL_BINARY": binary()}
        argv = ["bash", "-ec", line]
        done = subprocess.run(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    return call


def last_loss(out: str) -> float:
    return float(re.search(r"'step': 39, 'loss': ([0-9.]+)", out)[1])


def shell(page: str) -> str:
    (text,) = [s.text for s in SNIPPETS if s.page == page and s.language == "sh"]
    return text


def test_every_snippet_is_run_here():
    assert {(s.page, s.language) for s in SNIPPETS if s.language != "python"} == {
        ("docs/actors.md", "cpp"),
        ("docs/clusters.md", "sh"),
        ("docs/jobs.md", "sh"),
    }
    assert {s.page for s in PROGRAMS} == {"README.md", "python/README.md", "docs/actors.md", "docs/spmd.md", "docs/training.md"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda s: f"{s.page}-{s.file}")
def test_the_program_runs(program, run, tmp_path):
    (tmp_path / program.file).write_text(program.text)
    out = run(program.command)
    if program.prints is not None:
        assert out == program.prints
    if program == TRAIN:
        assert last_loss(out) < 2  # about 16 at first, the variance of a sum of 16 inputs


def test_the_readmes_loop_runs_under_torchrun(run, tmp_path):
    (tmp_path / "ranks.py").write_text(TRAIN.text.partition("if __name__")[0] + "loop()\n")
    run("torchrun --nproc-per-node 2 ranks.py")


def test_the_command_lines_of_a_cluster_do_what_they_describe(run):
    out = run(shell("docs/clusters.md"))
    assert last_loss(out) < 2
    assert "SUCCEEDED" in out
    assert "CPU 4" in out


def test_the_command_lines_of_jobs_do_what_they_describe(run):
    out = run(shell("docs/jobs.md"))
    assert re.search(r"hello from \w+", out)
    assert "SUCCEEDED" in out
    assert "hello over HTTP" in out


def test_actors_answer_in_cpp(run):
    """README_SNIPPET is the program that Bazel compiled from the snippet of docs/actors.md."""
    assert run(os.path.abspath(os.environ["README_SNIPPET"])) == "[5, 5] 25\n"
