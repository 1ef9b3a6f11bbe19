"""Arguments, names and initialisation of FSDP1's wrapper, and torch's errors, in one run of two ranks."""

import functools
import warnings

import pytest
import torch
import torch.distributed as dist
from fsdp1_faults import FAULTS, try_fault
from fsdp1_net import Block, Net, adam, batch, expect_equal, rank, sharded, train, whole
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.tensor import DTensor

WORLD = 2
use = Uses()


# ---- initialisation ----------------------------------------------------------------------------------------------------------------


@use
def values_are_made_from_the_meta_device():
    def init(module):
        module.to_empty(device="cpu", recurse=False)
        for p in module.parameters(recurse=False):
            nn.init.constant_(p, 0.5)

    with torch.device("meta"):
        by_function, by_itself = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model = sharded(by_function, auto_wrap_policy=lambda module, recurse, nonwrapped_numel: True, param_init_fn=init)
    assert all((t == 0.5).all() for t in whole(model).values())
    torch.manual_seed(rank())
    model = sharded(by_itself, auto_wrap_policy=None, sync_module_states=True)
    assert (whole(model)["1.weight"] == 1).all()
    rows = [None] * WORLD
    dist.all_gather_object(rows, whole(model)["0.weight"])
    assert torch.equal(rows[0], rows[1])
    with torch.device("meta"):
        bare = nn.Sequential()
        bare.register_parameter("p", nn.Parameter(torch.empty(3)))
    with pytest.raises(ValueError, match=r"the module \(Sequential\) is on the meta device and has no reset_parameters"):
        sharded(bare, auto_wrap_policy=None)
    with pytest.raises(ValueError, match="left the module"):
        sharded(bare, auto_wrap_policy=None, param_init_fn=lambda m: None)


@use
def all_ranks_start_with_rank_0s_values():
    module = Net()
    with torch.no_grad():
        for p in module.parameters():
            p += rank()
        module.blocks[0].norm.running_mean += rank()
    model = sharded(module, sync_module_states=True)
    expect_equal(whole(model), dict(Net().named_parameters()))
    assert (model.blocks[0].norm.running_mean == 0).all()


@use
def ignored_modules_are_not_changed():
    module = Net()
    kept = module.head.weight
    model = sharded(module, ignored_modules=[module.head, module.blocks[1]])
    assert model.head.weight is kept
    assert type(model.blocks[1]) is Block
    assert not isinstance(model.blocks[1].lin.weight, DTensor)
    assert isinstance(model.blocks[0].lin.weight, DTensor)
    assert list(model.state_dict()) == list(Net().state_dict())
    model.load_state_dict(model.state_dict())
    train(model, adam(model))
    outer = sharded(nn.Sequential(model), auto_wrap_policy=None)
    assert outer[0].head.weight is kept


@use
def an_embedding_in_two_places_stays_in_the_unit_around():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.encoder = nn.ModuleDict({"table": self.table, "lin": nn.Linear(4, 4)})
            self.head = nn.Linear(4, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, i):
            return self.head(self.encoder["lin"](self.table(i) + self.encoder["table"](i)))

    with pytest.warns(UserWarning, match=r"head, table: shared with other modules"):
        model = sharded(Shared(), auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or not list(module.children()))
    assert [type(m.module).__name__ for m in model.fsdp_modules(model)] == ["Shared", "Linear"]
    optimizer = adam(model)
    for _ in range(2):
        model(torch.arange(9)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.head.weight is model.table.weight is model.encoder["table"].weight
    assert "head.weight" in model.state_dict()


@use
def buffers_are_cast_for_computing_and_saved_as_they_were():
    from shoal.fsdp1 import MixedPrecision

    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(5, 5)
            self.register_buffer("shift", torch.ones(5))
            self.register_buffer("count", torch.ones((), dtype=torch.int64))

        def forward(self, x):
            return super().forward(x) + self.shift

    policy = MixedPrecision(buffer_dtype=torch.float64)
    model = sharded(nn.Sequential(Shifted(), Shifted()), auto_wrap_policy=lambda **of: True, mixed_precision=policy)
    assert model.state_dict()["0.shift"].dtype == torch.float32
    assert model[0](batch(0, rank())).dtype == torch.float64
    assert (model[0].shift.dtype, model[0].count.dtype) == (torch.float64, torch.int64)
    assert model.state_dict()["0.shift"].dtype == torch.float32


@use
def hooks_on_gradients_and_adapters_added_after_sharding():
    def grown(model, block):
        for p in model.parameters():
            p.register_hook(lambda g: g / 2)
        block.extra = nn.Parameter(torch.full((5,), 2.0))
        block.register_forward_hook(lambda m, args, out: out * m.extra)

    def models():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 5)))

    plain, model = (
        models(),
        sharded(models(), auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or len([*module.children()])),
    )
    grown(plain, plain[2])
    grown(model, model.module[2].module)
    x = [torch.randn(4, 5, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)]
    model(x[rank()]).square().mean().backward()
    (sum(plain(t).square().mean() for t in x) / WORLD).backward()
    gradients = {name.replace("_fsdp_wrapped_module.", ""): p.grad for name, p in model.named_parameters()}
    assert gradients.keys() == dict(plain.named_parameters()).keys()
    for name, p in plain.named_parameters():
        got = gradients[name]
        torch.testing.assert_close(got.full_tensor() if isinstance(got, DTensor) else got, p.grad)


