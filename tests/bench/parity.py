"""20 losses of config S, sharded over 2 and 4 workers, beside one plain process at the same global batch (about 7 minutes)."""

import json
import math
import tempfile
from pathlib import Path

from launch import OURS, PEERS, Failed, run, say, torchrun, version
from report import Report, Row

LIMIT = 1e-5  # largest relative difference that a step's loss may have, in fp32
STEPS, GLOBAL_BATCH = 20, 16


def add_options(parser):
    parser.add_argument("--config", choices=["S", "T"], default="S", help="T is small: seconds, to try the bench itself")


class ParityReport(Report):
    """Compares losses step by step, not by medians: the value of a row is the largest relative difference of a step."""

    def value(self, row):
        ours, plain = self.samples.get(row.ours), self.samples.get(row.peer)
        if not ours or not plain or len(ours) != len(plain):
            return None
        each = [abs(a - b) / abs(b) for a, b in zip(ours, plain, strict=True)]
        return max(each) if all(map(math.isfinite, each)) else math.inf  # max() may ignore a NaN

    def table(self):
        plain = self.samples.get("plain", [])
        lines = ["step  plain     relative difference of each"]
        for i, loss in enumerate(plain):
            each = [f"{row.ours} {abs(self.samples[row.ours][i] - loss) / abs(loss):.1e}" for row in self.rows if row.ours in self.samples]
            lines.append(f"{i + 1:4}  {loss:.6f}  " + "   ".join(each))
        lines.append("")
        for row in self.rows:
            value, holds = self.value(row), self.holds(row)
            found = "failed" if value is None else f"worst {value:.1e}"
            goal = "" if row.goal is None else f"goal {row.goal[0]} {row.goal[1]:g}: " + ("holds" if holds else "MISS")
            lines.append(f"{row.name:50}  {found:14}  {goal}".rstrip())
        return "\n".join(lines + [f"{series}: {why}" for series, why in self.failures.items()])


def measure(options) -> Report:
    common = ["--config", options.config, "--steps", str(STEPS), "--global-batch", str(GLOBAL_BATCH)]

    def ours(world, optim):
        return torchrun(OURS, "train_step.py", *common, "--mode", "shoal", "--optim", optim, world_size=world)

    def fsdp2(world):
        return torchrun(PEERS, "train_step.py", *common, "--mode", "fsdp2", world_size=world)

    jobs = {
        "plain": [OURS / "python", "train_step.py", *common, "--mode", "single", "--threads", "2"],
        "shoal x2": ours(2, "shoal"),
        "shoal x4": ours(4, "shoal"),
        "shoal x2, torch's AdamW": ours(2, "torch"),
        "FSDP2 x2": fsdp2(2),
        "FSDP2 x4": fsdp2(4),
    }
    goals = {name: ("<=", LIMIT) if name.startswith("shoal") else None for name in jobs}
    rows = [Row(f"{name} beside one plain process", "", name, "plain", goal=goals[name]) for name in jobs if name != "plain"]
    report = ParityReport("parity", rows)
    for folder in (OURS, PEERS):
        report.versions[f"{folder.parent.name} torch"] = version(folder / "python", "torch")
    for name, argv in jobs.items():
        say(f"bench parity: {name}")
        with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
            out = Path(folder, "figures.json")
            try:
                run([*argv, "--out", out], threads=2 if name == "plain" else 1, limit=300)
            except Failed as error:
                report.failures[name] = str(error)
                say(f"bench parity: {name} failed: {error}")
                continue
            figures = json.loads(out.read_text())
        report.add(name, figures["losses"])
        report.raw.append({"job": name, **figures})
    return report
