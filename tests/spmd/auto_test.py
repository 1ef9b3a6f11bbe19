"""Automatic sharding: its choices where the best one is obvious, the effect of a memory budget, and unchanged results."""

from __future__ import annotations

import copy
import os
import time
import warnings

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import gpt
import pytest
import torch
from internals.spmd import choice
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.nn import functional as F

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.exceptions import InvalidArgument
from shoal.spmd.fsdp import checkpoint_module

xr.use_spmd()
DEVICE = xm.xla_device()
LINE = xs.Mesh(range(8), (8,), ("d",))
ACCELERATOR = xs.Machine(latency=10e-6, bandwidth=25e9, flops=2e13, memory_bandwidth=1e12)


def mlp(width: int, hidden: int, device: str = "meta") -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False))


def planned(model: nn.Module, *shape: int, **options) -> xs.ShardingPlan:
    return xs.auto_shard(model, torch.empty(shape, device="meta"), apply=False, quiet=True, **options)


def test_large_weights_are_split_with_a_tiny_batch():
    plan = planned(mlp(4096, 16384), 8, 4096, mesh=LINE)
    # The first layer is split by columns and the second by rows, so that devices only communicate to add up small activations.
    assert plan.specs == {"0.weight": ("d", None), "2.weight": (None, "d")}
    assert plan.input_specs == {"0": (None, None)}
    assert plan.peak_bytes < plan.whole_bytes / 7
    assert plan.seconds < plan.whole_seconds / 5
    assert plan.activations.keys() == {"all_reduce"}


def test_a_large_batch_is_split_with_tiny_weights():
    plan = planned(mlp(64, 64), 65536, 64, mesh=LINE)
    assert plan.specs == {"0.weight": (None, None), "2.weight": (None, None)}
    assert plan.input_specs == {"0": ("d", None)}
    gradient = 64 * 64 * 4
    assert [r.collectives for r in plan.rows if r.name != "input 0"] == [{"all_reduce": 2 * 7 / 8 * gradient}] * 2
    assert not plan.activations


def test_a_budget_forces_splitting_or_names_the_smallest_budget():
    model, shape, options = mlp(2048, 2048), (65536, 2048), {"mesh": LINE, "machine": ACCELERATOR}
    free = planned(model, *shape, **options)
    assert set(free.specs.values()) == {(None, None)}
    tight = planned(model, *shape, memory_budget=int(free.peak_bytes) - 1, **options)
    assert tight.peak_bytes < free.peak_bytes
    assert any(s != (None, None) for s in tight.specs.values())
    assert tight.seconds > free.seconds
    assert any("would need" in r.reason for r in tight.rows)
    with pytest.raises(InvalidArgument, match="the smallest that can is") as raised:
        planned(model, *shape, memory_budget="1MiB", **options)
    least = int(str(raised.value).split("the smallest that can is ")[1].split()[0])
    assert planned(model, *shape, memory_budget=least, **options).peak_bytes <= least
    with pytest.raises(InvalidArgument, match=f"the smallest that can is {least} bytes"):
        planned(model, *shape, memory_budget=least - 1, **options)


def test_plans_are_deterministic_and_have_reasons():
    texts = [str(planned(mlp(512, 2048), 256, 512)) for _ in range(2)]
    assert texts[0] == texts[1]
    lines = texts[0].splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == ["0.weight", "input", "2.weight"]
    assert all("take" in line for line in lines[2:-2])


def test_a_module_that_returns_its_loss_trains_the_loss_only():
    class WithLoss(nn.Module):
        def __init__(self, both: bool):
            super().__init__()
            self.both, self.net = both, mlp(64, 128)

        def forward(self, x, target):
            y = self.net(x)
            loss = F.mse_loss(y, target)
            return {"loss": loss, "y": y} if self.both else loss

    x = torch.empty(512, 64, device="meta")
    plans = [xs.auto_shard(WithLoss(both), {"x": x, "target": x}, LINE, apply=False, quiet=True) for both in (False, True)]
    assert plans[0].specs == plans[1].specs
    assert plans[0].input_specs == plans[1].input_specs
    assert plans[0].seconds == plans[1].seconds
    assert plans[0].input_specs.keys() == {"x", "target"}