# ---- arguments ---------------------------------------------------------------------------------------------------------------------


@use
def every_name_of_fsdp1_exists():
    import inspect

    from torch.distributed import fsdp as theirs
    from torch.distributed.fsdp import wrap as their_wrap

    from shoal import fsdp1
    from shoal.fsdp1 import fully_sharded_data_parallel, wrap
    from shoal.fsdp1.fully_sharded_data_parallel import BackwardPrefetch, CPUOffload  # noqa: F401  as tutorials import them

    fsdp2 = set(theirs._fully_shard.__all__)
    assert not [n for n in theirs.__all__ if n not in fsdp2 and not hasattr(fsdp1, n)]
    assert not [n for n in their_wrap.__all__ if not hasattr(wrap, n)]
    assert not [n for n in fully_sharded_data_parallel.__all__ if not hasattr(fsdp1, n)]
    ours, cls = fsdp1.FullyShardedDataParallel, theirs.FullyShardedDataParallel
    assert not [n for n in dir(cls) if not n.startswith("_") and not hasattr(ours, n)]
    arguments = list(inspect.signature(cls.__init__).parameters)
    assert list(inspect.signature(ours.__init__).parameters)[: len(arguments)] == arguments
    for name in ("state_dict_type", "summon_full_params", "optim_state_dict_to_load", "full_optim_state_dict", "clip_grad_norm_"):
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(inspect.signature(getattr(cls, name)).parameters), name


@use
def deprecated_names_work_with_a_warning():
    from shoal import fsdp1
    from shoal.fsdp1 import wrap

    with pytest.warns(FutureWarning, match="is now called auto_wrap_policy"):
        model = sharded(auto_wrap_policy=None, fsdp_auto_wrap_policy=wrap.default_auto_wrap_policy)
    assert len(model.fsdp_modules(model)) == 1  # the default policy makes units of modules with 100,000 parameters, and there is none
    with pytest.warns(FutureWarning, match=r"is taken as ModuleWrapPolicy"):
        policy = wrap.transformer_auto_wrap_policy(transformer_layer_cls={Block})
    assert len(model.fsdp_modules(sharded(auto_wrap_policy=policy))) == 3
    with pytest.warns(FutureWarning, match=r"write that"):
        assert sharded(sharding_strategy="SHARD_GRAD_OP").sharding_strategy is fsdp1.ShardingStrategy.SHARD_GRAD_OP
    with pytest.warns(FutureWarning, match="is now called apply_activation_checkpointing"):
        assert fsdp1.apply_activation_checkpointing_wrapper is fsdp1.apply_activation_checkpointing


