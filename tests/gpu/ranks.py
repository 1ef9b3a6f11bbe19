"""Config T on 1, 2 and 4 ranks that share one CUDA device, by Shoal's own groups and fused AdamW. Compares losses with those of one rank.

With --device cpu, 1 and 2 ranks have units outside of an arena, as on a device. Shared memory takes the place of copies between processes.
Prints a JSON line for each world size, then `N passed, N failed`. Without a device: exit code 2 and one sentence.
"""

import argparse
import json
import os
import socket
import subprocess
import sys

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

CONFIG, STEPS, ROWS, TOLERANCE = gpt.CONFIGS["T"], 4, 4, 1e-4
LIMIT = 100  # seconds for one world size
WORLDS = {"cuda": (1, 2, 4), "cpu": (1, 2)}


class HostStreams:
    def current(self):
        return 0


def use_host_groups():
    """Lets units on the CPU lie outside of an arena, with groups over shared memory."""
    from shoal._distributed.communicator import make_communicator
    from shoal._distributed.devices import Choice, DeviceGroup
    from shoal._distributed.ranks import attach, gang_name
    from shoal.fsdp._devices.groups import groups
    from shoal.fsdp._parameters.mesh import DataMesh

    def opens(ranks, index, device):
        native = make_communicator(gang_name("devices", ranks, index), ranks, index, attach(ranks).shared)
        return DeviceGroup(native, HostStreams()), Choice("host")

    DataMesh.in_arena = property(lambda self: False)
    groups.opens, groups.device_types = opens, ("cpu",)


def train(device):
    """Trains on this rank. Returns the mean losses of all ranks, and the transport between the ranks; "" for one rank."""
    from shoal.fsdp import fully_shard
    from shoal.fsdp._devices.groups import groups
    from shoal.optim import AdamW

    if device == "cpu":
        use_host_groups()
    else:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo")  # for the losses; Shoal's groups move parameters and gradients
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = ROWS // world
    mesh = init_device_mesh(device, (world,))
    model = gpt.build(CONFIG).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    tokens, losses = gpt.stream(CONFIG), []
    for step in range(STEPS):
        x, y = (t.to(device) for t in gpt.batch(tokens, CONFIG, step, ROWS, rank * rows, (rank + 1) * rows))
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().cpu()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    transports = {group.transport for group in groups._groups.values()}
    dist.barrier()
    dist.destroy_process_group()
    return losses, ", ".join(sorted(transports))


def run(world, device):
    """Runs the ranks. Returns rank 0's result, or the output of a rank that failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        environment |= {"SHOAL_DEVICE_TRANSPORT": "cuda_ipc"}  # the ranks share a device; no default of meshes
        command = [sys.executable, __file__, "--device", device, "--rank"]
        text = {name: str(value) for name, value in environment.items()}
        ranks.append(subprocess.Popen(command, env={**os.environ, **text}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [r.communicate(timeout=LIMIT)[0] for r in ranks]
    except subprocess.TimeoutExpired:
        for r in ranks:
            r.kill()
        return {"error": f"{world} ranks were not through in {LIMIT} s"}
    bad = next((output for r, output in zip(ranks, outputs, strict=True) if r.returncode != 0), None)
    return {"error": bad[-2000:]} if bad is not None else json.loads(outputs[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rank", action="store_true", help="be one of the ranks")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"tests/gpu: there is no CUDA device that torch {torch.__version__} can use here; nothing was tested")
        return 2
    if options.rank:
        losses, transport = train(options.device)
        print(json.dumps({"losses": losses, "transport": transport}))
        return 0
    expected, failed = None, 0
    wanted = "cuda_ipc" if options.device == "cuda" else "shm"
    worlds = WORLDS[options.device]
    for world in worlds:
        result = run(world, options.device)
        if "losses" in result:
            expected = expected or result["losses"]
            off = max(abs(a - b) / abs(b) for a, b in zip(result["losses"], expected, strict=True))
            result |= {"off_by": off, "passed": off <= TOLERANCE and result["transport"] == ("" if world == 1 else wanted)}
        failed += not result.get("passed", False)
        print(json.dumps({"world": world, **result}), flush=True)
    print(f"{len(worlds) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
