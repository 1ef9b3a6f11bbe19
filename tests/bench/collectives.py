"""Collectives of torch.distributed on the backend shoal, beside gloo, Open MPI, DeepSpeed, and the memory's bandwidth (GB/s, µs).

GB/s: bytes of the whole tensor by the time of the slowest rank. The limit: the bytes that a collective must read and write take their
time at the bandwidth at which all ranks copy at once."""

import json
import shutil
import subprocess
from pathlib import Path

from launch import HERE, OURS, PEERS, Failed, run, say, torchrun
from report import Report, Row

NEEDS_PEERS = False
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
MIB = 1 << 20
SIZES = (4, 4 << 10, 64 << 10, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
GOAL_BYTES = 64 * MIB
# Open MPI's settings, the fastest of which counts at each size.
SETTINGS = {
    "as installed": [],
    "without CMA": ["--mca", "btl_vader_single_copy_mechanism", "none"],
    "coll/sm": ["--mca", "pml", "ob1", "--mca", "coll_sm_priority", "100"],
}
DEEPSPEED = "collectives_deepspeed.py"


def size_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def series(peer: str, operation: str, size: int, ranks: int) -> str:
    return f"{peer} {operation} {size_name(size)}, {ranks} ranks"


def rows_of(sizes: list[int], ranks: list[int], peers: set[str]) -> list[Row]:
    rows = []
    for w in ranks:
        for size in sizes:
            for operation in OPERATIONS:
                name, rate = f"{operation} {size_name(size)}, {w} ranks", size >= MIB
                is_goal = size == GOAL_BYTES and operation != "broadcast"
                goals = {
                    "gloo": (">=", 8) if is_goal else None,
                    "limit": (">=", 0.6) if is_goal else None,
                    "MPI": (">=", 1.0),
                    "DeepSpeed": (">=", 1.0),
                }
                if not rate:
                    latency = size == 4 and operation == "all_reduce"
                    goals |= {"gloo": ("<=", 0.05) if latency else None, "MPI": ("<=", 1.0), "DeepSpeed": ("<=", 1.0)}
                for peer in ("gloo", "limit", "MPI", "DeepSpeed"):
                    if (peer == "limit" and not rate) or (peer not in peers) or (peer == "DeepSpeed" and operation != "all_reduce"):
                        continue
                    ours, theirs = (series(p, operation, size, w) for p in ("shoal", peer))
                    rows.append(Row(name, "GB/s" if rate else "us", ours, theirs, goal=goals[peer]))
    return rows


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=2, help="runs, in each of which the peers alternate")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--most-mib", type=int, default=256, help="leave out larger tensors")


def mpi_found() -> bool:
    if shutil.which("mpirun") is None:
        say("bench collectives: no rows beside Open MPI, because there is no mpirun (Debian: openmpi-bin)")
        return False
    if subprocess.run([PEERS / "python", "-c", "import mpi4py.MPI"], capture_output=True).returncode:
        say("bench collectives: no rows beside Open MPI, because the peers' environment has no mpi4py")
        return False
    return True


def deepspeed_found() -> bool:
    python = PEERS / "python"
    if not Path(python).exists() or subprocess.run([python, HERE / DEEPSPEED], capture_output=True).returncode:
        say("bench collectives: no rows beside DeepSpeed, because the peers' environment has no deepspeed with its shared-memory operator")
        return False
    return True


def add_figures(report: Report, text: str, peer: str, ranks: int) -> None:
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        figure = json.loads(line)
        report.raw.append({"peer": figure.get("peer", peer), "ranks": ranks, **figure})
        if "operation" in figure:
            report.add(series(figure.get("peer", peer), figure["operation"], figure["bytes"], ranks), figure["values"])


def measure(options) -> Report:
    sizes = [s for s in SIZES if s <= options.most_mib * MIB]
    peers = {"gloo", "limit"} | ({"MPI"} if mpi_found() else set()) | ({"DeepSpeed"} if deepspeed_found() else set())
    report = Report("collectives", rows_of(sizes, options.ranks, peers))
    for r in range(options.rounds):
        for w in options.ranks:
            say(f"bench collectives: round {r + 1} of {options.rounds}, {w} ranks")
            words = ["--bytes", *map(str, sizes)]
            programs = {"shoal": torchrun(OURS, "collectives_ranks.py", *words, world_size=w)}
            if "DeepSpeed" in peers:
                programs["DeepSpeed"] = torchrun(PEERS, DEEPSPEED, *words, world_size=w)
            if "MPI" in peers:
                for name, setting in SETTINGS.items():
                    allowed = ["--oversubscribe", "--allow-run-as-root", "-np", str(w)]
                    programs[f"MPI {name}"] = ["mpirun", *allowed, *setting, PEERS / "python", "collectives_mpi.py", *words]
            for name, program in programs.items():
                try:
                    add_figures(report, run(program, limit=900), name, w)
                except Failed as error:
                    report.failures[f"{name}, round {r + 1}, {w} ranks"] = str(error)
    if "MPI" in peers:
        take_best(report, sizes, options.ranks)
    return report


def take_best(report: Report, sizes: list[int], ranks: list[int]) -> None:
    """Gives each operation the samples of the setting of MPI with the best median."""
    for w in ranks:
        for size in sizes:
            for operation in OPERATIONS:
                settings = [s for name in SETTINGS if (s := report.samples.pop(series(f"MPI {name}", operation, size, w), None))]
                best = max if size >= MIB else min
                if settings:
                    report.add(series("MPI", operation, size, w), best(settings, key=lambda s: sorted(s)[len(s) // 2]))
