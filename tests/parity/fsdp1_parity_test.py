"""FSDP1 as its users write it: losses and parameters equal those of torch's own FSDP1 over gloo, and of one plain process."""

import functools
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shoal.train import ScalingConfig, Trainer

STEPS, PER_RANK = 5, 6
CASES = {}


def case(function):
    """Registers a way to train. ``function(fsdp, wrap)`` returns a Way."""
    CASES[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block(7) for _ in range(3))
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tied(Net):
    """A model whose input table is also the head's weight. The parameter belongs to the unit around both modules."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Embedding(11, 7)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.inp.weight


def batch(step, of_rank, tokens=False):
    generator = torch.Generator().manual_seed(100 * step + of_rank)
    if tokens:
        return torch.randint(0, 11, (PER_RANK,), generator=generator)
    return torch.randn(PER_RANK, 5, generator=generator)


def loss_of(model, step, of_rank):
    tokens = isinstance(getattr(model, "inp", None), nn.Embedding)  # the wrapper passes `inp` on, so that this holds with and without it
    return model(batch(step, of_rank, tokens)).float().square().mean()


def our_api():
    from shoal import fsdp1
    from shoal.fsdp1 import wrap

    return fsdp1, wrap, fsdp1.FullyShardedDataParallel


def torch_api():
    from torch.distributed import fsdp
    from torch.distributed.fsdp import wrap

    wrapper = functools.partial(fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True)
    return fsdp, wrap, wrapper


class Way:
    """A way to train: the model, the arguments of FSDP, the optimizer, and hooks around forward and backward."""

    def __init__(
        self, model=Net, optimizer=None, clip=None, accumulate=1, wrap=None, plain=True, theirs=True, rtol=1e-4, atol=1e-6, **arguments
    ):
        self.model, self.clip, self.accumulate, self.arguments = model, clip, accumulate, arguments
        self.optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        self.wrap = wrap or (lambda module, cls: cls(module, **arguments))
        self.plain, self.theirs, self.tolerance = plain, theirs, {"rtol": rtol, "atol": atol}


@case
def one_unit(fsdp, wrap):
    return Way()


@case
def a_unit_per_block(fsdp, wrap):
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}))


@case
def zero_2(fsdp, wrap):
    policy = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return Way(auto_wrap_policy=policy, sharding_strategy=fsdp.ShardingStrategy.SHARD_GRAD_OP)


@case
def replicated(fsdp, wrap):
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), sharding_strategy=fsdp.ShardingStrategy.NO_SHARD, clip=0.3)


@case
def hybrid(fsdp, wrap):
    """Two replicas if the number of ranks is even, otherwise one."""
    from torch.distributed.device_mesh import init_device_mesh

    replicas = 2 if dist.get_world_size() % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))
    strategy = fsdp.ShardingStrategy.HYBRID_SHARD
    policy = wrap.ModuleWrapPolicy({Block})
    # torch's FSDP1 does not average over replicas on one-rank shards
    return Way(auto_wrap_policy=policy, sharding_strategy=strategy, device_mesh=mesh, theirs=mesh.size(1) > 1 or replicas == 1)


@case
def hybrid_zero_2_by_groups(fsdp, wrap):
    ranks = list(range(dist.get_world_size()))
    shard = dist.new_group(ranks)
    replicate = [dist.new_group([r]) for r in ranks][dist.get_rank()]
    strategy = fsdp.ShardingStrategy._HYBRID_SHARD_ZERO2
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), sharding_strategy=strategy, process_group=(shard, replicate), clip=0.1)


@case
def hybrid_over_hosts(fsdp, wrap):
    """Shards within hosts and replicates over them: one host, so one replica. (torch's FSDP1 asks the accelerator for the ranks per
    host.)"""
    strategy = fsdp.ShardingStrategy.HYBRID_SHARD
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), sharding_strategy=strategy, theirs=False)


@case
def in_a_process_group_of_its_own(fsdp, wrap):
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), process_group=dist.new_group(), forward_prefetch=True)


@case
def by_size_with_adadelta(fsdp, wrap):
    policy = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=100)
    return Way(auto_wrap_policy=policy, optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0))


@case
def by_a_function_with_adamw(fsdp, wrap):
    policy = functools.partial(wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, (nn.Linear, nn.LayerNorm)))
    return Way(auto_wrap_policy=policy, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))


@case
def every_module(fsdp, wrap):
    return Way(model=lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), auto_wrap_policy=wrap.always_wrap_policy)


@case
def with_arguments_of_their_own(fsdp, wrap):
    own = {"sharding_strategy": fsdp.ShardingStrategy.SHARD_GRAD_OP}
    return Way(auto_wrap_policy=wrap.CustomPolicy(lambda m: own if isinstance(m, Block) else getattr(m, "out_features", 0) == 3))


@case
def by_hand_inside_out(fsdp, wrap):
    def nested(module, cls):
        module.blocks[1].up = cls(module.blocks[1].up)
        module.blocks[1] = cls(module.blocks[1])
        return cls(module)

    return Way(wrap=nested)


@case
def by_annotation(fsdp, wrap):
    def nested(module, cls):
        with wrap.enable_wrap(wrapper_cls=cls, sharding_strategy=fsdp.ShardingStrategy.FULL_SHARD):
            module.blocks[0] = wrap.wrap(module.blocks[0])
            return wrap.wrap(module)

    return Way(wrap=nested)


@case
def a_tied_table(fsdp, wrap):
    return Way(model=Tied, auto_wrap_policy=wrap.ModuleWrapPolicy({Block}))


@case
def clipped(fsdp, wrap):
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), clip=0.05)


@case
def accumulated_without_synchronisation(fsdp, wrap):
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), accumulate=3)


@case
def with_ignored_modules(fsdp, wrap):
    def ignoring(module, cls):
        return cls(module, auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), ignored_states=[module.head.weight, module.head.bias])

    return Way(wrap=ignoring, plain=False)  # no rank reduces the gradients of ignored parameters, so that each has its own


@case
def in_bf16(fsdp, wrap):
    policy = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), mixed_precision=policy, plain=False, rtol=1e-2, atol=1e-3)


@case
def in_bf16_with_casts_at_every_unit(fsdp, wrap):
    policy = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, cast_forward_inputs=True)
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), mixed_precision=policy, plain=False, rtol=2e-2, atol=3e-3)


@case
def reduced_in_bf16(fsdp, wrap):
    policy = fsdp.MixedPrecision(reduce_dtype=torch.bfloat16)
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), mixed_precision=policy, plain=False, rtol=2e-2, atol=3e-3)


@case
def batch_norm_stays_in_fp32(fsdp, wrap):
    policy = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32)
    return Way(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        auto_wrap_policy=wrap.ModuleWrapPolicy({nn.Linear}),
        mixed_precision=policy,
        plain=False,
        rtol=1e-2,
        atol=1e-3,
    )


@case
def offloaded(fsdp, wrap):
    # torch's FSDP1 pins the offloaded memory, which needs an accelerator.
    return Way(auto_wrap_policy=wrap.ModuleWrapPolicy({Block}), cpu_offload=fsdp.CPUOffload(offload_params=True), theirs=False)


# ---- a run -------------------------------------------------------------------------------------------------------------------------


def train(way, api, cls):
    """Returns the losses of this rank, norms, and the whole final parameters of a sharded model."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = way.wrap(way.model(), cls)
    optimizer = way.optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    losses, norms = [], []
    for step in range(STEPS):
        for i in range(way.accumulate):
            loss = loss_of(model, 10 * step + i, rank)
            if i + 1 < way.accumulate:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
            losses.append(loss.item())
        if way.clip is not None:
            norms.append(model.clip_grad_norm_(way.clip).item())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    with api.FullyShardedDataParallel.state_dict_type(model, api.StateDictType.FULL_STATE_DICT):
        whole = {name: t.clone() for name, t in model.state_dict().items()}
    return losses, norms, whole


