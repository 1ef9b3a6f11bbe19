"""The actor runtime beside Ray, by one script, and beside the best of Monarch and xoscar, figure by figure (about 8 minutes)."""

import dataclasses
import json
import statistics

from launch import ACTOR_PEERS, HERE, OURS, PEERS, Failed, run, say, version
from report import Report, Row

FASTER, RATE = {"ratio": "peer/ours"}, {"ratio": "ours/peer"}


def _row(name, unit, figure, goal=None):
    better = RATE if unit in ("1/s", "GB/s") else FASTER
    return Row(name, unit, f"shoal {figure}", f"ray {figure}", goal=goal and (">=", goal), **better)


def _best(name, unit, figure, goal=None, sign=">="):
    """A row beside the figure of Monarch or of xoscar, whichever is better (`beside_the_best`)."""
    better = RATE if unit in ("1/s", "GB/s") else FASTER
    if sign == "<=":
        better = {"ratio": "ours/peer"}
    return Row(name, unit, f"shoal {figure}", f"{_BEST} {figure}", goal=goal and (sign, goal), **better)


_BEST = "best"
ROWS = [
    _row("init()", "s", "init_first", 25),
    _row("start --head", "s", "start_head", 20),
    _row("stop", "s", "stop", 20),
    _row("actor, created to its first result", "s", "actor", 20),
    _row("20 actors, all answered", "s", "actors20", 15),
    _row("calls, one after the other", "1/s", "calls_sync", 12),
    _row("calls, in batches of 1,000", "1/s", "calls_batched", 20),
    _row("calls, 2 callers, 2 actors", "1/s", "calls_n_n", 20),
    _row("compiled graph, one actor, one after the other", "1/s", "graph_sync", 5),
    _row("compiled graph, one actor, 8 under way", "1/s", "graph_pipelined", 5),
    _row("compiled graph, chain of 3, one after the other", "1/s", "graph_chain_sync", 5),
    _row("compiled graph, chain of 3, 8 under way", "1/s", "graph_chain_pipelined", 5),
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
    _best("import, init() and first result", "s", "begin", 1, "<="),
    _best("actor in a new process", "s", "actor", 4),
    _best("20 actors in 20 processes", "s", "actors20", 4),
    _best("calls, one after the other", "1/s", "calls_sync", 3),
    _best("calls, in batches of 1,000", "1/s", "calls_batched", 4),
    _best("calls of four actors at once, one after the other", "1/s", "mesh_sync", 5),
    _best("calls of four actors at once, in batches of 1,000", "1/s", "mesh_batched", 5),
    _best("argument of 100 MB, an array; theirs what is faster", "GB/s", "argument", 10),
    _best("  the first one, which touches its memory for the first time", "GB/s", "argument_first"),
    _best("  bytes, which have to be copied twice", "GB/s", "argument_bytes"),
    _best("SIGKILL to the failure of the pending call", "s", "death", 3, "<="),
    Row("  batches beside 1,000 calls in one message", "1/s", "shoal calls_batched", "xoscar calls_in_one_message"),
    Row("  20 actors beside one mesh of 20", "s", "shoal actors20", "monarch actors20_one_mesh", **FASTER),
    # Limits of the machine: a round trip of a bare unix socket, a copy in memory.
    Row("  calls beside a bare ping-pong", "1/s", "shoal calls_sync", "ping-pong"),
    Row("  calls of four actors beside a bare ping-pong", "1/s", "shoal mesh_sync", "ping-pong"),
    Row("  argument of 100 MB beside a copy", "GB/s", "shoal argument", "shoal copy_big"),
    Row("  put of 1 GB beside a copy", "GB/s", "shoal put_big", "shoal copy_big"),
]


def add_options(parser):
    parser.add_argument("--reps", type=int, default=3, help="repetitions within a process")
    parser.add_argument("--rounds", type=int, default=1, help="of all, in turn")
    parser.add_argument("--only", default="", help="figures, with commas between them (life, cluster and memory are groups of them)")
    parser.add_argument("--peers", default=",".join(PEER_MODULES), help="some of %(default)s")


PEER_MODULES = {
    "ray": (PEERS, "actor_figures.py", ["ray"]),
    "monarch": (ACTOR_PEERS, "monarch_figures.py", []),
    "xoscar": (ACTOR_PEERS, "xoscar_figures.py", []),
}
MODULES = {"shoal": (OURS, "actor_figures.py", ["shoal"]), **PEER_MODULES}
PACKAGES = {"shoal": ["numpy"], "ray": ["ray", "numpy"], "monarch": ["torchmonarch", "numpy"], "xoscar": ["xoscar"]}
_BESIDE = ["monarch", "xoscar"]  # a row is compared with the better figure of these peers
_ALSO = {"argument": ["argument_bytes"]}


def _asked_for(row, only: set[str], peers: set[str]) -> bool:
    """True if the figures and peers that the user selected include this row."""
    owner, _, figure = row.peer.partition(" ")
    there = owner in {"shoal", "ping-pong", *peers} or (owner == _BEST and peers & set(_BESIDE))
    return bool(there) and (not only or (row.ours.split()[1] in only and (not figure or figure in only)))


def measure(options) -> Report:
    parts = {"life": ["init_first"], "cluster": ["start_head", "stop", "idle_start_head"], "memory": ["idle_init"]}
    only = {f for name in filter(None, options.only.split(",")) for f in parts.get(name, [name])}
    peers = set(options.peers.split(","))
    if unknown := peers - set(PEER_MODULES):
        raise SystemExit(f"--peers: no {', '.join(sorted(unknown))}; there are {', '.join(PEER_MODULES)}")
    modules = ["shoal", *(m for m in PEER_MODULES if m in peers)]
    report = Report("actors", [r for r in ROWS if _asked_for(r, only, peers)])
    for module in modules:
        for package in PACKAGES[module]:
            report.versions[f"{module}: {package}"] = version(MODULES[module][0] / "python", package)
    for r in range(options.rounds):
        for module in modules if r % 2 == 0 else reversed(modules):
            say(f"bench actors: round {r + 1} of {options.rounds}: {module}")
            folder, script, words = MODULES[module]
            _figures(report, module, [folder / "python", HERE / script, *words, "--reps", options.reps, "--only", options.only])
        if any(row.peer == "ping-pong" for row in report.rows):
            _ping_pong(report)
    report.rows = [beside_the_best(report, row) for row in report.rows]
    return report


def beside_the_best(report, row) -> Row:
    """Gives a row of `_best` the peer with the better median, and returns other rows as they are. A row of `_best` without any figure
    misses its goal."""
    owner, _, figure = row.peer.partition(" ")
    if owner != _BEST:
        return row
    names = [figure, *_ALSO.get(figure, [])]
    there = [series for series in (f"{m} {name}" for m in _BESIDE for name in names) if report.samples.get(series)]
    best = max if row.unit in ("1/s", "GB/s") else min
    return dataclasses.replace(row, peer=best(there, key=lambda s: statistics.median(report.samples[s])) if there else row.peer)


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
