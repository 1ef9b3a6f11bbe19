"""State of FSDP1 models: state dicts, whole parameters, optimizer states; in one run of two ranks."""

import copy
import functools
import tempfile

import pytest
import torch
import torch.distributed as dist
from fsdp1_net import Block, Net, adam, batch, expect_equal, rank, sharded, train, trained, whole
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.tensor import DTensor

WORLD = 2
use = Uses()


# ---- state dicts -------------------------------------------------------------------------------------------------------------------


@use
def whole_state_dicts_are_those_of_the_module():
    from shoal.fsdp1 import FullStateDictConfig, StateDictType
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    untrained = sharded().state_dict()
    expect_equal(untrained, Net().state_dict())
    model, _ = trained()
    wanted = whole(model)
    saved = model.state_dict()
    expect_equal({k: v for k, v in saved.items() if k in wanted}, wanted)
    assert list(saved) == list(untrained)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
        on_first = model.state_dict()
    assert list(on_first) == (list(saved) if rank() == 0 else [])
    assert all(type(t) is torch.Tensor for t in on_first.values())
    plain = Net()
    plain.load_state_dict(saved)
    other = sharded()
    other.load_state_dict(saved)
    expect_equal(whole(other), wanted)
    expect_equal(dict(other.named_buffers()), dict(model.named_buffers()))
    model.eval(), other.eval(), plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(other(batch(5, 0)), plain(batch(5, 0)))
        assert torch.equal(other(batch(5, 0)), model(batch(5, 0)))
    assert model.load_state_dict(saved).missing_keys == []
    wrong = {**saved, "more": torch.ones(1)}
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: .*more"):
        model.load_state_dict(wrong)


@use
def tensors_that_an_operator_reads_from_a_file_are_loaded():
    """Lightning's state dicts have such objects: no tensors, but they load their values when a torch function uses them."""

    class Unread:
        def __init__(self, tensor):
            self._tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function(*(a._tensor if isinstance(a, cls) else a for a in args), **(kwargs or {}))

    model, _ = trained()
    other = sharded()
    other.load_state_dict({k: Unread(v) for k, v in model.state_dict().items()})
    expect_equal(whole(other), whole(model))


@use
def sharded_and_local_state_dicts_hold_this_ranks_rows():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import LocalStateDictConfig, ShardedStateDictConfig, StateDictType

    model, _ = trained()
    wanted = whole(model)
    for kind, config, holds in (
        (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True), DTensor),
        (StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig(), torch.Tensor),
    ):
        with FSDP.state_dict_type(model, kind, config):
            saved = {k: v.clone() for k, v in model.state_dict().items()}
            assert list(saved) == list(Net().state_dict())
        assert all(type(saved[name]) is holds for name in wanted)
        rows = [saved["head.weight"]] if holds is torch.Tensor else [saved["head.weight"].to_local()]
        assert rows[0].shape == ((2, 7), (1, 7))[rank()]
        other = sharded()
        with FSDP.state_dict_type(other, kind, config):
            other.load_state_dict(saved)
        expect_equal(whole(other), wanted)


@use
def state_dict_settings_nest_and_are_checked():
    from shoal.fsdp1 import FullStateDictConfig, ShardedStateDictConfig, StateDictType
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    model = sharded()
    assert FSDP.get_state_dict_type(nn.Linear(1, 1)) is None
    before = FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    assert before.state_dict_type is StateDictType.FULL_STATE_DICT
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        assert FSDP.get_state_dict_type(model).state_dict_config.rank0_only
    assert FSDP.get_state_dict_type(model.blocks).state_dict_type is StateDictType.SHARDED_STATE_DICT
    with pytest.raises(TypeError, match="with FULL_STATE_DICT"):
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, ShardedStateDictConfig())
    with pytest.raises(ValueError, match="Linear has no FSDP unit"):
        FSDP.set_state_dict_type(nn.Linear(1, 1), StateDictType.FULL_STATE_DICT)
    FSDP.set_state_dict_type(model.blocks[0], StateDictType.FULL_STATE_DICT)
    with pytest.raises(ValueError, match="same state dict settings"):
        FSDP.get_state_dict_type(model)


