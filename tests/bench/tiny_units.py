"""Cost of a unit per step beyond its own arithmetic: a chain of many tiny units of FSDP2 or Shoal (under torchrun).

  torchrun --nproc-per-node 2 tiny_units.py --mode shoal --out FILE      {"step_s": [...], "units": 200}
--mode plain: the same modules, not sharded, as the time to subtract.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["shoal", "fsdp2", "plain"], default="fsdp2")
parser.add_argument("--units", type=int, default=200)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--out", default="")
options = parser.parse_args()
torch.set_num_threads(1)

if options.mode == "shoal":
    from shoal.fsdp import fully_shard
elif options.mode == "fsdp2":
    from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(options.units)))
if options.mode != "plain":
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
x = torch.randn(2, 8)
seconds = []
for _ in range(options.steps):
    dist.barrier()
    begin = time.perf_counter()
    model(x).square().mean().backward()
    seconds.append(time.perf_counter() - begin)
    for p in model.parameters():
        p.grad = None
if dist.get_rank() == 0 and options.out:
    with open(options.out, "w") as file:
        json.dump({"step_s": seconds[options.warmup :], "units": options.units}, file)
dist.barrier()
dist.destroy_process_group()
