"""A rank that trains while it saves 1 GB, sharded over two ranks. Rank 0 writes {"stall", "saving", "steady"} (seconds) to --out.

torchrun --nproc-per-node 2 checkpoint_step.py --mode shoal --folder FOLDER --out FILE
torchrun --nproc-per-node 2 checkpoint_step.py --mode dcp-process --folder FOLDER --out FILE   # torch's FSDP2 and async_save
"""

import argparse
import json
import time

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["shoal", "dcp-process", "dcp-thread"], default="shoal")
parser.add_argument("--folder", required=True)
parser.add_argument("--batch", type=int, default=8, help="rows per rank and step")
parser.add_argument("--steady", type=int, default=4, help="steps before the save, and after it")
parser.add_argument("--config", default="M")
parser.add_argument("--out", required=True)
options = parser.parse_args()

if options.mode == "shoal":
    from shoal import checkpoint
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
else:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from torch.distributed.fsdp import fully_shard
    from torch.optim import AdamW

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
config = gpt.CONFIGS[options.config]
model = gpt.build(config)
mesh = init_device_mesh("cpu", (world,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = AdamW(model.parameters(), lr=3e-4)
tokens = gpt.stream(config)
first, last = rank * options.batch, (rank + 1) * options.batch


def train(step):
    """Runs one step of all ranks and returns its seconds."""
    x, y = gpt.batch(tokens, config, step, world * options.batch, first, last)
    dist.barrier()
    begin = time.perf_counter()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    return time.perf_counter() - begin


class Shoal:
    """A save by shoal.checkpoint. The stall counts the call, and the waits of later steps for the copy."""

    def __init__(self, number):
        self.pending = checkpoint.save_async(f"{options.folder}/shoal", model, optimizer, state={"number": number})

    def done(self):
        return self.pending.done()

    def wait(self):
        self.pending.wait()
        return self.pending.stall_s


class Dcp:
    """A save by torch. Without CUDA there is no pinned memory, and staging is part of the call. The state dicts are not counted."""

    stager = None

    def __init__(self, number):
        state = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
        if Dcp.stager is None:
            cuda = torch.cuda.is_available()
            Dcp.stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=cuda,
                    use_shared_memory=options.mode == "dcp-process",
                    use_async_staging=False,
                    use_non_blocking_copy=cuda,
                )
            )
        kind = AsyncCheckpointerType.PROCESS if options.mode == "dcp-process" else AsyncCheckpointerType.THREAD
        begin = time.perf_counter()
        self.future = dcp.async_save(
            state, checkpoint_id=f"{options.folder}/dcp-{number}", async_checkpointer_type=kind, async_stager=Dcp.stager
        )
        self.stall = time.perf_counter() - begin

    def done(self):
        return self.future.done()

    def wait(self):
        self.future.result()
        return self.stall


def everywhere(flag):
    vote = torch.tensor([int(flag)])
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


save = Shoal if options.mode == "shoal" else Dcp
step = 0
for _ in range(3):
    train(step := step + 1)
save(0).wait()  # makes memory, groups and processes that later saves use again
train(step := step + 1)
steady = [train(step := step + 1) for _ in range(options.steady)]
pending = save(1)
saving = [train(step := step + 1)]
while not everywhere(pending.done()):
    saving.append(train(step := step + 1))
stall = torch.tensor(pending.wait())
dist.all_reduce(stall, op=dist.ReduceOp.MAX)
steady += [train(step := step + 1) for _ in range(options.steady)]
if rank == 0:
    with open(options.out, "w") as f:
        json.dump({"stall": stall.item(), "saving": saving, "steady": steady}, f)
dist.barrier()
if options.mode != "shoal":
    Dcp.stager.close()
dist.destroy_process_group()
