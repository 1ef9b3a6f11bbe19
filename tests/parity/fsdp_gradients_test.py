"""Several backwards, hooks on gradients, their memory, and autocast regions, in one run of two ranks."""

import pytest
import torch
from fsdp2_net import WORLD, Net, batch, expect_gradients, full, loss_of, rank, shard
from launching.trained import Uses, check, ranks, run
from torch import nn

import shoal

use = Uses()


# ---- several backwards ---------------------------------------------------------------------------------------------------------------


@use
def one_loss_backward_twice():
    model = shard(Net(times=2))
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()
    expect_gradients(model, Net(times=2), lambda m, r: 2 * loss_of(m, 0, r))


@use
def two_losses_over_one_forward():
    model = shard(Net())
    out = model(batch(0, rank()))
    out[:, 0].mean().backward(retain_graph=True)
    out[:, 1].mean().backward()
    expect_gradients(model, Net(), lambda m, r: m(batch(0, r))[:, :2].mean(0).sum())


@use
def a_gradient_penalty():
    def loss(model, of_rank):
        x = batch(0, of_rank).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return grad.square().mean()

    model = shard(Net())
    loss(model, rank()).backward()
    expect_gradients(model, Net(), loss)


@use
def one_backward_over_two_versions_is_refused():
    from shoal.fsdp import fully_shard

    model = fully_shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = loss_of(model)
    loss_of(model).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"needs parameters of version 1, but version 2 is current"):
        (old + loss_of(model)).backward()


@use
def a_second_backward_is_an_error_that_names_retain_graph():
    from shoal.fsdp import fully_shard

    model = Net()
    fully_shard(model.head)
    optimizer = torch.optim.SGD(shard(model).parameters(), lr=0.1)
    total = model(batch(0, rank())).sum()
    total.backward()
    stale = r"backward of module 'head' needs parameters .*\n.*\n *hint: .*"
    with pytest.raises(RuntimeError, match=rf"a second time: {stale}backward\(retain_graph=True\)"):
        total.backward()
    kept = model(batch(0, rank())).sum()
    kept.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match=rf"^{stale}optimizer's step call forward again"):
        kept.backward()


@use
def an_optimizer_built_too_early_causes_a_warning():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(shard(model)).backward()
    with pytest.warns(UserWarning, match=r"not sharded: it has the sharded ones now; build it after fully_shard$"):
        optimizer.step()


# ---- gradients' memory ---------------------------------------------------------------------------------------------------------------


@use
def a_gradients_memory_is_reused_unless_referenced():
    model = shard(Net())
    weight = model.inp.weight

    def gradient(step):
        model.zero_grad()
        loss_of(model, step).backward()
        return weight.grad

    assert len({gradient(step).to_local().data_ptr() for step in range(4)}) == 1
    other = nn.Parameter(weight.detach().clone())
    holders = {
        "itself": gradient(0),
        "its rows": gradient(1).to_local(),
        "a view": gradient(2).to_local()[1:],
        "an array": gradient(3).to_local().numpy(),
    }
    other.grad = gradient(4)
    holders["another parameter"] = other.grad
    copies = {name: torch.as_tensor(full(h)).clone() for name, h in holders.items() if name != "another parameter"}
    copies["another parameter"] = full(other.grad).clone()
    del holders["another parameter"]  # now only the parameter refers to this gradient
    for step in range(5, 8):
        gradient(step)
    for name, holder in holders.items():
        assert torch.equal(torch.as_tensor(full(holder)), copies[name]), name
    assert torch.equal(full(other.grad), copies["another parameter"])


# ---- hooks ---------------------------------------------------------------------------------------------------------------------------


@use
def an_optimizer_in_hooks_after_accumulation():
    def train(model, loss):
        optimizers = {p: torch.optim.SGD([p], lr=0.5) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for step in range(3):
            loss(step).backward()
        assert all(p.grad is None for p in model.parameters())

    model, plain = shard(Net()), Net()
    train(model, lambda step: loss_of(model, step))
    train(plain, lambda step: sum(loss_of(plain, step, r) for r in range(WORLD)) / WORLD)
    torch.testing.assert_close(model(batch(5, 0)), plain(batch(5, 0)))


def _halved(g):
    return g / 2


def _clipped(g):
    g.mul_((0.01 / g.norm()).clamp(max=1))  # norm() is a collective over all rows


def _hooked(register, hook):
    """Trains with ``register(model, hook)`` called before fully_shard, or after it, where the parameters are sharded or whole."""
    for when in ("before", "after", "after an evaluation", "after a forward"):
        model, plain = Net(), Net()
        register(plain, hook)
        if when == "before":
            register(model, hook)
        shard(model)
        if when == "after an evaluation":
            with torch.no_grad():
                model(batch(7, 0))
        if when == "after a forward":
            model(batch(7, 0))
        if when != "before":
            register(model, hook)
        for step in range(2):  # the second step adds to the gradients
            loss_of(model, step).backward()
            (sum(loss_of(plain, step, r) for r in range(WORLD)) / WORLD).backward()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(p.grad), q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name, w=when: f"{n}, {w}: {m}")


