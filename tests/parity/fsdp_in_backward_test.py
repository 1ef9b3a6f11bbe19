"""The optimizer in backward, which updates a unit of a sharded model as soon as its gradients are reduced."""

import pytest
import torch
from launching.trained import Uses, check, ranks, run
from planned_net import STEPS, WORLD, batch, sharded

import shoal.fsdp


def optimizer_of(name, model):
    import shoal.optim

    if name == "shoal":
        return shoal.optim.AdamW(model.parameters(), lr=1e-2)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3},
    ]
    return {"torch": torch.optim.AdamW, "sgd": torch.optim.SGD}[name](groups, lr=1e-2)


def train(in_backward, optimizer="torch", micro=1, synced=False, checkpointed=False, steps=STEPS):
    """Returns the parameters after some steps, and how many parameters had a gradient when backward returned."""
    import shoal.fsdp

    model = sharded(checkpointed=checkpointed)
    optimizer = optimizer_of(optimizer, model)
    if in_backward:
        shoal.fsdp.plan(model, optimizer_in_backward=optimizer)
    left = 0
    for step in range(steps):
        for i in range(micro):
            last = i + 1 == micro
            if synced:
                loss = model(batch(step, i)).square().mean()
                model.set_is_last_backward(last)
            else:
                model.set_requires_gradient_sync(last)
                loss = model(batch(step, i)).square().mean()
            loss.backward()
            del loss
        left += sum(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().detach().clone() for p in model.parameters()], left


use = Uses()


def expect_same(**how):
    ours, left = train(True, **how)
    plain, there = train(False, **how)
    assert left == 0 < there
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@use
def the_optimizer_in_backward_trains_the_same_and_frees_gradients():
    for optimizer in ("torch", "shoal", "sgd"):
        expect_same(optimizer=optimizer)


@use
def the_optimizer_in_backward_under_checkpoints():
    expect_same(checkpointed=True)


@use
def the_optimizer_in_backward_after_unsynchronised_micro_batches():
    expect_same(micro=3)


@use
def the_optimizer_in_backward_after_synchronised_micro_batches():
    expect_same(micro=2, synced=True)


class _Communicating(torch.optim.SGD):
    """An optimizer whose step() is a collective, as that of an optimizer which reads whole parameters."""

    def step(self, closure=None):
        ranks = torch.ones(())
        torch.distributed.all_reduce(ranks)
        assert ranks == WORLD
        return super().step(closure)


@use
def an_optimizer_in_backward_that_communicates():
    def train_with(optimizer_class, steps=8):
        model = sharded()
        spin = torch.ones(100, 100)

        def late(module, grad_input, grad_output):  # delays the even units on one rank and the odd ones on the other
            for _ in range(300 * (list(model.blocks).index(module) % 2 == torch.distributed.get_rank())):
                torch.mm(spin, spin)

        for block in model.blocks:
            block.register_full_backward_hook(late)
        shoal.fsdp.plan(model, optimizer_in_backward=optimizer_class(model.parameters(), lr=1e-2))
        for step in range(steps):
            model(batch(step)).square().mean().backward()
        return [p.full_tensor() for p in model.parameters()]

    ours, alone = train_with(_Communicating), train_with(torch.optim.SGD)
    assert all(torch.equal(a, b) for a, b in zip(ours, alone, strict=True))


