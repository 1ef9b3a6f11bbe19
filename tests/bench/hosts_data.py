"""Training over several hosts beside gloo, raw TCP and the links' rates: collectives, steps, lost hosts, memory (about 10 minutes). And
both stacks over TCP beside plain sockets: shards' (runtime/transport/tcp) and calls' (runtime/net), on loopback.

The hosts are network namespaces with a core each (three share two), joined by links of 1 and 10 Gbit/s. Needs root. A rate of a collective
is the smallest number of bytes that each host must send, divided by the time of the slowest rank. Its limit is the link, or the rate of
plain TCP when all hosts send and receive as many bytes, measured in turn by the same ranks.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from hosts_world import World, world
from launch import HERE, OURS, ROOT, Failed, say, version
from report import Report, Row

NEEDS_PEERS = False
PAIR = {"paired": True}
SECTIONS = ["collectives", "step", "links", "memory", "stacks"]
MIB = [8, 64]
GOALS = {"gather": 0.9, "reduce_scatter": 0.9, "all_reduce": 0.98}
GLOO_MIB = 64  # the size that is compared with gloo
BEYOND_MIB, CUT_S, KILLED_S = 64.0, 2.0, 0.2
REFORM_S = {1: 0.010, 4: 0.100}  # by number of hosts
NO_ERROR_S = 20.0  # a rank without an error after this time has none
STEP = ["--config", "M", "--steps", "4", "--warmup", "2"]  # the first step is traced, the second is the first planned one
PEER_STEP = ["--config", "M", "--steps", "3", "--warmup", "1"]
WIRE = ["--wire", "cable"]


def _net(hosts: int, gbit: float) -> str:
    return f"{hosts} hosts, {gbit:g} Gbit/s"


def _collective_rows(gbits):
    rows = []
    for net in (_net(hosts, gbit) for hosts in (2, 3) for gbit in gbits):
        for mib in MIB:
            for name, goal in GOALS.items():
                ours = f"{name} {mib} MiB, {net}"
                rows.append(Row(ours, "GB/s", ours, f"limit, {mib} MiB, {net}", goal=(">=", goal)))
                if mib == GLOO_MIB:
                    rows.append(Row("  beside gloo", "GB/s", ours, f"gloo {ours}"))
        rows.append(Row(f"raw TCP one way beside both ways, {net}", "GB/s", f"one way, {net}", f"both ways, {net}"))
    return rows


def _step_rows(gbits):
    rows = []
    for hosts, ranks, gbit in _layouts(gbits):
        name = _layout(hosts, ranks, gbit)
        if ranks == 2:
            rows.append(Row(f"step M, {name}", "s", f"step {name}", f"FSDP2 step {name}", goal=("<=", 0.5), **PAIR))
        else:
            rows.append(Row(f"step M, {name}", "s", f"step {name}", f"limit {name}", goal=("<=", 1.1), **PAIR))
            rows.append(Row("  exposed, by the step's timeline", "s", f"exposed {name}", f"bytes / link {name}"))
            rows.append(Row("  exposed, by subtraction of the step on one host", "s", f"difference {name}", f"bytes / link {name}"))
        rows.append(Row(f"  bytes on the wire per step, {name}", "MB", f"wire {name}", f"least wire {name}", goal=("<=", 1.03)))
        if ranks == 2:
            rows.append(Row("  FSDP2's bytes on the wire", "MB", f"FSDP2 wire {name}", f"least wire {name}"))
    return rows


def _layouts(gbits):
    """Hosts, ranks per host and Gbit/s of the trainings."""
    return [layout for layout in ((2, 2, 10), (2, 1, 1)) if layout[2] in gbits]


def _layout(hosts, ranks, gbit) -> str:
    return f"{hosts} hosts x {ranks}, {gbit:g} Gbit/s"


LINK_ROWS = [
    Row("cut link: error on every rank, 3 hosts", "s", "cut", "allowed, cut", goal=("<=", 1)),
    Row("killed rank: error on every other rank, 3 hosts", "s", "killed", "allowed, killed", goal=("<=", 1)),
    Row("abort and re-form, 4 ranks on one host", "s", "reform, 1", "allowed, reform, 1", goal=("<=", 1)),
    Row("abort and re-form, 4 hosts", "s", "reform, 4", "allowed, reform, 4", goal=("<=", 1)),
]
MEMORY_ROWS = [Row("memory beyond the arena, gather of 1 GiB, 2 hosts", "MiB", "beyond", "allowed beyond", goal=("<=", 1))]

TRANSPORT = ROOT / "bazel-bin" / "tests" / "bench" / "cpp" / "transport"
LAYERS = {"raw": "plain sockets", "tcp": "shards' stack", "net": "calls' stack"}
STACK_ROWS = [
    Row(f"{figure}, {LAYERS[layer]}", unit, f"{layer}.{series}", f"raw.{series}")
    for series, figure, unit in (("one_way", "256 MiB one way, on loopback", "GB/s"), ("round_trip.8B", "8 bytes, round trip", "us"))
    for layer in ("tcp", "net")
]


def add_options(parser):
    parser.add_argument("--only", choices=SECTIONS, action="append", help="only these sections, as often as needed")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1, 10], metavar="GBIT", help="rates of the links, in Gbit/s; steps run at 1 and 10"
    )
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, ours and the peers in turn")


def measure(options) -> Report:
    parts = options.only or SECTIONS
    rows = {
        "collectives": _collective_rows(options.rates),
        "step": _step_rows(options.rates),
        "links": LINK_ROWS,
        "memory": MEMORY_ROWS,
        "stacks": STACK_ROWS,
    }
    report = Report("hosts", [row for part in SECTIONS if part in parts for row in rows[part]])
    report.versions["torch"] = version(OURS / "python", "torch")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the hosts
    for part in SECTIONS:
        if part in parts:
            begin = time.perf_counter()
            {"collectives": _collectives, "step": _steps, "links": _links, "memory": _memory, "stacks": _stacks}[part](report, options)
            say(f"bench hosts: {part} took {time.perf_counter() - begin:.0f} s")
    return report


def _try(report: Report, name: str, job) -> None:
    """Runs one job. Its failure is the reason why series have no samples, and stops no other job."""
    say(f"bench hosts: {name}")
    try:
        job()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        report.failures[name] = str(error)
        say(f"bench hosts: {name} failed: {error}")


def _transport(report: Report, where: str, found: dict) -> None:
    if report.versions.setdefault(f"transport, {where}", "") != found["transport"]:
        report.versions[f"transport, {where}"] = found["transport"]
        say(f"bench hosts: transport of {where}: {found['transport']}")


# ---- collectives ----


def _collectives(report: Report, options) -> None:
    for hosts in (2, 3):

        def all_rates(hosts=hosts):
            with world(hosts) as made:
                for r in range(options.rounds):
                    for gbit in options.rates:
                        made.set_rate(gbit)
                        name = f"{_net(hosts, gbit)}, round {r + 1} of {options.rounds}"
                        _try(report, name, lambda gbit=gbit: _collectives_once(report, made, gbit))

        _try(report, f"{hosts} hosts", all_rates)


def _collectives_once(report: Report, made: World, gbit: float) -> None:
    hosts = len(made.hosts)
    net = _net(hosts, gbit)
    report.add(f"one way, {net}", made.raw(both_ways=False, seconds=1) / 1e9)
    report.add(f"both ways, {net}", made.raw(both_ways=True, seconds=1) / 1e9)
    found = made.submit(hosts, "one_each", "hosts_rank.py", "collectives", "--mib", ",".join(map(str, MIB)))
    _transport(report, f"{hosts} hosts", found)
    report.raw.append({"net": net, **found})
    for series, seconds in found["seconds"].items():
        who, name, mib = series.split()
        sent = (int(mib) << 20) / hosts * (hosts - 1) * (2 if name == "all_reduce" else 1)
        rates = [sent / s / 1e9 for s in seconds]
        if who == "TCP":
            report.add(f"limit, {mib} MiB, {net}", [min(gbit / 8, rate) for rate in rates])
        else:
            report.add(("gloo " if who == "gloo" else "") + f"{name} {mib} MiB, {net}", rates)


# ---- steps ----


def _steps(report: Report, options) -> None:
    def all_layouts():
        with world(2) as made:
            for r in range(options.rounds):
                for layout in _layouts(options.rates):
                    made.set_rate(layout[2])
                    name = f"step, {_layout(*layout)}, round {r + 1} of {options.rounds}"
                    _try(report, name, lambda layout=layout, r=r: _step_once(report, made, *layout, r % 2 == 1))

    _try(report, "step", all_layouts)


def _step_once(report: Report, made: World, hosts: int, ranks: int, gbit: float, peer_first: bool) -> None:
    """Trains with Shoal, and with FSDP2 (two ranks per host) or the same ranks on one host (one rank per host)."""
    name, world_size = _layout(hosts, ranks, gbit), hosts * ranks
    batch = ["--global-batch", str(2 * world_size)]
    shoal = [*STEP, *batch, "--mode", "shoal", "--optim", "shoal"]
    found = {}

    def ours():
        found["ours"] = made.submit(world_size, "one_each" if ranks == 1 else "two_each", "train_step.py", *shoal, *WIRE)

    def beside():
        if ranks == 2:
            found["peer"] = made.torchrun(ranks, "train_step.py", *PEER_STEP, *batch, "--mode", "fsdp2", *WIRE)
        else:
            found["together"] = _on_one_host(world_size, shoal)

    for job in (beside, ours) if peer_first else (ours, beside):
        job()
    mine = found["ours"]
    report.raw.append({"layout": name, **found})
    step = statistics.median(mine["step_s"])
    # Each host fetches the rows that it lacks once, and sends one sum of the gradients of each of them.
    least = 2 * 4 * mine["parameters"] * (hosts - 1)
    report.add(f"step {name}", step)
    report.add(f"wire {name}", mine["sent_bytes_per_step"] / 1e6)
    report.add(f"least wire {name}", least / 1e6)
    if ranks == 2:
        report.add(f"FSDP2 step {name}", statistics.median(found["peer"]["step_s"]))
        report.add(f"FSDP2 wire {name}", found["peer"]["sent_bytes_per_step"] / 1e6)
        return
    compute, travel = statistics.median(found["together"]["step_s"]), least / hosts / (gbit * 1e9 / 8)
    report.add(f"limit {name}", max(compute, travel))
    report.add(f"bytes / link {name}", travel)
    report.add(f"difference {name}", step - compute)
    if mine["exposed_s"] is not None:
        report.add(f"exposed {name}", mine["exposed_s"])


def _on_one_host(world_size: int, shoal: list) -> dict:
    """The same ranks on one host with all cores, where a step sends nothing."""
    with world(2, pinned=False) as one:
        return one.submit(world_size, "together", "train_step.py", *shoal)


# ---- lost hosts ----


def _links(report: Report, options) -> None:
    report.add("allowed, cut", CUT_S)
    report.add("allowed, killed", KILLED_S)
    for r in range(options.rounds):
        for what in ("cut", "killed"):
            _try(report, f"{what}, round {r + 1} of {options.rounds}", lambda what=what, r=r: _lose(report, what, r))
    for hosts, limit in REFORM_S.items():
        report.add(f"allowed, reform, {hosts}", limit)
        _try(report, f"reform, {hosts}", lambda hosts=hosts: _reform(report, hosts))


def _reform(report: Report, hosts: int) -> None:
    with world(max(hosts, 2), pinned=hosts > 1) as made:
        found = made.submit(4, "together" if hosts == 1 else "one_each", "hosts_rank.py", "reform")
    _transport(report, f"{hosts} hosts, 4 ranks", found)
    report.add(f"reform, {hosts}", found["seconds"])


def _lose(report: Report, what: str, number: int) -> None:
    """Loses one of three ranks on three hosts: another one for each `number`. Adds the time until the last of the others has an error.
    After a cut, the lost one has to have an error, too."""
    with world(3) as made:
        folder = made.folder / "ranks"
        folder.mkdir()
        driver = made.popen(
            made.hosts[0], [OURS / "python", HERE / "hosts_links.py", made.cluster.address, folder, 3, "one_each"], SHOAL_TIMEOUT="60"
        )
        try:
            begun = _read(folder, "begun", 3, 60, driver)
            _transport(report, "3 hosts", begun[0])
            time.sleep(0.5)  # the ranks are in the middle of their collectives
            if what == "cut":
                host = made.hosts[-1 - number % 2]  # not the first, on which the head and the driver are
                lost, awaited, at = _rank_of(begun, host), list(begun), time.monotonic()
                made.cut(host)
            else:
                lost = (number + 1) % 3
                awaited, at = [r for r in begun if r != lost], time.monotonic()
                os.kill(begun[lost]["pid"], signal.SIGKILL)
            errors = _read(folder, "error", len(awaited), NO_ERROR_S, None)
        finally:
            driver.kill()
            driver.wait()
            driver.stdout.close()
    report.raw.append({"lost": what, "rank": lost, "seconds": {r: e["at"] - at for r, e in errors.items()}, "errors": errors})
    if missing := [r for r in awaited if r not in errors]:
        raise Failed(f"no error after {NO_ERROR_S:g} s on rank {', '.join(map(str, missing))} of 3 (lost: {lost})")
    last = max(e["at"] for e in errors.values()) - at
    if unnamed := [r for r, e in errors.items() if r != lost and not _names(e, r, lost)]:
        text = errors[unnamed[0]]["text"][:200]
        raise Failed(f"after {last:.3f} s, the error of rank {unnamed[0]} does not name rank {lost}: {text}")
    report.add(what, last)


def _names(error: dict, rank: int, lost: int) -> bool:
    """Returns True if the error of a rank leaves no doubt which rank is lost."""
    return error["lost"] == [lost] or {int(r) for r in re.findall(r"\brank (\d+)", error["text"])} - {rank} == {lost}


def _read(folder, kind: str, count: int, within: float, driver) -> dict[int, dict]:
    """Returns what `count` ranks have written, by rank. After the time `within` these may be fewer; with a driver, that is a failure."""
    until = time.monotonic() + within
    while len(found := list(folder.glob(f"{kind}-*.json"))) < count and time.monotonic() < until and (not driver or driver.poll() is None):
        time.sleep(0.005)
    if driver and len(found) < count:
        driver.kill()
        raise Failed(f"{len(found)} of {count} ranks began: {driver.stdout.read()[-300:]}")
    return {int(file.stem.rpartition("-")[2]): json.loads(file.read_text()) for file in found}


def _rank_of(begun: dict[int, dict], host) -> int:
    """Returns the rank that is on a host."""
    here = os.stat(f"/run/netns/{host.namespace}").st_ino
    for rank, at in begun.items():
        if os.stat(f"/proc/{at['pid']}/ns/net").st_ino == here:
            return rank
    raise Failed(f"no rank is on host {host.name}")


# ---- memory ----


def _memory(report: Report, options) -> None:
    report.add("allowed beyond", BEYOND_MIB)

    def gather():
        with world(2) as made:
            for _ in range(options.rounds):
                found = made.submit(2, "one_each", "hosts_rank.py", "memory", "--mib", "1024")
                report.raw.append(found)
                report.add("beyond", max(found["beyond"]) / 2**20)

    _try(report, "memory", gather)


# ---- both stacks over TCP ----


def _stacks(report: Report, options) -> None:
    for r in range(options.rounds):
        for layer in LAYERS:
            _try(report, f"{LAYERS[layer]}, round {r + 1} of {options.rounds}", lambda layer=layer: _stack_once(report, layer))


def _stack_once(report: Report, layer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = [TRANSPORT, "--layer", layer, "--folder", folder, "--reps", "3", "--mib", "0", "--interface", "127.0.0.1"]
        ranks = [subprocess.Popen([*map(str, words), "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
        try:
            lines = ranks[0].communicate(timeout=60)[0].splitlines()
            failed = [rank for rank, process in enumerate(ranks) if process.wait(timeout=10) != 0]
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
    if failed:
        raise Failed(f"rank {failed[0]} over {LAYERS[layer]} ended with an error")
    for figure in map(json.loads, lines):
        report.add(figure["name"], figure["median"])
        report.raw.append(figure)
