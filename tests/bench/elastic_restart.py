"""The peer of elastic_train.py: FSDP2 under torchrun --max-restarts, which continues from a DCP checkpoint after a worker has died.

  torchrun --nproc-per-node 2 --max-restarts 6 elastic_restart.py --config M --folder DIR --restarts 2
Rank 0 appends a line of JSON per step to DIR/steps: its end (seconds) and the number of restarts. A checkpoint follows the last step
before a restart; its time is no part of the pause. A worker without a step for 60 s ends, because gloo may not connect after a restart;
torchrun then starts all workers again.
"""

import argparse
import faulthandler
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import gpt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--config", choices=list(gpt.CONFIGS), default="M")
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--restarts", type=int, default=3)
parser.add_argument("--quiet", type=int, default=5, help="steps between two restarts")
options = parser.parse_args()
faulthandler.dump_traceback_later(60, exit=True)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
config = gpt.CONFIGS[options.config]
mesh = init_device_mesh("cpu", (world,))
model = gpt.build(config)
for unit in (*model.blocks, model):
    fully_shard(unit, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens = gpt.stream(config)
checkpoint = str(options.folder / "checkpoint")
global_batch = 2 * config["batch"]
first, last = rank * global_batch // world, (rank + 1) * global_batch // world


def state_dict():
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


if restart:
    loaded = state_dict()
    dcp.load(loaded, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
for step in range(restart * options.quiet, (restart + 1) * options.quiet):
    x, y = gpt.batch(tokens, config, step, global_batch, first, last)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dist.all_reduce(loss.detach())
    faulthandler.dump_traceback_later(60, exit=True)
    if rank == 0:
        with (options.folder / "steps").open("a") as file:
            file.write(json.dumps({"at": time.perf_counter(), "restart": restart}) + "\n")
if restart < options.restarts:
    began = time.perf_counter()
    dcp.save(state_dict(), checkpoint_id=checkpoint)
    dist.barrier()
    if rank == 0:
        with (options.folder / "steps").open("a") as file:
            file.write(json.dumps({"saved": time.perf_counter() - began, "at": time.perf_counter(), "restart": restart}) + "\n")
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # a worker dies: torchrun starts all workers again
    time.sleep(600)  # until torchrun ends this one
dist.destroy_process_group()
