"""Sharding with tensor and pipeline parallelism, and models that train in turns, beside torch's FSDP2 and a plain process."""

import functools

import compared_runs
import pytest
import torch
from compared_runs import Cases, Net, Seen, batch, loss_of, rank, run_cases, sharded, train, world
from launching.trained import check, worlds
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import softplus

case = Cases()

# ---- with tensor parallelism ---------------------------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


def _tp(api):
    model = nn.Sequential(TwoLayers(), TwoLayers(), nn.Linear(8, 5))
    if api.plain:
        return model
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = api.mesh_tp
    for layers in model[:2]:
        parallelize_module(layers, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        api.fully_shard(layers, mesh=mesh["dp"])
    api.fully_shard(model, mesh=mesh["dp"])
    return model


def _tp_loss(api, model, step):
    ranks = range(world() // 2) if api.plain else [rank() // 2]
    return sum(nn.functional.cross_entropy(model(batch(step, r)[0]), batch(step, r)[1]) for r in ranks) / len(ranks)


@case(worlds=(2, 4))
def over_tensor_parallelism(api):
    torch.manual_seed(1)
    model = _tp(api)
    return train(api, model, loss=_tp_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@case(worlds=(4,), plain=False)
def on_dims_of_a_larger_mesh(api):
    torch.manual_seed(1)
    mesh = api.mesh_tp
    from torch.distributed.tensor import distribute_module, distribute_tensor

    def place(name, module, mesh):
        for key, p in list(module.named_parameters(recurse=False)):
            dim = {"up": Shard(0), "down": Shard(1) if p.ndim == 2 else Replicate()}[name]
            module.register_parameter(key, nn.Parameter(distribute_tensor(p.data, mesh, [Replicate(), dim])))

    def inputs(module, args, mesh):
        return tuple(DTensor.from_local(a, mesh, [Shard(0), Replicate()], run_check=False) for a in args)

    model = TwoLayers()
    distribute_module(model, mesh, place, inputs)
    api.fully_shard(model, mesh=mesh, dp_mesh_dims=api.DataParallelMeshDims(shard="dp"))

    def loss(api, model, step):
        return model(batch(step, rank() // 2)[0]).square().sum().redistribute(placements=[Replicate()] * 2).to_local() / 32

    return train(api, model, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class Half(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))])
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.blocks[0](x)))


def pipelined(api, schedule, stages_per_rank):
    """Pipeline stages along one dim of the mesh, each sharded along the other. Gradients of four microbatches are reduced at the end of
    a step."""
    from torch.distributed import pipelining

    stages, place = api.mesh_tp["tp"], api.mesh_tp.get_local_rank("tp")
    parts = [sharded(api, Half(2 * turn + place), mesh=api.mesh_tp["dp"]) for turn in range(stages_per_rank)]
    kept = [
        pipelining.PipelineStage(part, 2 * turn + place, 2 * stages_per_rank, torch.device("cpu"), group=stages.get_group())
        for turn, part in enumerate(parts)
    ]
    run = getattr(pipelining, schedule)(
        kept if stages_per_rank > 1 else kept[0], n_microbatches=4, loss_fn=lambda y, target: (y - target).square().mean()
    )
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-2)
    seen = Seen()
    for step in range(compared_runs.STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank() // 2)
        x, target = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
        losses = []
        if place == 0:
            run.step(x)
        else:
            run.step(target=target, losses=losses)
            seen.see(f"loss {step}", torch.stack(losses).mean())
        for part in parts:
            seen.gradients(part, f"step {step}, ")
        optimizer.step()
        optimizer.zero_grad()
    for part in parts:
        seen.parameters(part)
    return seen


@case(worlds=(4,), plain=False)
def pipeline_stages(api):
    return pipelined(api, "Schedule1F1B", 1)


@case(worlds=(4,), plain=False)
def pipeline_stages_without_bubbles(api):
    return pipelined(api, "ScheduleInterleavedZeroBubble", 2)


# ---- models that train in turns -----------------------------------------------------------------------------------------------------


def _pair(api):
    """A generator and a discriminator: two sharded roots, each with a further unit inside."""
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6))
    d = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    for m in (g, d):
        api.fully_shard(m[0], mesh=api.mesh, reshard_after_forward=True)
        api.fully_shard(m, mesh=api.mesh)
    return g, d, *(torch.optim.AdamW(m.parameters(), lr=0.02) for m in (g, d))


def _over_ranks(api, loss):
    ranks = range(world()) if api.plain else [rank()]
    return sum(loss(r) for r in ranks) / len(ranks)


def _noise(step, of_rank, features=8):
    return batch(step, of_rank, features)[0]


def _show_both(g, d):
    seen = Seen()
    seen.parameters(g, "generator: ")
    seen.parameters(d, "discriminator: ")
    return seen