@use
def deprecated_functions_of_state_dicts_warn_as_torchs():
    from torch.distributed.fsdp import FullyShardedDataParallel as Theirs

    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import StateDictType

    full = StateDictType.FULL_STATE_DICT
    model, optimizer = trained()
    plain = nn.Linear(2, 2)
    with pytest.warns(FutureWarning) as theirs:
        Theirs.set_state_dict_type(plain, full)
    with pytest.warns(FutureWarning) as of_set:
        FSDP.set_state_dict_type(model, full)
    with pytest.warns(FutureWarning) as of_context, FSDP.state_dict_type(model, full):
        pass
    assert [(str(w.message), w.filename) for w in (*of_set, *of_context)] == [(str(theirs[0].message), __file__)] * 2
    whole_state = FSDP.optim_state_dict(model, optimizer)
    for name, instead, arguments in (
        ("full_optim_state_dict", "optim_state_dict", (model, optimizer)),
        ("sharded_optim_state_dict", "optim_state_dict", (model, optimizer)),
        ("shard_full_optim_state_dict", "optim_state_dict_to_load", (whole_state, model, None, optimizer)),
        ("scatter_full_optim_state_dict", "optim_state_dict_to_load", (whole_state, model, None, optimizer)),
        ("flatten_sharded_optim_state_dict", "optim_state_dict_to_load", (whole_state, model, optimizer)),
    ):
        with pytest.warns(FutureWarning, match=rf"Parallel\.{name}``is being deprecated and is replaced by .*\.{instead}``") as found:
            getattr(FSDP, name)(*arguments)
        assert found[0].filename == __file__


@use
def state_dicts_through_checkpointed_modules():
    from shoal.fsdp1 import CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper

    wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    after = sharded()
    apply_activation_checkpointing(after, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: isinstance(m, nn.Linear))
    inside = Net()
    apply_activation_checkpointing(inside, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: isinstance(m, Block))
    plain = Net()
    for model in (after, sharded(inside)):
        expect_equal(model.state_dict(), plain.state_dict())
        model.load_state_dict(plain.state_dict())
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
        train(model, adam(model))
    for step in range(1):
        sum(plain(batch(step, r)).square().mean() for r in range(1)).backward()


@use
def a_part_of_a_larger_module():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = sharded(), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(self.a(x))

    outer = Outer()
    outer(batch(0, rank())).sum().backward()
    names = [f"a.{name}" for name in Net().state_dict()] + ["b.weight", "b.bias"]
    assert list(outer.state_dict()) == names
    outer.load_state_dict(outer.state_dict())


@use
def shoals_own_checkpoints():
    from shoal import checkpoint

    model, optimizer = trained()
    folder = _shared_folder()
    checkpoint.save(folder, model, optimizer)
    assert set(checkpoint.read_manifest(folder).tensors) == set(Net().state_dict())

    def load(other, second):
        checkpoint.load(folder, other, second)

    _expect_optimizer_goes_on(model, optimizer, load)


@use
def torchs_distributed_state_dicts_use_the_modules_names():
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import StateDictType

    model, optimizer = trained()
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    model_states, optimizer_states = copy.deepcopy(get_state_dict(model, optimizer))
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    assert list(model_states) == list(Net().state_dict())
    assert set(optimizer_states["state"]) == {name for name, _ in Net().named_parameters()}

    def load(other, second):
        set_state_dict(other, second, model_state_dict=model_states, optim_state_dict=optimizer_states)

    _expect_optimizer_goes_on(model, optimizer, load)


@use
def parameters_computed_in_bf16_are_saved_and_summoned_in_fp32():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import MixedPrecision

    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, optimizer = trained(mixed_precision=policy)
    wanted = whole(model)
    assert {t.dtype for t in wanted.values()} == {torch.float32}
    saved = model.state_dict()
    expect_equal({name: saved[name] for name in wanted}, wanted)
    with FSDP.summon_full_params(model):
        expect_equal({n: p.detach() for n, p in model.named_parameters()}, wanted)
    train(model, optimizer, first=2)
    assert model(batch(5, rank())).dtype == torch.bfloat16
    model.unshard()
    assert model.head.weight.dtype == torch.bfloat16
    model.reshard()


