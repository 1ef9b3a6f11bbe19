"""Every snippet of README.md, python/README.md and docs/, run as it stands there (``snippets.py``).

``.ci/run`` runs the README's ``./dev`` lines; indented lines need other hosts, a wheel or etcd.
"""

import os
import re
from pathlib import Path

import pytest
from snippets import Shell, snippets_of

ROOT = next(p for p in (Path(), Path(__file__).parents[2]) if (p / "README.md").exists())
PAGES = [Path("README.md"), Path("python/README.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").glob("*.md"))]
PAGES.remove(Path("docs/tutorial.md"))  # guides_test.py runs it
PAGES.remove(Path("docs/trackers.md"))  # tests/trackers runs it

SNIPPETS = [s for page in PAGES for s in snippets_of(str(page), (ROOT / page).read_text())]
PROGRAMS = [s for s in SNIPPETS if s.language == "python"]
TRAIN = next(s for s in PROGRAMS if s.file == "train.py")


@pytest.fixture
def run(home, tmp_path):
    """Runs a command line in a folder of its own, in which train.py is the README's."""
    (tmp_path / TRAIN.file).write_text(TRAIN.text)
    return Shell(tmp_path)


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
