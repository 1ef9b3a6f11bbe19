"""Config T on 1, 2 and 4 ranks that share one CUDA device, by Shoal's own groups and fused AdamW. Compares losses with those of one rank:
in fp32, in bf16 with gradients of several batches, and on 2 x 2 ranks with replicas, where a rank's slices have different sizes.

With --device cpu, ranks have units outside of an arena, as on a device. Shared memory takes the place of copies between processes. Prints
a JSON line for each case and world size, then `N passed, N failed`. Without a device: exit code 2 and one sentence.
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
from torch.distributed.fsdp import MixedPrecisionPolicy

CONFIG, STEPS, ROWS = gpt.CONFIGS["T"], 4, 4
LIMIT = 60  # seconds for one world size
# By case: the sizes of its worlds on a device and on the CPU, the first the reference, and the tolerance of losses.
CASES = {
    "fp32": {"cuda": (1, 2, 4), "cpu": (1, 2), "tolerance": 1e-4},
    "bf16, accumulated": {"cuda": (1, 2), "cpu": (1, 2), "tolerance": 3e-2},
    "replicas": {"cuda": (1, 4), "cpu": (1, 4), "tolerance": 1e-4},
}


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


def train(device, case):
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
    options = {}
    if case == "replicas" and world > 1:
        options["mesh"] = init_device_mesh(device, (2, world // 2), mesh_dim_names=("replicas", "shards"))
    else:
        options["mesh"] = init_device_mesh(device, (world,))
    if case == "bf16, accumulated":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = gpt.build(CONFIG).to(device)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    parts = 1 if case == "fp32" else rows  # batches of one row each, whose gradients add up before a step
    tokens, losses = gpt.stream(CONFIG), []
    for step in range(STEPS):
        x, y = (t.to(device) for t in gpt.batch(tokens, CONFIG, step, ROWS, rank * rows, (rank + 1) * rows))
        mean = torch.zeros(())
        for part, (x_part, y_part) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
            model.set_requires_gradient_sync(part + 1 == parts)
            loss = F.cross_entropy(model(x_part).flatten(0, 1).float(), y_part.flatten()) / parts
            loss.backward()
            mean += loss.detach().cpu()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    transports = {group.transport for group in groups._groups.values()}
    dist.barrier()
    dist.destroy_process_group()
    return losses, ", ".join(sorted(transports))


def run(world, device, case):
    """Runs the ranks. Returns rank 0's result, or the output of a rank that failed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        environment |= {"SHOAL_DEVICE_TRANSPORT": "cuda_ipc"}  # the ranks share a device; no default of meshes
        command = [sys.executable, __file__, "--device", device, "--rank", case]
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
    parser.add_argument("--rank", default="", metavar="CASE", help="be one of the ranks")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"tests/gpu: there is no CUDA device that torch {torch.__version__} can use here; nothing was tested")
        return 2
    if options.rank:
        losses, transport = train(options.device, options.rank)
        print(json.dumps({"losses": losses, "transport": transport}))
        return 0
    failed = passed = 0
    wanted = "cuda_ipc" if options.device == "cuda" else "shm"
    for case, of_case in CASES.items():
        expected = None
        for world in of_case[options.device]:
            result = run(world, options.device, case)
            if "losses" in result:
                expected = expected or result["losses"]
                off = max(abs(a - b) / abs(b) for a, b in zip(result["losses"], expected, strict=True))
                result |= {"off_by": off, "passed": off <= of_case["tolerance"] and result["transport"] == ("" if world == 1 else wanted)}
            good = result.get("passed", False)
            passed, failed = passed + good, failed + (not good)
            print(json.dumps({"case": case, "world": world, **result}), flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