@use
def the_optimizer_in_backward_with_uneven_batches():
    from shoal.fsdp import join, plan

    def train_unevenly(in_backward):
        model = sharded()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if in_backward:
            plan(model, optimizer_in_backward=optimizer)
        with join(model, optimizers=optimizer):
            for step in range(2 + 2 * torch.distributed.get_rank()):
                model(batch(step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [p.full_tensor() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train_unevenly(True), train_unevenly(False), strict=True))


class Keeping(torch.optim.SGD):
    """An optimizer that keeps the arguments of its construction, and counts its steps in its groups."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = []
        self.param_groups[0]["seen"] = 0

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.kept.append((p.grad, p.grad.to_local().clone()))
                    group["seen"] += 1
        return super().step(closure)


@use
def the_state_of_an_optimizer_in_backward_is_kept():
    from shoal.fsdp import plan

    model = sharded()
    optimizer = Keeping(model.parameters(), lr=0.1)
    plan(model, optimizer_in_backward=optimizer)
    for step in range(3):
        model(batch(step)).square().mean().backward()
    number = len(list(model.parameters()))
    assert len(optimizer.kept) == 3 * number == optimizer.param_groups[0]["seen"]
    assert len(optimizer.param_groups[0]["params"]) == number
    assert all(torch.equal(kept.to_local(), copy) for kept, copy in optimizer.kept)


@use
def the_graph_shows_updates_in_backward():
    from shoal.fsdp import plan, step_graph

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters())
    plan(model, optimizer_in_backward=optimizer)
    for step in range(3):
        model(batch(step)).square().mean().backward()
    graph = step_graph(model)
    labels = [n.label for n in graph.nodes]
    assert labels.index("optimizer_update(blocks.3)") < labels.index("backward(blocks.0)")
    (update,) = graph.find("optimizer_update(blocks.3)")
    assert update.measured
    assert graph.find("reduce_scatter(blocks.3)")[0].id in update.after
    assert "update blocks.3" in str(graph)
    plan(model)  # returns to the default plan, in which step() updates
    for step in range(2):
        model(batch(step)).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert not step_graph(model).find("optimizer_update(blocks.3)")


@use
def reading_a_unit_after_its_update_in_backward_is_refused():
    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import plan

    model = sharded()
    plan(model, optimizer_in_backward=torch.optim.SGD(model.parameters(), lr=0.1))
    first, second = (model(batch(0, i)).square().mean() for i in range(2))
    first.backward()
    with pytest.raises(InvalidArgument, match="whose backward has already updated it") as refused:
        second.backward()
    assert "set_is_last_backward(False)" in str(refused.value)
    del first, second
    torch.distributed.barrier()  # waits until all ranks have ended the first backward, because they must reset together
    model.reset_iter_state()
    model(batch(1)).square().mean().backward()  # trains on, from the next version


@use
def a_step_after_an_exception_in_backward():
    from shoal.fsdp import plan

    model = sharded()
    plan(model, optimizer_in_backward=torch.optim.SGD(model.parameters(), lr=0.1))

    def stumble(grad):
        raise ZeroDivisionError

    for step in range(3):
        y = batch(step).requires_grad_()
        if step == 1:
            y.register_hook(stumble)
        loss = model(y).square().mean()
        if step == 1:
            with pytest.raises(ZeroDivisionError):
                loss.backward()
            model.reset_iter_state()
        else:
            loss.backward()
    values = [p.full_tensor() for p in model.parameters()]
    assert all(v.isfinite().all() for v in values)


@use
def a_refused_forward_holds_no_later_step():
    import shoal.fsdp

    model, replaced = sharded(), []
    shoal.fsdp.plan(model, optimizer_in_backward=optimizer_of("sgd", model))
    model(batch(0, 0)).sum().backward()
    inner = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))

    def replace(module, args):
        replaced.append((module.weight, module.weight.data))
        module.weight.data = module.weight.data.clone()

    handle = inner.register_forward_pre_hook(replace)
    with pytest.raises(ValueError, match=r"the data of the whole parameter .* was replaced") as kept:
        model(batch(1, 0))
    handle.remove()
    for whole, data in replaced:
        whole.data = data
    for step in range(2, 4):
        model(batch(step, 0)).sum().backward()
    assert kept.value.__traceback__ is not None


@use
def the_optimizer_in_backward_works_with_custom_communication():
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    def run(custom, in_backward):
        model = sharded()
        if custom:
            model.blocks[1].set_custom_reduce_scatter(DefaultReduceScatter())
        optimizer = optimizer_of("shoal", model)
        if in_backward:
            shoal.fsdp.plan(model, optimizer_in_backward=optimizer)
        for step in range(STEPS):
            model(batch(step)).square().mean().backward()
            assert in_backward == all(p.grad is None for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        return [p.full_tensor() for p in model.parameters()]

    expected = run(False, False)
    for custom, in_backward in ((True, False), (True, True)):
        for p, q in zip(run(custom, in_backward), expected, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
