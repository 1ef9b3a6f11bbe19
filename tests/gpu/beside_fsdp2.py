"""A GPT in bf16 at world 1 on a CUDA device: Shoal and torch's FSDP2 in turn, in one process. --config: 125 million parameters in 48 small
units, or 1.3 or 3 billion in large ones. With one rank nothing is communicated.

Prints a JSON line for each run: tokens per second, the milliseconds in which the host issues a step, and the device's peak bytes. The last
lines give the ratios of medians and `N passed, N failed`. A run fails if its losses differ from FSDP2's, or if Shoal's peak memory is more
than 0.1 % above FSDP2's. With --device cpu it trains a small model, which tests this program. Without a device: exit code 2.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import gpt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from device import mesh_of_one_rank
from torch.distributed.fsdp import MixedPrecisionPolicy

CONFIGS = {
    "125M": {"n_layer": 48, "d_model": 448, "n_head": 7, "vocab": 16384, "seq": 512, "batch": 8},
    "1.3B": {"n_layer": 24, "d_model": 2048, "n_head": 16, "vocab": 32768, "seq": 1024, "batch": 8},
    "3B": {"n_layer": 36, "d_model": 2560, "n_head": 20, "vocab": 32768, "seq": 1024, "batch": 4},
    "cpu": {"n_layer": 2, "d_model": 64, "n_head": 2, "vocab": 256, "seq": 32, "batch": 2},
}
TOLERANCE = 1e-4  # relative difference of losses: on a device, attention's backward adds in no fixed order


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def build(config, device, fully_shard, mesh):
    torch.manual_seed(0)
    with torch.device(device):
        model = gpt.GPT(**config)
        for p in model.parameters():
            if p.dim() >= 2:
                torch.nn.init.normal_(p, std=0.02)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train(config, device, fully_shard, mesh, steps, warmup):
    """Returns losses, the seconds of each step after ``warmup`` steps, the host's share of these seconds, and the device's peak memory
    in bytes."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = build(config, device, fully_shard, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator(device=device).manual_seed(1)
    tokens = torch.randint(0, config["vocab"], (steps, config["batch"], config["seq"] + 1), generator=generator, device=device)
    losses, seconds, host = [], [], []
    for x in tokens:
        wait(device)
        begin = time.perf_counter()
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        host.append(time.perf_counter() - begin)
        wait(device)
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return losses, statistics.median(seconds[warmup:]), statistics.median(host[warmup:]), peak


def main():
    from torch.distributed.fsdp import fully_shard as theirs

    from shoal.fsdp import fully_shard as ours

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--config", choices=[c for c in CONFIGS if c != "cpu"], default="1.3B")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run; the first four are not measured")
    options = parser.parse_args()
    device = options.device
    name = "cpu" if device == "cpu" else options.config
    mesh, config = mesh_of_one_rank(device), CONFIGS[name]
    rows = {"FSDP2": [], "shoal.fsdp": []}
    failed, expected, tokens = 0, None, config["batch"] * config["seq"]
    for _ in range(options.rounds):
        for way, fully_shard in (("FSDP2", theirs), ("shoal.fsdp", ours)):
            losses, seconds, host, peak = train(config, device, fully_shard, mesh, options.steps, min(4, options.steps - 1))
            expected = expected or losses
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
            passed = off <= TOLERANCE and (way == "FSDP2" or peak <= 1.001 * max(r["peak_bytes"] for r in rows["FSDP2"]))
            failed += not passed
            row = {"config": name, "way": way, "tokens_per_s": round(tokens / seconds), "host_ms": round(host * 1e3, 1), "peak_bytes": peak}
            rows[way].append(row)
            print(json.dumps({**row, "first": losses[0], "last": losses[-1], "off_by": off, "passed": passed}), flush=True)
    dist.destroy_process_group()
    keys = ("tokens_per_s", "host_ms", "peak_bytes")
    median = {way: {key: statistics.median(r[key] for r in of_one) for key in keys} for way, of_one in rows.items()}
    ratios = {key: median["shoal.fsdp"][key] / median["FSDP2"][key] for key in median["FSDP2"] if median["FSDP2"][key]}
    print(json.dumps({"config": name, "ours/FSDP2": ratios}))
    for key in keys:
        theirs_is, ours_is = median["FSDP2"][key], median["shoal.fsdp"][key]
        print(f"{key}: shoal.fsdp {ours_is:g}, FSDP2 {theirs_is:g}" + (f", ratio {ours_is / theirs_is:.3f}" if theirs_is else ""))
    print(f"{2 * options.rounds - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
