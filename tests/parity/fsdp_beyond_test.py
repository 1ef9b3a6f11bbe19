"""Behaviour where FSDP2 raises an error or leaves the work to the user: dtypes, uneven batches, ranks that diverge; in one run of two
ranks."""

import sys
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from fsdp2_encoder import Net, same_as_plain
from fsdp2_net import WORLD, batch, full, rank, shard
from internals.core import _native
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shoal.exceptions import InvalidArgument

use = Uses()


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
        # a class that was imported by a path where install() cannot replace it
        wrapped = FullyShardedDataParallel(Net(), use_orig_params=True)
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


def _joined(weight, batches, clip=False, epochs=1, prepare=None):
    """Rank r has batches[r] batches of r + 2 samples each. The plain model's loss is their mean, weighted by `weight`."""
    from shoal.fsdp import join

    model, plain = shard(Net()), Net()
    if prepare is not None:
        prepare(model)
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
    same_as_plain(model, plain, lr=0.01)  # after the uneven batches, all ranks train on


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
    """The last rank ends its batches when others have already published gradients of their next ones."""
    next_service = _native.ShardedModel.next_service

    def late(model):
        time.sleep(0.2)
        return next_service(model)

    if rank() == 1:
        _native.ShardedModel.next_service = late
    try:
        _joined("world", (1, 3), epochs=3)
    finally:
        _native.ShardedModel.next_service = next_service


@use
def join_of_several_meshes_is_refused_at_its_begin():
    from internals.fsdp import outside_of_arenas

    from shoal.fsdp import fully_shard, join

    def begin():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model[0], mesh=init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard")))
        fully_shard(model)
        with join(model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1)):
            pytest.fail("the loop has begun")

    for place in (nullcontext(), outside_of_arenas()):
        with place, pytest.raises(NotImplementedError, match=r"several meshes .*the root has 1 x \(0, 1\), 0 has 2 x \(0, 1\)"):
            begin()


def _joined_with_a_scaler(kind):
    """Rank 0 has four batches, of which the third overflows. Rank 1 has two, of which the last overflows; it repeats that one."""
    from shoal.fsdp import join

    model, plain = shard(Net()), Net()
    optimizer, plain_optimizer = kind(model.parameters(), lr=0.1), torch.optim.SGD(plain.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def after_backward():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def loss(model, step, r):
        return model(batch(step, r)).square().mean() * (float("inf") if step == 2 - r else 1)

    with join(model, optimizers=optimizer, after_backward=after_backward, scaler=scaler):
        for step in range(4 - 2 * rank()):
            scaler.scale(loss(model, step, rank())).backward()
            after_backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()
    for step in (0, 3):
        sum(loss(plain, step, r) / WORLD for r in range(2) if step < 4 - 2 * r).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    assert scaler.get_scale() == 4.0  # two steps were skipped, on both ranks
    for (name, p), q in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(full(p), q[1], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@use
def ranks_inside_join_agree_on_infinite_gradients():
    from internals.fsdp import outside_of_arenas

    import shoal.optim

    for kind in (torch.optim.SGD, shoal.optim.SGD):
        _joined_with_a_scaler(kind)
        with outside_of_arenas():
            _joined_with_a_scaler(kind)


@use
def join_refuses_an_optimizer_of_its_scaler_that_it_does_not_know():
    """Its infinite gradients would change the scale on ranks with batches only."""
    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import join

    model, scaler = shard(Net()), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))

    def loop():
        with join(model, optimizers=optimizer, scaler=scaler):
            scaler.scale(model(batch(0, rank())).square().mean()).backward()
            scaler.step(other)

    with pytest.raises(InvalidArgument, match="steps SGD, which join does not know"):
        loop()
    assert "step" not in vars(scaler)


