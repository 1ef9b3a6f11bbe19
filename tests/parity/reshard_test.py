"""A model that moves between meshes while it trains: the same objects, the same bits, and the losses of a mesh that stays."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import shoal
import shoal.optim
from shoal.train import ScalingConfig, Trainer

WORLDS = [(0, 1), (0, 1, 2, 3), (0, 1, 2), (0,), (0, 1)]
STEPS, BATCH = 3, 12


class Net(nn.Module):
    """Rows that no world divides evenly, a bias with fewer rows than ranks, a buffer, and an adapter that stays whole."""

    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(8, 13)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(13, 29), nn.GELU(), nn.Linear(29, 13)) for _ in range(2))
        self.norm = nn.LayerNorm(13)
        self.head = nn.Linear(13, 3)
        if tied:
            self.blocks[1][0].weight = self.blocks[0][0].weight
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.zeros(100))

    def forward(self, x):
        self.seen += 1
        self.table.add_(0.5)
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


OPTIMIZERS = {
    "shoal.AdamW": lambda p: shoal.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "torch.AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "torch.SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "shoal.Muon": lambda p: shoal.optim.Muon([q for q in p if q.ndim == 2], lr=1e-2),
}


def build(config, mesh):
    from shoal.fsdp import fully_shard

    with torch.device("meta" if config.get("meta") and dist.get_rank() > 0 and mesh.size() == 1 else "cpu"):
        model = Net(config.get("tied", False))
    policy = config.get("policy", {})
    options = {"mesh": mesh, "mp_policy": torch.distributed.fsdp.MixedPrecisionPolicy(**policy)}
    if config.get("dim"):
        options["shard_placement_fn"] = lambda p: torch.distributed.tensor.Shard(p.ndim - 1)
    if config.get("bf16"):
        model.to(torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = OPTIMIZERS[config["optimizer"]](model.parameters())
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)


def batch(step, index, size):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, 8, generator=generator), torch.randint(3, (BATCH,), generator=generator)
    share = BATCH // size
    return x[index * share : (index + 1) * share], y[index * share : (index + 1) * share]


def gathered(model, optimizer):
    """Whole parameters and states, by name. Collective over the model's mesh."""
    whole = lambda t: t.full_tensor().detach().clone() if isinstance(t, DTensor) else t.detach().clone()  # noqa: E731
    out = {name: whole(p) for name, p in model.named_parameters()}
    out |= dict(model.named_buffers())
    names = {p: name for name, p in model.named_parameters()}
    for p, state in optimizer.state.items():
        out |= {f"{names[p]}/{key}": whole(value) for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: t.clone() for name, t in out.items()}


def train(model, optimizer, scheduler, steps, index, mesh, dtype):
    losses = []
    for step in steps:
        x, y = batch(step, index, mesh.size())
        loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, group=mesh.get_group())
        losses.append(total.item() / mesh.size())
    return losses


def moving_loop(config):
    from shoal.fsdp._reshard import reshard

    rank, worlds = dist.get_rank(), config["worlds"]
    meshes = [DeviceMesh("cpu", list(world)) for world in worlds]
    alone = [DeviceMesh("cpu", [r]) for r in range(dist.get_world_size())][rank]
    dtype = torch.bfloat16 if config.get("bf16") else torch.float32
    model = optimizer = scheduler = None
    losses, reports = [], []
    for i, (world, mesh) in enumerate(zip(worlds, meshes, strict=True)):
        before = None
        if i == 0 and rank in world:
            model, optimizer, scheduler = build(config, mesh)
        elif i > 0 and rank in {*worlds[i - 1], *world}:
            old = worlds[i - 1]
            if rank in old:
                before = gathered(model, optimizer)
            else:
                model, optimizer, scheduler = build(config, alone)
                if config.get("runs_before"):
                    train(model, optimizer, scheduler, [0], 0, alone, dtype)
            objects = {name: id(p) for name, p in model.named_parameters()}
            report = reshard(model, optimizer, mesh, old_owners=old, old_index=old.index(rank) if rank in old else None)
            reports.append((report.sent_bytes, report.received_bytes, report.kept_bytes, report.plan.moved_bytes, report.plan.kept_bytes))
            if rank in world:
                assert objects == {name: id(p) for name, p in model.named_parameters()}
                after = gathered(model, optimizer)
                if before is not None:
                    assert before.keys() == after.keys()
                    for name in before:
                        assert before[name].dtype == after[name].dtype, name
                        assert torch.equal(before[name], after[name]), f"{name} changed from mesh {old} to {world}"
                if rank not in old:  # the LR schedule is the caller's
                    scheduler.last_epoch, scheduler._step_count = STEPS * i, STEPS * i + 1
                    scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
        elif i > 0:
            reports.append(None)
        if rank in world:
            losses += train(model, optimizer, scheduler, range(STEPS * i, STEPS * (i + 1)), world.index(rank), mesh, dtype)
    final = gathered(model, optimizer) if rank in worlds[-1] else None
    return losses, reports, final


@pytest.fixture(scope="module", autouse=True)
def cluster():
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


def run(worlds=WORLDS, **config):
    config = {"optimizer": "shoal.AdamW", "worlds": worlds, **config}
    size = 1 + max(max(world) for world in worlds)
    return Trainer(moving_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=size)).fit().returns


def expect_as_if_it_stayed(rtol=1e-5, **config):
    moving, fixed = run(**config), run(worlds=[(0, 1)] * 5, **{k: v for k, v in config.items() if k != "worlds"})
    assert moving[0][0] == pytest.approx(fixed[0][0], rel=rtol)
    for name, t in fixed[0][2].items():
        torch.testing.assert_close(moving[0][2][name], t, rtol=max(rtol, 1e-4), atol=max(rtol, 1e-5), msg=lambda m, n=name: f"{n}: {m}")
    return moving


@pytest.mark.parametrize("optimizer", ["shoal.AdamW", "torch.AdamW"])
def test_training_goes_on_as_if_the_mesh_had_stayed(optimizer):
    moving = expect_as_if_it_stayed(optimizer=optimizer)
    for change in zip(*(reports for _, reports, _ in moving), strict=True):
        taken = [r for r in change if r is not None]
        assert sum(r[0] for r in taken) == sum(r[1] for r in taken) == taken[0][3], "the plan's minimum is sent and received"
        assert sum(r[2] for r in taken) == taken[0][4]


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": "torch.SGD"},
        {"optimizer": "shoal.Muon", "rtol": 1e-3},
        {"meta": True},
        {"runs_before": True},
        {"tied": True},
        {"policy": {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}, "rtol": 2e-2},
        {"dim": True},
        {"bf16": True, "rtol": 2e-2},
    ],
    ids=lambda config: "-".join(config),
)
def test_every_kind_of_model_and_optimizer_moves(config):
    expect_as_if_it_stayed(**config)
