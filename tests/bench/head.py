"""CPU time (seconds) of a head of 10,000 nodes beside its limit, alone, and with 10,000 real nodes in the simulated world."""

import json

from launch import ROOT, Failed, run, say
from report import Report, Row

NEEDS_PEERS = False
BUILT = ROOT / "bazel-bin" / "tests" / "bench" / "cpp"
SECOND = "a second of one core"
ROWS = [
    Row("a second of heartbeats", "s", "heartbeats", SECOND, goal=("<=", 0.25)),
    Row("the same with 10,000 actors", "s", "heartbeats with 10,000 actors", SECOND, goal=("<=", 0.25)),
    Row("10,000 actors placed", "s", "place 10,000 actors", SECOND, goal=("<=", 2)),
    Row("10,000 actors become alive", "s", "10,000 actors become alive", SECOND),
    Row("1,000 gangs of 4 scheduled as 4,000 nodes join", "s", "schedule 1,000 gangs", SECOND, goal=("<=", 1)),
    Row("1,000 gangs asked for that wait", "s", "ask for 1,000 gangs that wait", SECOND),
    Row("to say why they wait", "s", "say why 1,000 gangs wait", SECOND),
    Row("simulated: 10,000 nodes join", "s", "world: 10,000 nodes join", SECOND),
    Row("  nodes and network meanwhile", "s", "world: 10,000 nodes join, around it", SECOND),
    Row("simulated: a second of heartbeats", "s", "world: heartbeats", SECOND, goal=("<=", 0.25)),
    Row("  nodes and network meanwhile", "s", "world: heartbeats, around it", SECOND),
    Row("simulated: 10,000 actors asked for and alive", "s", "world: 10,000 actors alive", SECOND, goal=("<=", 2)),
    Row("  nodes and network meanwhile", "s", "world: 10,000 actors alive, around it", SECOND),
    Row("memory with 14,000 nodes and 14,000 workers", "MiB", "resident MiB", "a MiB", goal=("<=", 300)),
]


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3)


def measure(options) -> Report:
    report = Report("head", ROWS)
    report.add(SECOND, 1.0)
    report.add("a MiB", 1.0)
    for r in range(options.rounds):
        say(f"bench head: round {r + 1} of {options.rounds}")
        try:
            lines = [line for program in ("head", "world") for line in run([BUILT / program], limit=300).splitlines()]
        except Failed as error:
            report.failures["head"] = str(error)
            continue
        for figure in map(json.loads, lines):
            report.add(figure["name"], figure["value"])
            report.raw.append({"round": r + 1, **figure})
    return report