def test_config_m_is_planned_with_one_decision_for_its_blocks():
    config = gpt.CONFIGS["M"]
    with torch.device("meta"):
        model = gpt.GPT(**config)
    begin = time.perf_counter()
    plan = xs.auto_shard(model, torch.empty(config["batch"], config["seq"], dtype=torch.long, device="meta"), apply=False, quiet=True)
    print(f"\n{time.perf_counter() - begin:.2f} s for {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters\n{plan}")
    assert plan.specs.keys() == dict(model.named_parameters()).keys()
    blocks = [r for r in plan.rows if r.name.startswith("blocks.")]
    assert {len(r.members) for r in blocks} == {12}
    assert plan.seconds < plan.whole_seconds / 2


class Attention(nn.Module):
    """A module that is hard to trace: shared parameters, a mask that the first call makes, dropout, keyword inputs, a buffer."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(48, 32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.embed.weight
        self.norm, self.mask, self.calls = nn.LayerNorm(32), None, []
        self.register_buffer("scale", torch.tensor([0.5]))

    def forward(self, ids, *, weight=None):
        b, s = ids.shape
        if self.mask is None:
            self.mask = torch.full((s, s), -1e9, device=ids.device).triu(1)
        x = F.dropout(self.embed(ids), 0.2, self.training)
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 4, 8).permute(2, 0, 3, 1, 4)
        a = ((q @ k.transpose(2, 3)) * self.scale + self.mask).softmax(-1)
        x = x + self.out((a @ v).transpose(1, 2).reshape(b, s, 32))
        return self.head(x) if weight is None else self.head(x) * weight


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x):
        y = self.norm(self.conv(x))
        if torch.rand(1).item() < 0.5:  # a random number of the host, not of the device
            y = torch.relu(y)
        return self.fc((y - y.mean(0)).mean((2, 3)))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)), lambda i: (torch.randn(16, 32),)),
    "attention": (Attention, lambda i: ((torch.arange(96) * (i + 3) % 48).view(8, 12),)),
    "checkpointed": (lambda: checkpoint_module(Attention()), lambda i: ((torch.arange(96) * (i + 3) % 48).view(8, 12),)),
    "residual": (Residual, lambda i: (torch.randn(8, 3, 6, 6),)),
}


def trained(model: nn.Module, inputs, device: torch.device | str) -> list[torch.Tensor]:
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # not Adam, which would amplify gradients that are rounding noise
    losses = []
    for i in range(3):
        optimizer.zero_grad()
        loss = model(*(x.to(device) for x in inputs(i))).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@pytest.fixture
def automatic():
    """Yields a function that calls use_spmd(auto=True) with a memory budget, which holds until the end of the test."""

    def on(memory_budget=None):
        xr.use_spmd(auto=True, memory_budget=memory_budget)

    yield on
    choice.disable()
    os.environ.pop("XLA_AUTO_SPMD", None)


@pytest.mark.filterwarnings("ignore:shoal.spmd")
@pytest.mark.parametrize("name", MODELS)
def test_results_equal_the_unsharded_program_for_every_choice(name, automatic, capfd):
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    first = make()
    state = copy.deepcopy(first.state_dict())
    want = trained(first, inputs, "cpu")
    torch.manual_seed(2)
    chosen = set()
    budget = None
    for _ in range(3):
        model = make()
        model.load_state_dict(state)
        automatic(budget)
        model.to(DEVICE)
        got = trained(model, inputs, DEVICE)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        table = capfd.readouterr().err
        assert table.startswith("Automatic sharding over 8 devices")
        assert table.count("A step takes about") == 1
        chosen.add(tuple(str(p._box.array.sharding) for p in model.parameters()))
        choice.disable()
        if budget is None:
            with pytest.raises(InvalidArgument, match="smallest") as raised:
                xs.auto_shard(make(), tuple(inputs(0)), memory_budget=1, apply=False)
            budget = int(str(raised.value).split("the smallest that can is ")[1].split()[0])
        else:
            budget *= 2
    assert len(chosen) > 1


def test_planned_bytes_per_device_equal_the_actual_ones(automatic):
    model = mlp(64, 128, "cpu")
    x = torch.randn(2048, 64).to(DEVICE)
    plan = xs.auto_shard(model, x, LINE, memory_budget="480KiB", quiet=True)
    # These gradients are sums over the batch: replicated, until they are resharded as their parameters are.
    assert all("all_reduce" in r.collectives for r in plan.rows if not r.name.startswith("input"))
    assert all(s != (None, None) for s in plan.specs.values())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    def held(t: torch.Tensor) -> int:
        return max(shard.unpadded_data.numel() for shard in xs.XLAShardedTensor(t).local_shards) * t.element_size()

    for row in plan.rows:
        if not row.name.startswith("input"):
            p = model.get_parameter(row.name)
            there = [p, p.grad, *(s for s in optimizer.state[p].values() if s.dim())]
            assert sum(map(held, there)) == row.device_bytes
    assert xs.XLAShardedTensor(x).sharding_spec == str(LINE.get_op_sharding(plan.input_specs["0"]))


def test_marks_of_the_program_are_kept(automatic):
    automatic()
    model = mlp(64, 64, "cpu").to(DEVICE)
    xs.mark_sharding(model[2].weight, LINE, (None, "d"))
    model(torch.randn(4096, 64).to(DEVICE))
    assert xs.XLAShardedTensor(model[2].weight).sharding_spec == "{devices=[1,8]0,1,2,3,4,5,6,7}"
    first, marked = torch.randn(4096, 64).to(DEVICE), torch.randn(4096, 64).to(DEVICE)
    xs.mark_sharding(marked, LINE, (None, "d"))
    model(first), model(marked)
    assert xs.XLAShardedTensor(first).sharding_spec.startswith("{devices=[8,1]")
    assert xs.XLAShardedTensor(marked).sharding_spec.startswith("{devices=[1,8]")


def test_modules_that_read_values_stay_replicated_with_a_warning(automatic):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x) if x.sum().item() > 0 else x

    automatic()
    model, x = Reads().to(DEVICE), torch.ones(4, 8)
    with pytest.warns(UserWarning, match="leaves Reads whole: .*cannot be traced without values"):
        y = model(x.to(DEVICE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(x.to(DEVICE)).cpu(), y.cpu())
    with pytest.raises(InvalidArgument, match="mark_sharding"):
        xs.auto_shard(Reads(), x, quiet=True)


def test_distribute_module_with_auto_policy_chooses_at_the_first_call(capfd):
    mesh = init_device_mesh("xla", mesh_shape=(4, 2))
    xs.install()
    model = distribute_module(mlp(512, 2048, "cpu"), mesh, xs.auto_policy)
    assert xs.XLAShardedTensor(model[0].weight).sharding_spec == ""
    model(torch.ones(8, 512).to(DEVICE))
    assert "mesh 4 (axis 0) x 2 (axis 1)" in capfd.readouterr().err
    assert xs.XLAShardedTensor(model[0].weight).sharding_spec.startswith("{devices=")
    model(torch.ones(8, 512).to(DEVICE))
    assert capfd.readouterr().err == ""


def test_the_programs_mesh_is_used(monkeypatch):
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "2,4")
    assert planned(mlp(64, 64), 8, 64).mesh.mesh_shape == (2, 4)
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "2,3")
    with pytest.raises(InvalidArgument, match="XLA_AUTO_SPMD_MESH is '2,3'"):
        planned(mlp(64, 64), 8, 64)
    xs.set_global_mesh(LINE)
    try:
        assert planned(mlp(64, 64), 8, 64).mesh is LINE
    finally:
        xs.set_global_mesh(None)


def test_axes_without_names_are_called_axes(capfd):
    for names, header in ((None, "mesh 4 (axis 0) x 2 (axis 1)"), (("data", "model"), "mesh 4 (data) x 2 (model)")):
        plan = xs.auto_shard(nn.Linear(64, 64), torch.ones(8, 64), xs.Mesh(range(8), (4, 2), names), apply=False)
        assert str(plan).splitlines()[0].endswith(header)
