"""Stock FSDP2 and DDP on the backend shoal of torch.distributed, beside the same programs on gloo: config M, two ranks (8 minutes).

DDP has no goal: each rank updates all parameters, and computing alone takes more than half of its step on gloo."""

import json
import statistics
import tempfile
from pathlib import Path

from launch import OURS, Failed, run, say, torchrun
from report import Report, Row

NEEDS_PEERS = False  # the same environment runs both: only the name of the backend differs
PAIR = {"paired": True}
LENGTH = ["--config", "M", "--steps", "9", "--warmup", "3"]
MODES = {
    "FSDP2": ["--mode", "fsdp2"],
    "FSDP2, fused AdamW": ["--mode", "fsdp2", "--optim", "fused"],
    "DDP": ["--mode", "ddp"],
    "DDP, fused AdamW": ["--mode", "ddp", "--optim", "fused"],
}
ROWS = [
    Row("step M, FSDP2, Shoal's collectives", "s", "FSDP2 shoal, custom", "FSDP2 gloo", goal=("<=", 0.5), **PAIR),
    Row("  the same, fused AdamW in both", "s", "FSDP2, fused AdamW shoal, custom", "FSDP2, fused AdamW gloo", goal=("<=", 0.5), **PAIR),
    Row("step M, FSDP2, its own buffers", "s", "FSDP2 shoal", "FSDP2 gloo", goal=("<=", 0.5), **PAIR),
    Row("  the same, fused AdamW in both", "s", "FSDP2, fused AdamW shoal", "FSDP2, fused AdamW gloo", **PAIR),
    Row("step M, DDP", "s", "DDP shoal", "DDP gloo", **PAIR),
    Row("  the same, fused AdamW in both", "s", "DDP, fused AdamW shoal", "DDP, fused AdamW gloo", **PAIR),
    Row("  FSDP2 beside one process without exchanges", "s", "FSDP2, fused AdamW shoal, custom", "one process", **PAIR),
    Row("  DDP beside one process without exchanges", "s", "DDP, fused AdamW shoal", "one process", **PAIR),
]


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=2, help="repetitions, ours and the peer in turn")


def _jobs() -> dict[str, list]:
    """The command line of each series."""
    jobs = {"one process": [OURS / "python", "train_step.py", *LENGTH, "--mode", "single", "--threads", "2", "--optim", "fused"]}
    for name, mode in MODES.items():
        for backend in ("gloo", "shoal"):
            jobs[f"{name} {backend}"] = torchrun(OURS, "train_step.py", *LENGTH, *mode, "--backend", backend)
        if name.startswith("FSDP2"):
            jobs[f"{name} shoal, custom"] = torchrun(OURS, "train_step.py", *LENGTH, *mode, "--backend", "shoal", "--custom")
    return jobs


def measure(options) -> Report:
    report = Report("backend", ROWS)
    jobs = _jobs()
    for r in range(options.rounds):
        for series, argv in jobs.items() if r % 2 == 0 else reversed(jobs.items()):
            say(f"bench backend: round {r + 1} of {options.rounds}: {series}")
            try:
                report.add(series, _seconds(argv, threads=2 if series == "one process" else 1))
            except Failed as error:
                report.failures[series] = str(error)
                say(f"bench backend: {series} failed: {error}")
    return report


def _seconds(argv, threads) -> float:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        out = Path(folder, "figures.json")
        run([*argv, "--out", out], threads=threads)
        return statistics.median(json.loads(out.read_text())["step_s"])
