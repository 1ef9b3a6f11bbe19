"""Figures of DeepSpeed's all_reduce in shared memory, of a rank of torchrun, in the terms of collectives_ranks.py."""

import argparse
import json
import os
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
from deepspeed.ops.op_builder import ShareMemCommBuilder

SAMPLES = 5
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    sizes = parser.parse_args().bytes
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    operator = ShareMemCommBuilder().load()
    operator.initialize(dist.get_world_size(), dist.get_rank())
    for size in sizes:
        t, seconds = torch.ones(max(1, size // 4)), []
        operator.inference_all_reduce(t)
        number = max(1, min(500, (64 * MIB) // size))
        for _ in range(SAMPLES):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(number):
                operator.inference_all_reduce(t)
            mine = torch.tensor([(time.perf_counter() - begin) / number], dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            seconds.append(mine.item())
        if dist.get_rank() == 0:
            values = [size / 1e9 / s if size >= MIB else s * 1e6 for s in seconds]
            print(json.dumps({"operation": "all_reduce", "bytes": size, "values": values}), flush=True)


if __name__ == "__main__":
    main()
