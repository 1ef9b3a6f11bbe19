"""A model that moves between meshes while it trains: the same objects, the same bits, and the losses of a mesh that stays."""

import os

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


def train(model, optimizer, scheduler, steps, index, mesh, dtype=torch.float32):
    losses = []
    for step in steps:
        x, y = batch(step, index, mesh.size())
        loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        for dim in range(mesh.ndim):
            dist.all_reduce(total, group=mesh.get_group(dim))
        losses.append(total.item() / mesh.size())
    return losses


class Trained:
    """One process's model while its mesh changes. Meshes are lists of processes, or of lists with a replica each."""

    def __init__(self, config):
        self.config, self.dtype = config, torch.bfloat16 if config.get("bf16") else torch.float32
        self.model = self.optimizer = self.scheduler = None
        self.losses, self.reports = [], []
        self.protection = None

    def build(self, mesh):
        self.model, self.optimizer, self.scheduler = build(self.config, mesh)

    def protect(self, steps):
        from internals.fsdp import protect

        if self.config.get("protects"):
            self.protection = protect(self.model, self.optimizer, step=steps)

    def train(self, world, index, mesh):
        steps = range(STEPS * world, STEPS * (world + 1))
        self.losses += train(self.model, self.optimizer, self.scheduler, steps, index, mesh, self.dtype)

    def whole(self):
        return gathered(self.model, self.optimizer)

    def move(self, mesh, old, rank, world, before):
        """``old``: the ranks of the old mesh, ``rank``: this process's, in the default process group. ``before``: the result of ``whole``
        on the old mesh."""
        from internals.fsdp import reshard

        stays, newcomer = rank in mesh.mesh.flatten().tolist(), rank not in old
        objects = {name: id(p) for name, p in self.model.named_parameters()}
        if self.protection is not None:
            self.protection.end()
        report = reshard(self.model, self.optimizer, mesh, old_owners=old, old_index=None if newcomer else old.index(rank))
        self.reports.append((report.sent_bytes, report.received_bytes, report.kept_bytes, report.plan.moved_bytes, report.plan.kept_bytes))
        if not stays:
            return
        assert objects == {name: id(p) for name, p in self.model.named_parameters()}
        after = self.whole()
        self.protect(STEPS * world)
        if newcomer:  # the LR schedule is the caller's
            self.scheduler.last_epoch, self.scheduler._step_count = STEPS * world, STEPS * world + 1
            self.scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]
            return
        assert before.keys() == after.keys()
        for name in before:
            assert before[name].dtype == after[name].dtype, name
            assert torch.equal(before[name], after[name]), f"{name} changed on the way to mesh {mesh}"


def ranks_of(world):
    return tuple(torch.tensor(world).flatten().tolist())


def mesh_of(world):
    return DeviceMesh("cpu", list(world), mesh_dim_names=("replicate", "shard") if torch.tensor(world).ndim == 2 else None)


def moving_loop(config):
    rank, worlds = dist.get_rank(), config["worlds"]
    if config.get("devices"):
        from internals.fsdp import leave_arenas

        leave_arenas()
    if config.get("hosts"):
        os.environ["SHOAL_HOST"] = f"host-{config['hosts'][rank]}"
    meshes = [mesh_of(world) for world in worlds]
    alone = [DeviceMesh("cpu", [r]) for r in range(dist.get_world_size())][rank]
    trained, old = Trained(config), ()
    for i, (world, mesh) in enumerate(zip(map(ranks_of, worlds), meshes, strict=True)):
        if i == 0 and rank in world:
            trained.build(mesh)
            trained.protect(0)
        elif i > 0 and rank in {*old, *world}:
            if rank not in old:
                trained.build(alone)
                if config.get("runs_before"):
                    trained.train(0, 0, alone)
                    trained.losses.clear()
            trained.move(mesh, old, rank, i, trained.whole() if rank in old else None)
        if len(trained.reports) <= i:  # this process has no part in the change
            trained.reports.append(None)
        if rank in world:
            for repeated in range(config.get("stays", 1)):
                trained.train(i + repeated, world.index(rank), mesh)
        old = world
    final = trained.whole() if rank in old else None
    return trained.losses, trained.reports, final


def run(worlds=WORLDS, loop=moving_loop, **config):
    config = {"optimizer": "shoal.AdamW", "worlds": worlds, **config}
    size = 1 + max(max(ranks_of(world)) for world in worlds)
    return Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=size)).fit().returns


_stayed = {}  # by configuration
_OF_CHANGES = ("meta", "protects", "runs_before")  # without effect on a mesh that stays


def on_a_mesh_that_stays(times, config):
    config = {key: value for key, value in config.items() if key not in _OF_CHANGES}
    key = times, repr(sorted(config.items()))
    if key not in _stayed:
        _stayed[key] = run(worlds=[(0, 1)], stays=times, **config)
    return _stayed[key]


def expect_as_if_it_stayed(rtol=1e-5, worlds=WORLDS, loop=moving_loop, **config):
    """Compares a moving model with one on a mesh of two that stays, and the bytes moved with the plan's minimum."""
    moving, fixed = run(worlds, loop, **config), on_a_mesh_that_stays(len(worlds), {"optimizer": "shoal.AdamW", **config})
    assert moving[0][0] == pytest.approx(fixed[0][0], rel=rtol)
    for name, t in fixed[0][2].items():
        torch.testing.assert_close(moving[0][2][name], t, rtol=max(rtol, 1e-4), atol=max(rtol, 1e-5), msg=lambda m, n=name: f"{n}: {m}")
    for change in list(zip(*(reports for _, reports, _ in moving), strict=True))[1:]:
        taken = [r for r in change if r is not None]
        assert sum(r[0] for r in taken) == sum(r[1] for r in taken) == taken[0][3], "the plan's minimum is sent and received"
        assert sum(r[2] for r in taken) == taken[0][4]
    return moving


@pytest.mark.parametrize("optimizer", ["shoal.AdamW", "torch.AdamW"])
def test_training_goes_on_as_if_the_mesh_had_stayed(optimizer):
    expect_as_if_it_stayed(optimizer=optimizer)


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


@pytest.mark.parametrize("config", [{}, {"bf16": True, "rtol": 2e-2}], ids=["fp32", "bf16"])
def test_protected_states_stay_where_they_are(config):
    moving = expect_as_if_it_stayed(protects=True, **config)
    for _, reports, _ in moving:
        assert all(r is None or r[3] == 0 for r in reports), "no byte moves on one host"


def test_protected_states_that_the_ranks_cannot_share_move():
    moving = expect_as_if_it_stayed(protects=True, dim=True)
    assert moving[0][1][1][3] > 0


@pytest.mark.parametrize(
    "config",
    [{"protects": True}, {"protects": True, "bf16": True, "rtol": 2e-2}, {"optimizer": "torch.AdamW", "meta": True}, {"dim": True}],
    ids=lambda config: "-".join(config),
)
def test_a_model_on_devices_moves_through_the_hosts_memory(config):
    expect_as_if_it_stayed(devices=True, **config)
