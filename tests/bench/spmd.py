"""shoal.spmd beside fully_shard: steps of FSDPv2, of marks, and under one controller; marks of 1 GB, and automatic sharding (5 minutes)."""

import json
import tempfile
from pathlib import Path

from launch import OURS, Failed, run, say, torchrun, version
from report import Report, Row

NEEDS_PEERS = False
ROWS = {
    "S": [
        Row("step S, FSDPv2 beside fully_shard", "s", "S FSDPv2", "S fully_shard", goal=("<=", 1.05), paired=True),
        Row("step S, marks beside fully_shard", "s", "S marks", "S fully_shard", goal=("<=", 1.5), paired=True),
        Row("step S, one controller beside processes", "s", "S controller", "S FSDPv2", goal=("<=", 1.15)),
        Row("S, the controller per operator beside 60 us", "s", "S operator", "60 us", goal=("<=", 1.0)),
    ],
    "T": [
        Row("step T, FSDPv2 beside fully_shard", "s", "T FSDPv2", "T fully_shard", paired=True),
        Row("step T, marks beside fully_shard", "s", "T marks", "T fully_shard", paired=True),
        Row("step T, one controller beside processes", "s", "T controller", "T FSDPv2"),
        Row("T, the controller per operator beside 60 us", "s", "T operator", "60 us", goal=("<=", 1.0)),
    ],
    "mark": [Row("mark_sharding of 1 GB beside one copy", "s", "mark", "copy", goal=("<=", 1.2), paired=True)],
    "auto": [
        Row("automatic sharding of config M beside 10 s", "s", "auto M", "10 s", goal=("<=", 1.0)),
        Row("what explain keeps, per operator, beside 1 us", "s", "kept", "1 us", goal=("<=", 1.0)),
    ],
}
STEPS = {"S": 12, "T": 40}
MARK = """
import json, time, torch
import shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
xr.use_spmd()
mesh = xs.Mesh(range(4), (4,), ("x",))
host = torch.empty(1 << 14, 1 << 14).fill_(1.0)
found = {"mark": [], "copy": []}
for _ in range(5):
    t = host.to(xm.xla_device())
    begin = time.perf_counter()
    xs.mark_sharding(t, mesh, ("x", None))
    found["mark"].append(time.perf_counter() - begin)
    del t
    begin = time.perf_counter()
    copies = [part.clone() for part in host.chunk(4)]
    found["copy"].append(time.perf_counter() - begin)
    del copies
print(json.dumps(found))
"""
AUTO = """
import json, time, torch, gpt
import shoal.spmd as xs, shoal.spmd.runtime as xr
from shoal.spmd._layout import traffic
xr.use_spmd()
config = gpt.CONFIGS["M"]
with torch.device("meta"):
    model = gpt.GPT(**config)
    ids = torch.empty(config["batch"], config["seq"], dtype=torch.long)
begin = time.perf_counter()
plan = xs.auto_shard(model, ids, apply=False)
found = {"auto M": [time.perf_counter() - begin], "kept": []}

def below(frames):  # as many as a layer in a block of a model has
    if frames:
        return below(frames - 1)
    begin = time.perf_counter()
    for _ in range(100):
        traffic.origin("aten::mm", ())
    return (time.perf_counter() - begin) / 100

for _ in range(9):
    found["kept"].append(min(below(20) for _ in range(50)))
print(json.dumps(found | {"10 s": [10.0], "1 us": [1e-6]}))
"""
PROGRAMS = {"mark": (4, MARK), "auto": (8, AUTO)}


def add_options(parser):
    parser.add_argument("--only", choices=list(ROWS), action="append", help="only these rows, as often as needed")
    parser.add_argument("--rounds", type=int, default=2, help="jobs per config")


def measure(options) -> Report:
    parts = options.only or list(ROWS)
    report = Report("spmd", [row for part in ROWS if part in parts for row in ROWS[part]])
    report.versions["torch"] = version(OURS / "python", "torch")
    for r in range(options.rounds):
        for part in parts:
            say(f"bench spmd: round {r + 1} of {options.rounds}: {part}")
            try:
                for series, values in (_printed(part) if part in PROGRAMS else _steps(part)).items():
                    report.add(series, values)
            except Failed as error:
                report.failures |= dict.fromkeys({s for row in ROWS[part] for s in (row.ours, row.peer)}, str(error))
                say(f"bench spmd: {part} failed: {error}")
    return report


def _steps(config: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as folder:
        out = Path(folder, "figures.json")
        run(torchrun(OURS, "spmd_step.py", "--config", config, "--steps", STEPS[config], "--out", out), limit=600)
        figures = json.loads(out.read_text())
        driven = ["spmd_driven.py", "--config", config, "--steps", STEPS[config], "--out", out]
        run(["env", "SHOAL_SPMD_WORKERS=2", OURS / "python", *driven], limit=600)
        under_controller = json.loads(out.read_text())
    found = {f"{config} {way}": seconds for way, seconds in figures["step_s"].items()}
    found |= {f"{config} controller": under_controller["step_s"], f"{config} operator": under_controller["operator_s"]}
    return found | {"60 us": [60e-6]}


def _printed(part: str) -> dict[str, list[float]]:
    devices, program = PROGRAMS[part]
    return json.loads(run(["env", f"SHOAL_SPMD_DEVICES={devices}", OURS / "python", "-c", program]))
