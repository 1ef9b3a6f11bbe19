"""A CheckpointManager saves two steps of a model with its optimizer, or restores the second and saves a third.

Arguments: a folder, ``save`` or ``restore``, and the process group that the program makes: ``gloo`` or ``xla``. Prints the saved
steps before and after, and the values in the second one.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import shoal.spmd as xs
import shoal.spmd.checkpoint as xc
import shoal.spmd.runtime as xr
import shoal.spmd.xla_backend  # noqa: F401  for init_method="xla://"
import shoal.spmd.xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel

folder, what, group = sys.argv[1:]
xr.use_spmd()
if group == "gloo":
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
elif group == "xla":
    dist.init_process_group("gloo", init_method="xla://")
N = xr.global_runtime_device_count()
MESH = xs.Mesh(np.arange(N), (N, 1), ("fsdp", "model"))
torch.manual_seed(0 if what == "save" else 7)
model = SpmdFullyShardedDataParallel(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3)), mesh=MESH)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def state() -> dict:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def values() -> list:
    return [p.tolist() for p in model.parameters()] + [optimizer.state[p]["exp_avg"].tolist() for p in model.parameters()]


def train() -> None:
    # All inputs are ones, so that sums do not depend on their order.
    model(torch.ones(8, 8, device=xm.xla_device())).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


manager = xc.CheckpointManager(folder, save_interval=1)
steps = manager.all_steps()
if what == "save":
    train()
    manager.save(1, state())
    train()
    manager.save_async(2, state())
    found = values()
    train()  # trains on while the second save runs
    manager.join()
else:
    xc.prime_optimizer(optimizer)
    manager.restore(2, state())
    found = values()
    manager.save(3, state())
xm.master_print(steps, manager.all_steps())
for v in found:
    xm.master_print(v)