def train_plain(way):
    """Trains one plain model on all ranks' data. Returns the losses by rank, norms and final parameters."""
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = way.model()
    optimizer = way.optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    losses, norms = [], []
    for step in range(STEPS):
        for i in range(way.accumulate):
            of_ranks = [loss_of(model, 10 * step + i, r) for r in range(world)]
            (sum(of_ranks) / world).backward()
            losses.append(of_ranks[dist.get_rank()].item())
        if way.clip is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), way.clip).item())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return losses, norms, dict(model.state_dict())


def expect_same(got, wanted, way, whose):
    for what, a, b in zip(("losses", "norms"), got[:2], wanted[:2], strict=True):
        assert a == pytest.approx(b, rel=way.tolerance["rtol"], abs=way.tolerance["atol"]), f"{what} are not those of {whose}: {a}, {b}"
    assert list(got[2]) == list(wanted[2]), f"names are not those of {whose}"
    for name, t in got[2].items():
        torch.testing.assert_close(t, wanted[2][name], **way.tolerance, msg=lambda m, n=name: f"{n} is not that of {whose}: {m}")


def all_cases():
    """Runs all cases on this rank. Returns the name and traceback of each that failed."""
    failed = {}
    for name, function in CASES.items():
        try:
            ours, wrap, cls = our_api()
            theirs, their_wrap, their_cls = torch_api()
            way = function(ours, wrap)
            got = train(way, ours, cls)
            if way.plain:
                expect_same(got, train_plain(way), way, "one plain process")
            if way.theirs:
                expect_same(got, train(function(theirs, their_wrap), theirs, their_cls), way, "torch's FSDP1")
        except BaseException:  # goes on with the other cases
            failed[name] = traceback.format_exc()
        dist.barrier()
    return failed


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda world: f"world_{world}")
def failed(request):
    return Trainer(all_cases, scaling_config=ScalingConfig(num_workers=request.param)).fit().returns


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same(name, failed):
    for of_rank, failures in enumerate(failed):
        assert name not in failures, f"on rank {of_rank}: {failures[name]}"
