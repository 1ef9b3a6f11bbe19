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


class Shoal:
    """Saves by shoal.checkpoint. The stall counts the call, and the waits of later steps for the copy."""

    def __init__(self, folder, mode):
        from shoal.fsdp import fully_shard
        from shoal.optim import AdamW

        self.fully_shard, self.AdamW, self._folder = fully_shard, AdamW, folder

    def save(self, model, optimizer):
        from shoal import checkpoint

        self._pending = checkpoint.save_async(f"{self._folder}/shoal", model, optimizer)

    def done(self):
        return self._pending.done()

    def wait(self):
        self._pending.wait()
        return self._pending.stall_s

    def close(self):
        pass


class Dcp:
    """Saves by torch. Without CUDA there is no pinned memory, and staging is part of the call. The state dicts are not counted."""

    def __init__(self, folder, mode):
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        from torch.distributed.fsdp import fully_shard

        self.fully_shard, self.AdamW, self._folder, self._saves = fully_shard, torch.optim.AdamW, folder, 0
        cuda, process = torch.cuda.is_available(), mode == "dcp-process"
        self._stager = DefaultStager(
            StagingOptions(use_pinned_memory=cuda, use_shared_memory=process, use_async_staging=False, use_non_blocking_copy=cuda)
        )
        self._kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self._group = None if process else dist.new_group(backend="gloo")  # its thread communicates beside the training

    def save(self, model, optimizer):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        state = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
        self._saves += 1
        path = f"{self._folder}/dcp-{self._saves}"
        begin = time.perf_counter()
        self._future = dcp.async_save(
            state, checkpoint_id=path, process_group=self._group, async_checkpointer_type=self._kind, async_stager=self._stager
        )
        self._stall = time.perf_counter() - begin

    def done(self):
        return self._future.done()

    def wait(self):
        self._future.result()
        return self._stall

    def close(self):
        self._stager.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["shoal", "dcp-process", "dcp-thread"], default="shoal")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--batch", type=int, default=8, help="rows per rank and step")
    parser.add_argument("--steady", type=int, default=4, help="steps before the save, and after it")
    parser.add_argument("--config", default="M")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saver = (Shoal if options.mode == "shoal" else Dcp)(options.folder, options.mode)
    config = gpt.CONFIGS[options.config]
    model = gpt.build(config)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        saver.fully_shard(block, mesh=mesh)
    saver.fully_shard(model, mesh=mesh)
    optimizer = saver.AdamW(model.parameters(), lr=3e-4)
    figures = measure(options, saver, model, optimizer, gpt.stream(config), config)
    if rank == 0:
        with open(options.out, "w") as f:
            json.dump(figures, f)
    dist.barrier()
    saver.close()
    dist.destroy_process_group()


def measure(options, saver, model, optimizer, tokens, config):
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank * options.batch, (rank + 1) * options.batch
    step = 0

    def train():
        """Runs one step of all ranks and returns its seconds."""
        nonlocal step
        step += 1
        x, y = gpt.batch(tokens, config, step, world * options.batch, first, last)
        dist.barrier()
        begin = time.perf_counter()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - begin

    def on_all(flag):
        vote = torch.tensor([int(flag)])
        dist.all_reduce(vote, op=dist.ReduceOp.MIN)
        return bool(vote.item())

    for _ in range(2):
        train()
    saver.save(model, optimizer)  # makes memory, groups and processes that later saves use again
    saver.wait()
    train()
    steady = [train() for _ in range(options.steady)]
    saver.save(model, optimizer)
    saving = [train()]
    while not on_all(saver.done()):
        saving.append(train())
    stall = torch.tensor(saver.wait())
    dist.all_reduce(stall, op=dist.ReduceOp.MAX)
    steady += [train() for _ in range(options.steady)]
    return {"stall": stall.item(), "saving": saving, "steady": steady}


if __name__ == "__main__":  # torch's process of a save imports this file
    main()
