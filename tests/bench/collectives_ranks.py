"""Figures of a rank of torchrun: stock torch.distributed calls on the backends shoal and gloo in turn, and the memory's bandwidth."""

import argparse
import json
import time
import warnings

import torch
import torch.distributed as dist

import shoal.torch  # noqa: F401 (registers the backend)

PAIRS = 5  # samples of each backend
MIB = 1 << 20


def must_move(operation: str, size: int, ranks: int) -> float:
    """Bytes that all ranks together read and write at least, in memory that every rank can read."""
    return {
        "all_gather": 2 * ranks * size,  # every rank reads and writes the whole tensor
        "reduce_scatter": (ranks + 1) * size,  # every rank reads its part of all inputs, and writes it once
        "all_reduce": (3 * ranks - 1) * size,  # the same, then every rank copies the other ranks' parts
        "broadcast": 2 * (ranks - 1) * size,  # every other rank reads and writes the whole tensor
    }[operation]


def operations(size: int, ranks: int) -> dict:
    """The calls by name. A 4-byte gather or scatter has 4 bytes of each rank."""
    part = torch.ones(max(1, size // 4 // ranks))
    whole, one = torch.ones(len(part) * ranks), torch.ones(max(1, size // 4))
    return {
        "all_gather": lambda group: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_reduce": lambda group: dist.all_reduce(one, group=group),
        "broadcast": lambda group: dist.broadcast(one, 0, group=group),
    }


def slowest(seconds: float, gloo) -> float:
    t = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(t, dist.ReduceOp.MAX, group=gloo)
    return t.item()


def timed(call, number: int, gloo) -> float:
    dist.barrier(group=gloo)
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return slowest((time.perf_counter() - begin) / number, gloo)


def bandwidth(gloo, ranks: int) -> float:
    """Bytes per second that all ranks read and write together, in copies that do not fit the caches."""
    a, b = torch.ones(16 * MIB), torch.empty(16 * MIB)
    b.copy_(a)
    return 2 * a.nbytes * ranks / timed(lambda: b.copy_(a), 4, gloo)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    sizes = parser.parse_args().bytes
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("shoal")
    gloo, ranks = dist.new_group(backend="gloo"), dist.get_world_size()
    groups = {"shoal": dist.group.WORLD, "gloo": gloo}
    for size in sizes:
        for name, call in operations(size, ranks).items():
            once = {backend: timed(lambda g=group, c=call: c(g), 1, gloo) for backend, group in groups.items()}
            once = {backend: timed(lambda g=group, c=call: c(g), 1, gloo) for backend, group in groups.items()}
            numbers = {backend: max(1, min(500, int(0.15 / t))) for backend, t in once.items()}
            times, limits = {"shoal": [], "gloo": []}, []
            for _ in range(PAIRS):
                for backend, group in groups.items():
                    times[backend].append(timed(lambda g=group, c=call: c(g), numbers[backend], gloo))
                if size >= MIB:
                    limits.append(must_move(name, size, ranks) / bandwidth(gloo, ranks))
            if dist.get_rank() == 0:
                for peer, seconds in [*times.items(), ("limit", limits)]:
                    values = [size / 1e9 / t if size >= MIB else t * 1e6 for t in seconds]
                    if values:
                        print(json.dumps({"peer": peer, "operation": name, "bytes": size, "values": values}), flush=True)
    dist.barrier(group=gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
