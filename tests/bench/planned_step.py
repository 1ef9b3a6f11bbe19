"""One rank of a job whose memory is predicted, or measured: config M (S) with shoal.fsdp and shoal.optim's AdamW.

torchrun --nproc-per-node 2 planned_step.py --with bf16 --until before      # ends before the model is built
torchrun --nproc-per-node 2 planned_step.py --with bf16 --until planned --out FILE  # rank 0 writes {"peak_bytes": ...}, before any step
torchrun --nproc-per-node 2 planned_step.py --with bf16                     # six steps; `# steady` after the second
"""

import argparse
import json
import time

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import shoal.fsdp
from shoal.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from shoal.optim import AdamW

parser = argparse.ArgumentParser()
parser.add_argument("--config", default="M")
WHAT = ["nothing", "accumulation", "checkpointing", "offload", "bf16", "in-backward"]
parser.add_argument("--with", dest="what", choices=WHAT, default="nothing")
parser.add_argument("--until", choices=["before", "planned", "end"], default="end")
parser.add_argument("--out", default="/dev/stdout")
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, config = dist.get_rank(), gpt.CONFIGS[options.config]
micro_batches = 2 if options.what == "accumulation" else 1
rows = config["batch"]


def say_and_end(what):
    dist.barrier()
    if rank == 0:
        print(f"# {what}", flush=True)
    time.sleep(0.5)  # peak_memory.py samples every 20 ms, and so sees this state
    dist.barrier()
    dist.destroy_process_group()
    raise SystemExit


tokens = gpt.stream(config)
if options.until == "before":
    say_and_end("before the model is built")

model = gpt.build(config)
if options.what == "checkpointing":
    for block in model.blocks:
        block.forward = lambda x, f=block.forward: checkpoint(f, x, use_reentrant=False)
policies = {}
if options.what == "bf16":
    policies["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
if options.what == "offload":
    policies["offload_policy"] = CPUOffloadPolicy()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for block in model.blocks:
    fully_shard(block, mesh=mesh, **policies)
fully_shard(model, mesh=mesh, **policies)
optimizer = AdamW(model.parameters(), lr=3e-4)
if options.what == "in-backward":
    shoal.fsdp.plan(model, optimizer_in_backward=optimizer)


def batch(step, micro):
    ranks = dist.get_world_size()
    first = (micro * ranks + rank) * rows
    return gpt.batch(tokens, config, step, micro_batches * ranks * rows, first, first + rows)


if options.until == "planned":
    if rank == 0:
        if options.what == "accumulation":
            model.set_requires_gradient_sync(False)
        memory = shoal.fsdp.step_graph(model, example_inputs=batch(0, 0)[0], optimizer=optimizer).memory
        with open(options.out, "w") as f:
            json.dump({"peak_bytes": memory.total, "parts": str(memory)}, f)
    say_and_end("planned")

for step in range(6):
    for micro in range(micro_batches):
        model.set_requires_gradient_sync(micro == micro_batches - 1)
        x, y = batch(step, micro)
        F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and rank == 0:
        print("# steady", flush=True)
dist.barrier()
dist.destroy_process_group()
