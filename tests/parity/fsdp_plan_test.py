"""Plans for steps of a sharded model: the optimizer in backward, prefetch lists, memory, and a graph before the first step."""

import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from uses import Uses, check, ranks, run

import shoal.fsdp

WORLD, STEPS = 2, 5


class Net(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 5)
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def sharded(**options):
    from shoal.fsdp import fully_shard

    model = Net(**options)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def optimizer_of(name, model):
    import shoal.optim

    if name == "shoal":
        return shoal.optim.AdamW(model.parameters(), lr=1e-2)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3},
    ]
    return {"torch": torch.optim.AdamW, "sgd": torch.optim.SGD}[name](groups, lr=1e-2)


def batch(step, micro=0):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * step + 10 * micro + torch.distributed.get_rank()))


def train(in_backward, optimizer="torch", micro=1, synced=False, checkpointed=False, steps=STEPS):
    """Returns the parameters after some steps, and the number of gradients that existed when backward returned."""
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
    """An optimizer whose step is a collective, as for optimizers that read whole parameters."""

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

        def late(module, grad_input, grad_output):  # delays other units than on the peer
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
    """Keeps its arguments, and counts steps in its groups."""

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
    plan(model)  # back to the default plan
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
    torch.distributed.barrier()  # waits until the first backward is over on all ranks, which must start over together
    model.reset_iter_state()
    model(batch(1)).square().mean().backward()  # trains the next version


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
def a_plan_refuses_invalid_arguments():
    from shoal.exceptions import InvalidArgument, ResourceExhausted, Unimplemented
    from shoal.fsdp import plan

    model = sharded()
    with pytest.raises(InvalidArgument, match="no parameter of the model"):
        plan(model, optimizer_in_backward=torch.optim.SGD(Net().parameters(), lr=1))
    with pytest.raises(TypeError, match="optimizer_in_backward"):
        plan(model, optimizer_in_backward=1)
    with pytest.raises(Unimplemented, match="bucket_bytes"):
        plan(model, bucket_bytes=100)
    with pytest.raises(InvalidArgument, match="prefetch"):
        plan(model, prefetch=-1)
    with pytest.raises(InvalidArgument, match="no number of bytes"):
        plan(model, memory_budget="4 apples")
    memory = plan(model)
    assert plan(model, memory_budget=f"{memory.total}B") == memory
    with pytest.raises(ResourceExhausted, match=f"holds {memory.total} bytes") as refused:
        plan(model, memory_budget=memory.total - 1)
    smallest = int(re.search(r"smallest sufficient budget is (\d+) bytes", str(refused.value))[1])
    assert smallest < memory.total
    assert plan(model, memory_budget=smallest, optimizer_in_backward=torch.optim.SGD(model.parameters(), lr=1)).total == smallest
    with pytest.raises(InvalidArgument, match="was not sharded"):
        plan(nn.Linear(2, 2))


@use
def plans_and_graphs_need_the_outermost_module():
    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import fully_shard, plan, step_graph

    def refused(says, function, *args, **kwargs):
        with pytest.raises(InvalidArgument, match=says) as error:
            function(*args, **kwargs)
        assert "outermost module" in str(error.value)

    def inner_is_refused(model):
        for unit in (model.blocks[0], model.blocks[3]):
            refused("FSDPSequential is a unit inside of FSDPNet", plan, unit, prefetch=2)
            refused("FSDPSequential is a unit inside of FSDPNet", step_graph, unit)
            refused("FSDPSequential is a unit inside of FSDPNet", step_graph, unit, example_inputs=torch.ones(2, 8))

    model = sharded()
    model.blocks[0].unshard()  # a root until a forward runs another one
    inner_is_refused(model)
    plan(model, prefetch=2)
    inner_is_refused(model)
    model(batch(0)).sum().backward()
    inner_is_refused(model)

    blocks = Net()  # only the blocks are sharded, so each is a model
    for block in blocks.blocks:
        plan(fully_shard(block), prefetch=0)
    for _ in range(2):
        blocks(batch(0)).sum().backward()
    refused("Net was not sharded", step_graph, blocks)
    refused("Net was not sharded", step_graph, blocks, example_inputs=batch(0))
    assert len(step_graph(blocks.blocks[1])) > 0

    model = sharded()
    model.blocks[1](torch.ones(2, 8)).sum().backward()  # on its own, so it is the root
    plan(model.blocks[1])
    model = sharded()
    block = model.blocks.pop(3)
    plan(block)  # no longer inside of another unit


