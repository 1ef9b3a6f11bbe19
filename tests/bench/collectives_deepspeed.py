"""Figures of DeepSpeed's all_reduce in shared memory, of a rank of torchrun, in the terms of collectives_ranks.py."""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))  # without it the operator opens no shared memory
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # ninja's place, which builds the operator

import torch
import torch.distributed as dist
from deepspeed.ops.op_builder import ShareMemCommBuilder

SAMPLES = 5
MIB = 1 << 20


def _all_reduce(operator):
    """Returns the sum in place: of the operator's module, or in newer releases of torch's table of operators."""
    if hasattr(operator, "inference_all_reduce"):
        return operator.inference_all_reduce
    if getattr(operator, "vector_kernel_level", lambda: 1)() < 1:
        raise SystemExit("DeepSpeed's all_reduce in shared memory needs a processor with AVX2")
    return torch.ops.deepspeed.inference_all_reduce_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", default=[], help="by default, only build the operator, without a launcher")
    sizes = parser.parse_args().bytes
    operator = ShareMemCommBuilder().load()
    if not sizes:
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    operator.initialize(dist.get_world_size(), dist.get_rank())
    all_reduce = _all_reduce(operator)
    for size in sizes:
        t, seconds = torch.ones(max(1, size // 4)), []
        all_reduce(t)
        assert t[0] == dist.get_world_size(), "DeepSpeed's operator did not reduce"
        number = max(1, min(500, (64 * MIB) // size))
        for _ in range(SAMPLES):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(number):
                all_reduce(t)
            mine = torch.tensor([(time.perf_counter() - begin) / number], dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            seconds.append(mine.item())
        if dist.get_rank() == 0:
            values = [size / 1e9 / s if size >= MIB else s * 1e6 for s in seconds]
            print(json.dumps({"operation": "all_reduce", "bytes": size, "values": values}), flush=True)


if __name__ == "__main__":
    main()