def _fooled(api, d, fake):
    """The generator's loss, where ``fake(r)`` is its output for rank r."""
    return _over_ranks(api, lambda r: softplus(-d(fake(r))).mean())


def _told_apart(api, d, step, fake):
    """The discriminator's loss, on noise in place of true data and on the generator's output."""
    return _over_ranks(api, lambda r: softplus(-d(_noise(step, r, 6))).mean() + softplus(d(fake(r).detach())).mean())


@case(worlds=(2, 3))
def two_roots_in_turns_with_the_other_frozen(api):
    g, d, g_opt, d_opt = _pair(api)
    for step in range(4):
        d.requires_grad_(True)
        g.requires_grad_(False)
        _told_apart(api, d, step, lambda r, step=step: g(_noise(step + 50, r))).backward()
        assert all(p.grad is None for p in g.parameters())
        d_opt.step()
        d_opt.zero_grad()
        d.requires_grad_(False)
        g.requires_grad_(True)
        _fooled(api, d, lambda r, step=step: g(_noise(step + 90, r))).backward()
        assert all(p.grad is None for p in d.parameters())
        g_opt.step()
        g_opt.zero_grad()
    return _show_both(g, d)


@case(worlds=(2,))
def two_roots_in_turns_over_one_forward_of_the_generator(api):
    # The discriminator's step runs between the generator's forward and backward. The generator's backward also makes gradients of the
    # discriminator, which are dropped late.
    g, d, g_opt, d_opt = _pair(api)
    for step in range(3):
        fakes = {r: g(_noise(step, r)) for r in (range(world()) if api.plain else [rank()])}
        _told_apart(api, d, step + 50, fakes.get).backward()
        d_opt.step()
        g_opt.zero_grad()
        _fooled(api, d, fakes.get).backward()
        g_opt.step()
        d_opt.zero_grad()
        del fakes
    return _show_both(g, d)


@case(worlds=(2,))
def two_roots_in_one_backward(api):
    g, d, g_opt, d_opt = _pair(api)

    def loss(step, r):
        return d(g(_noise(step, r))).square().mean() + 0.1 * g(_noise(step + 9, r)).mean()

    for step in range(3):
        for opt in (g_opt, d_opt):
            opt.zero_grad()
        _over_ranks(api, functools.partial(loss, step)).backward()
        for opt in (d_opt, g_opt):
            opt.step()
    return _show_both(g, d)


@case(worlds=(2,), theirs=False)  # FSDP2 keeps sharded gradients that the program has dropped while the root is unsharded
def gradients_dropped_between_forward_and_backward(api):
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = loss_of(api, model, step)
        model.zero_grad(set_to_none=step % 2 == 0)
        loss.backward()
        optimizer.step()
    seen = Seen()
    seen.gradients(model)
    seen.parameters(model)
    return seen


@case(worlds=(2,), theirs=False)  # FSDP2 ignores requires_grad of sharded parameters while the module has its whole ones
def frozen_and_thawed_after_an_evaluation(api):
    # A forward without gradients leaves the root unsharded. Parameters that are frozen or thawed then are so in the next step.
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = list(model.parameters())  # the sharded parameters, which the module does not have while it is unsharded
    seen = Seen()
    for step, (frozen, where) in enumerate([("head", model), (None, ()), ("inp", model), ("blocks.1", kept), ("", kept), ("head", kept)]):
        with torch.no_grad():
            model(batch(step, 0)[0])
        shown = zip([name for name, _ in model.named_parameters()], kept if where is kept else model.parameters(), strict=True)
        for name, p in shown if frozen is not None else ():
            p.requires_grad_(not (frozen and name.startswith(frozen)))
        loss_of(api, model, step).backward()
        seen.gradients(model, f"{step}: ")
        optimizer.step()
        optimizer.zero_grad()
    seen.parameters(model)
    return seen


@case(worlds=(2,))
def frozen_and_thawed_while_gradients_are_accumulated(api):
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Seen()
    for step in range(3):
        for micro, trained in enumerate([(0, 1, 2), (0, 2), (1, 2)]):
            for i, block in enumerate(model.blocks):
                block.requires_grad_(i in trained)
            model.head.requires_grad_(micro != 1)
            if not api.plain:
                model.set_requires_gradient_sync(micro == 2 or step == 1)
                model.set_is_last_backward(micro == 2)
            loss_of(api, model, step, micro).backward()
        for module in (*model.blocks, model.head):
            module.requires_grad_(True)
        seen.gradients(model, f"{step}: ")
        optimizer.step()
        optimizer.zero_grad()
    seen.parameters(model)
    return seen


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_cases():
    return run_cases(case)


failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), case.by_world())
def test_case(workers, name, failed):
    check(name, failed(workers))