@use
def units_are_prefetched_by_depth_or_by_their_own_lists():
    from shoal.fsdp import plan, step_graph

    def order(prepare):
        model = sharded()
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            model(batch(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [n.label for n in step_graph(model).nodes]

    def index(labels, label, nth=0):
        return [i for i, found in enumerate(labels) if found == label][nth]

    labels = order(lambda model: plan(model, prefetch=0))
    assert index(labels, "unshard(blocks.2)") > index(labels, "forward(blocks.1)")
    labels = order(lambda model: plan(model, prefetch=2))
    assert index(labels, "unshard(blocks.2)") < index(labels, "forward(blocks.1)")

    def lists(model):
        model.blocks[0].set_modules_to_forward_prefetch([model.blocks[2], model.blocks[3]])
        model.blocks[3].set_modules_to_backward_prefetch([model.blocks[1]])
        with pytest.raises(ValueError, match="Expects FSDPModule"):
            model.blocks[0].set_modules_to_forward_prefetch([nn.Linear(2, 2)])

    labels = order(lists)
    assert index(labels, "unshard(blocks.3)") < index(labels, "forward(blocks.0)")
    assert index(labels, "unshard(blocks.1)", 1) < index(labels, "backward(blocks.3)")


def mapped_by_the_engine():
    """Bytes of the engine's memories that this process maps, as the kernel counts them."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            area, _, _, _, inode, *name = line.split()
            if name and name[0].startswith("/memfd:shoal:mesh-"):
                begin, end = (int(x, 16) for x in area.split("-"))
                found[inode] = max(found.get(inode, 0), end - begin)
    return sum(found.values())


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


@use
def memory_of_a_whole_step_is_planned():
    import shoal.optim
    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import fully_shard, step_graph

    model = nn.Sequential(*(fully_shard(nn.Linear(256, 256)) for _ in range(4)))
    fully_shard(model)
    optimizer = shoal.optim.AdamW(model.parameters())
    unit, x = 4 * (256 * 256 + 256), torch.randn(2, 256)
    rows = 4 * x.numel()
    planned = step_graph(model, example_inputs=x, optimizer=optimizer).memory
    assert planned.optimizer == 2 * 4 * unit
    # One unit's whole gradient, the inputs of all layers but the first of four, and some of their gradients.
    assert unit + 3 * rows <= planned.activations <= unit + 8 * rows, planned
    assert planned.total == planned.node_bytes + planned.gradients + planned.optimizer + 2 * planned.activations
    model.set_requires_gradient_sync(False)
    kept = step_graph(model, example_inputs=x).memory.activations
    assert 5 * unit <= kept <= 5 * unit + 8 * rows, kept
    model.set_requires_gradient_sync(True)
    model(x).sum().backward()
    optimizer.step()
    assert step_graph(model, optimizer=optimizer).memory.optimizer == planned.optimizer
    assert step_graph(model).memory.optimizer is None
    assert "optimizer state is missing" in str(step_graph(model).memory)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert step_graph(model, optimizer=sgd).memory.optimizer == 0
    with pytest.raises(InvalidArgument, match="unknown before its first step"):
        step_graph(model, optimizer=torch.optim.LBFGS([next(model.parameters())]))
    without = shoal.fsdp.plan(model).total
    in_backward = shoal.fsdp.plan(model, optimizer_in_backward=optimizer, memory_budget=without)
    assert in_backward.optimizer == planned.optimizer
    assert f"{'optimizer state':32}{planned.optimizer / 2**20:12.2f} MiB" in str(in_backward)


@use
def a_planned_step_leaves_no_fake_tensor():
    from torch._subclasses.fake_tensor import FakeTensor

    from shoal.fsdp import fully_shard, step_graph

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.unregistered, self.table = nn.Linear(6, 6), [torch.ones(6, requires_grad=True)], None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(6.0) * x.shape[0]
            return self.linear(x) * self.unregistered[0] + self.table

    model = fully_shard(Cached())
    assert step_graph(model, example_inputs=batch(0)).memory.activations > 0
    assert model.unregistered[0].grad is None
    model(batch(0)).sum().backward()
    assert not isinstance(model.table, FakeTensor)
    assert not isinstance(model.unregistered[0].grad, FakeTensor)
    for shown in (False, True):  # with sharded and with whole parameters
        model = sharded()
        if shown:
            for module in (*model.blocks, model):
                module.unshard()
        expected = step_graph(model, example_inputs=batch(0)).memory.activations
        assert expected == step_graph(sharded(), example_inputs=batch(0)).memory.activations


@use
def planned_memory_equals_the_kernels_count():
    import gc

    from shoal.fsdp import fully_shard, step_graph

    gc.collect()
    before = mapped_by_the_engine()
    model = nn.Sequential(*(fully_shard(nn.Linear(256, 256)) for _ in range(4)))
    fully_shard(model)
    memory = step_graph(model, example_inputs=torch.randn(2, 256)).memory  # before the first step
    assert memory.gradients == 4 * 4 * (256 * 256 + 256)
    model(torch.randn(2, 256)).sum().backward()
    held = mapped_by_the_engine() - before
    assert held * 0.99 <= memory.node_bytes <= held * 1.01, (memory, held)
    assert memory.gradients == sum(p.grad.numel() * p.grad.element_size() for p in model.parameters())
    assert step_graph(model).peak_bytes() == memory.total - 2 * memory.activations


@use
def the_graph_exists_before_the_first_step():
    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import step_graph

    model = sharded()
    with pytest.raises(InvalidArgument, match="no step to show yet"):
        step_graph(model)
    expected = step_graph(model, example_inputs=batch(0))
    assert expected.find("unshard(blocks.1)")[0].planned is None
    assert not expected.find("forward(root#2)")
    saved = expected.memory.activations
    # The output of tanh, and the inputs of all linears but the first: 4 rows of 4 bytes. Then the head's gradient.
    assert saved >= 4 * 4 * (4 * (8 + 16) + 8) + 4 * (5 * 8 + 5)
    kinds = (type(model.inp.weight), model.inp.weight.device.type)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert kinds == (type(model.inp.weight), model.inp.weight.device.type)
    found = step_graph(model)
    communication = [[n.label for n in g.nodes if n.op in ("unshard", "reduce_scatter")] for g in (expected, found)]
    assert sorted(communication[0]) == sorted(communication[1])
    assert found.memory.node_bytes == expected.memory.node_bytes
    assert found.peak_bytes() == expected.peak_bytes() - 2 * saved

    class Picky(Net):
        def forward(self, x):
            return super().forward(x) if x.sum().item() > -1e9 else None

    from shoal.fsdp import fully_shard

    with pytest.raises(InvalidArgument, match="does not run on fake tensors") as refused:
        step_graph(fully_shard(Picky()), example_inputs=batch(0))
    assert "hint: leave example_inputs out" in str(refused.value)
    for wrong in (torch.randn(4, 5), (batch(0), batch(0))):
        with pytest.raises(InvalidArgument, match="check the shapes and dtypes of example_inputs"):
            step_graph(model, example_inputs=wrong)
    with pytest.raises(InvalidArgument, match=r"graph\.png is no \.svg file"):
        found.draw("graph.png")


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