def _on_all(model, hook):
    for p in model.parameters():
        p.register_hook(hook)


@use
def hooks_that_change_gradients():
    _hooked(_on_all, _halved)


@use
def hooks_that_clip_gradients_by_their_norm():
    _hooked(_on_all, _clipped)


@use
def hooks_on_gradients_of_meta_parameters_and_ones_that_are_removed():
    with torch.device("meta"):
        model = Net()
    _on_all(model, _halved)
    handles = [p.register_hook(lambda g: g * 0) for p in model.parameters()]
    shard(model)
    _on_all(model, _halved)
    model.to_empty(device="cpu")
    for p, q in zip(model.parameters(), Net().parameters(), strict=True):
        torch.nn.init.zeros_(p)
        with torch.no_grad():
            p.add_(torch.distributed.tensor.distribute_tensor(q, p.device_mesh, p.placements))
    for handle in handles:
        handle.remove()
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) / 4)


@use
def a_hook_that_returns_a_plain_tensor_is_refused():
    model = shard(Net())
    model.head.bias.register_hook(lambda g: g.to_local())
    with pytest.raises(TypeError, match=r"a hook on the gradient of parameter bias|a hook on the gradient of parameter head\.bias"):
        loss_of(model).backward()


# ---- autocast ------------------------------------------------------------------------------------------------------------------------


def _in_one_autocast_region(run, reentrant=None):
    """Trains in one autocast region. ``run(model, losses)`` calls backward; ``losses(i)`` is the i-th batch's loss. The plain model runs
    outside of the region."""

    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    model, plain = shard(Net(reentrant)), Net()
    for step in range(0, 20, 10):
        with autocast():
            run(model, lambda i, s=step: loss_of(model, s + i).float())
        for r in range(WORLD):

            def loss(i, s=step, r=r):
                with autocast():
                    return loss_of(plain, s + i, r).float() / WORLD

            run(plain, loss)
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(p.grad), q.grad, rtol=2e-2, atol=1e-4, msg=lambda m, n=name: f"gradient of {n}: {m}")
        for m in (model, plain):
            m.zero_grad()


def _evaluation_then_step(model, losses):
    with torch.no_grad():
        losses(0)
    losses(1).backward()


def _accumulated_steps(model, losses):
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
    losses(0).backward()
    with torch.no_grad():
        losses(1)
    losses(2).backward()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(True)
    losses(3).backward()
    losses(4).backward()


@use
def an_evaluation_and_a_step_in_one_autocast_region():
    _in_one_autocast_region(_evaluation_then_step)


@use
def accumulated_steps_in_one_autocast_region():
    _in_one_autocast_region(_accumulated_steps)


@use
def checkpointed_steps_in_one_autocast_region():
    for reentrant in (False, True):
        _in_one_autocast_region(_accumulated_steps, reentrant)


@use
def an_optimizers_step_inside_an_autocast_region():
    models = shard(Net()), Net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in models]
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(3):
            loss_of(models[0], step).float().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
    for step in range(3):
        for r in range(WORLD):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(models[1], step, r).float() / WORLD
            loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(full(p), q, rtol=2e-2, atol=1e-3)


@use
def a_gradient_after_its_units_backward_is_an_error():
    class Late(nn.Linear):
        early = None

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias + self.early.sum() * 0)

    model = Net()
    model.blocks[1] = Late(7, 7)
    shard(model, reshard_after_forward=False)
    model.blocks[1].unshard()
    Late.early = model.blocks[1].bias * 2  # computed before the forward of the parameter's unit
    with pytest.raises(shoal.exceptions.InvalidArgument, match=r"gradients arrived after the backward of their unit.*bias of blocks\.1"):
        loss_of(model).backward()
    Late.early = torch.zeros(1)
    model.zero_grad()
    loss_of(model).backward()


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
