"""Uses of a model in FSDP1's wrapper: the wrapper, loss scaling, communication, printing; in one run of two ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from fsdp1_net import Block, Net, adam, batch, expect_equal, rank, sharded, train, trained, whole
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

WORLD = 2
use = Uses()


# ---- the wrapper -------------------------------------------------------------------------------------------------------------------


@use
def the_type_of_a_wrapped_module_is_the_wrapper_class():
    """Libraries compare the type itself, as Accelerate does: ``type(model) is not FSDP``."""
    from torch.distributed.fsdp import FSDPModule

    from shoal.fsdp1 import FullyShardedDataParallel

    class Derived(FullyShardedDataParallel):
        pass

    for cls in (FullyShardedDataParallel, Derived):
        model = cls(nn.Linear(4, 3))
        assert type(model) is cls
        assert model.module._is_fsdp_managed_module  # read by transformers' generate
        assert all(p._fsdp_flattened for p in model.parameters())  # read by Lightning
        assert isinstance(model, FSDPModule)
        with pytest.raises(AssertionError, match="FSDP does not support deepcopy"):
            copy.deepcopy(model)


@use
def a_flat_parameter_that_is_widened_widens_the_parameters():
    """If a model was loaded in a lower precision, Accelerate widens its flat parameters for mixed precision, so that training uses fp32."""
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import MixedPrecision

    def loaded():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Sequential(nn.Linear(7, 3))).bfloat16()
        model[0].weight.requires_grad_(False)
        return model

    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrap = lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, nn.Sequential)  # noqa: E731
    model, wide = (sharded(m, mixed_precision=policy, auto_wrap_policy=wrap) for m in (loaded(), loaded().float()))
    optimizers = adam(model), adam(wide)  # built before the parameters are widened, to which the optimizers refer
    for unit in FSDP.fsdp_modules(model):
        assert unit._has_params
        flat = unit._flat_param
        assert flat.dtype == torch.bfloat16
        assert flat.requires_grad
        assert flat.device.type == "cpu"
        flat.data = flat.data.to(torch.float32)
        unit._handle._orig_param_dtype = torch.float32
        assert unit._flat_param.dtype == torch.float32
    assert model._flat_param._fqns == ["0.weight", "0.bias"]
    assert not FSDP(nn.Sequential(nn.ReLU()))._has_params
    for m, o in zip((model, wide), optimizers, strict=True):
        train(m, o)
        assert all(p.dtype == torch.float32 for p in m.parameters())
    expect_equal(whole(model), whole(wide))


@use
def a_wrapped_module_prints_as_torchs():
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    theirs = FullyShardedDataParallel(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
    assert repr(sharded()) == repr(theirs)


@use
def the_wrapper_is_an_fsdp_instance_and_forwards_attributes():
    from shoal.fsdp import FSDPModule
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    model = sharded()
    assert isinstance(model, FSDP)
    assert isinstance(model, FSDPModule)
    assert type(model.module) is Net
    assert model.head is model.module.head
    assert isinstance(model.blocks[1], FSDP)
    assert [type(m.module) for m in FSDP.fsdp_modules(model)] == [Net, Block, Block]
    assert FSDP.fsdp_modules(model, root_only=True) == [model]
    assert FSDP.fsdp_modules(model.blocks, root_only=True) == [model.blocks[0], model.blocks[1]]
    model(batch(0, rank()))
    assert [m.check_is_root() for m in FSDP.fsdp_modules(model)] == [True, False, False]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Net().named_parameters()]
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in Net().named_buffers()]
    sequence = sharded(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), auto_wrap_policy=None)
    assert isinstance(sequence[1], nn.Tanh)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model.nothing
    with pytest.raises(ValueError, match=r"no_sync\(\) was called on an inner unit"), model.blocks[0].no_sync():
        pass
    with pytest.raises(ValueError, match=r"clip_grad_norm_\(\) was called on an inner unit"):
        model.blocks[0].clip_grad_norm_(1.0)


@use
def apply_sees_whole_parameters_and_keeps_its_writes():
    model, shapes = sharded(), []

    def fill(module):
        if isinstance(module, nn.Linear):
            shapes.append(tuple(module.weight.shape))
            module.weight.data.fill_(0.25)

    assert model.apply(fill) is model
    assert shapes == [(7, 5), (7, 7), (7, 7), (3, 7)]
    assert all((t == 0.25).all() for name, t in whole(model).items() if name.endswith(("lin.weight", "inp.weight", "head.weight")))
    model(batch(0, rank())).sum().backward()


@use
def units_without_parameters_of_their_own_work():
    model = sharded(nn.Sequential(Block(), Block()))
    optimizer = adam(model)
    for step in range(2):
        model(batch(step, rank()).repeat(1, 2)[:, :7]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(model.state_dict()) == 2 * 7


# ---- loss scaling ------------------------------------------------------------------------------------------------------------------


@use
def a_step_is_skipped_by_all_when_one_rank_finds_an_overflow():
    from shoal.fsdp1 import ShardedGradScaler

    model = sharded()
    optimizer = adam(model)
    scaler = ShardedGradScaler(device="cpu", init_scale=1024.0, growth_interval=2)
    unscaled = {}
    for step in range(3):
        before = whole(model)
        loss = model(batch(step, rank())).square().mean()
        scaler.scale(loss).backward()
        if step == 0:
            for name, p in model.named_parameters():
                unscaled[name] = p.grad.full_tensor() / 1024
        if step == 1 and rank() == 1:
            model.head.bias.grad.to_local().fill_(float("inf"))  # only in the rows that this rank owns
        scaler.unscale_(optimizer)
        if step == 0:
            expect_equal({n: p.grad.full_tensor() for n, p in model.named_parameters()}, unscaled)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(whole(model).values(), before.values(), strict=True))
        assert moved == (step != 1)
        assert scaler.get_scale() == (1024.0 if step == 0 else 512.0)
    with pytest.raises(TypeError, match="no device_type"):
        ShardedGradScaler(device_type="cpu")


@use
def a_step_is_skipped_by_all_when_our_optimizer_unscales_by_itself():
    import shoal.optim
    from shoal.fsdp1 import ShardedGradScaler

    model = sharded()
    optimizer = shoal.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = ShardedGradScaler(device="cpu", init_scale=1024.0)
    for step in range(3):
        before = whole(model)
        scaler.scale(model(batch(step, rank())).square().mean()).backward()
        if step == 1 and rank() == 1:
            model.head.bias.grad.to_local().fill_(float("inf"))  # only in the rows that this rank owns
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(whole(model).values(), before.values(), strict=True))
        assert moved == (step != 1)
        assert scaler.get_scale() == (1024.0 if step == 0 else 512.0)


# ---- communication -----------------------------------------------------------------------------------------------------------------


@use
def gradients_through_a_communication_hook():
    from torch.distributed.algorithms._comm_hooks import default_hooks

    calls = []

    def hook(state, gradients, rows):
        calls.append((gradients.numel(), rows.numel()))
        default_hooks.reduce_scatter_hook(state, gradients, rows)

    model, plain = sharded(), sharded()
    model.register_comm_hook(default_hooks.DefaultState(dist.group.WORLD), hook)
    for m in (model, plain):
        train(m, adam(m), steps=3)
    for name, t in whole(model).items():
        torch.testing.assert_close(t, whole(plain)[name])
    assert len(calls) == 3 * 3
    assert all(whole_numel == WORLD * numel for whole_numel, numel in calls)
    with pytest.raises(ValueError, match="already registered"):
        model.register_comm_hook(None, hook)
    with pytest.raises(TypeError, match="must be callable"):
        plain.register_comm_hook(None, 3)
    with pytest.raises(ValueError, match="on an inner unit"):
        plain.blocks[0].register_comm_hook(None, hook)


@use
def each_unit_prefetches_the_next_one():
    import shoal.fsdp

    model = sharded(forward_prefetch=True)
    optimizer = adam(model)
    train(model, optimizer, steps=4)
    other = sharded()
    train(other, adam(other), steps=4)
    expect_equal(whole(model), whole(other))
    assert "blocks.1" in str(shoal.fsdp.step_graph(model))
    assert "_fsdp_wrapped_module" not in str(shoal.fsdp.step_graph(model))


# ---- printing ----------------------------------------------------------------------------------------------------------------------


@use
def describe_sharding_lists_units_and_parameters():
    from shoal.fsdp import describe_sharding

    model, _ = trained(ignored_modules=[])
    for _ in range(2):
        said = describe_sharding(model)
        rows = {p.name: p for p in said.parameters}
        assert list(rows) == [name for name, _ in Net().named_parameters()]
        head, inner = rows["head.weight"], rows["blocks.1.lin.weight"]
        assert (head.unit, inner.unit) == ("", "blocks.1")
        assert (head.shape, head.rank_shape, head.whole_bytes) == ((3, 7), ((2, 7), (1, 7))[rank()], 84)
        assert said.whole_bytes == 4 * sum(p.numel() for p in Net().parameters())
        assert "(root)" in next(line for line in str(said).splitlines() if line.startswith("head.weight "))
        model.unshard()  # the description is the same while the parameters are unsharded
    model.reshard()
    plain = describe_sharding(nn.Linear(2, 2)).parameters
    assert [(p.unit, p.placements) for p in plain] == [(None, "whole")] * 2


# ---- meshes -----------------------------------------------------------------------------------------------------------------------------


@use
def meshes_of_two_dims_shard_over_the_first_one_and_hybrid_ones_over_the_last():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import ShardingStrategy, StateDictType

    wanted = whole(trained()[0])
    for names in (None, ("dp", "tp")):
        model, _ = trained(device_mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=names))
        assert {p.placements for p in model.parameters()} == {(Shard(0),)}
        expect_equal(whole(model), wanted)
    mesh = init_device_mesh("cpu", (1, 2))
    model, optimizer = trained(device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    expect_equal(whole(model), wanted)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    saved = model.state_dict()
    assert all(saved[name].device_mesh == mesh and saved[name].placements == (Replicate(), Shard(0)) for name in wanted)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, FSDP.optim_state_dict(model, optimizer)))
    model.load_state_dict(saved)


@use
def tensor_parallel_models_have_whole_state_dicts():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = FSDP(parallelize_module(made(), mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()}), device_mesh=mesh["dp"])
    optimizer = adam(model)
    expect_equal(model.state_dict(), made().state_dict())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    saved, states = copy.deepcopy(model.state_dict()), copy.deepcopy(FSDP.optim_state_dict(model, optimizer))
    assert all(type(t) is torch.Tensor for t in saved.values())
    with FSDP.summon_full_params(model), torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    expect_equal(model.state_dict(), {name: 2 * t for name, t in saved.items()})
    with FSDP.summon_full_params(model, writeback=False):
        parallel = {name: p.detach() for name, p in model.named_parameters()}  # DTensors of the mesh of tensor parallelism
    for loaded in (saved, parallel):
        model.load_state_dict(loaded)
        expect_equal(model.state_dict(), {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in loaded.items()})
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, states))
    for name, values in FSDP.optim_state_dict(model, optimizer)["state"].items():
        expect_equal(values, states["state"][name])


# ---- the run -----------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
