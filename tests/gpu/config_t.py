"""Config T at world 1 on a CUDA device: losses of each way to shard beside plain PyTorch's, peak memory, a save beside the training.

With --device cpu it runs on the CPU, with units outside of an arena, as on a device. Prints a JSON line for each way to shard, then `N
passed, N failed`. Without a device: exit code 2 and one sentence.
"""

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from device import mesh_of_one_rank
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

CONFIG, STEPS, ROWS = gpt.CONFIGS["T"], 10, 4
SCALED = "shoal.fsdp, a GradScaler"


def sharded(fully_shard, model, mesh, **policies):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **policies)
    return fully_shard(model, mesh=mesh, **policies)


def run_steps(device, model, optimizer, steps, scales=False):
    """Trains, and returns the losses. ``scales``: with a GradScaler."""
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=scales)
    tokens, losses = gpt.stream(CONFIG), []
    for step in steps:
        x, y = (t.to(device) for t in gpt.batch(tokens, CONFIG, step, ROWS, 0, ROWS))
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(device, make, optimizer_of, scales):
    """Returns the losses of ten steps of one seed, and the device's peak memory in bytes. ``scales``: with a GradScaler, for which the
    optimizer's step must not wait."""
    gc.collect()  # frees the model of the run before, which is part of reference cycles
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = make(gpt.build(CONFIG))
    optimizer = optimizer_of(model.parameters())
    if scales and device == "cuda":
        optimizer.register_step_pre_hook(lambda *_: torch.cuda.set_sync_debug_mode("error"))
        optimizer.register_step_post_hook(lambda *_: torch.cuda.set_sync_debug_mode("default"))
    losses = run_steps(device, model, optimizer, range(STEPS), scales)
    return losses, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def ways(device, mesh):
    """The ways to train by name, each with a model, its optimizer, and the tolerance of its losses beside plain PyTorch's."""
    from torch.distributed.fsdp import fully_shard as theirs

    from shoal.fsdp import fully_shard as ours
    from shoal.optim import AdamW

    def torchs(parameters):
        return torch.optim.AdamW(parameters, lr=1e-3)

    def own(parameters):
        return AdamW(parameters, lr=1e-3)

    bf16 = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    offload = {"offload_policy": CPUOffloadPolicy(pin_memory=device == "cuda")}
    return {
        "plain PyTorch": (lambda m: m.to(device), torchs, 0),
        "FSDP2": (lambda m: sharded(theirs, m.to(device), mesh), torchs, 1e-4),
        "shoal.fsdp": (lambda m: sharded(ours, m.to(device), mesh), torchs, 1e-4),
        "shoal.fsdp, built on the CPU": (lambda m: sharded(ours, m, mesh), torchs, 1e-4),
        "shoal.fsdp, bf16": (lambda m: sharded(ours, m.to(device), mesh, **bf16), torchs, 3e-2),
        "shoal.fsdp, shards and optimizer on the host": (lambda m: sharded(ours, m, mesh, **offload), own, 1e-4),
        SCALED: (lambda m: sharded(ours, m.to(device), mesh), own, 1e-4),
    }


def values(model, optimizer):
    """The rows and the optimizer's states by name, copied to the host."""
    found = dict(model.state_dict())
    for name, p in model.named_parameters():
        found |= {f"{name}/{key}": value for key, value in optimizer.state[p].items()}
    return {name: (t.to_local() if isinstance(t, DTensor) else t).detach().cpu().clone() for name, t in found.items()}


def saved_beside(device, mesh):
    """Saves while the training goes on, into locked memory on a device. The checkpoint has the values of its call."""
    from shoal import checkpoint
    from shoal.fsdp import fully_shard, step_graph

    def build():
        model = sharded(fully_shard, gpt.build(CONFIG).to(device), mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    model, optimizer = build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        for number in range(2):  # the second save takes the memory of the first
            run_steps(device, model, optimizer, range(3))
            expected = values(model, optimizer)
            pending = checkpoint.save_async(path, model, optimizer)
            run_steps(device, model, optimizer, range(3, 5))
            pending.wait()
            loaded, loaded_optimizer = build()
            checkpoint.load(path, loaded, loaded_optimizer)
            found = values(loaded, loaded_optimizer)
            same = found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
            if not same:
                return {"passed": False, "save": number}
    graph = step_graph(model)
    return {
        "passed": True,
        "stall_ms": 1000 * pending.stall_s,
        "snapshot_bytes": pending.snapshot_bytes,
        "copies_us": [n.measured for n in graph.nodes if n.lane == "copies"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    device = parser.parse_args().device
    mesh = mesh_of_one_rank(device)
    failed, expected = 0, None
    all_ways = ways(device, mesh)
    for name, (make, optimizer_of, tolerance) in all_ways.items():
        figures = {"way": name}
        try:
            losses, peak = train(device, make, optimizer_of, name == SCALED)
            expected = expected or losses
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
            figures |= {"first": losses[0], "last": losses[-1], "off_by": off, "device_peak_bytes": peak, "passed": off <= tolerance}
        except Exception as error:  # goes on with the other ways
            figures |= {"error": f"{type(error).__name__}: {error}", "passed": False}
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        failed += not figures["passed"]
        print(json.dumps(figures), flush=True)
    try:
        figures = saved_beside(device, mesh)
    except Exception as error:
        figures = {"error": f"{type(error).__name__}: {error}", "passed": False}
    failed += not figures["passed"]
    print(json.dumps({"way": "saved beside the training", **figures}), flush=True)
    dist.destroy_process_group()
    print(f"{len(all_ways) + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
