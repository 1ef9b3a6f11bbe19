"""Checkpoints: save and load of 1 GB beside the disk; stall and slower steps of an asynchronous save beside DCP's (about 10 minutes)."""

import json
import shutil
import statistics
import tempfile
from pathlib import Path

from launch import OURS, ROOT, Failed, run, say, torchrun, version
from report import Report, Row

NEEDS_PEERS = False
MODES = ("dcp-process", "dcp-thread")
ROWS = [
    Row("save 1 GB", "MB/s", "save", "disk write", goal=(">=", 0.8), paired=True),
    Row("load 1 GB", "MB/s", "load", "disk read", goal=(">=", 0.8), paired=True),
    Row("load 1 GB, streaming", "MB/s", "load, streaming", "disk read", goal=(">=", 0.8), paired=True),
    Row("stall of an asynchronous save, 1 GB on two ranks", "s", "stall shoal", "stall DCP", goal=("<=", 0.10)),
    Row("steps while the save runs", "s", "steps saving, shoal", "steps, shoal", goal=("<=", 1.05)),
    Row("  of DCP", "s", "steps saving, DCP", "steps, DCP"),
]


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, ours and the peer in turn")
    parser.add_argument("--folder", type=Path, default=ROOT / "out", help="a folder on the disk to measure")
    parser.add_argument("--only", choices=["disk", "stall"], help="only these rows")


def measure(options) -> Report:
    rows = ROWS[: 3 if options.only == "disk" else None][3 if options.only == "stall" else 0 :]
    report = Report("checkpoint", rows)
    report.versions["torch"] = version(OURS / "python", "torch")
    options.folder.mkdir(parents=True, exist_ok=True)
    for r in range(options.rounds):
        for part, measured in (("disk", _disk), ("stall", _stall)):
            if options.only in (None, part):
                say(f"bench checkpoint: round {r + 1} of {options.rounds}: {part}")
                with tempfile.TemporaryDirectory(prefix="bench.", dir=options.folder) as folder:
                    try:
                        measured(report, Path(folder))
                    except Failed as error:
                        report.failures[f"{part}, round {r + 1}"] = str(error)
    return report


def _disk(report: Report, folder: Path) -> None:
    figures = json.loads(run([OURS / "python", "checkpoint_io.py", folder / "io", "--rounds", "1"], threads=1))["figures"]
    for series, values in figures.items():
        report.add(series, values)


def _stall(report: Report, folder: Path) -> None:
    """The mode of DCP with the shortest stall counts."""
    best = None
    for mode in ("shoal", *MODES):
        out = folder / "figures.json"
        run(torchrun(OURS, "checkpoint_step.py", "--mode", mode, "--folder", folder / mode, "--out", out), threads=1, limit=400)
        figures = json.loads(out.read_text())
        shutil.rmtree(folder / mode)
        report.raw.append({"mode": mode, **figures})
        if mode == "shoal":
            _add(report, "shoal", figures)
        elif best is None or figures["stall"] < best["stall"]:
            best = figures
    _add(report, "DCP", best)


def _add(report: Report, name: str, figures: dict) -> None:
    report.add(f"stall {name}", figures["stall"])
    report.add(f"steps saving, {name}", statistics.mean(figures["saving"]))
    report.add(f"steps, {name}", statistics.median(figures["steady"]))
