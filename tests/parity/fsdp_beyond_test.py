"""Behaviour that FSDP2 refuses or leaves to the user, and parameters replaced in a sharded model: two ranks, one run."""

import dataclasses
import re
import sys
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import prune
from uses import Uses, check, ranks, run

from shoal import _native
from shoal.exceptions import InvalidArgument

WORLD = 2
use = Uses()


class Net(nn.Module):
    def __init__(self, width=7):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, width)) for _ in range(3))
        self.encoder = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 5)
        self.skipped = set()

    def forward(self, x):
        x = self.inp(x)
        for i, block in enumerate(self.blocks):
            if i not in self.skipped:
                x = x + block(x)
        return self.head(self.encoder(x))

    def generate(self, x):
        return self.head(self.encoder(self.inp(x)))


def shard(model, **options):
    from shoal.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def rank():
    return torch.distributed.get_rank()


def batch(step, of_rank):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + of_rank))


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def same_as_plain(model, plain, loss=lambda model, step, r: model(batch(step, r)).square().mean(), steps=2, rtol=1e-4, lr=0.1):
    """Trains both models, and compares gradients and parameters after each step. The plain model gets the mean over all ranks."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=lr) for m in (model, plain)]
    for step in range(steps):
        loss(model, step, rank()).backward()
        (sum(loss(plain, step, r) for r in range(WORLD)) / WORLD).backward()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            got = full(p.grad)
            assert (got is None) == (q.grad is None), f"{name}: {got} is not {q.grad}"
            if got is not None:
                torch.testing.assert_close(got, q.grad, rtol=rtol, atol=1e-5, msg=lambda m, n=name: f"gradient of {n}: {m}")
        for o in optimizers:
            o.step()
            o.zero_grad()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(full(p), q, rtol=rtol, atol=1e-5, msg=lambda m, n=name: f"parameter {n}: {m}")


# ---- replaced parameters -------------------------------------------------------------------------------------------------------------


@use
def to_empty_and_initialised():
    with torch.device("meta"):
        model = shard(Net())
    model.to_empty(device="cpu")
    for (_, p), q in zip(model.named_parameters(), Net().parameters(), strict=True):
        with torch.no_grad():
            p.copy_(torch.distributed.tensor.distribute_tensor(q.data, p.device_mesh, p.placements))
    same_as_plain(model, Net())


@use
def uninitialised_parameters_after_to_empty_are_an_error():
    with torch.device("meta"):
        model = shard(Net())
    model.to_empty(device="cpu")
    for name, p in model.named_parameters():
        if name != "blocks.1.2.weight":
            nn.init.ones_(p)
    with pytest.raises(ValueError, match=r"parameter 2.weight was never initialised after to_empty"):
        model(batch(0, rank()))


@use
def parameters_left_on_the_meta_device_are_an_error():
    with torch.device("meta"):
        model = shard(Net())
    with pytest.raises(ValueError, match=r"on meta device: \['inp\.weight'.*'head\.bias'.*'blocks\.2\.2\.bias'\]"):
        model(batch(0, rank()))


@use
def load_state_dict_with_assign():
    model = shard(Net())
    loaded = {
        name: torch.distributed.tensor.distribute_tensor(q.data + 0.01, p.device_mesh, p.placements)
        for (name, p), q in zip(model.named_parameters(), Net().parameters(), strict=True)
    }
    model.load_state_dict(loaded, assign=True)
    plain = Net()
    plain.load_state_dict({name: p + 0.01 for name, p in plain.state_dict().items()})
    same_as_plain(model, plain)


@use
def load_state_dict_of_whole_tensors_with_assign():
    model = shard(Net())
    plain = Net()
    plain.load_state_dict({name: p + 0.01 for name, p in plain.state_dict().items()})
    model.load_state_dict(plain.state_dict(), assign=True)
    same_as_plain(model, plain)


def _converted(before):
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if not before:
        model(batch(0, rank())).sum().backward()
        optimizer.zero_grad()
    model.double()
    x = batch(0, rank()).double()
    model(x).square().mean().backward()
    plain = Net().double()
    sum(plain(batch(0, r).double()).square().mean() / WORLD for r in range(WORLD)).backward()
    optimizer.step()  # built before the conversion, and still valid
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert p.dtype == p.grad.dtype == torch.float64, name
        torch.testing.assert_close(full(p.grad), q.grad, msg=lambda m, n=name: f"gradient of {n}: {m}")
        torch.testing.assert_close(full(p.detach()), q.detach(), msg=lambda m, n=name: f"{n}: {m}")


@use
def converted_to_another_dtype_before_the_first_forward():
    _converted(True)


@use
def converted_to_another_dtype_between_steps():
    _converted(False)


@use
def functional_call_with_other_weights_is_refused():
    model, plain = shard(Net()), Net()
    whole = {name: p.detach() + 0.1 for name, p in plain.named_parameters()}
    for as_given in (
        lambda: whole,
        lambda: {name: nn.Parameter(t) for name, t in whole.items()},
        lambda: {name: p.detach() + 0.1 for name, p in model.named_parameters()},
        lambda: {"head.weight": whole["head.weight"]},
        lambda: {"blocks.1.0.bias": nn.Parameter(whole["blocks.1.0.bias"])},
    ):
        for evaluated in (False, True):  # with the write window open, and closed
            with torch.no_grad():
                if evaluated:
                    model(batch(0, 0))
                    model.reshard()
                before = [full(p).clone() for p in model.parameters()]
                for call in (torch.func.functional_call, torch.nn.utils.stateless.functional_call):
                    with pytest.raises(NotImplementedError, match=r"for one forward \(torch.func.functional_call"):
                        call(model, as_given(), (batch(0, 0),))
                model.reshard()
                assert all(torch.equal(full(p), q) for p, q in zip(model.parameters(), before, strict=True))
        torch.testing.assert_close(torch.func.functional_call(model, dict(model.named_parameters()), (batch(0, 0),)), plain(batch(0, 0)))
        same_as_plain(model, plain, steps=1)


@use
def parametrized_after_sharding_is_refused():
    def weight_norm(layer):
        torch.nn.utils.parametrizations.weight_norm(layer)

    def own(layer):
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())

    def pruned(layer):
        prune.identity(layer, "weight")

    for change in (weight_norm, own, pruned):
        for evaluated in (False, True):
            model = shard(Net())
            if evaluated:
                with torch.no_grad():
                    model(batch(0, 0))
            change(model.blocks[1][0])
            with pytest.raises((NotImplementedError, ValueError), match=r"parameter 0.weight .*was replaced"):
                model(batch(0, 0))


@use
def a_replacement_of_another_shape_is_refused_by_name():
    model = shard(Net())
    model.head.weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(NotImplementedError, match=r"parameter head.weight was replaced by a Tensor of shape \(2, 2\)"):
        model(batch(0, rank()))


@use
def one_assigned_tensor_in_two_places_ties_them():
    from shoal.fsdp import fully_shard

    def tied(model):
        model.encoder[0].weight = model.extra.weight = nn.Parameter(torch.full((7, 7), 0.1))
        return model

    def build():
        model = Net()
        model.extra = nn.Linear(7, 7)
        model.extra.weight.data.zero_()
        return model

    def loss(model, step, r):
        return (model(batch(step, r)).sum() + model.extra(model.inp(batch(step, r))).square().sum()) / 10

    model = build()
    fully_shard(model.extra)
    shard(model)
    tied(model)
    with torch.random.fork_rng():
        plain = build()
    plain.extra.bias.data.copy_(full(model.extra.bias.data))
    same_as_plain(model, tied(plain), loss, lr=0.01)
    assert model.encoder[0].weight is model.extra.weight


@use
def converted_and_then_evaluated_in_inference_mode():
    model = shard(Net())
    model.double()
    with torch.inference_mode():
        model(batch(0, rank()).double())
    model(batch(0, rank()).double()).sum().backward()


# ---- modules called on their own -----------------------------------------------------------------------------------------------------


@use
def inner_modules_called_from_another_method():
    model = shard(Net())
    with torch.no_grad():
        torch.testing.assert_close(model.generate(batch(0, rank())), Net().generate(batch(0, rank())))
    same_as_plain(model, Net(), lambda model, step, r: model.generate(batch(step, r)).square().mean())
    same_as_plain(shard(Net()), Net(), lambda model, step, r: model.generate(batch(step, r)).square().mean() + model(batch(step, r)).sum())


@use
def a_module_skipped_on_some_ranks():
    def loss(model, step, r):
        model.skipped = {(r + step) % 3}
        out = model(batch(step, r)).square().mean()
        model.skipped = set()
        return out

    same_as_plain(shard(Net()), Net(), loss, steps=4)


@use
def a_module_skipped_on_all_ranks_has_no_gradient():
    model = shard(Net())
    model.skipped = {1}
    plain = Net()
    plain.skipped = {1}
    same_as_plain(model, plain)
    assert model.blocks[1][0].weight.grad is None


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    note: str = ""


@use
def a_dataclass_as_output():
    from shoal.fsdp import MixedPrecisionPolicy, fully_shard

    class Wrapped(Net):
        def forward(self, x):
            return Out(super().forward(x))

    model = fully_shard(Wrapped())
    same_as_plain(model, Wrapped(), lambda model, step, r: model(batch(step, r)).logits.square().mean())
    low = fully_shard(Wrapped(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
    assert low(batch(0, rank())).logits.dtype == torch.float32


@use
def a_thawed_module_that_one_rank_skips():
    model = shard(Net())
    model.blocks[1].requires_grad_(False)
    model(batch(0, rank())).sum().backward()
    model.blocks[1].requires_grad_(True)
    for p in model.parameters():
        p.grad = None
    model.skipped = {1} if rank() == 1 else set()
    model(batch(1, rank())).sum().backward()
    assert full(model.blocks[1][0].weight.grad).abs().max() > 0


@use
def an_exception_in_a_registered_method_ends_its_forward():
    from shoal.fsdp import register_fsdp_forward_method

    class Raising(Net):
        def encode(self, x, how):
            if how:
                raise RuntimeError(how)
            return self.head(self.inp(x))

    model = shard(Raising())
    register_fsdp_forward_method(model, "encode")
    with pytest.raises(RuntimeError, match="on purpose"):
        model.encode(batch(0, rank()), "on purpose")
    same_as_plain(model, Raising(), lambda model, step, r: model.encode(batch(step, r), "").square().mean())


@use
def an_unregistered_forward_method_is_an_error_with_a_hint():
    from shoal.fsdp import register_fsdp_forward_method

    class Two(Net):
        def project(self, x):
            return nn.functional.linear(x, self.inp_weight)

        def fails_by_itself(self):
            raise RuntimeError("on purpose")

    model = Two()
    model.inp_weight = nn.Parameter(torch.randn(3, 6))
    shard(model)
    model(batch(0, rank())).sum().backward()
    hint = r'register_fsdp_forward_method\(module, "project"\)'
    with pytest.raises(RuntimeError, match=r"Two\.project computes with a parameter that is sharded") as caught:
        model.project(batch(0, rank()))
    assert re.search(hint, str(caught.value)), caught.value
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fails_by_itself()
    register_fsdp_forward_method(model, "project")
    assert model.project(batch(0, rank())).shape == (len(batch(0, rank())), 3)


class Overridden(nn.Module):
    def width(self):
        raise NotImplementedError

    def double(self, x):
        raise NotImplementedError

    def rows(self):
        raise NotImplementedError


@use
def other_members_of_a_module_are_not_changed():
    import inspect

    class Model(Overridden, Net):
        @property
        def width(self):
            return 4

        @staticmethod
        def double(x):
            return 2 * x

        def rows(self):
            yield from (1, 2)

    model = shard(Model())
    assert model.width == 4
    assert type(model).double(3) == model.double(3) == 6
    assert inspect.isgeneratorfunction(model.rows)
    assert list(model.rows()) == [1, 2]


@use
def a_failed_all_gather_is_repeated():
    class Flaky:
        fails = False

        def allocate(self, size, *, dtype, device):
            return torch.empty(size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            if self.fails:
                self.fails = False
                raise RuntimeError("on purpose")
            torch.distributed.all_gather_into_tensor(output_tensor, input_tensor, group=group)

    model, flaky = shard(Net()), Flaky()
    model.blocks[1].set_custom_all_gather(flaky)
    for first in (True, False):
        flaky.fails = True
        with pytest.raises(RuntimeError, match="on purpose"):
            model(batch(0, rank()))
        model.reset_iter_state()
        torch.testing.assert_close(model(batch(0, rank())), Net()(batch(0, rank())), msg=f"first: {first}")
        model.reset_iter_state()


@use
def an_optimizer_built_under_another_default_device():
    import shoal.optim

    model = shard(Net())
    with torch.device("meta"):
        optimizer = shoal.optim.AdamW(model.parameters(), lr=1e-2)
    with torch.device("cpu"):
        model(batch(0, rank())).sum().backward()
    before = full(model.head.weight).clone()
    optimizer.step()
    assert not torch.equal(full(model.head.weight), before)
    assert all(t.device.type == "cpu" for state in optimizer.state.values() for t in state.values())


@use
def memory_reserved_for_frozen_parameters_is_released():
    import shoal.optim

    model = shard(Net())
    optimizer = shoal.optim.AdamW(model.parameters())
    frozen = model.blocks[0].requires_grad_(False)
    for _ in range(2):
        model(batch(0, rank())).sum().backward()
        optimizer.step()
    assert not any(id(p) in optimizer._reserved for p in frozen.parameters())
    units = frozen._get_fsdp_state().units
    assert all(p.gradient._buffer is None for u in units for p in u.parameters)


@use
def all_reduce_switched_off_without_replicas_changes_nothing():
    def loss(model, step, r):
        return model(batch(step, r)).square().mean()

    model, plain = shard(Net()), Net()
    for micro in range(2):
        model.set_requires_all_reduce(micro == 1)
        loss(model, micro, rank()).backward()
        (sum(loss(plain, micro, r) for r in range(WORLD)) / WORLD).backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(full(p.grad), q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


# ---- dtypes --------------------------------------------------------------------------------------------------------------------------


@use
def bytes_of_any_dtype_are_sharded():
    from shoal.fsdp import fully_shard

    model = nn.Linear(4, 3)
    dtypes = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn]
    expected = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        expected[name] = torch.arange(15).reshape(5, 3).to(dtype)
        model.register_parameter(name, nn.Parameter(expected[name].clone(), requires_grad=False))
    fully_shard(model)
    seen = {}
    model.register_forward_pre_hook(lambda module, args: seen.update({n: getattr(module, n).clone() for n in expected}))
    model(torch.zeros(1, 4)).sum().backward()
    for name, value in expected.items():
        assert torch.equal(seen[name].view(torch.uint8), value.view(torch.uint8)), name


# ---- torch's names and classes -------------------------------------------------------------------------------------------------------


@use
def a_sharded_module_is_an_instance_of_torchs_class():
    from torch.distributed.fsdp import FSDPModule

    import shoal.fsdp

    model = shard(Net())
    assert isinstance(model, FSDPModule)
    assert isinstance(model, Net)
    assert [c.__name__ for c in type(model).__mro__[:4]] == ["FSDPNet", "FSDPModule", "FSDPModule", "Net"]
    assert type(model).__mro__[1] is shoal.fsdp.FSDPModule
    assert model._get_fsdp_state() is shoal.fsdp.fully_shard.state(model)
    assert type(model.blocks[0][:2]) is nn.Sequential
    assert all(m._is_fsdp_managed_module and m._fsdp_use_orig_params for m in model.modules())  # read by transformers' generate
    with pytest.raises(AssertionError, match="FSDP does not support deepcopy"):
        __import__("copy").deepcopy(model)


@use
def torchs_import_path_is_shoals_after_install():
    import shoal.fsdp

    shoal.fsdp.install()
    try:
        from torch.distributed._composable.fsdp import fully_shard as old
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        assert fully_shard is old is shoal.fsdp.fully_shard
        assert register_fsdp_forward_method is shoal.fsdp.register_fsdp_forward_method
        assert isinstance(fully_shard(Net()), shoal.fsdp.FSDPModule)
    finally:
        shoal.fsdp.uninstall()
    from torch.distributed.fsdp import fully_shard

    assert fully_shard is not shoal.fsdp.fully_shard


@use
def names_imported_before_install_are_shoals_after_it():
    from types import ModuleType

    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard, register_fsdp_forward_method

    import shoal.fsdp
    from shoal.fsdp1 import FullyShardedDataParallel as OurFSDP1

    class Derived(FullyShardedDataParallel):
        pass

    class Lazy(ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"install() loads a lazy module: it asks for {name}")

    def shard_by_default(module, how=fully_shard):
        return how(module)

    early = ModuleType("early_importer")
    early.shard, early.FSDP = fully_shard, FullyShardedDataParallel
    theirs = dict(vars(early))
    sys.modules |= {"early_importer": early, "lazy_module": Lazy("lazy_module"), "no_module": object()}
    assert not shoal.fsdp.is_installed()
    shoal.fsdp.install()
    try:
        assert shoal.fsdp.is_installed()
        for sharded in (fully_shard(Net()), shard_by_default(Net()), partial(fully_shard, reshard_after_forward=False)(Net())):
            assert isinstance(sharded, shoal.fsdp.FSDPModule)
            assert isinstance(sharded, FSDPModule)
            assert fully_shard.state(sharded) is shoal.fsdp.fully_shard.state(sharded)
            register_fsdp_forward_method(sharded, "generate")
            sharded.generate(batch(0, rank()))
        assert early.shard is shoal.fsdp.fully_shard
        wrapped = FullyShardedDataParallel(Net(), use_orig_params=True)  # imported by a path that install() cannot patch
        assert isinstance(wrapped, OurFSDP1)
        assert isinstance(wrapped, early.FSDP)
        with pytest.raises(InvalidArgument, match="Derived was derived from torch's FullyShardedDataParallel before"):
            Derived(Net())
    finally:
        shoal.fsdp.uninstall()
        for name in ("early_importer", "lazy_module", "no_module"):
            del sys.modules[name]
    assert not shoal.fsdp.is_installed()
    assert dict(vars(early)) == theirs
    assert not isinstance(fully_shard(nn.Linear(2, 2)), shoal.fsdp.FSDPModule)
    assert not isinstance(FullyShardedDataParallel.__new__(FullyShardedDataParallel), OurFSDP1)


@use
def settings_that_change_nothing_on_one_host():
    from shoal.fsdp import share_comm_ctx

    model, waited = shard(Net()), []
    model.set_separate_reduce_scatter_group(True)
    model.set_allocate_memory_from_process_group_for_comm(True)
    model.set_symm_mem_for_comm("NCCL")
    model._set_unshard_async_op(True)
    share_comm_ctx([model, model.blocks[0]])
    with pytest.raises(ValueError, match="Expects list of FSDPModules but got Linear"):
        share_comm_ctx([model, nn.Linear(1, 1)])

    class Event:
        def synchronize(self):
            waited.append(self)

    model.set_post_optim_event(Event())
    same_as_plain(model, Net())
    assert len(waited) == 1


# ---- scaled losses -------------------------------------------------------------------------------------------------------------------


@use
def a_scalers_overflow_on_one_rank_skips_the_step_on_all():
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        loss = model(batch(step, rank())).square().mean()
        if step == 1 and rank() == 0:
            loss = loss * float("inf")
        before = full(model.head.weight.detach()).clone()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == (4.0 if step == 0 else 2.0)
        moved = not torch.equal(before, full(model.head.weight.detach()))
        assert moved == (step != 1)


# ---- uneven batches ------------------------------------------------------------------------------------------------------------------


def _joined(weight, batches, clip=False, epochs=1):
    """Rank r has batches[r] batches, of r + 2 samples each. The plain model gets the mean with the weights of `weight`."""
    from shoal.fsdp import join

    model, plain = shard(Net()), Net()
    optimizer, plain_optimizer = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, plain))
    schedule, plain_schedule = (torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, plain_optimizer))

    def after_backward():
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    for _ in range(epochs):
        with join(model, optimizers=optimizer, weight=weight, after_backward=after_backward, after_step=schedule.step):
            for step in range(batches[rank()]):
                model(batch(step, rank())[: rank() + 2]).square().mean().backward()
                after_backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    for step in [*range(max(batches))] * epochs:
        here = [r for r in range(WORLD) if step < batches[r]]
        weights = {r: 1 / WORLD if weight == "world" else (r + 2) / sum(q + 2 for q in here) for r in here}
        sum(plain(batch(step, r)[: r + 2]).square().mean() * w for r, w in weights.items()).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        plain_schedule.step()
    for (name, p), q in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(full(p), q[1], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    same_as_plain(model, plain, lr=0.01)  # then all ranks continue


@use
def ranks_with_fewer_batches_serve_the_others():
    _joined("world", (4, 2))
    _joined("world", (1, 3), clip=True)


@use
def samples_count_alike_where_batches_are_uneven():
    _joined("samples", (2, 4))
    _joined("samples", (3, 3))


@use
def a_rank_without_a_single_batch_serves_the_others():
    _joined("world", (0, 2))


@use
def join_works_when_ranks_end_one_after_the_other():
    """The last rank to end finds that others have published for the next batches."""
    asked = _native.ShardedModel.asked

    def late(model):
        time.sleep(0.2)
        return asked(model)

    if rank() == 1:
        _native.ShardedModel.asked = late
    try:
        _joined("world", (1, 3), epochs=3)
    finally:
        _native.ShardedModel.asked = asked


@use
def join_is_refused_for_units_gathered_by_collectives():
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    from shoal.exceptions import Unimplemented
    from shoal.fsdp import join

    model = shard(Net())
    model.blocks[1].set_custom_reduce_scatter(DefaultReduceScatter())
    loop = join(model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(Unimplemented, match="collectives gather this unit"):
        loop.__enter__()


@use
def samples_count_alike_where_micro_batches_are_uneven():
    from shoal.fsdp import join

    sizes = ((4, 1), (2, 3))
    model, plain = shard(Net()), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with join(model, optimizers=optimizer, weight="samples"):
        for micro, size in enumerate(sizes[rank()]):
            model.set_requires_gradient_sync(micro == 1)
            model(batch(micro, rank())[:size]).square().mean(1).mean().backward()
        got = {n: full(p.grad).clone() for n, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    every = torch.cat([batch(m, r)[:n] for r, of_rank in enumerate(sizes) for m, n in enumerate(of_rank)])
    plain(every).square().mean(1).mean().backward()
    for name, q in plain.named_parameters():
        torch.testing.assert_close(got[name], q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@use
def a_second_synchronised_backward_without_a_step_is_refused_inside_join():
    from shoal.fsdp import join

    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def go():
        with join(model, optimizers=optimizer):
            model(batch(0, rank())).sum().backward()
            model(batch(1, rank())).sum().backward()

    with pytest.raises(ValueError, match="a second synchronised backward ran without an optimizer's step"):
        go()


# ---- ranks that diverge --------------------------------------------------------------------------------------------------------------


@use
def ranks_that_wait_for_each_other_get_an_error_at_once():
    """One rank is in its optimizer's step, the other in the backward of a further batch."""
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(batch(step, rank())).sum().backward()

    def go():
        if rank() == 0:
            with torch.no_grad():
                model(batch(0, 0))
            optimizer.step()
        else:
            model(batch(2, 1)).sum().backward()

    with pytest.raises(ValueError, match=r"all ranks wait for each other: rank . for "):
        go()


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
