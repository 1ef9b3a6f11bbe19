"""Loaders and checkpoints of several processes, in which something happens on one rank only.

Arguments: a folder, in which each rank writes its results, and a part of the program. The part ``first`` ends with the death of its last
rank while a checkpoint is written. ``then``, which may have another number of devices, continues from the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import shoal.spmd as xs
import shoal.spmd.checkpoint as xc
import shoal.spmd.parallel_loader as pl
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

warnings.filterwarnings("ignore")
xr.use_spmd()
N, DEVICE, RANK = xr.global_runtime_device_count(), xm.xla_device(), xr.process_index()
FOLDER, LAST = Path(sys.argv[1]), xr.process_count() - 1 == RANK
LINE = xs.Mesh(np.arange(N)[::-1], (N,), ("x",))


def error(action) -> list[str] | None:
    """The class and message of the error that ``action`` raises, or None."""
    try:
        action()
    except BaseException as e:  # BaseException, because CheckpointException is no Exception
        return [type(e).__name__, str(e)]


def loaders() -> dict:
    rows = xs.ShardingSpec(xs.get_1d_mesh("x"), ("x", None), minibatch=True)

    def load(batches, spec=rows):
        return lambda: list(pl.MpDeviceLoader(batches, DEVICE, spec))

    def failing():
        yield torch.ones(N, 2)
        if LAST:
            raise OSError("the disk is gone")
        yield torch.ones(N, 2)

    shards = xs.mark_sharding(torch.arange(float(N)).to(DEVICE), LINE, ("x",))
    return {
        "other shape": error(load([torch.ones(N * (1 + LAST), 2)])),
        "uneven": error(load([torch.ones(N + LAST, 2)])),
        "ends": error(load([torch.ones(N, 2)] * (2 - LAST))),
        "raises": error(load(failing())),
        "shards": error(lambda: shards.load_local_shards_(shards.local_shards[LAST:])),
        "afterwards": error(load([torch.ones(N, 2)] * 2)),
    }


def model(*specs) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(DEVICE)
    for p, spec in zip((net[0].weight, net[0].bias, net[2].weight), specs, strict=True):
        xs.mark_sharding(p, LINE, spec)
    return net


def state_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.linspace(-1, 1, 20, device=DEVICE).view(4, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def values(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    moments = [optimizer.state[p]["exp_avg"] for p in net.parameters()]
    return {"model": [p.tolist() for p in net.parameters()], "moments": [m.tolist() for m in moments]}


def failing_writes(happens) -> None:
    """Replaces the last rank's next write of a checkpoint's data by ``happens``, which fails or ends the process."""
    write = dcp.FileSystemWriter.write_data

    def written(self, plan, planner):
        dcp.FileSystemWriter.write_data = write
        if LAST:
            happens()
        return write(self, plan, planner)

    dcp.FileSystemWriter.write_data = written


def disk_gone() -> None:
    raise OSError("the disk is gone")


def first() -> None:
    found = {"loaders": loaders()}
    net = model((None, "x"), ("x",), ("x", None))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    manager = xc.CheckpointManager(str(FOLDER / "steps"), save_interval=2, max_to_keep=2, max_pending_async=2)
    found["saved"], found["values"] = [], {}
    for step in range(7):
        train(net, optimizer)
        found["saved"].append(manager.save_async(step, state_of(net, optimizer)))
        found["values"][step] = values(net, optimizer)
    manager.join()
    found["steps"] = manager.all_steps()
    train(net, optimizer)
    manager.restore(4, state_of(net, optimizer))
    found["restored"] = values(net, optimizer)

    found["should save"] = [manager.should_save(9), manager.reached_preemption(9)]
    if LAST:
        os.kill(os.getpid(), signal.SIGTERM)
    found["should save after a signal"] = [manager.should_save(9), manager.reached_preemption(9)]
    found["saved after a signal"] = manager.save(9, state_of(net, optimizer))
    found["steps after a signal"] = manager.all_steps()

    failing_writes(disk_gone)
    manager.save_async(10, state_of(net, optimizer))
    found["a write failed"] = error(manager.join)
    failing_writes(disk_gone)
    found["another one"] = error(lambda: manager.save(10, state_of(net, optimizer)))
    # no name of a folder; only the first process looks at it
    found["a name that is none"] = error(lambda: xc.CheckpointManager("a\0b", save_interval=1))
    found["steps after failures"] = manager.all_steps()
    (FOLDER / f"first.{RANK}").write_text(json.dumps(found))
    xm.rendezvous("written")
    failing_writes(lambda: os.kill(os.getpid(), signal.SIGKILL))
    manager.save(10, state_of(net, optimizer))


def then() -> None:
    net = model(("x", None), (None,), (None, "x"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    xc.prime_optimizer(optimizer)
    manager = xc.CheckpointManager(str(FOLDER / "steps"), save_interval=2, max_to_keep=2)
    found = {"steps": manager.all_steps()}
    manager.restore(9, state_of(net, optimizer))
    found["restored"] = values(net, optimizer)
    manager.save(10, state_of(net, optimizer))
    found["steps afterwards"] = manager.all_steps()
    found["folders"] = sorted(p.name for p in (FOLDER / "steps").iterdir())
    (FOLDER / f"then.{RANK}").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.manual_seed(5)
    {"first": first, "then": then}[sys.argv[2]]()
