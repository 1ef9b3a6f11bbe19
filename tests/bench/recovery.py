"""A worker is killed: the time to the next committed step, beside torchrun's restart and torchft; protection's cost (about 5 minutes)."""

import itertools
import json
import statistics
import tempfile
from pathlib import Path

from elastic import ALLOWED, restarts
from launch import OURS, PEERS, TORCHFT, Failed, run, say, version
from report import Report, Row

PAUSE = 0.4  # seconds that a death of one of two workers may cost beside the step that the other makes
LOST = "steps lost or made twice"
ROWS = [
    Row("SIGKILL of a worker until the next committed step", "s", "kill to next step", "0.4 s and a step alone", goal=("<=", 1.0)),
    Row("  beside a restart by torchrun, from a DCP checkpoint", "s", "kill to next step", "torchrun", "peer/ours", (">=", 10)),
    Row("  beside torchft, whose timeouts are shortened", "s", "kill to next step", "torchft", "peer/ours"),
    Row("  beside torchft as it is", "s", "kill to next step", "torchft as it is", "peer/ours"),
    Row("steps that the kills have cost", "", LOST, "of steps", goal=("<=", 0.0)),
    Row("batches that differ from those of a run without deaths", "", "other batches", "of steps", goal=("<=", 0.0)),
    Row("largest difference of a loss from that run, relative", "", "loss difference", "allowed difference", goal=("<=", 1.0)),
    Row("a step under protection beside one without", "s", "protected step", "unprotected step", paired=True),
]
TUNED = ["--heartbeat-ms", "400", "--join-ms", "100", "--timeout", "5"]


def add_options(parser):
    parser.add_argument("--config", default="M", help="of gpt.py")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="repetitions of the runs without deaths, with and without protection in turn")


def measure(options) -> Report:
    report = Report("recovery", rows())
    for folder in (OURS, PEERS):
        report.versions[f"{folder.parent.name} torch"] = version(folder / "python", "torch")
    kept: dict = {}
    jobs = [("kills", lambda: _kills(options, kept)), ("restart of torchrun", lambda: _restart(options))]
    if TORCHFT.exists():
        report.versions["torchft"] = version(TORCHFT / "python", "torchft")
        jobs += [
            ("torchft", lambda: _torchft(options, "torchft", TUNED)),
            ("torchft as it is", lambda: _torchft(options, "torchft as it is", [])),
        ]
    else:
        say("bench recovery: torchft is not installed, so its rows are missing")
    jobs += [(f"protection, round {r + 1}", lambda: _protection(options, kept)) for r in range(options.rounds)]
    for name, job in jobs:
        say(f"bench recovery: {name}")
        try:
            for series, values in job().items():
                report.add(series, values)
        except Failed as error:
            report.failures[name] = str(error)
            say(f"bench recovery: {name} failed: {error}")
    return report


def rows() -> list[Row]:
    return [row for row in ROWS if TORCHFT.exists() or not row.peer.startswith("torchft")]


def _figures(python: Path, program: str, *args) -> dict:
    return json.loads(run([python / "python", program, *args], limit=600).splitlines()[-1])


def _kills(options, kept: dict) -> dict[str, list[float]]:
    figures = _figures(OURS, "recovery_train.py", "--config", options.config, "--kills", str(options.kills))
    kept["steps"] = figures["steps"]
    return {
        "kill to next step": figures["kill to next step"],
        "0.4 s and a step alone": [PAUSE + statistics.median(figures["alone"])],
        LOST: [lost_or_repeated(figures["steps"])],
    }


def lost_or_repeated(steps: list[dict]) -> int:
    """The reports that have another number than the next one, or after which the optimizer has counted another number of updates."""
    return sum(s["step"] != n or s["updates"] != n for n, s in enumerate(steps, 1))


def _protection(options, kept: dict) -> dict[str, list[float]]:
    """Two runs without deaths. The first protected one has as many steps as the run with deaths, which it is compared with."""
    with_deaths = kept.pop("steps", [])
    number = max(12, len(with_deaths))
    protected = _figures(OURS, "recovery_train.py", "--config", options.config, "--steps", str(number))
    unprotected = _figures(OURS, "recovery_train.py", "--config", options.config, "--steps", "12", "--unprotected")
    out = {
        "protected step": [statistics.median(protected["durations"])],
        "unprotected step": [statistics.median(unprotected["durations"])],
    }
    if with_deaths:
        out |= differences(with_deaths, protected["steps"])
    return out


def differences(steps: list[dict], reference: list[dict]) -> dict[str, list[float]]:
    pairs = list(zip(steps, reference, strict=False))
    return {
        "other batches": [sum(a["samples"] != b["samples"] for a, b in pairs)],
        "of steps": [len(pairs)],
        "loss difference": [max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in pairs)],
        "allowed difference": [ALLOWED],
    }


def _restart(options) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        steps = restarts(options.config, folder)
    found = []
    for before, after in itertools.pairwise(steps):
        if "saved" in before and after["restart"] == before["restart"] + 1:  # the worker is killed now, and the next start has steps
            found.append(after["at"] - before["at"])
    return {"torchrun": found}


def _torchft(options, series: str, settings: list[str]) -> dict[str, list[float]]:
    figures = _figures(TORCHFT, "recovery_torchft.py", "--config", options.config, "--kills", "3", *settings)
    return {series: figures["kill to next step"]}