@use
def nonexistent_names_are_errors_with_a_hint():
    from shoal import fsdp1
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import wrap

    model = sharded()
    for refused, says in (
        (lambda: sharded(flatten_parameters=True), "no argument flatten_parameters: it was FairScale's"),
        (lambda: sharded(find_unused_parameters=True), "no argument find_unused_parameters: it belongs to DistributedDataParallel"),
        (lambda: sharded(nonsense=1), "no argument nonsense$"),
        (lambda: sharded(auto_wrap_policy=wrap.transformer_auto_wrap_policy), "transformer_layer_cls="),
        (lambda: fsdp1.CPUOffload(offload_params=True, offload_gradients=True), "gradients go with the parameters"),
        (lambda: fsdp1.ShardedStateDictConfig(offload_to_cpu=True, rank0_only=True), "FullStateDictConfig"),
        (lambda: FSDP.StateDictType.FULL_STATE_DICT, "from shoal.fsdp1 import StateDictType"),
        (lambda: model.state_dict(state_dict_type=1, fsdp_state_dict_config=2), "with FSDP.state_dict_type"),
        (lambda: sharded(sharding_strategy="ZERO3"), "there are FULL_SHARD"),
        (lambda: sharded(sharding_strategy=3), "should be a ShardingStrategy"),
        (lambda: sharded(cpu_offload=True), "cpu_offload should be a CPUOffload"),
        (lambda: sharded(mixed_precision=torch.bfloat16), "mixed_precision should be a MixedPrecision"),
        (lambda: sharded(backward_prefetch="BACKWARD_PRE"), "backward_prefetch should be a BackwardPrefetch"),
        (lambda: sharded(forward_prefetch=None), "forward_prefetch should be a bool"),
        (lambda: sharded(param_init_fn=1), "param_init_fn should be a function"),
        (lambda: sharded(device_id=1.5), "device_id should be"),
        (lambda: sharded(process_group="world"), "process_group should be a ProcessGroup or None, got str"),
        (
            lambda: sharded(sharding_strategy=fsdp1.ShardingStrategy.HYBRID_SHARD, process_group=("shard", "replicate")),
            "a member of process_group should be a ProcessGroup, got str",
        ),
        (lambda: sharded(ignored_states=[1]), "ignored_states expects all"),
        (lambda: sharded(ignored_modules=3), "ignored_modules should be an iterable"),
        (lambda: sharded(ignored_modules=[], ignored_states=[]), "both ignored_modules and ignored_states"),
        (lambda: sharded(auto_wrap_policy=3), "auto_wrap_policy should be"),
        (lambda: sharded(sharding_strategy=fsdp1.ShardingStrategy.HYBRID_SHARD, auto_wrap_policy=None), "Units must share their groups"),
        (lambda: FSDP(3), "wraps a module, not a int"),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError), match=says):
            refused()


@use
def inner_wrappers_of_other_kinds_are_an_error():
    from torch.distributed import fsdp as theirs
    from torch.nn.parallel import DistributedDataParallel

    import shoal.fsdp

    with_ddp, with_ours, with_theirs = Net(), Net(), Net()
    with_ddp.head = DistributedDataParallel(with_ddp.head)
    shoal.fsdp.fully_shard(with_ours.blocks[0])
    theirs.fully_shard(with_theirs.blocks[0])
    for module, says in (
        (with_ddp, r"head \(DistributedDataParallel\) is wrapped in DistributedDataParallel"),
        (with_ours, r"blocks.0 \(FSDPBlock\) is a unit of fully_shard already"),
        (with_theirs, r"blocks.0 \(FSDPBlock\) is sharded by torch.distributed.fsdp"),
        (sharded(), r"the module \(FullyShardedDataParallel\) is a unit already"),
    ):
        with pytest.raises(ValueError, match=says):
            sharded(module)
    with pytest.raises(ValueError, match="DistributedDataParallel cannot wrap an FSDP model"):
        DistributedDataParallel(sharded())


@use
def a_device_number_without_an_accelerator_means_the_cpu():
    from internals.fsdp1 import _arguments

    if not torch.accelerator.is_available():
        _arguments._warn_of_no_accelerator.cache_clear()  # the warning comes once per process; this makes it come again
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert sharded(device_id=rank()).compute_device == torch.device("cpu")
            sharded(device_id=rank())
        assert [str(w.message).partition(":")[0] for w in seen if "device_id" in str(w.message)] == [
            f"device_id={rank()} counts accelerators, and there is none here"
        ]
        with pytest.raises(ValueError, match=r"FSDP on cuda:0: torch finds no CUDA device here"):
            sharded(device_id=torch.device("cuda", 0))
        with pytest.raises(NotImplementedError, match=r"FSDP on mps: only the CPU and CUDA devices are supported"):
            sharded(device_id=torch.device("mps"))
        assert sharded(device_id=torch.device("cpu"), limit_all_gathers=False, forward_prefetch=True, backward_prefetch=None).rank == rank()


# ---- torch's errors ------------------------------------------------------------------------------------------------------------------


use.update({name: functools.partial(try_fault, name) for name in FAULTS})


# ---- the run -----------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
