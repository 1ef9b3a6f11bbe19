"""Features of PyTorch/XLA scripts beyond marking: compiled models, mixed precision, saving, hooks, recomputation, loaders of dicts."""
# ruff: noqa: E402  imports of torch_xla come after install()

from __future__ import annotations

import copy
import io
import types

import numpy as np
import pytest
import torch
from internals.spmd import ModuleTree
from launching.ranks import fresh
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import shoal.checkpoint
import shoal.spmd
from shoal.exceptions import InvalidArgument, Unimplemented

shoal.spmd.install()

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
import torch_xla.utils.checkpoint
from script_model import DEVICE, MESH, X, batch, net, trained
from torch_xla.amp import GradScaler, autocast, syncfree
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2


@pytest.mark.filterwarnings("error")
def test_compiled_models_and_steps_run_uncompiled():
    want = trained(net(), X)
    sharded = FSDPv2(net(), mesh=MESH)
    for model, step in [
        (torch.compile(FSDPv2(net(), mesh=MESH)), lambda f: f),
        (torch.compile(FSDPv2(net(), mesh=MESH), backend="openxla", fullgraph=True), lambda f: f),
        (FSDPv2(torch.compile(net()), mesh=MESH), lambda f: f),
        (FSDPv2(net(), mesh=MESH), torch.compile),
        (FSDPv2(net(), mesh=MESH), torch_xla.compile),
        (FSDPv2(net(), mesh=MESH), torch_xla.compile(full_graph=True)),
        (sharded, torch_xla.step()),
    ]:
        assert trained(model, batch(), step) == pytest.approx(want, rel=1e-6)
    assert not torch._dynamo.utils.counters["frames"]  # dynamo did not trace these steps
    before = []
    xm.add_step_closure(before.append, (1,))
    with torch_xla.compile():
        sharded(batch())
    assert before == [1]


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("xla", dtype=torch.bfloat16),
        lambda: torch.autocast("xla"),
        lambda: torch.amp.autocast(device_type=DEVICE.type, dtype=torch.bfloat16),
        lambda: autocast(DEVICE),
    ],
)
def test_autocast_trains_as_on_the_host(context):
    model = FSDPv2(net(), mesh=MESH)
    with context():
        assert torch.is_autocast_enabled("xla")
        assert torch.get_autocast_dtype("xla") == torch.bfloat16
        out = model(batch())
        with torch.autocast("xla", enabled=False):
            assert model(batch()).dtype == torch.float32
    assert out.dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("xla")
    want = trained(net(), X, context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert want != trained(net(), X)
    assert trained(model, batch(), context=context) == pytest.approx(want, rel=2e-3)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_the_hosts_functions_are_compiled_while_spmd_is_off():
    program = """
import torch
import shoal.spmd
linear = torch.nn.Linear(4, 4)
def f(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x)
    return y + 1 if torch.is_autocast_enabled("cpu") else y
assert torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2, 4)).dtype == torch.bfloat16
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""
    done = fresh(["-c", program])
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_a_step_with_an_infinite_gradient_on_one_device_is_skipped():
    model = FSDPv2(net(), mesh=MESH)
    optimizer, scaler = syncfree.SGD(model.parameters(), lr=0.1), GradScaler(init_scale=1024.0)
    scaler.scale(model(batch()).sum()).backward()
    true, before = model[0].weight.grad.detach().cpu() / 1024, model[0].weight.detach().cpu()
    model[0].weight.grad[31, 3] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model[0].weight.cpu(), before)
    assert scaler.get_scale() == 512
    optimizer.zero_grad()
    scaler.scale(model(batch()).sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(model[0].weight.detach().cpu(), before - 0.1 * true)


def test_states_are_saved_from_the_host_and_loaded_into_sharded_modules(tmp_path):
    model, host = FSDPv2(net(), mesh=MESH), net()
    xm.save({"model": model.state_dict(), "step": 3}, tmp_path / "state.pt")
    read = torch.load(tmp_path / "state.pt", weights_only=True)
    assert read["step"] == 3
    assert all(torch.equal(v, host.state_dict()[k.removeprefix("_orig_module.")]) for k, v in read["model"].items())
    for p in model.parameters():
        p.data.zero_()
    assert str(model.load_state_dict(read["model"])) == "<All keys matched successfully>"
    assert torch.equal(model(batch()).cpu(), FSDPv2(net(), mesh=MESH)(batch()).cpu())
    assert xs.XLAShardedTensor(model[0].weight).sharding_spec == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    with pytest.raises(Unimplemented, match=r"cannot be pickled[\s\S]*tensor.cpu()"):
        torch.save(model.state_dict(), io.BytesIO())
    with pytest.raises(Unimplemented, match=r'xla:0[\s\S]*map_location="cpu"'):
        torch.load(tmp_path / "state.pt", map_location=DEVICE)
    torch.save(model.cpu().state_dict(), tmp_path / "state.pt")
    assert torch.equal(torch.load(tmp_path / "state.pt")["_orig_module.0.bias"], host[0].bias)


def test_the_other_checkpoints_name_those_of_spmd(tmp_path):
    model = FSDPv2(net(), mesh=MESH)
    with pytest.raises(Unimplemented, match=r"is on xla:0[\s\S]*shoal\.spmd\.checkpoint saves and loads.*CheckpointManager"):
        shoal.checkpoint.save(tmp_path, model)
    shoal.checkpoint.save(tmp_path, model.cpu())
    with pytest.raises(InvalidArgument, match=r"is on xla:0[\s\S]*shoal\.spmd\.checkpoint saves and loads.*CheckpointManager"):
        shoal.checkpoint.load(tmp_path, model.to(DEVICE))


def test_copies_keep_their_sharding():
    model = FSDPv2(net(), mesh=MESH)
    copied = copy.deepcopy(model)
    copied[0].weight.data.zero_()
    assert model[0].weight.abs().sum() > 0
    assert xs.XLAShardedTensor(copied[0].weight).sharding_spec == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    x = batch()
    again = copy.copy(x)
    again.zero_()
    assert x.sum() == 0


def test_tied_parameters_stay_tied():
    model = net()
    model.append(nn.Linear(8, 32))
    model[3].weight = model[0].weight = nn.Parameter(torch.ones(32, 8))
    model[3].bias = model[0].bias
    first, again = model.to(DEVICE)[0], model[3]
    assert again.weight is first.weight
    assert again.bias is first.bias
    tied, other = (torch_xla._XLAC._xla_get_tensor_id(t) for t in (again.weight, model[2].weight))
    assert tied == torch_xla._XLAC._xla_get_tensor_id(first.weight) != other
    assert model.cpu()[0].weight is again.weight
    assert again.weight.device.type == "cpu"


def test_parametrizations_are_set_on_the_device():
    torch.manual_seed(0)
    plain = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8))
    torch.manual_seed(0)
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8).to(DEVICE))
    torch.testing.assert_close(model(batch()).cpu(), plain(X))


def test_memory_of_the_host_is_a_copy():
    t = torch.ones(3, device=DEVICE)
    assert np.from_dlpack(t).tolist() == [1, 1, 1]
    for use in (t.share_memory_, t.untyped_storage, t.storage):
        with pytest.raises(NotImplementedError, match=r"tensor.cpu\(\)"):
            use()


def test_optimizer_states_move_to_another_optimizer():
    losses = []
    for moves in (False, True):
        model = FSDPv2(net(), mesh=MESH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(4):
            if moves and step == 2:
                state = optimizer.state_dict()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            loss = model(batch()).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_text_of_tensors_and_hooks():
    x = xs.mark_sharding(torch.ones(8, 2).to(DEVICE), MESH, ("fsdp", None))
    assert repr(x[0]) == "XLAShardedTensor([1., 1.], device='xla:0')"
    assert f"{x.sum():.1f} {x.global_tensor.mean():.0f}" == "16.0 1"
    assert x.new_tensor([1, 2]).device == DEVICE
    model, seen = FSDPv2(net(), mesh=MESH), []
    model.register_forward_hook(lambda m, inputs, out: seen.append(out.shape))
    model[0].weight.register_hook(lambda g: g * 0)
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    model(batch()).sum().backward()
    assert seen == [(8, 8), (8, 32)]
    assert model[0].weight.grad.abs().sum() == 0


def test_sharded_tensors_are_made_of_tensors_of_the_device():
    x = xs.XLAShardedTensor(torch.ones(8, 2).to(DEVICE), requires_grad=True)
    x.sum().backward()
    assert x.grad.shape == (8, 2)
    with pytest.raises(RuntimeError, match="takes tensors of the device"):
        xs.XLAShardedTensor(torch.ones(8, 2))
    shard = xs.mark_sharding(torch.ones(8, 2).to(DEVICE), MESH, ("fsdp", None)).local_shards[3]
    assert shard.indices == [slice(3, 4, 1), slice(0, 2, 1)]


def test_a_hybrid_mesh_has_the_numbers_in_the_names_of_devices(monkeypatch):
    places = [(x, y) for y in range(2) for x in range(2)]
    found = [
        {"name": f"TPU:{4 * of + n}", "slice_index": of, "coords": [x, y, 0], "core_on_chip": 0}
        for of in (1, 0)
        for n, (x, y) in zip((2, 1, 0, 3), places, strict=True)
    ]
    monkeypatch.setattr(xr, "global_runtime_device_attributes", lambda: found)
    monkeypatch.setattr(xm, "xla_device_hw", lambda device: "TPU")
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1), axis_names=("data", "model"))
    assert mesh.get_logical_mesh().tolist() == [[2, 1], [0, 3], [6, 5], [4, 7]]


def test_recomputation_gives_the_same_gradients():
    gradients = []
    for run in [
        lambda m, x: m(x),
        lambda m, x: checkpoint(m, x, use_reentrant=False),
        lambda m, x: checkpoint(m, x, use_reentrant=True),
        torch_xla.utils.checkpoint.checkpoint,
    ]:
        model, x = FSDPv2(net(), mesh=MESH), batch().requires_grad_()
        with torch.autocast("xla", dtype=torch.bfloat16):
            out = run(model, x)
        out.float().sum().backward()
        gradients.append(x.grad.cpu())
    assert all(torch.equal(g, gradients[0]) for g in gradients)


def test_loaders_of_dicts():
    rows = [{"input_ids": torch.arange(12) + i, "label": i, "name": f"row {i}"} for i in range(16)]
    spec = xs.ShardingSpec(MESH, ("fsdp", None))
    loader = pl.MpDeviceLoader(DataLoader(rows, batch_size=8, drop_last=True), DEVICE, input_sharding=spec, loader_prefetch_size=4)
    assert (len(loader), loader.batch_size, loader.dataset) == (2, 8, rows)
    with pytest.raises(AttributeError, match="no attribute 'rows'"):
        loader.rows  # noqa: B018
    for i, found in enumerate(loader):
        assert xs.XLAShardedTensor(found["input_ids"]).sharding_spec == "{devices=[8,1]0,1,2,3,4,5,6,7}"
        assert torch.equal(found["input_ids"].cpu(), torch.arange(12) + torch.arange(8)[:, None] + 8 * i)
        assert found["label"].tolist() == list(range(8 * i, 8 * i + 8))
        assert found["name"][0] == f"row {8 * i}"
    for workers in (0, 1):
        pinned = pl.MpDeviceLoader(DataLoader(rows, batch_size=8, pin_memory=True, num_workers=workers), DEVICE)
        assert [b["label"].sum().item() for b in pinned] == [28, 92]
    older = pl.ParallelLoader(DataLoader(rows, batch_size=8), [DEVICE]).per_device_loader(DEVICE)
    # transformers sets this argument after the loader's construction
    older._parallel_loader_kwargs["input_sharding"] = {"input_ids": spec, "label": None, "name": None}
    assert [xs.XLAShardedTensor(b["input_ids"]).sharding_type.name for b in older] == ["TILED", "TILED"]


@pytest.mark.filterwarnings("error:shoal.spmd")
def test_evaluation_without_gradients_works():
    model = FSDPv2(net(), mesh=MESH).eval()
    with torch.no_grad():
        assert not model(batch()).requires_grad
    with torch.inference_mode():
        out = model(batch())
        assert torch.allclose(out.cpu(), net()(X), atol=1e-6)
        assert torch.equal(F.layer_norm(out, (8,)).t().cpu(), F.layer_norm(out.cpu(), (8,)).t())


@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_a_transformer_is_evaluated_with_padding():
    torch.manual_seed(0)
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 1).eval()
    padded = torch.tensor([[False, False, True]]).repeat(8, 1)
    x = X[:, None].repeat(1, 3, 1)
    with torch.no_grad():
        found = copy.deepcopy(plain).to(DEVICE)(x.to(DEVICE), src_key_padding_mask=padded.to(DEVICE))
        torch.testing.assert_close(found.cpu()[:, :2], plain(x, src_key_padding_mask=padded)[:, :2], rtol=1e-5, atol=1e-5)


def test_shard_as_splits_two_structures_alike():
    whole, split = X.to(DEVICE).requires_grad_(), batch()
    (b,), (a,) = xs.shard_as([split], [whole])
    assert torch_xla._XLAC._get_xla_sharding_specs([a, b]) == ["{devices=[8,1]0,1,2,3,4,5,6,7}"] * 2
    (a,), (b,) = xs.shard_as([whole], [split])
    assert [xs.XLAShardedTensor(t).sharding_spec for t in (a, b)] == ["{devices=[8,1]0,1,2,3,4,5,6,7}"] * 2
    assert torch_xla._XLAC._get_xla_sharding_spec(whole) == ""
    (a * b).sum().backward()
    assert torch.equal(whole.grad.cpu(), X)
    with pytest.raises(AssertionError, match="structures"):
        xs.shard_as([whole], (split, split))
    with pytest.raises(AssertionError, match=r"\(8, 16\) and \(1, 16\)"):
        xs.shard_as(whole, split[:1])


@pytest.fixture
def global_mesh():
    """Sets the global mesh until the end of the test."""
    yield xs.set_global_mesh
    xs.set_global_mesh(None)


def test_a_model_that_transformers_wraps_trains_as_in_plain_torch(monkeypatch, global_mesh):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations.tpu import tpu_spmd_dataloader, wrap_model_xla_fsdp

    # wrap_model_xla_fsdp replaces this function; monkeypatch puts it back after the test
    monkeypatch.setattr(xm, "optimizer_step", xm.optimizer_step)
    global_mesh(xs.Mesh(np.arange(8), (8, 1), ("fsdp", "tensor")))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32}
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
    options = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "min_num_params": 0, "xla_fsdp_grad_ckpt": True}
    args = types.SimpleNamespace(fsdp_config=options, xla_fsdp_config={})
    model = wrap_model_xla_fsdp(copy.deepcopy(plain).to(DEVICE), args, is_fsdp_xla_v2_enabled=True)
    assert isinstance(model.model.layers[0], FSDPv2)
    rows = [{"input_ids": (torch.arange(6) * i) % 32, "labels": (torch.arange(6) * i) % 32} for i in range(24)]
    losses = []
    for m, loader in (
        (model, tpu_spmd_dataloader(pl.MpDeviceLoader(DataLoader(rows, batch_size=8), DEVICE))),
        (plain, DataLoader(rows, batch_size=8)),
    ):
        optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
        losses.append([])
        for found in loader:
            optimizer.zero_grad()
            loss = m(**found).loss
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            xm.optimizer_step(optimizer)
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_accumulated_gradients_equal_the_mean_loss_gradients():
    model, plain = FSDPv2(net(), mesh=MESH), net()
    parts = X.view(2, 4, 16).to(DEVICE)

    def step(x, seen):
        return model(x).square().mean(), seen + len(x)

    loss, seen = gradient_accumulation(step, (parts,), model, torch.tensor(0, device=DEVICE))
    whole = plain(X).square().mean()
    whole.backward()
    assert seen.item() == 8
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)
    with pytest.raises(ValueError, match=r"lengths \[\]"):
        gradient_accumulation(step, (), model)


def test_loaders_refuse_other_types_of_specs():
    spec = xs.ShardingSpec(MESH, ("fsdp", None))
    for make in (
        lambda s: pl.MpDeviceLoader([X], DEVICE, input_sharding=s),
        lambda s: pl.ParallelLoader([X], [DEVICE], input_sharding=s),
        lambda s: xm.send_cpu_data_to_device([X], DEVICE, input_sharding=s),
    ):
        with pytest.raises(TypeError, match=r"input_sharding is of type list[\s\S]*a dict with one"):
            make([spec, spec])
        with pytest.raises(TypeError, match="input_sharding has a value of type tuple"):
            make({"x": spec, "y": ("fsdp", None), "z": None})


def test_scan_stacks_the_results_of_each_row():
    def total(carry, x):
        carry += x  # changes the carry in place
        return carry, {"sum": carry}

    begin = torch.zeros(16, device=DEVICE)
    last, sums = scan(total, begin, batch())
    torch.testing.assert_close(sums["sum"].cpu(), X.cumsum(0))
    assert torch.equal(last.cpu(), sums["sum"][-1].cpu())
    assert begin.abs().sum() == 0
    with pytest.raises(ValueError, match=r"lengths \[7, 8\]"):
        scan(total, begin, (batch(), batch()[1:]))
    model = net().to(DEVICE)
    assert torch.equal(scan_layers(model, batch()).cpu(), assume_pure(model)(batch()).cpu())


# ---- facts about modules --------------------------------------------------------------------------------------------------------------


def test_attributes_that_decide_a_forward_change_its_key():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout(), torch.nn.ReLU()))
    net.steps, net.kind, net.own = 0, "first", net.forward
    tree = ModuleTree(net)
    modules, first = tree.modules(), tree.number()
    assert modules == list(net.modules())
    net.steps += 1
    net.own = net.forward
    assert (tree.number(), tree.modules() is modules) == (first, True)

    def forward(x):
        return x

    changes = [
        lambda: net.eval(),
        lambda: setattr(net, "kind", "second"),
        lambda: net[0].register_forward_hook(lambda *_: None),
        lambda: setattr(net[1][1], "forward", forward),
        lambda: setattr(net[1], "0", torch.nn.Identity()),
        lambda: net[1].append(torch.nn.ReLU()),
        lambda: net.__setattr__("__class__", type("Other", (torch.nn.Sequential,), {})),
    ]
    seen = [first]
    for change in changes:
        change()
        seen.append(tree.number())
        assert seen.count(seen[-1]) == 1, len(seen)
        assert tree.number() == seen[-1]
    assert tree.modules() == list(net.modules())
    net.kind = "first"
    assert tree.number() not in seen
    net.kind = "second"
    assert tree.number() == seen[-1]
