"""The actor runtime beside Ray, by one script: a cluster's life, actors, calls, tasks, objects, placement groups (about 5 minutes)."""

import json

from launch import HERE, OURS, PEERS, Failed, run, say, version
from report import Report, Row

FASTER, RATE = {"ratio": "peer/ours"}, {"ratio": "ours/peer"}


def _row(name, unit, figure, goal=None):
    better = RATE if unit in ("1/s", "GB/s") else FASTER
    return Row(name, unit, f"shoal {figure}", f"ray {figure}", goal=goal and (">=", goal), **better)


ROWS = [
    _row("init()", "s", "init_first", 25),
    _row("start --head", "s", "start_head", 20),
    _row("stop", "s", "stop", 20),
    _row("actor, created to its first result", "s", "actor", 20),
    _row("20 actors, all answered", "s", "actors20", 15),
    _row("calls, one after the other", "1/s", "calls_sync", 12),
    _row("calls, in batches of 1,000", "1/s", "calls_batched", 20),
    _row("calls, 2 callers, 2 actors", "1/s", "calls_n_n", 20),
    _row("tasks, one after the other", "1/s", "tasks_sync", 15),
    _row("tasks, in batches of 2,000", "1/s", "tasks_batched", 20),
    _row("put of 100 bytes", "1/s", "put_small", 30),
    _row("get of 100 bytes", "1/s", "get_small", 5),
    _row("put of 1 GB", "GB/s", "put_big", 1),
    _row("get of 1 GB, without a copy", "s", "get_big", 10),
    _row("  1 GB as an argument", "s", "pass_big"),
    _row("wait for 1,000 that are ready", "s", "wait_ready", 5),
    _row("wait for 1,000 by tens", "s", "wait_by_ten", 5),
    _row("placement group, created and removed", "1/s", "groups", 20),
    Row("idle memory after init(), of all processes", "MiB", "shoal idle_init", "ray idle_init", goal=("<=", 0.15)),
    Row("  after start --head", "MiB", "shoal idle_start_head", "ray idle_start_head"),
    # How far from what the machine allows: a round trip of a bare unix socket, a copy in memory.
    Row("  calls beside a bare ping-pong", "1/s", "shoal calls_sync", "ping-pong"),
    Row("  put of 1 GB beside a copy", "GB/s", "shoal put_big", "shoal copy_big"),
]


def add_options(parser):
    parser.add_argument("--reps", type=int, default=3, help="repetitions within a process")
    parser.add_argument("--rounds", type=int, default=1, help="of both, in turn")
    parser.add_argument("--only", default="", help="figures, with commas between them (life, cluster and memory are groups of them)")


def measure(options) -> Report:
    rows = ROWS
    if options.only:
        parts = {"life": ["init_first"], "cluster": ["start_head", "stop", "idle_start_head"], "memory": ["idle_init"]}
        wanted = {f for name in options.only.split(",") for f in parts.get(name, [name])}
        rows = [r for r in ROWS if r.ours.split()[1] in wanted and (r.peer == "ping-pong" or r.peer.split()[1] in wanted)]
    report = Report("actors", rows)
    for folder, packages in ((OURS, ["numpy"]), (PEERS, ["ray", "numpy"])):
        for package in packages:
            report.versions[f"{folder.parent.name} {package}"] = version(folder / "python", package)
    for r in range(options.rounds):
        modules = [("shoal", OURS), ("ray", PEERS)]
        for module, folder in modules if r % 2 == 0 else reversed(modules):
            say(f"bench actors: round {r + 1} of {options.rounds}: {module}")
            _figures(report, module, [folder / "python", HERE / "actor_figures.py", module, "--reps", options.reps, "--only", options.only])
        if any(row.peer == "ping-pong" for row in rows):
            _ping_pong(report)
    return report


def _figures(report, module, argv) -> None:
    try:
        lines = run(argv, limit=900).splitlines()
    except Failed as error:
        report.failures[module] = str(error)
        return
    for figure in (json.loads(line) for line in lines if line.startswith("{")):
        name = f"{module} {figure['name']}"
        if figure["value"] is None:
            report.failures[name] = figure["error"]
        else:
            report.add(name, figure["value"])
            report.raw.append({"module": module, **figure})


def _ping_pong(report) -> None:
    try:
        lines = run([HERE.parents[1] / "bazel-bin" / "tests" / "bench" / "cpp" / "ping_pong"], limit=60).splitlines()
    except Failed as error:
        report.failures["ping-pong"] = str(error)
        return
    for figure in map(json.loads, lines):
        if figure["name"] == "ping-pong":
            report.add("ping-pong", figure["per_second"])
