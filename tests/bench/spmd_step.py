"""Training steps of one GPT, one process per device, in turn in the same processes: fully_shard, FSDPv2 and marks by hand.

  torchrun --nproc-per-node 2 spmd_step.py --config S --steps 9 --out FILE
Rank 0 writes {"step_s": {way: seconds per step}, "losses": {way: ...}} to FILE. All steps begin with a batch on the host.
"""

import argparse
import json
import time
import warnings

import gpt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.fsdp import fully_shard
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2

parser = argparse.ArgumentParser()
parser.add_argument("--config", choices=list(gpt.CONFIGS), default="S")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--warmup", type=int, default=3, help="first steps that --out leaves out of step_s")
parser.add_argument("--out", required=True)
options = parser.parse_args()
warnings.filterwarnings("ignore", message="shoal.spmd")
torch.set_num_threads(1)

xr.use_spmd()
config = gpt.CONFIGS[options.config]
ranks, rank = xr.process_count(), xr.process_index()
mesh = xs.Mesh(np.arange(ranks), (ranks, 1), ("fsdp", "model"))
global_batch = 2 * config["batch"]
first, last = rank * global_batch // ranks, (rank + 1) * global_batch // ranks
tokens = gpt.stream(config)


def sharded():
    model = gpt.build(config)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def wrapped():
    model = gpt.build(config)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDPv2(block, mesh)
    return FSDPv2(model, mesh)


def marked():
    model = gpt.build(config).to(xm.xla_device())
    for p in model.parameters():
        largest = max(range(p.dim()), key=lambda d: p.shape[d])
        xs.mark_sharding(p, mesh, tuple("fsdp" if d == largest else None for d in range(p.dim())))
    return model


def on_device(batch):
    t = batch.to(xm.xla_device())
    xs.mark_sharding(t, mesh, ("fsdp", None))
    return t


models = {"fully_shard": sharded(), "FSDPv2": wrapped(), "marks": marked()}
optimizers = {way: torch.optim.AdamW(m.parameters(), lr=3e-4, fused=True) for way, m in models.items()}
seconds, losses = {way: [] for way in models}, {way: [] for way in models}
for step in range(options.steps):
    for way, model in models.items():
        mine = (first, last) if way == "fully_shard" else (0, global_batch)
        x, y = gpt.batch(tokens, config, step, global_batch, *mine)
        dist.barrier()
        start = time.perf_counter()
        if way != "fully_shard":
            x, y = on_device(x), on_device(y)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizers[way].step()
        optimizers[way].zero_grad(set_to_none=True)
        seconds[way].append(time.perf_counter() - start)
        total = loss.detach().cpu()
        if way == "fully_shard":
            dist.all_reduce(total)
            total /= ranks
        losses[way].append(total.item())

if rank == 0:
    with open(options.out, "w") as f:
        json.dump({"step_s": {way: s[options.warmup :] for way, s in seconds.items()}, "losses": losses}, f)
dist.barrier()
