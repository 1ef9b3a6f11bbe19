"""Uses of a sharded model, in one run of two ranks: each gives the result of a plain process, or an error with the reason."""

import copy
import functools
import gc
import os
import time
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from fsdp2_faults import FAULTS, try_fault
from fsdp2_net import WORLD, Net, batch, expect_gradients, full, loss_of, rank, shard
from internals.core import _native
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.tensor import DTensor

from shoal.exceptions import InvalidArgument, ResourceExhausted

use = Uses()


# ---- units that run more than once ---------------------------------------------------------------------------------------------------


def _block_twice(reentrant):
    model = shard(Net(reentrant, times=2))
    if rank() == 1:
        # rank 0 publishes its gradients long before rank 1, and has to wait for the sum
        model.head.register_full_backward_hook(lambda *_: time.sleep(0.2))
    loss_of(model).backward()
    expect_gradients(model, Net(times=2), lambda m, r: loss_of(m, 0, r))


@use
def a_block_twice_per_forward():
    _block_twice(None)


@use
def a_block_twice_per_forward_under_a_checkpoint():
    _block_twice(False)


@use
def a_block_twice_per_forward_under_a_reentrant_checkpoint():
    _block_twice(True)


def _two_forwards(sync_first):
    model = shard(Net(times=2))
    first, second = loss_of(model, 0), loss_of(model, 1)
    model.set_requires_gradient_sync(sync_first)
    first.backward()
    model.set_requires_gradient_sync(True)
    if rank() == 1:
        time.sleep(0.2)
    second.backward()
    expect_gradients(model, Net(times=2), lambda m, r: loss_of(m, 0, r) + loss_of(m, 1, r))


@use
def two_forwards_then_two_backwards():
    _two_forwards(True)


@use
def two_forwards_then_one_backward_without_and_one_with_synchronisation():
    _two_forwards(False)


@use
def two_forwards_then_one_backward():
    model = shard(Net())
    (loss_of(model, 0) + loss_of(model, 1)).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) + loss_of(m, 1, r))


# ---- leases --------------------------------------------------------------------------------------------------------------------------


@use
def reading_behind_a_backward_without_reshard():
    model = shard(Net(), lease_guard=True)
    model.set_reshard_after_backward(False)
    loss_of(model).backward()
    torch.testing.assert_close(full(model.head.weight), Net().head.weight)
    model.set_is_last_backward(False)
    loss_of(model).backward()
    torch.testing.assert_close(model.head.weight, Net().head.weight)


@use
def reading_behind_a_forward_without_reshard_where_the_plan_had_one():
    model = shard(Net(), lease_guard=True)
    for step in range(3):
        loss_of(model, step).backward()
    model.set_reshard_after_forward(False)
    loss = loss_of(model, 3)
    torch.testing.assert_close(model.blocks[0][0].weight, Net().blocks[0][0].weight)
    loss.backward()


# ---- memory --------------------------------------------------------------------------------------------------------------------------


def _arenas():
    """Names of the shared memories of this mesh that any process on this machine has open."""
    gang = torch.distributed.distributed_c10d._get_default_store().get("shoal/mesh/0-1").decode()
    names = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            name = os.readlink(fd)
        except OSError:
            continue  # the process has ended
        if f"memfd:shoal:{gang}/" in name:
            names.add(name.removesuffix(" (deleted)"))
    return names


@use
def a_model_that_is_dropped_gives_its_memory_back():
    gc.collect()
    before = _arenas()
    torch.distributed.barrier()
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    optimizer.step()
    assert len(_arenas() - before) == 4 + 2  # four units, and two memories of the model: control words and gradients
    torch.distributed.barrier()
    del model, optimizer
    gc.collect()
    for _ in range(1000):  # the node frees the memory a moment later
        if not _arenas() - before:
            return
        time.sleep(0.01)
    raise AssertionError(f"still open: {_arenas() - before}")


# ---- arguments -----------------------------------------------------------------------------------------------------------------------


