"""graph.peak_bytes() before the first step beside the measured peak of the job: six jobs, all processes counted (about 5 minutes)."""

import json
import tempfile
from pathlib import Path

from launch import HERE, OURS, Failed, run, say, torchrun
from report import Report, Row

NEEDS_PEERS = False
JOBS = {
    "M": ("M", "nothing"),
    "M, two micro-batches without communication": ("M", "accumulation"),
    "M, blocks checkpointed": ("M", "checkpointing"),
    "M, CPUOffloadPolicy": ("M", "offload"),
    "M, bf16 reduced in fp32": ("M", "bf16"),
    "M, optimizer in backward": ("M", "in-backward"),
    "S": ("S", "nothing"),
}


def add_options(parser):
    parser.add_argument("--only", choices=list(JOBS), action="append", help="only these jobs, as often as needed")


def measure(options) -> Report:
    jobs = options.only or list(JOBS)
    rows = [Row(f"peak, {j}", "MiB", f"planned, {j}", f"measured, {j}") for j in jobs]
    rows += [Row(f"  off by, {j}", "MiB", f"off, {j}", f"measured, {j}", goal=("<=", 0.05)) for j in jobs]
    report = Report("peak", rows)
    for name in jobs:
        say(f"bench peak: {name}")
        try:
            planned, measured = _planned(*JOBS[name]), _measured(*JOBS[name])
        except Failed as error:
            report.failures[f"planned, {name}"] = report.failures[f"off, {name}"] = str(error)
            continue
        report.add(f"planned, {name}", planned)
        report.add(f"measured, {name}", measured)
        report.add(f"off, {name}", abs(planned - measured))
    return report


def _argv(config, what, *args):
    return torchrun(OURS, "planned_step.py", "--config", config, "--with", what, *args)


def _planned(config, what) -> float:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        out = Path(folder, "planned.json")
        run(_argv(config, what, "--until", "planned", "--out", out))
        return json.loads(out.read_text())["peak_bytes"] / 2**20


def _measured(config, what) -> float:
    """The steady peak of a job, minus the memory of the same job before its model is built."""
    figures = {}
    for marker, until in (("# before", "before"), ("# steady", "end")):
        argv = [OURS / "python", HERE / "peak_memory.py", "--after-marker", marker, "--", *_argv(config, what, "--until", until)]
        found = [json.loads(line) for line in run(argv).splitlines() if line.startswith("{")]
        figures[until] = next((f["value"] for f in found if f["name"] == "job_steady_peak_memory" and "value" in f), None)
    if None in figures.values():
        raise Failed(f"no steady peak of {config} with {what}")
    return figures["end"] - figures["before"]