@use
def join_refuses_a_scaler_that_it_does_not_know():
    from internals.fsdp import outside_of_arenas

    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import join

    def loop(factor):
        model = shard(Net())
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
        try:
            with join(model, optimizers=optimizer):
                scaler.scale(model(batch(0, rank())).square().mean() * factor).backward()
                scaler.step(optimizer)
        finally:
            assert not {"found_inf", "grad_scale", "_step_supports_amp_scaling"} & vars(optimizer).keys()

    for factor in (1.0, float("inf")):
        for place in (nullcontext(), outside_of_arenas()):
            with place, pytest.raises(InvalidArgument, match="ranks without batches know no scaler"):
                loop(factor)


@use
def join_of_units_outside_of_arenas_repeats_batches():
    from internals.fsdp import outside_of_arenas

    with outside_of_arenas():
        _joined("world", (4, 2))
        _joined("world", (1, 3), clip=True, epochs=2)
        _joined("samples", (2, 4))
        samples_count_alike_where_micro_batches_are_uneven()
        a_rank_whose_batches_end_within_a_step_serves_the_others_with_what_it_has_kept()


@use
def join_of_a_model_of_which_collectives_reduce_one_unit():
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    _joined("world", (3, 1), prepare=lambda model: model.blocks[1].set_custom_reduce_scatter(DefaultReduceScatter()))
    _joined("samples", (1, 3), prepare=lambda model: model.blocks[1].set_custom_reduce_scatter(DefaultReduceScatter()))


@use
def a_repeated_batch_leaves_no_trace():
    from internals.fsdp import outside_of_arenas

    from shoal.fsdp import fully_shard, join

    with outside_of_arenas():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with join(model, optimizers=optimizer):
            for step in range(3 - 2 * rank()):
                if step == 1:
                    with torch.no_grad():
                        model(torch.ones(2, 4))  # the rank without batches joins an evaluation, too
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            before, drawn = model[1].running_mean.clone(), torch.get_rng_state()
        assert torch.equal(model[1].running_mean, before)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert (model[1].num_batches_tracked.item(), rank()) in ((4, 0), (1, 1))


@use
def join_outside_of_arenas_follows_the_rules_of_the_ranks_with_batches():
    """FSDP2's accumulation, outputs that pytree does not know, and batches that carry another module's graph."""
    from dataclasses import dataclass

    from internals.fsdp import outside_of_arenas

    from shoal.fsdp import fully_shard, join

    @dataclass
    class Out:
        logits: torch.Tensor

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

        def forward(self, x):
            return Out(self.layers(x))

    with outside_of_arenas():
        torch.manual_seed(0)
        model, before = Model(), nn.Linear(4, 4)
        fully_shard(model.layers[0])
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with join(model, optimizers=optimizer):
            for step in range(6 - 4 * rank()):
                last = step % 2 == 1
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
                model(before(torch.ones(2, 4))).logits.sum().backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        everyone = [None] * WORLD
        torch.distributed.all_gather_object(everyone, full(model.layers[2].weight).tolist())
        assert everyone[0] == everyone[1]


@use
def join_outside_of_arenas_refuses_passes_that_a_rank_without_batches_cannot_repeat():
    from internals.fsdp import outside_of_arenas

    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import fully_shard, join

    def loop(kind):
        model = nn.Linear(4, 4)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with join(model, optimizers=optimizer):
            for _ in range(3 - 2 * rank()):
                loss = model(torch.ones(2, 4)).sum()
                if kind == "two forwards" and rank() == 0:
                    loss = loss + model(torch.ones(2, 4)).sum()
                if kind == "no backward" and rank() == 0:
                    continue
                loss.backward()
                if kind != "no step" or rank() == 1:
                    optimizer.step()

    with outside_of_arenas():
        for kind in ("two forwards", "no step", "no backward"):
            with pytest.raises(InvalidArgument, match="takes one backward after each forward"):
                loop(kind)


