"""Runs every snippet of README.md as it stands there. (``.ci/run`` runs its ``./dev`` lines.)"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal._runtime import binary

README = next(p for p in (Path("README.md"), Path(__file__).parents[2] / "README.md") if p.exists()).read_text()
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def snippets(language: str) -> list[str]:
    return [text for of, text in SNIPPETS if of == language]


@pytest.fixture
def run(home, tmp_path):
    """Runs a program in a folder of its own where `python` and `shoal` are these and train.py is the README's."""
    for name, program in (("python", sys.executable), ("shoal", binary())):
        (tmp_path / "bin").mkdir(exist_ok=True)
        wrapper = tmp_path / "bin" / name
        wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    (tmp_path / "train.py").write_text(snippets("python")[0])

    def call(*argv: str) -> str:
        env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SHOAL_BINARY": binary()}
        done = subprocess.run(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    return call


def last_loss(out: str) -> float:
    return float(re.search(r"'step': 39, 'loss': ([0-9.]+)", out)[1])


def test_the_readme_has_every_snippet_of_this_test():
    assert [language for language, _ in SNIPPETS] == ["python", "sh", "python", "cpp"]


def test_the_sharded_program_learns(run):
    assert last_loss(run("python", "train.py")) < 2  # at first 16, the variance of a sum of 16


def test_the_training_loop_runs_under_torchrun(run, tmp_path):
    text = snippets("python")[0]
    (tmp_path / "ranks.py").write_text(text.partition("if __name__")[0] + "loop()\n")
    run("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py")


def test_the_command_lines_work(run):
    out = run("bash", "-ec", *snippets("sh"))
    assert last_loss(out) < 2
    assert "SUCCEEDED" in out
    assert "CPU 4" in out


def test_actors_answer_in_python(run, tmp_path):
    (tmp_path / "actors.py").write_text(snippets("python")[1])
    assert run("python", "actors.py") == "[5, 5]\n"


def test_actors_answer_in_cpp(run):
    """Bazel compiled the README's snippet."""
    assert run(os.path.abspath(os.environ["README_SNIPPET"])) == "[5, 5] 25\n"
