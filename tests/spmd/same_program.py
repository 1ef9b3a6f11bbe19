"""A program that prints the bits of its results. It runs in one process with all devices, or in one process per device.

Arguments: an empty folder for checkpoints.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader

import shoal.spmd as xs
import shoal.spmd.checkpoint as xc
import shoal.spmd.parallel_loader as pl
import shoal.spmd.runtime as xr
import shoal.spmd.xla_backend  # noqa: F401  for init_method="xla://"
import shoal.spmd.xla_model as xm
from shoal.spmd.fsdp import SpmdFullyShardedDataParallel

warnings.filterwarnings("ignore", message="shoal.spmd")
xr.use_spmd()
N, DEVICE = xr.global_runtime_device_count(), xm.xla_device()
LINE = xs.Mesh(np.arange(N), (N, 1), ("fsdp", "model"))
SQUARE = xs.Mesh(np.arange(N)[::-1], (N // 2, 2), ("x", "y"))  # the devices in reverse order
SPECS = [("x", "y"), ("y", "x"), (("y", "x"), None), (None, ("y", "x")), ("y", None), (None, None)]


def show(name: str, *tensors: torch.Tensor) -> None:
    """Prints a hash of the tensors' bits. All processes compute the whole tensors, and the first one prints."""
    whole = [t.detach().cpu() for t in tensors]
    if xr.process_index() == 0:
        bits = hashlib.sha256(b"".join(t.contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in whole)).hexdigest()[:16]
        print(name, [tuple(t.shape) for t in whole], [f"{t.double().sum():.6g}" for t in whole], bits)


def marked(t: torch.Tensor, mesh: xs.Mesh, spec: tuple) -> torch.Tensor:
    t = t.to(DEVICE)
    xs.mark_sharding(t, mesh, spec)
    return t


def operators() -> None:
    for shape, spec in itertools.product([(8, 12), (7, 13), (1, 3)], SPECS):
        t = marked(torch.randn(shape), SQUARE, spec)
        show(f"operators {shape} {spec}", t.sum(), t.sum(0), t.mean(1), t @ t.T, t.T @ t, t.softmax(0), t.bfloat16().sum(1), t.amax(0))
        show("random", torch.rand_like(t), nn.functional.dropout(t, 0.5), torch.randn(3, 5, device=DEVICE))
        before = t.t()
        t[:1].mul_(2)
        t.view(-1)[::2].add_(1)
        t.t()[0].sub_(3)
        t.t().reshape(-1)[1:3].zero_()
        show("written", t, before, t.cumsum(1), torch.cat([t, t.flip(0)]), t.sort(1).values)


def gradients() -> None:
    for spec in SPECS:
        t = marked(torch.randn(6, 8), SQUARE, spec).requires_grad_()
        other = marked(torch.randn(8, 5), SQUARE, spec[::-1])
        loss = (xs.mark_sharding_with_gradients(t @ other, SQUARE, spec).tanh().cumsum(0) ** 2).mean()
        loss.backward()
        show(f"gradients {spec}", loss, t.grad)
    x = marked(torch.arange(float(8 * N)).view(2 * N, 4), LINE, ("fsdp", None))
    inside = xs.enable_manual_sharding(x, ("fsdp", None), mesh=LINE)
    show("manual", xs.disable_manual_sharding(inside * 2 + 1, ("fsdp", None), x.shape, mesh=LINE).global_tensor)


def layers() -> None:
    """Layers of several operators along a split dimension, and parts of results that are combined by another operator than a sum."""
    for axes in ("x", ("y", "x")):
        parts = (nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8), nn.Flatten())
        net = nn.Sequential(*parts).to(DEVICE)
        x = marked(torch.randn(2 * N, 4, 6, 6), SQUARE, (axes, None, None, None)).requires_grad_()
        out, classes = net(x), torch.arange(2 * N).to(DEVICE) % 7
        loss = nn.functional.cross_entropy(out, classes) + nn.functional.mse_loss(out, out.detach().roll(1, 0))
        attended = nn.functional.scaled_dot_product_attention(x, x, x * 2, is_causal=True)
        (loss + attended[:, [0, 3, 3]].square().mean()).backward()
        show(f"layers {axes}", loss, attended, x.grad, *(p.grad for p in net.parameters()), *net[1].buffers())
    for spec in SPECS:
        t = marked(torch.randn(6, 8), SQUARE, spec)
        norms = [torch.linalg.vector_norm(t, order) for order in (0, 1, 2, 3, float("inf"))]
        show(f"combined {spec}", *norms, t.var(0), t.std(), t.prod(1), t.amax(), t.amin(0), (t > 2).any(), (t > -3).all(1))
        at = torch.tensor([1, 0, 1]).to(DEVICE)
        show("indexed", t[at], t.index_add(0, at, t[:3]), t.gather(1, at.expand(6, 3)), t.tril(), nn.functional.pad(t, (1, 0, 0, 2)))


def model(dropout: float = 0.2) -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Dropout(dropout), nn.Linear(24, 6))


