"""Exposed communication of steps on simulated clusters of GPUs, beside FSDP2's schedule in the same costs (a second).

Exposed is the step's duration without its computation. Both sides run on the virtual device of fsdp/device/virtual_device.h, which has the
bandwidths of H100s. So the figures compare schedules, and do not predict durations."""

import json

from launch import ROOT, Failed, run
from report import Report, Row

NEEDS_PEERS = False
PROGRAM = ROOT / "bazel-bin" / "tests" / "bench" / "cpp" / "schedule"
FIGURES = {"exposed": ("s", ("<=", 1)), "step": ("s", None), "peak": ("GB", None)}  # unit and goal


def add_options(parser):
    parser.add_argument(
        "--timeline", metavar="NAME", help='print the operations of a scenario\'s step, such as "HSDP, 2 x 8", and no figures'
    )


def measure(options) -> Report:
    report = Report("schedule", [])
    arguments = ["--timeline", options.timeline] if options.timeline else []
    try:
        output = run([PROGRAM, *arguments], limit=60)
    except Failed as error:
        report.failures["schedule"] = str(error)
        return report
    if options.timeline:
        print(output)
        return report
    for found in map(json.loads, output.splitlines()):
        scenario = found["name"]
        for figure, (unit, goal) in FIGURES.items():
            series = f"{scenario}: {figure}"
            if found["side"] == "ours":
                report.rows.append(Row(series, unit, f"{series}, ours", f"{series}, FSDP2", goal=goal))
            report.add(f"{series}, {'ours' if found['side'] == 'ours' else 'FSDP2'}", found[figure] / (1e9 if unit == "GB" else 1))
        report.raw.append(found)
    return report
