"""The flight recorder of the backend shoal, and answers for torch's debug server. argv: a function, a folder."""

import contextlib
import json
import os
import sys
import threading
import time
import urllib.request
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard as torchs_fully_shard

import shoal.torch
from shoal.fsdp import fully_shard


def dump(folder):
    shoal.torch.dump_flight_recorder(f"{folder}/traces/rank_")


def every_operation(rank, world, folder):
    ones, each = torch.ones(world), [torch.empty(2) for _ in range(world)]
    dist.all_reduce(ones)
    dist.broadcast(ones, 0)
    dist.reduce(ones, 1)
    dist.all_gather(each, torch.ones(2))
    dist.all_gather([torch.empty(r + 1) for r in range(world)], torch.ones(rank + 1))
    dist.all_gather_into_tensor(torch.empty(2 * world), torch.ones(2))
    dist.reduce_scatter(torch.empty(2), each)
    dist.reduce_scatter(torch.empty(rank + 1), [torch.ones(r + 1) for r in range(world)])
    dist.reduce_scatter_tensor(torch.empty(1), ones)
    dist.gather(torch.ones(2), each if rank == 0 else None)
    dist.scatter(torch.empty(2), each if rank == 0 else None)
    dist.all_to_all(each, [torch.ones(2) for _ in range(world)])
    dist.all_to_all_single(torch.empty(world), ones)
    work = dist.all_reduce(torch.ones(3, dtype=torch.int64), async_op=True)
    work.wait()
    dist.barrier()
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(torch.ones(4), 1 - rank)
    pair = dist.new_group([0, 1], group_desc="the pair")
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
    model = torchs_fully_shard(torch.nn.Linear(2 * world, 4))
    model(torch.ones(1, 2 * world)).sum().backward()
    dump(folder)


def a_rank_is_late(rank, world, folder):
    dist.all_reduce(torch.ones(1))
    if rank != 1:
        with contextlib.suppress(Exception):
            dist.all_reduce(torch.ones(5))
    else:
        while dist.group.WORLD._native.failed() is None:  # its own dump shows that it has not come
            time.sleep(0.01)
        dump(folder)


def ranks_call_different_collectives(rank, world, folder):
    dist.all_reduce(torch.ones(1))
    with contextlib.suppress(Exception):
        if rank == 0:
            dist.broadcast(torch.ones(2), 0)
            dump(folder)  # the source of a broadcast may have sent its values before another rank sees the difference
        else:
            dist.all_reduce(torch.ones(2))


def post(server, name):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/handler/{name}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def a_debugger_sees_a_rank_that_waits(rank, world, folder):
    from torch._C._distributed_c10d import _WorkerServer  # as torch.distributed.debug starts it

    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model = fully_shard(model)
    model(torch.ones(1, 4)).sum().backward()
    server = _WorkerServer("127.0.0.1", 0)
    before = post(server, "shoal")
    assert (before["rank"], before["world_size"], before["pid"]) == (rank, world, os.getpid())
    assert "waiting_operations" not in before or before["waiting_operations"] == []
    assert [(m["model"], m["forward"], m["backward"]) for m in before["models"]] == [("FSDPSequential", [], False)]
    (group,) = [text for text in before["groups"] if f"rank {rank} of {world}" in text]
    assert "shoal process group" in group
    if rank == 0:
        seen = {}

        def watch():
            while not seen.get("waiting_operations"):
                seen.update(post(server, "shoal"))
            seen["trace"] = post(server, "shoal_fr_trace_json")
            store.set("seen", "1")

        watcher = threading.Thread(target=watch)
        watcher.start()
        dist.all_reduce(torch.ones(3))
        watcher.join()
        (waiting,) = seen["waiting_operations"]
        assert waiting.startswith("all_reduce number "), waiting
        assert any("a_debugger_sees_a_rank_that_waits" in call for call in seen["threads"]["MainThread"]), seen["threads"]
        assert seen["trace"]["entries"][-1]["state"] == "started"
    else:
        store.wait(["seen"])
        dist.all_reduce(torch.ones(3))
    server.shutdown()


def main():
    function, folder = globals()[sys.argv[1]], sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=2 if function is a_rank_is_late else 60)
    dist.init_process_group("shoal", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=limit)
    function(rank, world, folder)


if __name__ == "__main__":
    main()
