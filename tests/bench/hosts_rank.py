"""One rank of `bench hosts`, started by shoal submit: collectives over several hosts, abort and re-form, or the memory of a gather.

  hosts_rank.py collectives --mib 8,64 --out FILE    # Shoal, gloo and plain TCP in turn
  hosts_rank.py reform --out FILE
  hosts_rank.py memory --mib 1024 --out FILE

Rank 0 writes FILE. A sample of several ranks is that of the slowest one; the monotonic clock is one for all hosts of this machine.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

import shoal.collective as sc
from shoal.exceptions import ShoalError
from shoal.train._ranks import own_place

# Prints the largest memory of a process, in bytes, when stdin ends. A process of its own, because the rank's threads hold the GIL.
SAMPLER = """
import select, sys
most = 0
print("ready", flush=True)
while True:
    with open(f"/proc/{sys.argv[1]}/smaps_rollup") as file:
        most = max(most, sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:"))))
    if select.select([sys.stdin], [], [], 0.01)[0]:
        break
print(most, flush=True)
"""

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["collectives", "reform", "memory"])
parser.add_argument("--mib", default="8", help="sizes of the whole tensor, with commas between them; of the unit's parameters")
parser.add_argument("--reps", type=int, default=2, help="samples of a collective; of re-forming 3 times as many")
parser.add_argument("--out", default="/dev/stdout")
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def everywhere(value) -> list:
    """The values of all ranks."""
    values = [None] * world
    dist.all_gather_object(values, value)
    return values


def duration(function) -> float:
    dist.barrier()
    begin = time.monotonic()
    function()
    return max(everywhere(time.monotonic() - begin))


class Tensors:
    """Tensors of one size, and collectives of them by Shoal and by gloo. A check is True if the result is right."""

    def __init__(self, mib: int):
        self.numel = (mib << 18) // world * world  # gloo takes equal parts only
        self.part, self.given = torch.full((self.numel // world,), float(rank)), torch.full((self.numel,), float(rank + 1))
        self.whole, self.summed, self.reduced = torch.empty(self.numel), torch.empty(self.numel // world), torch.empty(self.numel)

    def fill(self) -> None:
        self.whole.fill_(-1)
        self.summed.fill_(-1)
        self.reduced.fill_(rank + 1)

    def calls(self) -> dict:
        """By name: Shoal's call, gloo's, and the check."""
        total = world * (world + 1) / 2
        return {
            "gather": (
                lambda: sc.all_gather(self.part, self.whole),
                lambda: dist.all_gather_into_tensor(self.whole, self.part),
                lambda: all(self.whole[self.numel // world * r] == r for r in range(world)),
            ),
            "reduce_scatter": (
                lambda: sc.reduce_scatter(self.given, "sum", self.summed),
                lambda: dist.reduce_scatter_tensor(self.summed, self.given),
                lambda: self.summed[0] == self.summed[-1] == total,
            ),
            "all_reduce": (
                lambda: sc.all_reduce(self.reduced),
                lambda: dist.all_reduce(self.reduced),
                lambda: self.reduced[0] == self.reduced[-1] == total,
            ),
        }


class Ring:
    """Plain TCP among all ranks: each sends to the next one while it receives from the one before."""

    def __init__(self):
        sc.barrier()
        addresses, after = everywhere(own_place().host), (rank + 1) % world
        with socket.create_server((addresses[rank], 0)) as server:
            ports = everywhere(server.getsockname()[1])
            self._to = socket.create_connection((addresses[after], ports[after]))
            self._from, _ = server.accept()
        self._sender = ThreadPoolExecutor(1)

    def exchange(self, data: memoryview, into: memoryview) -> None:
        sent = self._sender.submit(self._to.sendall, data)
        while into:
            into = into[self._from.recv_into(into) or len(into) :]
        sent.result()


def collectives() -> dict:
    """Seconds by "Shoal gather 8", "TCP exchange 8" and so on. A size is that of the whole tensor on one rank, in MiB. The exchange is that
    of the bytes which a gather sends."""
    seconds, ring = {}, Ring()
    for mib in map(int, options.mib.split(",")):
        tensors = Tensors(mib)
        sent = 4 * tensors.numel // world * (world - 1)
        data, into = memoryview(bytearray(sent)), memoryview(bytearray(sent))
        for rep in range(options.reps + 1):
            for name, (ours, theirs, right) in tensors.calls().items():
                took = duration(lambda d=data, i=into: ring.exchange(d, i))
                if rep > 0:
                    seconds.setdefault(f"TCP exchange {mib}", []).append(took)
                for who, function in [("Shoal", ours), ("gloo", theirs)][:: 1 if rep % 2 else -1]:
                    tensors.fill()
                    took = duration(function)
                    assert right(), f"{who}'s {name} of {mib} MiB has a wrong result"
                    if rep > 0:  # the first one opens connections and touches memory
                        seconds.setdefault(f"{who} {name} {mib}", []).append(took)
    return {"seconds": seconds}


def reform() -> dict:
    """Seconds from an abort by rank 0 until every rank has passed a barrier of the next generation."""
    group, samples = sc.group(), []
    sc.barrier(group=group)
    for _ in range(3 * options.reps):
        dist.barrier()
        begin = time.monotonic()
        if rank == 0:
            group.abort("enough")
        try:
            sc.barrier(group=group)
            raise AssertionError("a barrier of an aborted group")
        except ShoalError:
            pass
        group = group.reform()
        sc.barrier(group=group)
        end = time.monotonic()
        samples.append(max(everywhere(end)) - everywhere(begin)[0])
    return {"seconds": samples, "generation": group.generation}


def memory_during(function) -> tuple[int, int]:
    """The memory of this process before a call, and its peak until the call's end, in bytes."""
    argv = [sys.executable, "-c", SAMPLER, str(os.getpid())]

    def sampler():
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        return process

    before = int(sampler().communicate()[0])
    during = sampler()
    function()
    return before, int(during.communicate()[0])


def memory() -> dict:
    """Bytes that a gather takes beyond the part of the arena that it fills, on the rank with most. The first gather, and a later one.

    The rows are moved to the arena before. A gather would do so, too, and rows of other ranks arrive while this rank still has both copies.
    """
    from shoal.fsdp import fully_shard

    width = 8192
    rows = (int(options.mib) << 20) // (4 * width)
    with torch.device("meta"):
        model = fully_shard(torch.nn.Linear(width, rows, bias=False))
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.weight.fill_(1)
    model.load_state_dict(model.state_dict())  # moves the rows from the tensors of to_empty to the arena
    missing = 4 * (rows * width - model.weight.to_local().numel())
    beyond = []
    for rep in range(2):
        dist.barrier()
        before, peak = memory_during(model.unshard)
        beyond.append(max(everywhere(peak - before - (missing if rep == 0 else 0))))
        model.reshard()
        with torch.no_grad():
            model.weight.fill_(2)
    return {"beyond": beyond, "missing": missing}


found = {"collectives": collectives, "reform": reform, "memory": memory}[options.what]() | {"transport": sc.group().transport}
if rank == 0:
    with open(options.out, "w") as file:
        json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
