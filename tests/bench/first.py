"""Start-up, calls, training step and memory beside Ray, FSDP2 on gloo and one plain process, in one run (about 10 minutes)."""

import json
import tempfile
from pathlib import Path

from launch import HERE, OURS, PEERS, Failed, run, say, torchrun, version
from report import Report, Row

FASTER, RATE = {"ratio": "peer/ours"}, {"ratio": "ours/peer"}
ROWS = {
    "actors": [
        Row("init() to ready", "s", "shoal init", "ray init", goal=(">=", 20), **FASTER),
        Row("init() to the first actor's result", "s", "shoal init_first_result", "ray init_first_result", goal=(">=", 10), **FASTER),
        Row("further actor, created to its first result", "s", "shoal actor", "ray actor", goal=(">=", 10), **FASTER),
        Row("actor calls, one after the other", "1/s", "shoal sync", "ray sync", goal=(">=", 5), **RATE),
        Row("actor calls, in batches of 1,000", "1/s", "shoal batched", "ray batched", goal=(">=", 5), **RATE),
        Row("  import, init and first result", "s", "shoal import_init_first_result", "ray import_init_first_result", **FASTER),
        Row("  of it, the first actor after init", "s", "shoal first_actor", "ray first_actor", **FASTER),
        Row("  shutdown()", "s", "shoal shutdown", "ray shutdown", **FASTER),
    ],
    "steps": [
        Row("step M, shoal.optim.AdamW, torchrun", "s", "shoal", "FSDP2", goal=("<=", 0.65)),
        Row("step M, shoal.optim.AdamW, torchrun", "s", "shoal", "one process, fused", goal=("<=", 1.3)),
        Row("  same under shoal submit", "s", "shoal submit", "FSDP2"),
        Row("  torch's fused AdamW in both", "s", "shoal, torch fused", "FSDP2, fused"),
        Row("  shoal.optim beside torch's fused", "s", "shoal", "FSDP2, fused"),
    ],
    "memory": [
        Row("job's steady peak memory, M", "MiB", "shoal memory", "FSDP2 memory", goal=("<=", 0.6)),
        Row("  beside one plain process, fused", "MiB", "shoal memory", "one process memory"),
    ],
}


def add_options(parser):
    parser.add_argument("--only", choices=list(ROWS), action="append", help="only these rows, as often as needed")
    parser.add_argument("--rounds", type=int, default=0, help="repetitions, ours and the peers in turn (default: 3, of steps 2)")


def measure(options) -> Report:
    parts = options.only or list(ROWS)
    report = Report("first", [row for part in ROWS if part in parts for row in ROWS[part]])
    for folder, packages in ((OURS, ["torch", "numpy"]), (PEERS, ["ray", "torch", "numpy"])):
        for package in packages:
            report.versions[f"{folder.parent.name} {package}"] = version(folder / "python", package)
    for part in ROWS:
        if part in parts:
            jobs = {"actors": _actor_jobs, "steps": _step_jobs, "memory": _memory_jobs}[part]()
            _in_turn(report, part, jobs, options.rounds or (2 if part == "steps" else 3))
    return report


def _in_turn(report, part, jobs, rounds):
    """Runs every job once a round, in alternating order, so that drift of the machine affects all of them."""
    for r in range(rounds):
        for name, job in jobs if r % 2 == 0 else reversed(jobs):
            say(f"bench first: {part}, round {r + 1} of {rounds}: {name}")
            try:
                figures = job(report)
            except Failed as error:
                for series in _series(part, name):
                    report.failures[series] = str(error)
                say(f"bench first: {name} failed: {error}")
                continue
            report.raw.append({"part": part, "round": r + 1, "job": name, **figures})


def _series(part, name):
    if part != "actors":
        return [name]
    return [s for row in ROWS["actors"] for s in (row.ours, row.peer) if s.split()[0] == name]


def _with_file(argv_of, **how):
    """Runs argv_of(FILE) and returns the JSON that it wrote to FILE."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        out = Path(folder, "figures.json")
        run(argv_of(out), **how)
        return json.loads(out.read_text())


def _actor_jobs():
    def job(module, folder):
        def go(report):
            figures = _with_file(lambda out: [folder / "python", HERE / "first_actors.py", module, "--out", out], limit=120)
            for row in ROWS["actors"]:
                for series in (row.ours, row.peer):
                    owner, _, figure = series.partition(" ")
                    if owner == module:
                        report.add(series, figures[figure])
            return figures

        return go

    return [("shoal", job("shoal", OURS)), ("ray", job("ray", PEERS))]


STEPS, WARMUP = 13, 4


def _train(*args):
    return ["train_step.py", "--config", "M", *args]


def _step_jobs():
    length = ["--steps", str(STEPS), "--warmup", str(WARMUP)]

    def job(name, argv, threads=1):
        def go(report):
            figures = _with_file(lambda out: [*argv, *length, "--out", out], threads=threads)
            report.add(name, figures["step_s"])
            return figures

        return name, go

    submit = [OURS / "shoal", "submit", "--num-workers", "2", *_train("--mode", "shoal", "--optim", "shoal")]
    plain = [OURS / "python", *_train("--mode", "single", "--threads", "2", "--optim", "fused")]
    return [
        job("shoal", torchrun(OURS, *_train("--mode", "shoal", "--optim", "shoal"))),
        job("FSDP2", torchrun(PEERS, *_train("--mode", "fsdp2"))),
        job("one process, fused", plain, threads=2),
        job("shoal submit", submit),
        job("FSDP2, fused", torchrun(PEERS, *_train("--mode", "fsdp2", "--optim", "fused"))),
        job("shoal, torch fused", torchrun(OURS, *_train("--mode", "shoal", "--optim", "fused"))),
    ]


def _memory_jobs():
    def job(name, argv, threads=1):
        def go(report):
            measure = [OURS / "python", "peak_memory.py", "--after-marker", "# steady", "--"]
            lines = run([*measure, *argv, "--steps", "6"], threads=threads).splitlines()
            figures = {f["name"]: f for f in map(json.loads, (line for line in lines if line.startswith("{")))}
            steady = figures.get("job_steady_peak_memory", {})
            if steady.get("value") is None:
                raise Failed(f"no steady peak: {steady.get('error', lines[-1:])}")
            report.add(name, steady["value"])
            return figures

        return name, go

    return [
        job("shoal memory", torchrun(OURS, *_train("--mode", "shoal", "--optim", "shoal"))),
        job("FSDP2 memory", torchrun(PEERS, *_train("--mode", "fsdp2"))),
        job("one process memory", [OURS / "python", *_train("--mode", "single", "--threads", "2", "--optim", "fused")], threads=2),
    ]