@use
def a_rank_without_a_single_batch_cannot_join_collectives():
    from internals.fsdp import outside_of_arenas

    from shoal.exceptions import InvalidArgument
    from shoal.fsdp import join

    with outside_of_arenas():
        model = shard(Net())

        def loop():
            with join(model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1)):
                for step in range(rank()):
                    model(batch(step, rank())).square().mean().backward()

        with pytest.raises(InvalidArgument, match="1 of 2 ranks have no batch at all"):
            loop()


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
def a_rank_whose_batches_end_within_a_step_serves_the_others_with_what_it_has_kept():
    from shoal.fsdp import join

    model, plain, got = shard(Net()), Net(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def after_backward():
        got.update({n: full(p.grad).clone() for n, p in model.named_parameters()})

    with join(model, optimizers=optimizer, after_backward=after_backward):
        for micro in range(2 - rank()):
            model.set_requires_gradient_sync(micro == 1)
            model(batch(micro, rank())).square().mean().backward()
        if rank() == 0:
            after_backward()
            optimizer.step()
            optimizer.zero_grad()
    for micro, r in ((0, 0), (1, 0), (0, 1)):
        (plain(batch(micro, r)).square().mean() / WORLD).backward()
    for name, q in plain.named_parameters():
        torch.testing.assert_close(got[name], q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@use
def a_repeated_pass_whose_gradients_are_kept_adds_zeros():
    """Also where the repeated batch is infinite: zeros times infinite values would be NaN."""
    from internals.fsdp import outside_of_arenas

    from shoal.fsdp import MixedPrecisionPolicy, join

    with outside_of_arenas():
        # kept in fp32, beside those of the last backward
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        model, plain, got = shard(Net(), mp_policy=policy), Net(), {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def after_backward():
            got.update({n: full(p.grad).clone() for n, p in model.named_parameters()})

        with join(model, optimizers=optimizer, after_backward=after_backward):
            for micro in range(4 - 2 * rank()):
                model.set_requires_gradient_sync(micro % 2 == 1)
                model(batch(micro, rank()) * (float("inf") if (micro, rank()) == (1, 1) else 1)).square().mean().backward()
                if micro % 2 == 1:
                    after_backward()
                    optimizer.zero_grad()  # the first step's are not finite
                    optimizer.step()
        for micro in (2, 3):
            (plain(batch(micro, 0)).square().mean() / WORLD).backward()
        for name, q in plain.named_parameters():
            torch.testing.assert_close(got[name], q.grad, rtol=0.1, atol=0.01, msg=lambda m, n=name: f"{n}: {m}")


@use
def fp16_gradients_weighted_by_samples_stay_finite():
    """A rank's gradient times its number of samples exceeds fp16, where their mean does not."""
    from internals.fsdp import outside_of_arenas

    from shoal.fsdp import MixedPrecisionPolicy, fully_shard, join

    def gradients(reduce_dtype, passes):
        model = nn.Linear(2, 2, bias=False)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16, reduce_dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with join(model, optimizers=optimizer, weight="samples"):
            for number in range(passes):
                model.set_requires_gradient_sync(number == passes - 1)
                samples = 32 * (1 + rank()) * (1 + number)
                (model(torch.full((samples, 2), 1.0)).float().mean(0) * 4096 * (1 + rank())).sum().backward()
            found = full(model.weight.grad).clone()
            optimizer.step()
        return found

    for reduce_dtype in (torch.float32, torch.float16):
        for passes in (1, 2):
            expected = torch.full((2, 2), 4096 * (1 * 1 + 2 * 2) / 3)
            with outside_of_arenas():
                torch.testing.assert_close(gradients(reduce_dtype, passes), expected, rtol=1e-2, atol=0)
            if reduce_dtype == torch.float32:
                torch.testing.assert_close(gradients(reduce_dtype, passes), expected, rtol=1e-2, atol=0)


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
    """One rank is in its optimizer's step, the other in the backward of one more batch."""
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
