"""Training steps of one GPT by FSDPv2 under one controller that drives two ranks, and the CPU time of the controller.

  SHOAL_SPMD_WORKERS=2 python spmd_driven.py --config S --steps 9 --out FILE
Writes {"step_s": seconds per step, "operator_s": CPU seconds of this process per recorded operator, by step, "losses": ..} to FILE. All
steps begin with a batch on the host. An operator's share includes autograd, the optimizer and the loop itself.
"""

import argparse
import json
import tempfile
import time
import warnings

import gpt
import numpy as np
import torch
import torch.nn.functional as F

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2

parser = argparse.ArgumentParser()
parser.add_argument("--config", choices=list(gpt.CONFIGS), default="S")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--warmup", type=int, default=3, help="first steps that --out leaves out")
parser.add_argument("--out", required=True)
options = parser.parse_args()
warnings.filterwarnings("ignore", message="shoal.spmd")
torch.set_num_threads(1)

xr.use_spmd()
config, ranks = gpt.CONFIGS[options.config], xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(ranks), (ranks, 1), ("fsdp", "model"))
global_batch = 2 * config["batch"]
tokens = gpt.stream(config)
model = gpt.build(config)
for i, block in enumerate(model.blocks):
    model.blocks[i] = FSDPv2(block, mesh)
model = FSDPv2(model, mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def on_device(batch):
    t = batch.to(xm.xla_device())
    xs.mark_sharding(t, mesh, ("fsdp", None))
    return t


def recorded(step):
    x, y = map(on_device, gpt.batch(tokens, config, step, global_batch, 0, global_batch))
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


seconds, spent, losses = [], [], []
for step in range(options.steps):
    start, cpu = time.perf_counter(), time.thread_time()
    loss = recorded(step)
    spent.append(time.thread_time() - cpu)
    losses.append(loss.item())
    seconds.append(time.perf_counter() - start)

with tempfile.NamedTemporaryFile("r", suffix=".json") as trace:  # one more step, whose timeline has the number of operators
    with xs.timeline(trace.name):
        recorded(options.steps)
    events = json.load(trace)["traceEvents"]
operators = sum(e["pid"] == 1 and "line" in e.get("args", {}) for e in events)
with open(options.out, "w") as f:
    each = [s / operators for s in spent]
    json.dump({"step_s": seconds[options.warmup :], "operator_s": each[options.warmup :], "losses": losses}, f)
