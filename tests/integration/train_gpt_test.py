"""The main example, made small: its files, its losses beside one plain process, resuming, and its ways to end."""

import hashlib
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from internals.core import binary
from launching.leftovers import descendants, wait_until
from launching.ranks import ForkedRanks
from safetensors import safe_open

from shoal import checkpoint

SCRIPT = str(Path("examples/train_gpt.py").absolute())
LIMIT_S = 240  # hang guard; an idle machine needs less than a tenth
SMALL = ["--layers=2", "--width=32", "--heads=2", "--context=32", "--batch=12", "--warmup=4", "--lr=1e-2"]
SMALL += ["--validate-every=4", "--validation-windows=8", "--sample-bytes=20"]


def command(out, *options):
    return [sys.executable, SCRIPT, "--out", str(out), *SMALL, *options]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs the example in a fork of a process that has imported torch, and returns its output."""
    with ForkedRanks("matplotlib.pyplot") as forked:
        yield lambda out, *options: forked.output(command(out, *options)[1:])


@pytest.fixture
def main(monkeypatch, capsys):
    """Runs, in this process, a command line of the example that ends before training. Returns (exit code, output, errors)."""

    def run(out, *options):
        monkeypatch.setattr(sys, "argv", command(out, *options)[1:])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(SCRIPT, run_name="__main__")
        said = capsys.readouterr()
        if isinstance(end.value.code, str):  # for such a text the interpreter prints it and exits with 1
            return 1, said.out, end.value.code + "\n"
        return end.value.code, said.out, said.err

    return run


def losses(out, of="workers"):
    found = json.loads((out / "losses.json").read_text())[of]
    return found and {k: found[k] for k in ("loss", "validation")}


def files(folder):
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def run(train, module_home, tmp_path_factory):
    """A run of 12 steps on two workers, and its output."""
    out = tmp_path_factory.mktemp("run") / "out"
    return out, train(out, "--steps=12", "--fixed")


def test_the_example_prints_progress_and_result_paths(run):
    out, said = run
    assert "2 workers: the first step was done after" in said
    line = next(line for line in said.splitlines() if "2 workers: step 8/12" in line)
    assert all(word in line for word in ("loss ", "held-out ", "tokens/s", "ETA 0:"))
    for name in ("loss.png", "timeline.json", "checkpoint", "sample.txt"):
        assert (out / name).exists()
    assert f"{out}/loss.png" in said
    assert "It wrote:" in said
    assert "--resume --steps 24 --num-workers 3" in said
    assert "--width 32" in said  # the suggested command lines are complete


def test_the_losses_fall_and_equal_one_plain_process(run):
    out, said = run
    ours, reference = losses(out), losses(out, "reference")
    assert len(ours["loss"]) == 12
    assert [step for step, _ in ours["validation"]] == [4, 8, 12]
    pairs = [*zip(ours["loss"], reference["loss"], strict=True)]
    pairs += [(a[1], b[1]) for a, b in zip(ours["validation"], reference["validation"], strict=True)]
    assert max(abs(a - b) / b for a, b in pairs) <= 1e-5
    assert "Largest relative difference to one plain process: " in said
    assert "joins" not in said
    assert ours["loss"][-1] < ours["loss"][0] - 0.5
    assert ours["validation"][-1][1] < ours["validation"][0][1]


@pytest.fixture(scope="module")
def shown(train, module_home, tmp_path_factory):
    """A run of two workers, which a third one joins, and one of which is killed."""
    out = tmp_path_factory.mktemp("shown") / "out"
    return out, train(out, "--steps=600", "--validate-every=150", "--loaders=0", "--lr=3e-3")


def test_a_worker_joins_and_one_is_killed_and_the_losses_are_those_of_one_plain_process(shown):
    out, said = shown
    changes = json.loads((out / "losses.json").read_text())["changes"]
    assert [(c["workers_before"], c["workers"], c["died"]) for c in changes[:2]] == [(2, 3, []), (3, 2, [0])]
    ours, reference = losses(out), losses(out, "reference")
    assert ours["loss"] == pytest.approx(reference["loss"], rel=1e-4)  # differences of rounding grow
    assert ours["loss"][: changes[1]["step"] + 50] == pytest.approx(reference["loss"][: changes[1]["step"] + 50], rel=1e-5)
    assert [step for step, _ in ours["validation"]] == [150, 300, 450, 600]
    for change, name in zip(changes, ("a worker joins: 2 -> 3", "a worker dies: 3 -> 2"), strict=False):
        line = f"  after step {change['step']}: {name} workers, pause {change['seconds']:.2f} s"
        assert line in said
    assert "0 steps were lost, 0 were applied twice." in said
    assert checkpoint.read_manifest(out / "checkpoint").state["step"] == 600


def test_lost_and_repeated_steps_are_counted():
    count = runpy.run_path(SCRIPT)["lost_and_repeated"]

    def history(*pairs):
        return [{"step": step, "updates": updates} for step, updates in pairs]

    assert count(history((1, 1), (2, 2), (3, 3))) == (0, 0)
    assert count(history((1, 1), (3, 3))) == (0, 0)  # a report is missing, and its step was made
    assert count(history((1, 1), (2, 1), (3, 2))) == (1, 0)
    assert count(history((1, 1), (2, 3), (3, 4))) == (0, 1)
    assert count(history((1, 1), (2, 1), (3, 3))) == (1, 1)


def test_the_picture_and_the_timeline_are_valid_files(run):
    out, _ = run
    picture = (out / "loss.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    events = json.loads((out / "timeline.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0 measured", "rank 0 planned"]
    for pid, name in names.items():
        spans = {e["name"] for e in events if e["pid"] == pid and e["ph"] == "X"}
        assert {"forward(blocks.0)", "backward(blocks.1)"} <= spans, name


def test_the_checkpoint_is_readable_and_has_the_data_position(run):
    out, _ = run
    manifest = checkpoint.read_manifest(out / "checkpoint")
    assert manifest.world_size == 2
    assert (manifest.state["step"], manifest.state["epoch"], manifest.state["batch"]) == (12, 0, 12)
    assert manifest.optimizer.endswith("AdamW")
    assert set(manifest.optimizer_state["head.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    rows = 0
    for rank in range(2):
        with safe_open(out / "checkpoint" / manifest.folder / f"model-rank-{rank}-of-2.safetensors", "pt") as file:
            rows += file.get_slice("token.weight").get_shape()[0]
    assert rows == 256


def test_a_second_run_is_bitwise_equal_also_as_a_job(run, tmp_path):
    out, _ = run
    job = [
        binary(),
        "submit",
        *command(tmp_path, "--steps=12", "--no-reference")[1:],
    ]
    done = subprocess.run(job, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert losses(tmp_path) == losses(out)
    assert files(tmp_path / "checkpoint") == files(out / "checkpoint")
    assert (tmp_path / "sample.txt").read_bytes() == (out / "sample.txt").read_bytes()


def test_a_resumed_run_is_bitwise_equal_and_accepts_more_workers(run, train, tmp_path):
    out, _ = run
    train(tmp_path, "--steps=8", "--no-reference", "--loaders=2", "--fixed")
    assert losses(tmp_path)["loss"] == losses(out)["loss"][:8]
    train(tmp_path, "--steps=12", "--no-reference", "--resume")
    assert losses(tmp_path) == losses(out)
    assert files(tmp_path / "checkpoint") == files(out / "checkpoint")
    train(tmp_path, "--steps=16", "--resume", "--num-workers=3")
    assert checkpoint.read_manifest(tmp_path / "checkpoint").world_size == 3
    assert losses(tmp_path)["loss"] == pytest.approx(losses(tmp_path, "reference")["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps=0"], "argument --steps: 0 is less than 1"),
        (["--lr=nan"], "argument --lr: nan is no finite number"),
        (["--steps=many"], "argument --steps: invalid number value: 'many'"),
        (["--width=30", "--heads=4"], "--width 30 is no multiple of --heads 4"),
        (["--num-workers=13"], "--batch 12 leaves some of the 13 workers without a window"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_argument_gives_one_sentence(tmp_path, main, options, said):
    assert main(tmp_path, *options) == (2, "", f"train_gpt.py: {said}; see --help\n")


def test_a_run_that_cannot_resume_gives_one_sentence(run, tmp_path, main):
    out, _ = run
    code, _, said = main(tmp_path, "--resume")
    assert code == 1
    assert said.startswith("train_gpt: there is no checkpoint in")
    assert main(out, "--resume", "--steps=12")[2] == "train_gpt: the checkpoint is at step 12 already: pass a larger --steps\n"
    assert main(out, "--resume", "--seed=1")[2] == "train_gpt: the checkpoint was trained with --seed 0, not 1: pass that\n"
    (tmp_path / "file").touch()
    assert "below cannot be written: Not a directory" in main(tmp_path / "file" / "below")[2]


def test_loaders_end_with_a_killed_job(run, tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "--steps=1000000", "--loaders=2"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process.stdout:
        while "the first step" not in process.stdout.readline():
            assert process.poll() is None
        wait_until(lambda: len(descendants(process.pid)) >= 7, 10, "two workers with two loaders each, and their cluster")
        process.kill()
    process.wait()  # else the process would be among the leftovers that module_home looks for
