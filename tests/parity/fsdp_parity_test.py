"""Sharded training equals one plain process: 20 losses, gradients and parameters of config T (tests/bench/gpt.py)."""

import gpt
import pytest
import torch
import torch.nn.functional as F

from shoal.train import ScalingConfig, Trainer

CFG = gpt.CONFIGS["T"]
GLOBAL_BATCH, STEPS, LR = 24, 20, 3e-4


def _optimizer(name, parameters):
    import shoal.optim

    return shoal.optim.AdamW(parameters, lr=LR) if name == "shoal" else torch.optim.AdamW(parameters, lr=LR, fused=name == "fused" or None)


def plain_losses():
    torch.set_num_threads(1)
    model = gpt.build(CFG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    tokens, losses = gpt.stream(CFG), []
    for step in range(STEPS):
        x, y = gpt.batch(tokens, CFG, step, GLOBAL_BATCH, 0, GLOBAL_BATCH)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


def sharded_loop(config):
    import torch.distributed as dist

    from shoal.fsdp import fully_shard

    rank, world = dist.get_rank(), dist.get_world_size()
    share = GLOBAL_BATCH // world
    model = gpt.build(CFG)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=config["reshard"])
    fully_shard(model)
    optimizer = _optimizer(config["optimizer"], model.parameters())
    tokens, losses = gpt.stream(CFG), []
    micro = config.get("micro", 1)
    for step in range(STEPS):
        x, y = gpt.batch(tokens, CFG, step, GLOBAL_BATCH, rank * share, (rank + 1) * share)
        total = torch.zeros(())
        for i, (xi, yi) in enumerate(zip(x.chunk(micro), y.chunk(micro), strict=True)):
            if config.get("no_sync"):
                model.set_requires_gradient_sync(i + 1 == micro)
            loss = F.cross_entropy(model(xi).flatten(0, 1), yi.flatten()) / micro
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    parameters = {n: p.full_tensor().detach().clone() for n, p in model.named_parameters()}
    return losses, parameters if rank == 0 else None


@pytest.fixture(scope="module")
def reference():
    return plain_losses()


def run(world, **config):
    config = {"optimizer": "torch", "reshard": True, **config}
    return Trainer(sharded_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=world)).fit().returns


def expect_equal(returns, reference):
    losses, parameters = reference
    for rank_losses, _ in returns:
        worst = max(abs(a - b) / b for a, b in zip(rank_losses, losses, strict=True))
        assert worst <= 1e-5, f"loss differs by {worst:.2e}"
    for name, p in returns[0][1].items():
        # A bias before a softmax has only rounding noise as its gradient. AdamW moves it by up to lr in each step: 6e-3 in 20 steps.
        torch.testing.assert_close(p, parameters[name], rtol=1e-4, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_losses_equal_one_plain_process(world, reference):
    expect_equal(run(world), reference)


@pytest.mark.parametrize("optimizer", ["shoal", "fused"])
def test_every_optimizer_trains_the_same(optimizer, reference):
    expect_equal(run(2, optimizer=optimizer), reference)


def test_training_without_reshard_after_forward_is_the_same(reference):
    expect_equal(run(2, reshard=False), reference)


@pytest.mark.parametrize("no_sync", [False, True])
def test_accumulation_over_microbatches_is_the_same(no_sync, reference):
    expect_equal(run(2, micro=3, no_sync=no_sync), reference)


def test_two_runs_at_one_world_size_are_bitwise_equal():
    first, second = run(3), run(3)
    assert first[0][0] == second[0][0]
    assert all(torch.equal(first[0][1][n], second[0][1][n]) for n in first[0][1])
