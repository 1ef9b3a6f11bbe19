"""Calls of a C++ driver on one actor of the same host, beside a bare ping-pong over a unix socket (seconds).

The driver, and so its worker, is linked with jemalloc, as examples/README.md suggests for programs with many calls under way."""

import json

from launch import ROOT, Failed, run, say
from report import Report, Row

NEEDS_PEERS = False
BUILT = ROOT / "bazel-bin" / "tests" / "bench" / "cpp"
ROWS = [
    Row("one call after the other", "1/s", "call", "ping-pong"),
    Row("one call after the other", "1/s", "call", "ping-pong, two cores", goal=(">=", 2)),
    Row("one call after the other", "1/s", "call", "ping-pong, one core"),
    Row("10,000 calls pipelined", "1/s", "pipelined", "half a million", goal=(">=", 1)),
    Row("10,000 calls pipelined", "1/s", "pipelined", "ping-pong"),
    Row("1 MiB there and back", "1/s", "1 MiB", "1 MiB ping-pong"),
]


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, calls and ping-pong in turn")


def measure(options) -> Report:
    report = Report("calls", ROWS)
    report.add("half a million", 500_000)
    for r in range(options.rounds):
        say(f"bench calls: round {r + 1} of {options.rounds}")
        for program in ("calls", "ping_pong"):
            try:
                lines = run([BUILT / program], limit=120).splitlines()
            except Failed as error:
                report.failures[program] = str(error)
                continue
            for figure in map(json.loads, lines):
                report.add(figure["name"], figure["per_second"])
                report.raw.append({"program": program, "round": r + 1, **figure})
    return report