@use
def arguments_of_another_type_are_refused():
    from shoal.fsdp import MixedPrecisionPolicy, fully_shard

    for options, says in (
        ({"mp_policy": torch.bfloat16}, "mp_policy should be a MixedPrecisionPolicy, got dtype"),
        ({"mp_policy": None}, "mp_policy should be a MixedPrecisionPolicy, got NoneType"),
        ({"mp_policy": MixedPrecisionPolicy(param_dtype="bf16")}, r"mp_policy\.param_dtype should be a torch\.dtype .*got 'bf16'"),
        ({"mp_policy": MixedPrecisionPolicy(reduce_dtype=float)}, r"mp_policy\.reduce_dtype"),
        ({"mp_policy": MixedPrecisionPolicy(output_dtype=32)}, r"mp_policy\.output_dtype"),
        ({"shard_placement_fn": 1}, "shard_placement_fn should be a function of a parameter, got int"),
        ({"reshard_after_forward": "no"}, "reshard_after_forward should be a bool or an int"),
        ({"reshard_after_forward": 1.0}, "reshard_after_forward should be a bool or an int"),
        ({"reshard_after_forward": 3}, "should be a factor of 2, not 3"),
        ({"offload_policy": "cpu"}, "should be an OffloadPolicy"),
        ({"ignored_params": []}, "ignored_params should be a set"),
        ({"mesh": "x"}, "mesh should be a DeviceMesh"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            fully_shard(nn.Linear(2, 2), **options)


@use
def every_name_of_fsdp2_exists():
    import inspect

    from torch.distributed import fsdp as fsdp2

    import shoal.fsdp

    assert not [n for n in fsdp2._fully_shard.__all__ if not hasattr(shoal.fsdp, n)]
    methods = [n for n, _ in inspect.getmembers(fsdp2.FSDPModule, inspect.isfunction)]
    own = vars(shoal.fsdp.FSDPModule)
    assert not [n for n in methods if n not in own], "a method of torch's would run on a state that is not there"
    for n in (n for n in methods if n != "_apply"):  # its parameters differ between versions of torch
        theirs, ours = (inspect.signature(inspect.unwrap(getattr(c, n))) for c in (fsdp2.FSDPModule, shoal.fsdp.FSDPModule))
        assert list(theirs.parameters) == list(ours.parameters), n
    theirs, ours = inspect.signature(inspect.unwrap(fsdp2.fully_shard)), inspect.signature(shoal.fsdp.fully_shard)
    assert list(ours.parameters)[: len(theirs.parameters)] == list(theirs.parameters)


@use
def inputs_are_cast_to_param_dtype():
    from shoal.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    model = fully_shard(Net().bfloat16(), mp_policy=policy)
    out = model(batch(0, rank()))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, Net().bfloat16()(batch(0, rank()).bfloat16()).float())
    out.square().mean().backward()
    assert model.head.weight.grad.dtype == torch.bfloat16


# ---- inputs changed in place ---------------------------------------------------------------------------------------------------------


class Doubling(nn.Linear):
    """A layer whose forward changes its input in place, or a view of it, or returns the input."""

    def __init__(self, how):
        super().__init__(7, 7)
        self.how = how

    def forward(self, x):
        if self.how == "hands it on":
            return x
        (x if self.how == "all of it" else x[:, :2]).mul_(2)
        return super().forward(x)


@use
def an_input_changed_in_place_is_an_error():
    for how in ("all of it", "a view of it", "hands it on"):
        model = Net()
        model.blocks[1] = Doubling(how)
        if how == "hands it on":
            model.blocks[1].register_forward_hook(lambda m, args, out: out.mul_(2))
        shard(model)
        unit = "blocks\\.1" if how != "hands it on" else "the root|blocks\\.1"
        with pytest.raises(RuntimeError, match=rf"(?s)modified inplace.*an input of ({unit}), a unit of fully_shard.*x\.clone"):
            loss_of(model)
        model.blocks[1].register_forward_pre_hook(lambda m, args: (args[0].clone(),))
        model.reset_iter_state()
        if how != "hands it on":
            loss_of(model).backward()
            assert model.inp.weight.grad is not None


# ---- forwards of inner modules -------------------------------------------------------------------------------------------------------


@use
def an_inner_module_called_twice_by_itself():
    def loss(model, step, of_rank):
        return model.blocks[1](batch(step, of_rank).repeat(1, 2)[:, :7]).square().mean()

    model = shard(Net())
    loss_of(model).backward()
    model.zero_grad()
    first, second = loss(model, 0, rank()), loss(model, 1, rank())
    first.backward()
    second.backward()
    expect_gradients(model, Net(), lambda m, r: loss(m, 0, r) + loss(m, 1, r))


@use
def an_inner_module_unsharded_before_the_first_forward():
    from shoal.fsdp import fully_shard

    model = shard(Net(), lease_guard=True)
    model.blocks[0].unshard()
    torch.testing.assert_close(model.blocks[0][0].weight, Net().blocks[0][0].weight)
    model.blocks[1].unshard()
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))
    outer = fully_shard(nn.Sequential(model))
    with pytest.raises(ValueError, match="before the model that contains it"):
        outer(batch(0, rank()))


