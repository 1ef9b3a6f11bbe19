"""Trainings with real trackers, without a network. Not part of ``bazel test //...``: it installs them (requirements-trackers.txt)."""

import json
import math
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import programs
import pytest
from launching.fixtures import home
from programs import NUM_STEPS
from snippets import Shell, snippets_of

import shoal

__all__ = ["home"]

HERE = Path(programs.__file__).parent
PACKAGE = Path(shoal.__file__).parents[1]
ROOT = next(p for p in (Path(), HERE.parents[1]) if (p / "requirements-trackers.txt").exists())
LIMIT_S = 180
STEPS = list(range(1, NUM_STEPS + 1))
# Root may run programs in a network namespace, in which no other host can be reached. Each of these settings keeps a tracker from trying.
OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false", "HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "0"}
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def python(tmp_path_factory) -> str:
    """Makes an environment with the trackers and the packages of this one. $TEST_TRACKERS: a folder in which to keep it."""
    kept = os.environ.get("TEST_TRACKERS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("trackers") / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    native = Path(shoal._native.__file__).parents[1]
    (site / "shoal-test.pth").write_text(f"{PACKAGE}\n{native}\n{sysconfig.get_paths()['purelib']}\n")
    words = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", ROOT / "requirements-trackers.txt"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"the packages of requirements-trackers.txt cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


@pytest.fixture
def result(python, home, tmp_path, monkeypatch):
    """Runs a case of programs.py, and returns its result."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)

    def run(case: str):
        argv = [*ALONE, python, programs.__file__, case, str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
        assert line, f"{done.stdout[-3000:]}{done.stderr[-5000:]}"
        return json.loads(line.partition(" ")[2])

    return run


ALL = ("TensorBoard", "WandB", "MLflow", "Trackio")
LOSSES = pytest.approx([1 / step for step in STEPS])


def test_each_tracker_has_the_metrics_the_config_and_the_change_of_workers(result):
    assert result("trains") == {name: [True, 0, None] for name in ALL}
    change = "generation 2: 1 -> 2 workers, pause "

    got = result("tensorboard_has")
    numbers = got["numbers"]
    assert [step for step, _ in numbers["loss"]] == STEPS
    assert [value for _, value in numbers["loss"]] == LOSSES
    assert numbers["eval/loss"] == [[step, step] for step in STEPS]
    assert all(math.isnan(value) for _, value in numbers["nan"])
    assert all(value == math.inf for _, value in numbers["inf"])
    assert numbers["shoal/workers"] == [[5, 2]]
    assert got["texts"]["shoal/change/text_summary"][0][0] == 5
    assert got["texts"]["shoal/change/text_summary"][0][1].startswith(change)
    assert got["texts"]["shoal/end/text_summary"] == [[NUM_STEPS, "the training has ended"]]
    assert got["texts"]["config/text_summary"] == [[0, "    lr = 0.5\n    change = 5\n    name of model = linear"]]
    assert got["hparams"]

    got = result("wandb_has")
    rows = [row for row in got["rows"] if "loss" in row]
    assert [row["step"] for row in rows] == STEPS
    assert [row["loss"] for row in rows] == LOSSES
    assert {row["inf"] for row in rows} == {math.inf}
    assert all(math.isnan(row["nan"]) for row in rows)
    (changed,) = [row for row in got["rows"] if "shoal/change" in row]
    assert (changed["step"], changed["shoal/change"].startswith(change)) == (5, True)
    assert got["rows"][-1] == {"step": NUM_STEPS, "shoal/end": "the training has ended"}
    assert {name: value for name, value in got["config"].items() if name != "_wandb"} == {"lr": 0.5, "change": 5, "name of model": "linear"}
    assert got["exit"] == 0

    got = result("mlflow_has")
    assert [step for step, _ in got["numbers"]["loss"]] == STEPS
    assert [value for _, value in got["numbers"]["loss"]] == LOSSES
    assert all(math.isnan(value) for _, value in got["numbers"]["nan"])
    assert {value for _, value in got["numbers"]["inf"]} == {sys.float_info.max}  # its database has no infinity
    assert got["numbers"]["shoal/workers"] == [[5, 2]]
    assert got["events"][0].startswith(f"step 5: shoal/change: {change}")
    assert got["events"][1:] == [f"step {NUM_STEPS}: shoal/end: the training has ended"]
    assert got["params"] == {"lr": "0.5", "change": "5", "name of model": "linear"}
    assert got["status"] == "FINISHED"

    got = result("trackio_has")
    rows = [row for row in got["rows"] if "loss" in row]
    assert [row["step"] for row in rows] == STEPS
    assert [row["loss"] for row in rows] == LOSSES
    assert {row["inf"] for row in rows} == {math.inf}
    assert all(math.isnan(row["nan"]) for row in rows)
    assert {name: value for name, value in got["config"].items() if not name.startswith("_")} == {
        "lr": 0.5, "change": 5, "name of model": "linear"
    }  # fmt: skip
    alerts = {alert["title"]: alert for alert in got["alerts"]}
    assert (alerts["shoal/change"]["step"], alerts["shoal/change"]["text"].startswith(change)) == (5, True)
    assert (alerts["shoal/end"]["level"], alerts["shoal/end"]["text"]) == ("info", "the training has ended")


def test_a_failed_training_is_a_failed_run(result):
    got = result("fails")
    assert "ValueError: the loss is NaN" in got.pop("error")
    assert got == {name: [True, 0, None] for name in ALL}
    text = "the training has failed: ValueError: the loss is NaN"
    assert result("tensorboard_has")["texts"]["shoal/end/text_summary"] == [[3, text]]
    got = result("wandb_has")
    assert (got["rows"][-1], got["exit"]) == ({"step": 3, "shoal/end": text}, 1)
    got = result("mlflow_has")
    assert (got["events"], got["status"]) == ([f"step 3: shoal/end: {text}"], "FAILED")
    (alert,) = result("trackio_has")["alerts"]
    assert (alert["level"], alert["text"]) == ("error", text)


def test_trackers_whose_servers_are_away_stop_no_training(result):
    got = result("has_no_server")
    assert got["reports"] == NUM_STEPS
    assert got["complete"] == [False, True]  # MLflow tries again for minutes
    assert got["lost"] == [NUM_STEPS + 1] * 2  # the reports, and the end
    assert got["causes"][0] == "it has not ended within 0.5 s"
    assert got["causes"][1]


SNIPPETS = [s for s in snippets_of("docs/trackers.md", (ROOT / "docs" / "trackers.md").read_text()) if s.not_run is None]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: s.file)
def test_the_page_does_what_it_says(snippet, python, home, tmp_path, monkeypatch):
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    run = Shell(tmp_path, python)
    (tmp_path / snippet.file).write_text(snippet.text)
    out = run(snippet.command)
    if snippet.prints is not None:
        assert out == snippet.prints
