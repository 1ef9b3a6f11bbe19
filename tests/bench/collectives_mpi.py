"""Figures of a rank of mpirun, in the terms of collectives_ranks.py: GB/s from 1 MiB on, else µs."""

import argparse
import json
import time

import numpy as np
from mpi4py import MPI

SAMPLES = 5
MIB = 1 << 20

comm = MPI.COMM_WORLD


def timed(call) -> list[float]:
    for _ in range(2):
        call()
    begin = time.perf_counter()
    call()
    number = comm.allreduce(max(1, min(500, int(0.15 / (time.perf_counter() - begin + 1e-9)))), op=MPI.MIN)
    out = []
    for _ in range(SAMPLES):
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(number):
            call()
        out.append(comm.allreduce((time.perf_counter() - begin) / number, op=MPI.MAX))
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    for size in parser.parse_args().bytes:
        part = np.ones(max(1, size // 4 // comm.size), dtype=np.float32)
        whole, one = np.ones(len(part) * comm.size, dtype=np.float32), np.ones(max(1, size // 4), dtype=np.float32)
        calls = {
            "all_gather": lambda part=part, whole=whole: comm.Allgather(part, whole),
            "reduce_scatter": lambda part=part, whole=whole: comm.Reduce_scatter_block(whole, part),
            "all_reduce": lambda one=one: comm.Allreduce(MPI.IN_PLACE, one),  # as torch does it: the result replaces the input
            "broadcast": lambda one=one: comm.Bcast(one, 0),
        }
        for name, call in calls.items():
            values = [size / 1e9 / t if size >= MIB else t * 1e6 for t in timed(call)]
            if comm.rank == 0:
                print(json.dumps({"operation": name, "bytes": size, "values": values}), flush=True)


if __name__ == "__main__":
    main()