@use
def one_module_of_a_group_unsharded_before_the_first_forward():
    from shoal.fsdp import fully_shard

    model = Net()
    fully_shard([model.inp, model.head])
    for block in model.blocks:
        fully_shard(block)
    for _ in range(2):  # in the first round the group of two modules is the root, in the second the whole model
        model.head.unshard()
        torch.testing.assert_close(model.inp.weight, Net().inp.weight)
        model.inp.reshard()
        assert isinstance(model.head.weight, DTensor)
        if not isinstance(model, torch.distributed.fsdp.FSDPModule):
            fully_shard(model)
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))


@use
def a_first_forward_in_a_transform_after_to_empty():
    with torch.device("meta"):
        model = Net()
    shard(model).to_empty(device="cpu")
    plain = Net()
    for m in (model, plain):
        for p in m.parameters():
            nn.init.constant_(p, 0.1)
    x = batch(0, rank())
    ours, theirs = (torch.func.jvp(m, (x,), (torch.ones_like(x),)) for m in (model, plain))
    torch.testing.assert_close(ours, theirs)
    loss_of(model).backward()
    expect_gradients(model, plain, lambda m, r: loss_of(m, 0, r))


# ---- exceptions ----------------------------------------------------------------------------------------------------------------------


class _Raise(torch.autograd.Function):
    """The identity function; its backward raises an error while ``why`` is not empty."""

    @staticmethod
    def forward(ctx, x, why):
        ctx.why = why
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.why:
            raise RuntimeError(ctx.why.pop())
        return grad, None


def _left_by_an_exception(then, ranks=(0, 1), block=0, by_hand=False):
    model, why = shard(Net()), []
    model.set_manual_backward_finalization(by_hand)
    end = model.finalize_backward if by_hand else lambda: None
    model.blocks[block].register_forward_hook(lambda module, args, out: _Raise.apply(out, why))
    if rank() in ranks:
        why.append("boom")
    loss = loss_of(model, 7)
    if rank() == 1:
        time.sleep(0.2)  # rank 1 is late: the other rank has long started its step over
    # The number is that of the run's record, which has the steps of earlier cases.
    expected = pytest.raises(RuntimeError, match="boom") if rank() in ranks else pytest.raises(ValueError, match=r"started step \d over")
    with expected as kept:  # with its traceback, whose frames hold what they have
        loss.backward()
        end()
    del loss
    then(model)
    for step in range(2):  # the second step adds to the gradients of the first
        loss_of(model, step).backward()
        end()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) + loss_of(m, 1, r))
    assert kept.tb is not None


def _reset(model):
    model.reset_iter_state()
    for p in model.parameters():
        p.grad = None


