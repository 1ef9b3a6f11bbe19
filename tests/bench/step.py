"""Training steps beside FSDP2 and DDP on gloo and one plain process: time, memory, start and cost per unit (about 20 minutes)."""

import json
import statistics
import tempfile
from pathlib import Path

from launch import HERE, OURS, PEERS, Failed, run, say, torchrun, version
from report import Report, Row

PAIR = {"paired": True}
ROWS = {
    "M": [
        Row("step M, shoal.optim", "s", "M shoal", "M one process, fused", goal=("<=", 1.05), **PAIR),
        Row("step M, shoal.optim", "s", "M shoal", "M FSDP2", goal=("<=", 0.50), **PAIR),
        Row("step M, shoal.optim", "s", "M shoal", "M FSDP2, fused", goal=("<=", 0.52), **PAIR),
        Row("  beside DDP", "s", "M shoal", "M DDP", **PAIR),
        Row("  beside DDP, fused", "s", "M shoal", "M DDP, fused", **PAIR),
    ],
    "S": [
        Row("step S, shoal.optim", "s", "S shoal", "S one process, fused", goal=("<=", 1.03), **PAIR),
        Row("step S, shoal.optim", "s", "S shoal", "S FSDP2", goal=("<=", 0.97), **PAIR),
        Row("  beside FSDP2, fused", "s", "S shoal", "S FSDP2, fused", **PAIR),
        Row("  beside DDP", "s", "S shoal", "S DDP", **PAIR),
        Row("  beside DDP, fused", "s", "S shoal", "S DDP, fused", **PAIR),
    ],
    "devices": [
        Row("step M, units as on devices, gloo", "s", "M shoal, collectives", "M FSDP2", goal=("<=", 1.02), **PAIR),
        Row("  share of its transfers beside other work", "", "hidden transfers", "all transfers"),
    ],
    "units": [Row("engine's time per unit and step, 200 tiny units", "s", "unit shoal", "unit FSDP2", goal=("<=", 0.5), **PAIR)],
    "record": [
        Row(f"step {config}, recorded in the run's folder", "s", f"{config} recorded", f"{config} not recorded", goal=("<=", 1.005), **PAIR)
        for config in ("S", "M")
    ],
    "start": [
        Row("initialisation and first step, M", "s", "start M shoal", "start M FSDP2", goal=("<=", 1.0), **PAIR),
        Row("first step beside a steady one, M", "s", "first M shoal", "steady M shoal", goal=("<=", 1.5), **PAIR),
    ],
    "memory": [
        Row("job's steady peak memory, M, torchrun", "MiB", "memory M shoal", "memory M FSDP2", goal=("<=", 0.48)),
        Row("  beside one plain process", "MiB", "memory M shoal", "memory M one process", goal=("<=", 1.25)),
        Row("job's steady peak memory, M, shoal submit", "MiB", "memory M submit", "memory M FSDP2", goal=("<=", 0.42)),
        Row("job's steady peak memory, S, torchrun", "MiB", "memory S shoal", "memory S FSDP2", goal=("<=", 0.90)),
        Row("job's steady peak memory, S, shoal submit", "MiB", "memory S submit", "memory S FSDP2", goal=("<=", 0.75)),
    ],
}
RECORD = {"S": ["--steps", "84", "--warmup", "4"], "M": ["--steps", "24", "--warmup", "4"]}  # an even warm-up: even steps are recorded
LENGTH = {"M": ["--steps", "9", "--warmup", "3"], "S": ["--steps", "9", "--warmup", "3"]}


def add_options(parser):
    parser.add_argument("--only", choices=list(ROWS), action="append", help="only these rows, as often as needed")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, ours and the peers in turn")


def measure(options) -> Report:
    parts = options.only or list(ROWS)
    report = Report("step", [row for part in ROWS if part in parts for row in ROWS[part]])
    for folder in (OURS, PEERS):
        report.versions[f"{folder.parent.name} torch"] = version(folder / "python", "torch")
    jobs, others = {}, {"units": _unit_jobs, "devices": _device_jobs, "record": _record_jobs, "start": _start_jobs, "memory": _memory_jobs}
    for part in parts:
        jobs |= others[part]() if part in others else _step_jobs(part)
    for r in range(options.rounds):
        for name, job in jobs.items() if r % 2 == 0 else reversed(jobs.items()):
            say(f"bench step: round {r + 1} of {options.rounds}: {name}")
            try:
                for series, value in job().items():
                    report.add(series, value)
            except Failed as error:
                report.failures[name] = str(error)
                say(f"bench step: {name} failed: {error}")
    return report


