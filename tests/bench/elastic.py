"""Pauses of an elastic training, 2 -> 4 -> 3 -> 1 -> 2 workers, beside a step and beside a restart by torchrun (about 8 minutes)."""

import itertools
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path

from hosts_world import SECOND, world
from launch import OURS, PEERS, Failed, run, say, torchrun, version
from report import Report, Row

CHANGES = "4,3,1,2"
ROWS = [
    Row("pause of a change beside a step", "s", "pause", "step after it", goal=("<=", 1.0), paired=True),
    Row("pause of a change beside a restart by torchrun", "s", "pause", "restart of torchrun", goal=("<=", 0.05)),
    Row("  of which the training stands still for the change", "s", "change", "restart of torchrun"),
    Row("largest difference of a loss from the fixed size, relative", "", "loss difference", "allowed difference", goal=("<=", 1.0)),
    Row("bytes that went to other owners beside the model's state", "MB", "moved", "state of the model"),
    Row("two hosts: bytes of a change on the wire beside the least", "MB", "wire", "least on the wire", goal=("<=", 1.1), paired=True),
    Row("  of which on the interface that was not chosen", "MB", "other interface", "wire", goal=("<=", 0.01), paired=True),
]
ALLOWED = 1e-5


def add_options(parser):
    parser.add_argument("--config", default="M", help="of gpt.py")
    parser.add_argument("--only", choices=["elastic", "restart", "two"], help="one of the three runs of a round")
    parser.add_argument("--rounds", type=int, default=2, help="repetitions, ours and the peer in turn")


def measure(options) -> Report:
    report = Report("elastic", ROWS)
    for folder in (OURS, PEERS):
        report.versions[f"{folder.parent.name} torch"] = version(folder / "python", "torch")
    for r in range(options.rounds):
        jobs = {"elastic training": partial(_elastic, report), "restart of torchrun": _restart, "two hosts": _two_hosts}
        for name, job in jobs.items():
            if options.only and name.split()[0] != options.only:
                continue
            say(f"bench elastic: round {r + 1} of {options.rounds}: {name}")
            try:
                for series, values in job(options.config).items():
                    report.add(series, values)
            except Failed as error:
                report.failures[name] = str(error)
                say(f"bench elastic: {name} failed: {error}")
    return report


def _figures(*args) -> dict:
    return json.loads(run([OURS / "python", "elastic_train.py", *args], limit=600).splitlines()[-1])


def _elastic(report: Report, config: str) -> dict[str, list[float]]:
    elastic = _figures("--config", config, "--workers", "2", "--changes", CHANGES)
    steps = elastic["steps"]
    fixed = _figures("--config", config, "--workers", "2", "--steps", str(len(steps)))["steps"]
    difference = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(steps, fixed, strict=True))
    changes = elastic["changes"][-len(CHANGES.split(",")) :]  # without the first one, from as many as fit to two
    report.raw += changes
    pauses, after = [], []
    for change in changes:
        pause, step = pause_of(steps, "generation", change["generation"])
        pauses.append(pause)
        after.append(step)
    return {
        "pause": pauses,
        "step after it": after,
        "change": [c["seconds"] for c in changes],
        "loss difference": [difference],
        "allowed difference": [ALLOWED],
        "moved": [c["moved_bytes"] / 1e6 for c in changes],
        "state of the model": [elastic["state_bytes"] / 1e6],
    }


def _two_hosts(config: str) -> dict[str, list[float]]:
    """A worker on each of two hosts with two networks. One leaves and comes back: the bytes of each change by the interfaces' counters.

    The least: half of the parameters and moments gets another host as its owner.
    """
    with world(2, second_cable=True) as w:
        argv = [OURS / "python", "elastic_train.py", "--config", config, "--address", w.cluster.address, "--changes", "1,2"]
        said = w.wait([w.popen(w.hosts[0], argv)], limit=300)
    figures = json.loads(said[0].splitlines()[-1])
    steps, found = figures["steps"], {"wire": [], "least on the wire": [], "other interface": []}
    for last, first in itertools.pairwise(steps):
        if last["generation"] != first["generation"]:
            moved = {device: first["traffic"][0][device] - last["traffic"][1][device] for device in (SECOND, "cable")}
            found["wire"].append(moved[SECOND] / 1e6)
            found["other interface"].append(moved["cable"] / 1e6)
            found["least on the wire"].append(figures["state_bytes"] / 2e6)
    return found


def _restart(config: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        steps = restarts(config, folder)
    return {"restart of torchrun": restart_pauses(steps)}


def restarts(config: str, folder: str) -> list[dict]:
    """Runs elastic_restart.py. Returns the lines of its steps."""
    argv = torchrun(PEERS, "elastic_restart.py", "--config", config, "--folder", folder)
    argv.insert(argv.index("--standalone"), "--max-restarts=6")
    run(argv, limit=600)
    return [json.loads(line) for line in Path(folder, "steps").read_text().splitlines()]


def restart_pauses(steps: list[dict]) -> list[float]:
    """Returns the pauses of restarts that directly follow a start with steps: a restart that failed itself counts in no pause."""
    numbers = {s["restart"] for s in steps}
    return [pause_of(steps, "restart", n)[0] for n in sorted(numbers) if n - 1 in numbers]


def pause_of(steps: list[dict], key: str, value: int) -> tuple[float, float]:
    """Returns (pause, step): how much longer the first step with ``key`` took than a later one, and the duration of such a step."""
    first = next(i for i, s in enumerate(steps) if s[key] == value)
    later = [b["at"] - a["at"] for a, b in zip(steps[first:], steps[first + 1 :], strict=False) if b[key] == value and "saved" not in b]
    step = statistics.median(later)
    return steps[first]["at"] - steps[first - 1]["at"] - step, step
