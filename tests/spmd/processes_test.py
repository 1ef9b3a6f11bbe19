"""One process per device beside one process with all devices: the same program prints the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run

HERE = Path(__file__).parent
PROGRAM = """
import json, sys
import numpy as np, torch, shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
import shoal.spmd.parallel_loader as pl
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel

xr.use_spmd()
device, third = xm.xla_device(), xr.process_index() == 2
torch.randn(8, 4).to(device)  # the same on all ranks: use_spmd made their random states equal

def error(f):
    try:
        f()
    except RuntimeError as e:
        return str(e)

found = {
    "value": error(lambda: (torch.ones(8, 4) * (1 + third)).to(device)),
    "loader": error(lambda: next(iter(pl.MpDeviceLoader([torch.ones(4) * third], device)))),
    "collective": error(lambda: torch.distributed.all_reduce(torch.ones(4, device=device))),
    "shape": error(lambda: torch.ones(8, 4, device=device) @ torch.ones(3, 3, device=device)),  # THERE
    "index": error(lambda: torch.ones(8, device=device)[torch.arange(3) + third]),
    "list": error(lambda: torch.ones(8, device=device)[[0, 1 + third]]),
    "number": error(lambda: torch.ones(8, device=device) * torch.tensor(1.0 + third)),
    "spread": error(lambda: torch.as_strided(torch.ones(1), (1, 1), (0, 0)).to(device)),
}
net = SpmdFullyShardedDataParallel(torch.nn.Linear(64, 256, bias=False), xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model")))
optimizer = torch.optim.AdamW(net.parameters())
net(torch.ones(4, 64, device=device)).sum().backward()
optimizer.step()
held = [*net.parameters(), *(v for s in optimizer.state.values() for v in s.values() if v.dim())]
found["bytes"] = [sum(t.nbytes for t in h._box.array.locals.values()) for h in held]
own = torch.Generator().manual_seed(int(third))
found["generator"] = error(lambda: torch.ones(8, device=device).bernoulli_(0.5, generator=own))
torch.rand(int(third))
found["stream"] = error(lambda: torch.rand(4, device=device))
with open(f"{sys.argv[1]}/{xr.process_index()}", "w") as out:
    json.dump(found, out)
"""


TRAINS = """
import sys
import numpy as np, torch, shoal.spmd as xs, shoal.spmd.runtime as xr, shoal.spmd.xla_model as xm
import shoal.spmd.parallel_loader as pl
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel

xr.use_spmd()
mesh = xs.Mesh(np.arange(2), (2, 1), ("fsdp", "model"))
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(xm.xla_device())
if sys.argv[1] == "units":
    net = SpmdFullyShardedDataParallel(net, mesh)
else:
    xs.mark_sharding(net[0].weight, mesh, ("fsdp", None))
optimizer = torch.optim.AdamW(net.parameters())

class Interrupted(torch.nn.Module):
    def forward(self):
        raise KeyboardInterrupt

try:
    Interrupted()()
except KeyboardInterrupt:
    pass  # from the next step on, calls are recorded as before
spec = xs.ShardingSpec(mesh, ("fsdp", None))
for x in pl.MpDeviceLoader([torch.randn(8, 8) for _ in range(5)], xm.xla_device(), input_sharding=spec):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    xm.optimizer_step(optimizer)
"""


@pytest.mark.parametrize(
    ("kind", "ranks", "variables"),
    [
        ("marks", 0, {"SHOAL_SPMD_DEVICES": "2"}),
        ("marks", 2, {}),
        ("units", 2, {}),
        ("marks", 0, {"SHOAL_SPMD_WORKERS": "2"}),
    ],
    ids=["one process", "two processes", "units of the engine", "a controller"],
)
def test_each_process_of_the_program_records_its_steps(home, tmp_path, kind, ranks, variables):
    (tmp_path / "program.py").write_text(TRAINS)
    done = run([tmp_path / "program.py", kind], ranks, SHOAL_RUN_FOLDER=str(tmp_path / "run"), **variables)
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "run" / "processes").iterdir())
    facts = [json.loads((f / "process.json").read_text()) for f in folders]
    assert sorted((f["role"], f["rank"], f["world"]) for f in facts) == [("rank", r, ranks or 1) for r in range(ranks or 1)]
    for folder, who in zip(folders, facts, strict=True):
        rows, spans = (
            [json.loads(line) for line in (folder / f"{name}.0-0.jsonl").read_text().splitlines()] for name in ("steps", "spans")
        )
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
        assert all(sum(row[activity] for row in rows) > 0 for activity in ("load", "fwd", "bwd", "opt"))
        assert (sum(row["gather"] + row["reduce"] for row in rows) > 0) == bool(ranks)
        units = {who["units"][unit] for row in spans for activity, unit, *_ in row["spans"] if activity == "fwd" and unit >= 0}
        layers = {""} if kind == "units" else {"", "0", "1", "2"}
        assert units == (layers | {"ranks"} if "SHOAL_SPMD_WORKERS" in variables else layers)
        end = json.loads((folder / "events.0-0.jsonl").read_text().splitlines()[-1])
        assert (end["kind"], end["cause"]) == ("end", "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The output of same_program.py in one process with four devices."""
    done = run([str(HERE / "same_program.py"), str(tmp_path_factory.mktemp("checkpoints"))], SHOAL_SPMD_DEVICES="4")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("processes", [4, 2])  # four devices: a process has one, or two
def test_several_processes_compute_the_bits_of_one(processes, alone, tmp_path):
    done = run([str(HERE / "same_program.py"), str(tmp_path)], processes, SHOAL_SPMD_DEVICES="4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == alone.splitlines()
    assert len(alone.splitlines()) > 80


def test_a_controller_of_two_ranks_computes_the_bits_of_one_process(alone, home, tmp_path):
    done = run([str(HERE / "same_program.py"), str(tmp_path)], SHOAL_SPMD_DEVICES="4", SHOAL_SPMD_WORKERS="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == alone.splitlines()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of the program above, by rank."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(PROGRAM)
    done = run([str(folder / "program.py"), str(folder)], 4, SHOAL_SPMD_DEVICES="4")
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(4)]


@pytest.mark.parametrize(
    "what",
    [
        "value: float32 tensor of shape (8, 4)",
        "loader: batch of the loader",
        "index: int64 tensor of shape (3,)",
        "list: int64 tensor of shape (2,)",
        "number: float32 tensor of shape ()",
        "stream: random generator before aten.rand",
        "generator: random generator before aten.bernoulli_",
    ],
)
def test_every_process_names_the_rank_with_a_different_input(what, found):
    key, text = what.split(": ")
    for f in found:
        assert text in f[key]
        assert "differs on rank 2 from the other ranks" in f[key]


def test_errors_of_operators_name_the_operator_and_the_line(found):
    line = 1 + PROGRAM[: PROGRAM.index("# THERE")].count("\n")
    for f in found:
        assert f"(8x4 and 3x3)\n  in: aten.mm.default, line {line} of " in f["shape"]
        assert f["shape"].endswith("program.py")


def test_collectives_of_another_library_are_refused(found):
    assert all("not mixed with torch.distributed's collectives" in f["collective"] for f in found)


def test_elements_without_a_stride_are_compared(found):
    assert all(f["spread"] is None for f in found)


def test_a_process_holds_its_shards_only(found):
    for f in found:
        assert f["bytes"] == [16384] * 3  # a quarter of 64 x 256 float32 numbers: of the weight, and of AdamW's two moments