@use
def an_exception_in_backward_then_reset_iter_state():
    _left_by_an_exception(_reset)


@use
def an_exception_in_backward_then_zero_grad():
    _left_by_an_exception(lambda model: model.zero_grad())


@use
def an_exception_in_the_last_block():
    _left_by_an_exception(lambda model: None, block=2)


@use
def an_exception_in_backward_of_one_rank():
    _left_by_an_exception(_reset, ranks=(0,))


@use
def an_exception_in_backward_of_one_rank_that_is_finalized_by_hand():
    _left_by_an_exception(lambda model: None, ranks=(0,), by_hand=True)


@use
def an_exception_in_backward_of_one_rank_that_nothing_resets():
    _left_by_an_exception(lambda model: None, ranks=(0,))


@use
def an_exception_in_backward_whose_warning_is_an_error():
    def warned(model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):  # the step is not started over in part
                with pytest.raises(UserWarning, match="gradients of a backward pass that an exception left"):
                    loss_of(model, 9)

    _left_by_an_exception(warned)


class _NoMemory:
    """Inside, no sharded model gets its memory."""

    def __enter__(self):
        self._made = _native.ShardActor.make_model

        def fails(*args, **kwargs):
            raise ResourceExhausted("no memory is left")

        _native.ShardActor.make_model = fails

    def __exit__(self, *error):
        _native.ShardActor.make_model = self._made


@use
def a_first_forward_without_memory_is_repeated():
    model = shard(Net())
    with _NoMemory():
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match="no memory is left"):
                loss_of(model)
    model.reset_iter_state()
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))


@use
def a_model_that_could_not_be_rebuilt_is_rebuilt_by_the_next_forward():
    model = shard(Net())
    loss_of(model).backward()
    before = full(model.head.weight.detach()).double()
    model.double()
    with _NoMemory():
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match="no memory is left"):
                model(batch(0, rank()).double())
        with pytest.raises(InvalidArgument, match="the sharded model has no memory"):
            model.blocks[0].unshard()
        model.reset_iter_state()  # these need no memory of the model
        model.blocks[0].reshard()
        assert torch.equal(full(model.state_dict()["head.weight"]), before)
        model.zero_grad()
    model(batch(0, rank()).double()).square().mean().backward()
    assert full(model.head.weight.grad).dtype == torch.float64


@use
def flags_of_other_types_are_flags():
    model = shard(Net())
    loss_of(model).backward()
    for flag in (numpy.bool_(False), 0, torch.tensor(False)):
        model.set_requires_gradient_sync(flag)
        model.set_requires_all_reduce(flag)
        model.set_reshard_after_backward(flag)
        model.set_unshard_in_backward(flag)
        model.set_is_last_backward(flag)
        model.set_manual_backward_finalization(flag)


@use
def keywords_of_any_name_reach_the_users_methods():
    from shoal.fsdp import fully_shard, register_fsdp_forward_method

    class Model(nn.Linear):
        def forward(self, x, *, module, args, kwargs, method, state, output):
            return super().forward(x) + module + args + kwargs + method + state + output

        def scored(this, x, *, self, module):
            return nn.Linear.forward(this, x) * self * module

        def summed(this, *, self, cls):
            return self + cls

    keywords = dict.fromkeys(("module", "args", "kwargs", "method", "state", "output"), 1.0)
    torch.manual_seed(0)
    plain, x = Model(6, 3), batch(0, rank())
    model = fully_shard(copy.deepcopy(plain))
    register_fsdp_forward_method(model, "scored")
    torch.testing.assert_close(model(x, **keywords), plain(x, **keywords))
    torch.testing.assert_close(model.scored(x, self=2.0, module=3.0), plain.scored(x, self=2.0, module=3.0))
    assert model.summed(self=1, cls=2) == 3


# ---- torch's errors ------------------------------------------------------------------------------------------------------------------


use.update({name: functools.partial(try_fault, name) for name in FAULTS})


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