@use
def gradients_that_stay_in_the_dtype_of_their_reduction():
    from shoal.fsdp1 import MixedPrecision

    low = {"reduce_dtype": torch.bfloat16, "_module_classes_to_ignore": ()}
    kept, upcast = (sharded(mixed_precision=MixedPrecision(**low, keep_low_precision_grads=keep)) for keep in (True, False))
    for model in (kept, upcast):
        for step in range(3):  # the second and third steps add to the gradients
            model(batch(step, rank())).square().mean().backward()
    for p, q in zip(kept.parameters(), upcast.parameters(), strict=True):
        assert (p.grad.dtype, q.grad.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(p.grad.full_tensor().float(), q.grad.full_tensor(), rtol=2e-2, atol=1e-3)
    torch.optim.SGD(kept.parameters(), lr=0.1).step()
    kept(batch(3, rank())).square().mean().backward()


# ---- whole parameters --------------------------------------------------------------------------------------------------------------


@use
def summon_full_params_shows_whole_parameters_and_writes_them_back():
    from shoal.fsdp import register_fsdp_forward_method
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    model, optimizer = trained()
    wanted = whole(model)
    with FSDP.summon_full_params(model, writeback=False):
        expect_equal({n: p.detach() for n, p in model.named_parameters()}, wanted)
        assert [n for n, _ in model.module.named_parameters()][:2] == ["inp.weight", "inp.bias"]
        model.head.weight.data.zero_()
        with pytest.raises(ValueError, match="inside summon_full_params cannot compute gradients"):
            model(batch(0, rank()))
    expect_equal(whole(model), wanted)
    # Evaluates inside of summon_full_params, a different number of times on each rank, as transformers' Seq2SeqTrainer does to generate.
    register_fsdp_forward_method(model, "predict")
    model.eval()
    with torch.no_grad():
        before = model(batch(0, rank()))
        for options in ({}, {"recurse": False}):
            with FSDP.summon_full_params(model, writeback=False, **options):
                for _ in range(1 if options else 1 + rank()):
                    torch.testing.assert_close(model(batch(0, rank())), before)
                    torch.testing.assert_close(model.predict(batch(0, rank())), before.argmax(1))
        with FSDP.summon_full_params(model, rank0_only=True, writeback=False):
            if rank() == 0:
                torch.testing.assert_close(model(batch(0, rank())), before)
            else:
                with pytest.raises(ValueError, match=r"no whole parameters \(rank0_only\)"):
                    model(batch(0, rank()))
    expect_equal(whole(model), wanted)
    model.train()
    with FSDP.summon_full_params(model), FSDP.summon_full_params(model.blocks[0]), torch.no_grad():
        model.head.weight.mul_(2)
        model.blocks[0].lin.bias.fill_(3)
    after = whole(model)
    expect_equal({n: after[n] for n in ("head.weight",)}, {"head.weight": 2 * wanted["head.weight"]})
    assert (after["blocks.0.lin.bias"] == 3).all()
    with FSDP.summon_full_params(model, recurse=False, writeback=False):
        assert not isinstance(model.head.weight, DTensor)
        assert isinstance(model.blocks[0].lin.weight, DTensor)
        with torch.no_grad():
            # runs the module inside of the wrapper, as generate() does; the inner units unshard as usual
            model.module.eval()(batch(0, rank()))
    with FSDP.summon_full_params(model, rank0_only=True, writeback=False, offload_to_cpu=True):
        assert isinstance(model.head.weight, DTensor) == (rank() != 0)
    model.train()
    train(model, optimizer, first=2)


@use
def summon_full_params_with_gradients():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    model = sharded()
    model(batch(0, rank())).square().mean().backward()
    wanted = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
    with FSDP.summon_full_params(model, with_grads=True):
        expect_equal({n: p.grad for n, p in model.named_parameters()}, wanted)
        model.head.bias.grad.fill_(5)
    assert (model.head.bias.grad.full_tensor() == 5).all()
    for arguments in ({"rank0_only": True}, {"with_grads": True, "offload_to_cpu": True}):
        with pytest.raises(NotImplementedError), FSDP.summon_full_params(model, **arguments):
            pass


# ---- optimizer states --------------------------------------------------------------------------------------------------------------


def _shared_folder():
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    return folder[0]


def _expect_optimizer_goes_on(model, optimizer, load):
    """Saves the optimizer's state and trains on. Then loads the state by ``load`` into the optimizer of a second model, trains that on,
    and compares both models."""
    other = sharded()
    other.load_state_dict(model.state_dict())
    second = adam(other)
    load(other, second)
    train(model, optimizer, first=2)
    train(other, second, first=2)
    expect_equal(whole(other), whole(model))


@use
def optimizer_states_of_every_kind_are_restored():
    from shoal.fsdp1 import FullOptimStateDictConfig, StateDictType
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP

    for kind, config in (
        (StateDictType.FULL_STATE_DICT, None),
        (StateDictType.FULL_STATE_DICT, FullOptimStateDictConfig(rank0_only=True)),
        (StateDictType.SHARDED_STATE_DICT, None),
        (StateDictType.LOCAL_STATE_DICT, None),
    ):
        model, optimizer = trained()
        with FSDP.state_dict_type(model, kind, None, config):
            saved = copy.deepcopy(FSDP.optim_state_dict(model, optimizer))
        if config is not None and rank() != 0:
            assert saved == {}
        else:
            assert list(saved["state"]) == [n for n, _ in Net().named_parameters()]
            assert saved["param_groups"][0]["params"] == list(saved["state"])
            moment = saved["state"]["head.weight"]["exp_avg"]
            assert isinstance(moment, DTensor) == (kind is StateDictType.SHARDED_STATE_DICT)
            assert moment.shape == ((3, 7) if kind is not StateDictType.LOCAL_STATE_DICT else ((2, 7), (1, 7))[rank()])

        def load(other, second, kind=kind, config=config, saved=saved):
            with FSDP.state_dict_type(other, kind, None, config):
                FSDP.optim_state_dict_to_load(other, second, saved, load_directly=True)

        _expect_optimizer_goes_on(model, optimizer, load)


@use
def optimizer_states_are_restored_by_torchs_sharded_loader():
    """torch's loader returns ShardedTensors that are cut over all ranks. FULL_SHARD has such states, NO_SHARD has not."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import ShardingStrategy, StateDictType

    def module():  # the second rank has no row of the last weight
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
        model, other = (sharded(module(), auto_wrap_policy=None, sharding_strategy=strategy) for _ in range(2))
        optimizer, second = adam(model), adam(other)
        train(model, optimizer)
        folder = _shared_folder()
        for m in (model, other):
            FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT)
        dcp.save({"optim": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=folder)
        other.load_state_dict(model.state_dict())
        reader = dcp.FileSystemReader(folder)
        loaded = load_sharded_optimizer_state_dict(other.state_dict(), optimizer_key="optim", storage_reader=reader)["optim"]
        assert isinstance(loaded["state"]["0.weight"]["exp_avg"], ShardedTensor)
        second.load_state_dict(FSDP.optim_state_dict_to_load(other, second, loaded))
        for m, o in ((model, optimizer), (other, second)):
            train(m, o, first=2)
        expect_equal(whole(other), whole(model))


@use
def a_sharded_state_loads_into_an_unstepped_optimizer():
    """Accelerate resumes in this way: torch.distributed.checkpoint loads into an existing state."""
    import torch.distributed.checkpoint as dcp

    import shoal.optim
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import StateDictType

    for make in (
        adam,
        lambda m: shoal.optim.AdamW(m.parameters(), lr=1e-2),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    ):
        model, other = sharded(), sharded()
        optimizer, second = make(model), make(other)
        train(model, optimizer)
        other.load_state_dict(model.state_dict())
        before = whole(other)
        folder = _shared_folder()
        assert FSDP.optim_state_dict(other, second)["state"] == {}
        for m in (model, other):
            FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT)
        dcp.save({"optim": FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=folder)
        into = {"optim": FSDP.optim_state_dict(other, second)}
        assert len(second.state) == 0
        assert all(p.grad is None for p in other.parameters())
        assert all(values.get("step", 0) == 0 for values in into["optim"]["state"].values())
        expect_equal(whole(other), before)
        dcp.load(into, checkpoint_id=folder)
        second.load_state_dict(FSDP.optim_state_dict_to_load(other, second, into["optim"]))
        for m, o in ((model, optimizer), (other, second)):
            train(m, o, first=2)
        expect_equal(whole(other), whole(model))


@use
def the_deprecated_names_for_optimizer_states_work():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import OptimStateKeyType

    model, optimizer = trained()
    full = FSDP.full_optim_state_dict(model, optimizer)
    assert bool(full) == (rank() == 0)
    everywhere = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
    parts = FSDP.sharded_optim_state_dict(model, optimizer)

    # from names to numbers and back: this sorts the names in a group, but an optimizer finds parameters by their position
    def renamed(state, model):
        return FSDP.rekey_optim_state_dict(
            FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, model), OptimStateKeyType.PARAM_NAME, model
        )

    for make in (
        lambda other, second: FSDP.scatter_full_optim_state_dict(full if rank() == 0 else None, other, optim=second),
        lambda other, second: FSDP.scatter_full_optim_state_dict(full if rank() == 0 else None, other, optim_input=other.parameters()),
        lambda other, second: FSDP.shard_full_optim_state_dict(everywhere, other, optim=second),
        lambda other, second: FSDP.flatten_sharded_optim_state_dict(copy.deepcopy(parts), other, second),
        lambda other, second: FSDP.optim_state_dict_to_load(other, second, renamed(everywhere, other)),
    ):
        model, optimizer = trained()
        _expect_optimizer_goes_on(model, optimizer, lambda other, second, make=make: second.load_state_dict(make(other, second)))
    # From and to the state of the unwrapped module's optimizer, whose keys are numbers.
    plain = Net()
    counted = FSDP.rekey_optim_state_dict(everywhere, OptimStateKeyType.PARAM_ID, plain)
    adam(plain).load_state_dict(counted)
    assert sorted(counted["state"]) == list(range(len(list(plain.parameters()))))
    named = FSDP.rekey_optim_state_dict(counted, OptimStateKeyType.PARAM_NAME, plain)
    assert set(named["state"]) == set(everywhere["state"])
    with pytest.raises(ValueError, match="should be all names or all numbers"):
        FSDP.rekey_optim_state_dict({"state": {0: {}, "a": {}}, "param_groups": []}, OptimStateKeyType.PARAM_ID, plain)
    with pytest.raises(ValueError, match=r'must have the keys "state".*"param_groups"'):
        FSDP.optim_state_dict_to_load(model, optimizer, {"exp_avg": 1})


# ---- the run -----------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
