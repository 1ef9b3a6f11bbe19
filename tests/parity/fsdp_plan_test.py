"""Plans for steps of a sharded model: prefetch lists, memory, and a graph before the first step."""

import re

import pytest
import torch
from launching.trained import Uses, check, ranks, run
from planned_net import WORLD, Net, batch, sharded
from torch import nn

use = Uses()


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
    model.blocks[0].unshard()  # this unit is a root, until a forward runs the module around it
    inner_is_refused(model)
    plan(model, prefetch=2)
    inner_is_refused(model)
    model(batch(0)).sum().backward()
    inner_is_refused(model)

    blocks = Net()  # here only the blocks are sharded, so that each of them is a root
    for block in blocks.blocks:
        plan(fully_shard(block), prefetch=0)
    for _ in range(2):
        blocks(batch(0)).sum().backward()
    refused("Net was not sharded", step_graph, blocks)
    refused("Net was not sharded", step_graph, blocks, example_inputs=batch(0))
    assert len(step_graph(blocks.blocks[1])) > 0

    model = sharded()
    model.blocks[1](torch.ones(2, 8)).sum().backward()  # called on its own, this unit is the root
    plan(model.blocks[1])
    model = sharded()
    block = model.blocks.pop(3)
    plan(block)  # the block was taken out of its model, and is no inner unit any more


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
    """Bytes of the engine's shared memories that this process maps, as the kernel counts them."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            area, _, _, _, inode, *name = line.split()
            if name and name[0].startswith("/memfd:shoal:") and "mesh-" in name[0]:
                begin, end = (int(x, 16) for x in area.split("-"))
                found[inode] = max(found.get(inode, 0), end - begin)
    return sum(found.values())


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
    # The whole gradient of one unit, the inputs of three of the four layers, and some gradients of such inputs.
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
    for shown in (False, True):  # while parameters are sharded, and while they are whole
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
    memory = step_graph(model, example_inputs=torch.randn(2, 256)).memory  # an estimate, before the first step
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
    # Per rank 4 rows of 4-byte numbers: the outputs of tanh and the inputs of all linear layers but the first. Then the gradient of the
    # head.
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
