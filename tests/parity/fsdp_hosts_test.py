"""Ranks on several hosts train as one plain process does: parameters and gradients travel over a network.

With ``SHOAL_HOST``, ranks of this machine act as if each were on a host of its own.
"""

import os

import gpt
import pytest
import torch
import torch.nn.functional as F
from launching.ranks import fresh_ranks

from shoal.exceptions import InvalidArgument
from shoal.train import ScalingConfig, Trainer

LIMIT_S = 240  # hang guard

STEPS, GLOBAL_BATCH = 8, 12
CFG = gpt.CONFIGS["T"]


def run(function, world, **config):
    return Trainer(function, train_loop_config=config, scaling_config=ScalingConfig(num_workers=world)).fit().returns


def plain():
    model = gpt.build(CFG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, eps=1e-4)
    tokens, losses = gpt.stream(CFG), []
    for step in range(STEPS):
        x, y = gpt.batch(tokens, CFG, step, GLOBAL_BATCH, 0, GLOBAL_BATCH)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


def sharded(config):
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from shoal.collective import group
    from shoal.fsdp import fully_shard

    rank, world = dist.get_rank(), dist.get_world_size()
    if config["apart"]:
        os.environ["SHOAL_HOST"] = f"host-{rank // config['apart']}"
    model = gpt.build(CFG)
    mesh = DeviceMesh("cpu", config["mesh"], mesh_dim_names=("replicate", "shard")) if config.get("mesh") else None
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, eps=1e-4)
    share, tokens, losses = GLOBAL_BATCH // world, gpt.stream(CFG), []
    for step in range(STEPS):
        x, y = gpt.batch(tokens, CFG, step, GLOBAL_BATCH, rank * share, (rank + 1) * share)
        total = torch.zeros(())
        for i, (xi, yi) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            model.set_requires_gradient_sync(i == 1)
            loss = F.cross_entropy(model(xi).flatten(0, 1), yi.flatten()) * len(xi) / len(x)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / world)
        if step == 3:
            with torch.no_grad():
                model(x)  # an evaluation between two steps, which reads the next version
    return losses, {n: p.full_tensor().detach().clone() for n, p in model.named_parameters()}, group().transport


@pytest.mark.parametrize(("world", "apart", "mesh"), [(1, 1, None), (2, 1, None), (3, 1, None), (3, 2, None), (4, 2, [[0, 2], [1, 3]])])
def test_losses_and_parameters_equal_one_plain_process(world, apart, mesh):
    losses, parameters = plain()
    for got, shards, transport in run(sharded, world, apart=apart, mesh=mesh):
        assert transport == ("shm" if world == 1 else "tcp")
        assert max(abs(a - b) / b for a, b in zip(got, losses, strict=True)) <= 1e-5
        for name, p in shards.items():
            torch.testing.assert_close(p, parameters[name], rtol=1e-4, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_messages_and_shared_memory_train_to_the_same_bits():
    apart, together = run(sharded, 3, apart=1)[0], run(sharded, 3, apart=0)[0]
    assert apart[0] == together[0]
    assert all(torch.equal(apart[1][n], together[1][n]) for n in together[1])
    assert together[2] == "shm"


def other_modules(config):
    import torch.distributed as dist
    from torch import nn

    from shoal.fsdp import fully_shard

    if config["apart"]:
        os.environ["SHOAL_HOST"] = str(dist.get_rank())

    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 9)

        def forward(self, x):
            return (self.a if dist.get_rank() == 0 else self.b)(x)

    torch.manual_seed(0)
    model = Either()
    for module in (model.a, model.b, model):
        fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        loss = model(torch.ones(2, 4) * (step + 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {n: p.full_tensor() for n, p in model.named_parameters()}


def test_ranks_on_several_hosts_may_run_different_modules():
    apart, together = run(other_modules, 2, apart=True), run(other_modules, 2, apart=False)
    for got, expected in zip(apart, together, strict=True):
        assert got[0] == expected[0]
        assert all(torch.equal(got[1][n], expected[1][n]) for n in expected[1])


def collectives(config):
    import torch.distributed as dist

    import shoal.collective as sc

    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ["SHOAL_HOST"] = str(rank)
    x = torch.arange(10.0).add(rank)
    got = torch.empty(3)
    sent = sc.send(torch.full((3,), float(rank)), (rank + 1) % world, async_op=True)
    sc.recv(got, (rank - 1) % world)
    sent.wait()
    out = [
        sc.all_reduce(x.clone(), "avg"),
        sc.all_reduce(torch.full((5000,), rank, dtype=torch.bfloat16))[-1:],
        sc.reduce_scatter(x),
        sc.all_gather(x[:rank], sizes=range(world)),
        sc.broadcast(x.clone(), src=1),
        sc.all_to_all(torch.full((world,), float(rank))),
        got,
    ]
    sc.barrier()
    try:
        sc.all_reduce(torch.ones(2), label="a") if rank == 0 else sc.barrier(label="b")
        said = ""
    except InvalidArgument as error:
        said = str(error)
    return [t.tolist() for t in out], said


def test_collectives_agree_and_divergence_is_an_error():
    rows = [4, 4, 2]
    for rank, (out, said) in enumerate(run(collectives, 3)):
        total = [3.0 * i + 3 for i in range(10)]
        assert out[0] == [t / 3 for t in total]
        assert out[1] == [3]
        assert out[2] == total[sum(rows[:rank]) : sum(rows[: rank + 1])]
        assert out[3] == [1, 2, 3]
        assert out[4] == [float(i + 1) for i in range(10)]
        assert out[5] == [0, 1, 2]
        assert out[6] == [float((rank - 1) % 3)] * 3
        assert "collectives differ" in said
        assert "'a'" in said
        assert "'b'" in said


TORCHRUN = """
import os
os.environ["SHOAL_HOST"] = "host-" + os.environ["RANK"]
import torch, torch.distributed as dist
from shoal.fsdp import fully_shard, shard_actor_handles

torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 5) * (dist.get_rank() + 1)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
whole = model.weight.full_tensor().sum().item()
if dist.get_rank() == 0:
    print(whole, len(shard_actor_handles()))
dist.destroy_process_group()
"""


def test_under_torchrun_each_host_has_a_node_of_its_own(tmp_path):
    (tmp_path / "train.py").write_text(TORCHRUN)
    ranks = fresh_ranks([tmp_path / "train.py"], 2)
    assert [r.returncode for r in ranks] == [0, 0], ranks
    whole, handles = ranks[0].stdout.split()
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = sum(model(torch.ones(2, 5) * (r + 1)).square().mean() for r in range(2)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(whole) == pytest.approx(model.weight.sum().item(), rel=1e-5)
    assert handles == "1"