def training(folder: Path) -> None:
    for name, specs in {
        "fsdpv2": None,
        "2-D": [("x", "y"), ("y",), (None, "x")],
        "uneven": [(None, ("y", "x")), ("x",), ("y", "x")],
    }.items():
        net = model(0.0 if name == "fsdpv2 on rows" else 0.2).to(DEVICE)
        mesh, batch = (LINE, "fsdp") if specs is None else (SQUARE, ("x", "y"))
        if specs is None:
            net = SpmdFullyShardedDataParallel(net, mesh)
        else:
            for p, spec in zip((net[1].weight, net[1].bias, net[5].weight), specs, strict=True):
                xs.mark_sharding(p, mesh, spec)
        for optimizer in (torch.optim.AdamW(net.parameters(), lr=0.05), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)):
            data = list(zip(torch.randint(0, 11, (8 * N, 3)), torch.randint(0, 6, (8 * N, 3)), strict=True))
            loader = pl.MpDeviceLoader(DataLoader(data, batch_size=4 * N), DEVICE, xs.ShardingSpec(mesh, (batch, None)))
            for x, y in loader:
                loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
                loss.backward()
                norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                show(f"training {name}", loss, norm)
        show(f"trained {name}", *net.parameters())
        checkpoint(folder / name, net, mesh)


def checkpoint(folder: Path, net: nn.Module, mesh: xs.Mesh) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method="xla://")
    state = {"model": net.state_dict()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=xc.SPMDSavePlanner())
    other = model().to(DEVICE)
    names = dict(zip(dict(net.named_parameters()), other.parameters(), strict=True))
    xs.mark_sharding(other[1].weight, SQUARE, ("y", "x"))
    xs.mark_sharding(other[5].weight, SQUARE, (None, ("y", "x")))
    views = {name: p.detach() for name, p in names.items()}
    dcp.load({"model": views}, storage_reader=dcp.FileSystemReader(folder), planner=xc.SPMDLoadPlanner())
    show("loaded", *other.parameters())
    if not dist.is_initialized():  # several processes have a group since use_spmd
        dist.init_process_group("gloo", init_method="xla://")
    manager = xc.CheckpointManager(str(folder / "steps"), save_interval=2, max_to_keep=2)
    saved = [manager.save_async(step, state) for step in range(6)]
    manager.join()
    manager.restore(2, {"model": views})
    if xr.process_index() == 0:
        print("steps", saved, manager.all_steps(), sorted(p.name for p in (folder / "steps").iterdir()))


def decided_by_values() -> None:
    """Shapes and random numbers that depend on the values of tensors; generators that the program makes."""
    own = torch.Generator().manual_seed(7)
    for spec in SPECS:
        t = marked((torch.randn(6, 8) * 2).round(), SQUARE, spec)
        show(f"decided by values {spec}", t.nonzero(), t.masked_select(t > 1), t.unique(), t[t[:, 0] > 0], t.topk(2, 1).indices)
        show("streams", torch.multinomial(t.abs() + 0.1, 2), torch.poisson(t.abs()), t.clone().normal_(generator=own), t.clone().random_(9))
        copied = torch.empty(6, 8)
        copied.copy_(t)
        t[torch.tensor([0, 5])] += 0.5
        t[t > 2] = -1.0
        show("copied", copied, t, torch.rand(2), torch.rand(2, generator=own))


def optimizers() -> None:
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE)
        xs.mark_sharding(net[0].weight, SQUARE, ("y", "x"))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(3):
            net(marked(torch.randn(4, 6), SQUARE, ("x", None))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            xm.mark_step()
        show(f"optimized {options}", *net.parameters())
    parameter = nn.Parameter(marked(torch.randn(8, 4), SQUARE, ("y", None)).t())
    parameter.grad = marked(torch.randn(4, 8), SQUARE, (None, "y"))  # the gradient's layout in memory is not the parameter's
    torch.optim.AdamW([parameter], lr=0.1, fused=True).step()
    show("optimized transposed", parameter)


def minibatches() -> None:
    """Each process loads its own rows of the batch; a single process loads all rows."""
    rows = torch.arange(float(24 * N)).view(6 * N, 4)
    batches = [rows[: 2 * N], rows[2 * N :]]
    share = [b.view(xr.process_count(), -1, 4)[xr.process_index()] for b in batches]
    for t in pl.MpDeviceLoader(share, DEVICE, xs.ShardingSpec(LINE, ("fsdp", None), minibatch=True)):
        show("minibatch", t, t.sum(0))


def automatic() -> None:
    """All processes choose the same specs, and each counts the bytes that all devices received."""
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    xs.communicated(reset=True)
    plan = xs.auto_shard(net, torch.empty(32, 64), memory_budget="350KiB", quiet=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(32, 64).to(DEVICE)
        loss = (net(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        show("automatic", loss)
    if xr.process_index() == 0:
        print(plan.specs, plan.input_specs, xs.communicated(), xs.explain(net[0].weight).operator)


if __name__ == "__main__":
    torch.manual_seed(3)
    operators()
    gradients()
    layers()
    decided_by_values()
    optimizers()
    minibatches()
    automatic()
    training(Path(sys.argv[1]))