def _figures(argv, **how) -> dict:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        out = Path(folder, "figures.json")
        run([*argv, "--out", out], **how)
        return json.loads(out.read_text())


def _train(config, *args):
    return ["train_step.py", "--config", config, *args]


def _argv(config) -> dict[str, list]:
    """The command line of the job of each series."""
    single = [OURS / "python", *_train(config, "--mode", "single", "--threads", "2", "--optim", "fused")]
    return {
        f"{config} shoal": torchrun(OURS, *_train(config, "--mode", "shoal", "--optim", "shoal")),
        f"{config} FSDP2": torchrun(PEERS, *_train(config, "--mode", "fsdp2")),
        f"{config} one process, fused": single,
        f"{config} FSDP2, fused": torchrun(PEERS, *_train(config, "--mode", "fsdp2", "--optim", "fused")),
        f"{config} DDP": torchrun(PEERS, *_train(config, "--mode", "ddp")),
        f"{config} DDP, fused": torchrun(PEERS, *_train(config, "--mode", "ddp", "--optim", "fused")),
    }


def _step_jobs(config):
    def job(series, argv):
        def go():
            threads = 2 if "one process" in series else 1
            return {series: statistics.median(_figures([*argv, *LENGTH[config]], threads=threads)["step_s"])}

        return go

    return {series: job(series, argv) for series, argv in _argv(config).items()}


def _device_jobs():
    def ours():
        figures = _figures([*torchrun(OURS, *_train("M", "--mode", "shoal", "--collectives")), *LENGTH["M"]])
        return {
            "M shoal, collectives": statistics.median(figures["step_s"]),
            "hidden transfers": figures["hidden_transfers"],
            "all transfers": 1.0,
        }

    def theirs():
        return {"M FSDP2": statistics.median(_figures([*_argv("M")["M FSDP2"], *LENGTH["M"]])["step_s"])}

    return {"M shoal, collectives": ours, "M FSDP2": theirs}


def _unit_jobs():
    def step(folder, mode):
        figures = _figures(torchrun(folder, "tiny_units.py", "--mode", mode))
        return statistics.median(figures["step_s"]), figures["units"]

    def job(series, folder, mode):
        def go():
            with_units, units = step(folder, mode)
            without, _ = step(folder, "plain")
            return {series: (with_units - without) / units}

        return go

    return {"unit shoal": job("unit shoal", OURS, "shoal"), "unit FSDP2": job("unit FSDP2", PEERS, "fsdp2")}


def _record_jobs():
    def job(config):
        def go():
            with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
                argv = torchrun(OURS, *_train(config, "--mode", "shoal", "--optim", "shoal", "--record", folder))
                pairs = _figures([*argv, *RECORD[config]])["record_pairs"]
            ratio = statistics.median(recorded / other for recorded, other in pairs)
            other = statistics.median(other for _, other in pairs)
            return {f"{config} recorded": ratio * other, f"{config} not recorded": other}

        return go

    return {f"{config} recorded": job(config) for config in ("S", "M")}


def _start_jobs():
    def job(name):
        def go():
            figures = _figures([*_argv("M")[name], "--steps", "7", "--warmup", "3"])
            first = figures["first_step_s"]
            steady = statistics.median(figures["step_s"])
            return {f"start {name}": figures["init_s"] + first, f"first {name}": first, f"steady {name}": steady}

        return go

    return {f"start {name}": job(name) for name in ("M shoal", "M FSDP2")}


def _memory_jobs():
    def job(series, argv, threads=1):
        def go():
            measured = [OURS / "python", HERE / "peak_memory.py", "--after-marker", "# steady", "--", *argv, "--steps", "6"]
            lines = run(measured, threads=threads).splitlines()
            figures = {f["name"]: f for f in map(json.loads, (line for line in lines if line.startswith("{")))}
            steady = figures.get("job_steady_peak_memory", {})
            if steady.get("value") is None:
                raise Failed(f"no steady peak: {steady.get('error', lines[-1:])}")
            return {series: steady["value"]}

        return go

    jobs = {}
    for config in ("M", "S"):
        argv = _argv(config)
        jobs[f"memory {config} shoal"] = job(f"memory {config} shoal", argv[f"{config} shoal"])
        jobs[f"memory {config} FSDP2"] = job(f"memory {config} FSDP2", argv[f"{config} FSDP2"])
        submit = [OURS / "shoal", "submit", "--num-workers", "2", *_train(config, "--mode", "shoal", "--optim", "shoal")]
        jobs[f"memory {config} submit"] = job(f"memory {config} submit", submit)
    jobs["memory M one process"] = job("memory M one process", _argv("M")["M one process, fused"], threads=2)
    return jobs
