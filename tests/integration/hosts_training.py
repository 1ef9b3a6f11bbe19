"""Trains small models on the ranks of a cluster: hosts_training.py HEAD OUT WORLD:RESOURCE...

Each rank needs one RESOURCE, so that the resource decides which hosts the WORLD ranks lie on. OUT receives JSON: by place (WORLD:RESOURCE)
and name of a training, the bits of every rank's losses and of all parameters. All inputs depend on step and rank only.
"""

import hashlib
import json
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import shoal
from shoal.fsdp import MixedPrecisionPolicy, fully_shard, join, plan
from shoal.optim import AdamW, clip_grad_norm_
from shoal.train import ScalingConfig, Trainer

STEPS, WIDTH = 4, 13  # a width that no number of ranks divides


class Net(nn.Module):
    """Blocks in a row. ``skipped``: the blocks that this rank leaves out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)
        self.skipped = set()

    def forward(self, x):
        x = self.inp(x)
        for i, block in enumerate(self.blocks):
            if i not in self.skipped:
                x = x + block(x)
        return self.head(x)


def batch(step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + 10 * step + part)
    return torch.randn(4, 8, generator=generator)


def shard(model: Net, **options) -> Net:
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def loss_of(model: Net, step: int, part: int = 0) -> torch.Tensor:
    return model(batch(step, part)).float().square().mean()


def train(
    model: Net, between=lambda model, step: None, before=lambda model, step: None, steps: int = STEPS, clip: float = 0
) -> list[float]:
    """Returns this rank's losses. ``before``: called before each step's forward; ``between``: called after each optimizer step."""
    optimizer, losses = AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        before(model, step)
        loss = loss_of(model, step)
        loss.backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        between(model, step)
    return losses


def plain(model):
    return train(shard(model))


def clipped(model):
    return train(shard(model), clip=0.1)


def kept_after_forward(model):
    return train(shard(model, reshard_after_forward=False))


def bf16(model):
    return train(shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))


def bf16_reduced(model):
    return train(shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)))


def torchs_optimizer(model):
    shard(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluated(model):
    """Every rank evaluates after each step."""
    said = []

    @torch.no_grad()
    def between(model, step):
        said.append(loss_of(model, step, part=1).item())

    return train(shard(model), between) + said


def frozen(model):
    """The middle block is frozen, and thawed before the third step."""
    model.blocks[1].requires_grad_(False)

    def before(model, step):
        if step == 2:
            model.blocks[1].requires_grad_(True)

    return train(shard(model), before=before)


def accumulated(model):
    """Three micro-batches per step; the last one reduces."""
    shard(model)
    optimizer, losses = AdamW(model.parameters(), lr=1e-2), []
    for step in range(STEPS):
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)
            loss = loss_of(model, step, part)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def reduced_each_time(model):
    """Two backward passes per step, each of which reduces."""
    shard(model)
    optimizer, losses = AdamW(model.parameters(), lr=1e-2), []
    for step in range(STEPS):
        for part in range(2):
            model.set_is_last_backward(part == 1)
            loss = loss_of(model, step, part)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def two_replicas(model, across: bool):
    """Two replicas; with an odd number of ranks, one. ``across``: neighbours are in different replicas, so that each replica has ranks on
    every host. Otherwise they are in one replica, which lies on one host where a host has two ranks."""
    world = dist.get_world_size()
    if world % 2:
        return train(shard(model))
    ranks = torch.arange(world).view(-1, 2).T if across else torch.arange(world).view(2, -1)
    return train(shard(model, mesh=DeviceMesh("cpu", ranks.tolist(), mesh_dim_names=("replicate", "shard"))))


def replicas(model):
    return two_replicas(model, across=False)


def replicas_across(model):
    return two_replicas(model, across=True)


def skipped(model):
    """In each step one rank leaves out one block."""

    def before(model, step):
        model.skipped = {step % 3} if step % dist.get_world_size() == dist.get_rank() else set()

    return train(shard(model), before=before)


def evaluated_unevenly(model):
    """After each step the ranks evaluate different numbers of batches; at the end, at least one."""
    said = []

    @torch.no_grad()
    def between(model, step):
        said.extend(loss_of(model, step, part=1 + i).item() for i in range((dist.get_rank() + step) % 3 + (step == STEPS - 1)))

    return train(shard(model), between) + said


def evaluated_in_part(model):
    """After all steps but the last, rank 0 alone evaluates one block."""
    said = []

    @torch.no_grad()
    def between(model, step):
        if dist.get_rank() == 0 and step < STEPS - 1:
            said.append(model.blocks[1](torch.ones(2, WIDTH)).sum().item())

    return train(shard(model), between) + said


def updated_in_backward(model):
    """The optimizer steps each unit during backward."""
    shard(model)
    optimizer, losses = AdamW(model.parameters(), lr=1e-2), []
    plan(model, optimizer_in_backward=optimizer)
    for step in range(STEPS):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def uneven(model):
    """Rank 0 has fewer batches than the others (``join``)."""
    shard(model)
    optimizer, losses = AdamW(model.parameters(), lr=1e-2), []
    with join(model, optimizers=optimizer):
        for step in range(STEPS - (dist.get_rank() == 0)):
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


TRAININGS = {
    f.__name__: f
    for f in (
        plain, clipped, kept_after_forward, bf16, bf16_reduced, torchs_optimizer, evaluated, frozen, accumulated, reduced_each_time,
        replicas, replicas_across, updated_in_backward, skipped, evaluated_unevenly, evaluated_in_part, uneven,
    )
}  # fmt: skip


def bits(model: nn.Module) -> str:
    """A digest of all parameters, whole. After an evaluation the module has whole ones."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        whole = p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()
        digest.update(name.encode() + whole.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def on_a_rank(config):
    from shoal.collective import group

    found = {}
    for name in config["trainings"]:
        model = Net()
        losses = TRAININGS[name](model)
        found[name] = {"losses": [loss.hex() for loss in losses], "parameters": bits(model)}
    return {"node": shoal.get_runtime_context().get_node_id(), "transport": group().transport, "trainings": found}


def run(world: int, resource: str, names: list[str]) -> dict:
    """Returns, by name of a training, the results by rank, or {"error": ...}. After an error each training has ranks of its own."""
    scaling = ScalingConfig(num_workers=world, resources_per_worker={"CPU": 0, resource: 1})
    try:
        ranks = Trainer(on_a_rank, train_loop_config={"trainings": names}, scaling_config=scaling).fit().returns
    except Exception:
        if len(names) == 1:
            return {names[0]: {"error": traceback.format_exc()}}
        return {k: v for name in names for k, v in run(world, resource, [name]).items()}
    return {n: {"ranks": [{"node": r["node"], "transport": r["transport"], **r["trainings"][n]} for r in ranks]} for n in names}


def main(head: str, out: str, *places: str) -> None:
    shoal.init(address=head)
    found = {}
    for place in places:
        world, _, resource = place.partition(":")
        found[place] = run(int(world), resource, list(TRAININGS))
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
