"""Protected steps of models outside of arenas, as on devices: the copy in the host's memory has the bits of the devices."""

import copy
import os
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from launching.trained import Uses, check, ranks, run
from planned_net import STEPS, WORLD, Net, adamw, batch, sgd, sharded

import shoal.optim
from shoal.exceptions import InvalidArgument, Unavailable, Unimplemented

use = Uses()
WHOLE = "SHOAL_SEEDS" in os.environ  # ./dev test --all; otherwise a slice


def bytes_of(tensors):
    return b"".join(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def content(parameters, optimizer):
    """All numbers of parameters and of their states on this rank, as bytes."""
    tensors = [p.to_local() for p in parameters]
    for p in parameters:
        for _, value in sorted(optimizer.state.get(p, {}).items()):
            tensors.append(value.to_local() if hasattr(value, "to_local") else value)
    return bytes_of(tensors)


def train(protects, make=adamw, step_of=None, dtype=None, steps=STEPS, **options):
    """Returns model, optimizer and its HostCopy."""
    from internals.fsdp import protect

    model = sharded()
    if dtype is not None:
        model.to(dtype)
    optimizer = make(model)
    protection = protect(model, optimizer, **options) if protects else None
    for step in range(steps):
        model(batch(step).to(next(model.parameters()).dtype)).square().mean().backward()
        if step_of is None:
            optimizer.step()
        else:
            step_of(model, optimizer, step)
        optimizer.zero_grad()
    if protects:
        protection.wait()
    return model, optimizer, protection.host_copy if protects else None


def expect_equal(host_copy, model, optimizer):
    found = content([q.views.sharded for _, q in host_copy.pairs], host_copy.optimizers[0])
    assert found == content([p.views.sharded for p, _ in host_copy.pairs], optimizer), "the copy differs from the devices"
    assert bytes_of([q.own for _, q in host_copy.pairs]) == bytes_of([p.own for p, _ in host_copy.pairs])


def expect_same(**how):
    plain, alone, _ = train(False, **{name: value for name, value in how.items() if name != "copies"})
    model, optimizer, host_copy = train(True, **how)
    assert content(list(model.parameters()), optimizer) == content(list(plain.parameters()), alone)
    expect_equal(host_copy, model, optimizer)
    assert host_copy.optimizers[0]._protection.step == how.get("steps", STEPS)
    assert all(q.own.data_ptr() != p.own.data_ptr() or q.empty for p, q in host_copy.pairs)
    return host_copy


@use
def the_copy_repeats_each_update():
    for make in (adamw, sgd, lambda m: adamw(m, amsgrad=True), lambda m: shoal.optim.SGD(m.parameters())):
        assert expect_same(make=make).num_written == 0


def of_torch(kind, **options):
    return lambda model: getattr(torch.optim, kind)(groups_of(model), lr=1e-2, **options)


def groups_of(model):
    return [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": [p for p in model.parameters() if p.dim() == 1]}]


def matrices(kind, **options):
    return lambda model: kind([p for p in model.parameters() if p.dim() > 1], lr=1e-2, **options)


COPIED = [
    of_torch("AdamW"),
    of_torch("SGD", momentum=0.9),
    of_torch("AdamW", fused=True, amsgrad=True),
    of_torch("NAdam"),
    matrices(shoal.optim.Muon),
]
FURTHER = [
    of_torch("Adam", foreach=True),
    of_torch("SGD"),
    of_torch("RAdam"),
    of_torch("Adamax"),
    of_torch("Adadelta"),
    of_torch("Adagrad"),
    of_torch("ASGD"),
    of_torch("RMSprop", momentum=0.9, centered=True),
    matrices(torch.optim.Muon),
]


@use
def rows_and_states_of_other_optimizers_are_copied():
    for make in COPIED + (FURTHER if WHOLE else []):
        assert expect_same(make=make).copies is not None


@use
def a_scaled_training_of_the_kernels_is_copied():
    host_copy = expect_same(copies=True, dtype=torch.bfloat16)
    rows = sum(q.own.numel() for _, q in host_copy.pairs)
    assert host_copy.step_bytes == (2 + 3 * 4) * rows  # a master copy and two moments


def train_scaled(model, optimizer, scaler):
    """One rank finds an infinite gradient in the third step."""
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        if step == 2 and torch.distributed.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale(), [p.full_tensor().detach() for p in model.parameters()]


@use
def a_grad_scaler_trains_as_under_fsdp2():
    from internals.fsdp import protect
    from internals.optim import updates_by_torch
    from torch.distributed.fsdp import fully_shard

    theirs = Net()
    for block in theirs.blocks:
        fully_shard(block)
    fully_shard(theirs)
    of_theirs = torch.optim.AdamW(groups_of(theirs), lr=1e-2, fused=True)
    expected = train_scaled(theirs, of_theirs, torch.amp.GradScaler("cpu", init_scale=64.0))
    model = sharded()
    optimizer = shoal.optim.AdamW(groups_of(model), lr=1e-2)
    with updates_by_torch():
        protection = protect(model, optimizer)
        found = train_scaled(model, optimizer, torch.amp.GradScaler("cpu", init_scale=64.0))
        protection.wait()
    torch.testing.assert_close(found, expected)
    assert found[0] == 32.0
    assert {float(state["step"]) for state in optimizer.state.values()} == {STEPS - 1.0}
    assert protection.host_copy.copies is not None
    expect_equal(protection.host_copy, model, optimizer)


@use
def a_write_beside_a_copy_is_copied_whole():
    from internals.fsdp import CopiedStep

    def write_meanwhile(step):
        CopiedStep.await_all = arrived
        with torch.no_grad():
            first.mul_(0.5)
        arrived(step)

    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=1)
    first, arrived = next(model.parameters()), CopiedStep.await_all
    model(batch(1)).square().mean().backward()
    CopiedStep.await_all = write_meanwhile
    optimizer.step()
    host_copy.wait()
    expect_equal(host_copy, model, optimizer)
    assert host_copy.num_written == 0


@use
def a_write_beside_the_begin_of_a_second_copy_is_copied_whole():
    from internals.fsdp import CopiedStep

    def write_after_begin(cls, *of):
        step = begin(*of)
        with torch.no_grad():
            first.mul_(0.5)
        return step

    def write_meanwhile(step):
        CopiedStep.await_all, CopiedStep.begin = arrived, classmethod(write_after_begin_once)
        with torch.no_grad():
            first.mul_(0.5)
        arrived(step)

    def write_after_begin_once(cls, *of):
        CopiedStep.begin = begin
        return write_after_begin(cls, *of)

    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=1)
    first, arrived, begin = next(model.parameters()), CopiedStep.await_all, CopiedStep.begin
    model(batch(1)).square().mean().backward()
    CopiedStep.await_all = write_meanwhile
    optimizer.step()
    host_copy.wait()
    host_copy.follow_writes()
    expect_equal(host_copy, model, optimizer)


@use
def a_step_whose_copies_are_all_written_to_does_not_count():
    from internals.fsdp import CopiedStep

    def write(step):
        with torch.no_grad():
            first.mul_(0.5)
        arrived(step)

    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=1)
    first, arrived = next(model.parameters()), CopiedStep.await_all
    model(batch(1)).square().mean().backward()
    CopiedStep.await_all = write
    try:
        optimizer.step()
        with pytest.raises(InvalidArgument, match=r"written to the parameter inp\.weight .* beside each of 8 copies"):
            host_copy.wait()
    finally:
        CopiedStep.await_all = arrived
    assert host_copy.optimizers[0]._protection.step == 1


@use
def a_copied_step_that_does_not_count_leaves_no_states():
    from internals.fsdp import Moment, at_next

    def fail(_):
        raise Unavailable("another rank has died")

    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=0)
    protection = host_copy.optimizers[0]._protection
    before = bytes_of([q.own for _, q in host_copy.pairs])
    model(batch(0)).square().mean().backward()
    at_next(Moment.RECORDED, fail)
    optimizer.step()
    with pytest.raises(Unavailable):
        host_copy.wait()
    protection.settle(0)
    assert bytes_of([q.own for _, q in host_copy.pairs]) == before
    assert not host_copy.optimizers[0].state


@use
def a_copied_step_that_counts_is_finished_after_a_death():
    from internals.fsdp import Moment, at_next

    def fail(_):
        raise Unavailable("another rank has died")

    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=0)
    protection = host_copy.optimizers[0]._protection
    model(batch(0)).square().mean().backward()
    at_next(Moment.COMMITTED, fail)
    optimizer.step()
    with pytest.raises(Unavailable):
        host_copy.wait()
    protection.settle(1)
    expect_equal(host_copy, model, optimizer)


@use
def low_precision_has_master_copies_there_too():
    expect_same(dtype=torch.bfloat16)


@use
def a_forward_runs_while_the_last_step_is_repeated():
    from internals.fsdp import Moment, at_next

    model, optimizer, host_copy = train(True, steps=1)
    protection, forward_ran = host_copy.optimizers[0]._protection, threading.Event()
    model(batch(1)).square().mean().backward()
    at_next(Moment.RECORDED, lambda _: forward_ran.wait())
    optimizer.step()
    optimizer.zero_grad()
    model(batch(2)).square().mean().backward()
    assert (protection.step, protection.latest_step) == (1, 2)
    forward_ran.set()
    optimizer.step()
    host_copy.wait()
    assert (protection.step, protection.latest_step) == (3, 3)
    expect_equal(host_copy, model, optimizer)


@use
def options_that_change_are_followed():
    def step_of(model, optimizer, step):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        optimizer.step()

    expect_same(step_of=step_of)


@use
def gradients_are_clipped_scaled_or_missing():
    def step_of(model, optimizer, step):
        shoal.optim.clip_grad_norm_(model.parameters(), 0.1)
        if step == 2:
            next(model.parameters()).grad = None
        optimizer.grad_scale = torch.tensor(4.0)
        optimizer.found_inf = torch.tensor(float(step == 1))
        optimizer.step()

    expect_same(step_of=step_of)


@use
def rows_that_the_program_writes_are_copied_again():
    def step_of(model, optimizer, step):
        optimizer.step()
        if step == 1:
            next(model.parameters()).data.mul_(0.5)  # a write that changes no version counter

    _, _, host_copy = train(True, step_of=step_of)
    assert host_copy.num_written == 1
    assert bytes_of([q.own for _, q in host_copy.pairs]) == bytes_of([p.own for p, _ in host_copy.pairs])


@use
def writes_of_operators_are_copied_before_the_next_step():
    model, optimizer, host_copy = train(True, steps=2)
    first, *_, last = model.parameters()
    with torch.no_grad():
        first.mul_(0.5)
    optimizer.state[last]["exp_avg"].zero_()
    host_copy.optimizers[0]._protection.follow_writes()  # as the mark of the next step does
    assert host_copy.num_written == 2
    expect_equal(host_copy, model, optimizer)
    host_copy.optimizers[0]._protection.follow_writes()
    assert host_copy.num_written == 2


@use
def an_optimizer_may_have_some_of_the_parameters():
    def some(model):
        return shoal.optim.AdamW(model.head.parameters(), lr=1e-2)

    plain, alone, _ = train(False, make=some)
    model, optimizer, host_copy = train(True, make=some)
    assert content(list(plain.head.parameters()), alone) == content(list(model.head.parameters()), optimizer)
    expect_equal(host_copy, model, optimizer)


@use
def a_parameter_that_the_optimizer_gets_later_is_an_error_before_the_step():
    from internals.fsdp import protect

    model = sharded()
    optimizer = shoal.optim.AdamW(model.head.parameters(), lr=1e-2)
    protection = protect(model, optimizer)
    model(batch(0)).square().mean().backward()
    optimizer.add_param_group({"params": list(model.inp.parameters())})
    before = bytes_of([p.to_local() for p in model.parameters()])
    with pytest.raises(InvalidArgument, match="a parameter was added to the optimizer"):
        optimizer.step()
    assert bytes_of([p.to_local() for p in model.parameters()]) == before
    assert not protection.in_use
    protection = protect(model, optimizer)
    optimizer.step()
    protection.wait()
    expect_equal(optimizer._host_copy, model, optimizer)


@use
def gradients_of_aborted_groups_do_not_count():
    model, optimizer, host_copy = train(True, steps=1)
    model(batch(1)).square().mean().backward()
    host_copy.spoil()
    with pytest.raises(Unavailable, match="were aborted"):
        optimizer.step()
    assert host_copy.optimizers[0]._protection.step == 1


@use
def gradients_of_groups_that_have_ended_by_themselves_do_not_count():
    from internals.fsdp import Choice, DeviceGroups
    from internals.fsdp import host_copy as its_module

    model, optimizer, host_copy = train(True, steps=1)
    model(batch(1)).square().mean().backward()
    lost = Unavailable("rank 1 is lost")
    native = SimpleNamespace(failed=lambda: lost)
    group = SimpleNamespace(native=native, close=lambda: None)
    opened = DeviceGroups(lambda ranks, index, device: (group, Choice("nccl")))
    opened.device_types = ("cpu",)
    with mock.patch.object(its_module, "groups", opened):
        data = host_copy.pairs[0][0].state.data
        assert opened.failure(data) is None  # no group is open
        assert opened.shards(data) is group
        with pytest.raises(Unavailable, match="rank 1 is lost"):
            optimizer.step()
        native.failed = lambda: lost if threading.current_thread().name == "shoal-host-copy" else None
        optimizer.step()
        with pytest.raises(Unavailable, match="rank 1 is lost"):
            host_copy.wait()
    assert host_copy.optimizers[0]._protection.step == 1
    opened.leave_all()


@use
def gradients_are_set_to_zeros_only_when_they_are_on_the_host():
    model, optimizer, host_copy = train(True, steps=1)
    model(batch(1)).square().mean().backward()
    optimizer.step()
    with mock.patch.object(host_copy, "order_writes") as order:
        model.zero_grad()
        order.assert_not_called()
        model.zero_grad(set_to_none=False)
        order.assert_called_once()
    host_copy.wait()


@use
def a_loaded_state_dict_is_copied():
    saved = copy.deepcopy(train(False, steps=2)[1].state_dict())
    _, optimizer, host_copy = train(True, steps=1)
    optimizer.load_state_dict(saved)
    for p, q in host_copy.pairs:
        there, here = (o.state[t.views.sharded]["exp_avg"] for o, t in ((optimizer, p), (host_copy.optimizers[0], q)))
        assert torch.equal(there.to_local(), here.to_local())
    assert all(float(state["step"]) == 2 for state in host_copy.optimizers[0].state.values())


@use
def the_copy_is_made_once_and_ends_with_the_model():
    from internals.fsdp import protect

    model, optimizer, first = train(True, steps=1)
    first.optimizers[0]._protection.end()
    assert optimizer._host_copy is None
    protect(model, optimizer, step=1)
    assert optimizer._host_copy is first


@use
def counters_return_to_the_device_where_the_optimizer_has_them_there():
    from internals.fsdp import HostCopy, states_of

    p = torch.nn.Parameter(torch.ones(4, 6, device="meta"))  # a device other than the CPU, which computes nothing
    weighing, others = Weighing([p], {}), torch.optim.AdamW([p])
    assert states_of(weighing)[id(p)].on_device == {"weight"}
    assert states_of(others)[id(p)].on_device == set()
    assert states_of(others)[id(p)].sharded == {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    for on_device, device in (({"weight"}, "meta"), ((), "cpu")):
        assert HostCopy._on_device(torch.tensor(2.0), p, "weight", {}, on_device).device.type == device


@use
def mistakes_are_named():
    from internals.fsdp import protect

    model = sharded()
    with pytest.raises(Unimplemented, match=r"torch\.optim.*LBFGS cannot be protected: its attribute _params has parameters"):
        protect(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(Unimplemented, match=r"Adafactor cannot be protected: its state \w+ has the shape \[3, 1\], its parameter \[3, 5\]"):
        protect(model, torch.optim.Adafactor(model.parameters()))
    with pytest.raises(Unimplemented, match="its step changes its attribute rounds"):
        protect(model, counting := Counting(model.parameters()))
    assert counting.rounds == []
    with pytest.raises(Unimplemented, match="its step changes its attribute _rounds"):
        protect(model, private := CountingPrivately(model.parameters()))
    assert private._rounds == []
    with pytest.raises(InvalidArgument, match="has not sharded"):
        protect(model, shoal.optim.SGD([torch.nn.Parameter(torch.ones(2))]))
    optimizer = adamw(model)
    protect(model, optimizer)
    with pytest.raises(InvalidArgument, match="protected already"):
        protect(model, optimizer)
    model(batch(0)).square().mean().backward()
    optimizer.found_inf = torch.zeros((), device="meta")  # as a GradScaler on a device sets it
    with pytest.raises(Unimplemented, match="the host cannot repeat a step that a GradScaler may skip"):
        optimizer.step()
    optimizer.found_inf = None
    with pytest.raises(InvalidArgument, match="second one, SGD, stepped"):
        torch.optim.SGD(model.parameters()).step()
    optimizer.step()


class Weighing(torch.optim.Optimizer):
    """An optimizer with a number on the device, as ASGD has."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["weight"] = torch.ones((), device=p.device)


@use
def an_optimizer_that_steps_another_one_is_refused_and_not_stepped():
    from internals.fsdp import HostCopy, protect, state_of

    model = sharded()
    model(batch(0)).square().mean().backward()
    wrapping, closing = Wrapping(model.parameters()), Wrapping(model.parameters())
    closing.inner_step, closing.inner = (lambda inner: lambda: inner.step())(closing.inner), None
    hiding = Hiding(model.parameters())
    before = bytes_of([p.to_local() for p in model.parameters()])
    for optimizer in (wrapping, closing):
        with pytest.raises(Unimplemented, match=r"cannot be protected: its attribute inner\w* has another optimizer"):
            protect(model, optimizer)
    assert not wrapping.inner.state
    assert bytes_of([p.to_local() for p in model.parameters()]) == before
    with pytest.raises(Unimplemented, match="a step of a copy of it changes the parameters or states of this one"):
        protect(model, hiding)
    HostCopy(state_of(model).root.states, [wrapping]).return_states()  # as a change of the workers without protection does
    assert not wrapping.inner.state


@use
def states_that_appear_late_are_known():
    host_copy = expect_same(make=lambda m: Late(m.parameters()))
    assert {name for of in host_copy.copies.values() for name in of.sharded} == {"first", "second"}


@use
def a_state_that_cannot_be_copied_is_an_error_before_the_step():
    model, optimizer, host_copy = train(True, make=of_torch("AdamW"), steps=1)
    before = bytes_of([p.to_local() for p in model.parameters()])
    p = next(model.parameters())
    optimizer.state[p]["noise"] = torch.ones(7)
    model(batch(1)).square().mean().backward()
    with pytest.raises(Unimplemented, match=r"the state noise of .* a small tensor had no such state"):
        optimizer.step()
    assert bytes_of([p.to_local() for p in model.parameters()]) == before
    del optimizer.state[p]["noise"]
    optimizer.step()
    host_copy.wait()
    expect_equal(host_copy, model, optimizer)


@use
def a_state_of_a_dtype_that_no_record_has_is_refused():
    from internals.fsdp import protect

    model = sharded()
    with pytest.raises(Unimplemented, match="a step record has no arrays of complex64, the dtype of its state turns"):
        protect(model, Turning(model.parameters()))


@use
def a_record_names_a_dtype_that_it_cannot_have():
    protection = train(True, steps=0)[2].optimizers[0]._protection
    units, specs = [u.native for u in protection.root.units], [(0, 0, "turns", "complex64")]
    with pytest.raises(InvalidArgument, match="dtype complex64"):
        protection.actor.share_arrays(units, specs)
    with pytest.raises(InvalidArgument, match="dtype complex64"):
        protection.actor.protect(protection.model, specs, 0)


class Turning(torch.optim.Optimizer):
    """An optimizer with complex numbers."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["turns"] = torch.zeros_like(p, dtype=torch.complex64)


class Late(torch.optim.Optimizer):
    """An optimizer with a state that a gradient of zeros does not make, and one that appears in the second step."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state, g = self.state[p], p.grad
            if "first" in state:
                state.setdefault("second", torch.zeros_like(p)).add_(g)
            elif g.any():
                state["first"] = g.clone()
            p.add_(g, alpha=-0.1)


class Wrapping(torch.optim.Optimizer):
    """An optimizer whose step is that of another one."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.inner = torch.optim.AdamW(self.param_groups[0]["params"])

    def step(self, closure=None):
        self.inner.step()


HIDDEN = []


class Hiding(torch.optim.SGD):
    """An optimizer that writes to parameters which no attribute has."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        HIDDEN[:] = self.param_groups[0]["params"]

    @torch.no_grad()
    def step(self, closure=None):
        HIDDEN[0].mul_(0.5)


class Counting(torch.optim.SGD):
    """An optimizer with a number that no state has."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.rounds = []

    def step(self, closure=None):
        self.rounds.append(1)
        return super().step(closure)


class CountingPrivately(torch.optim.SGD):
    """An optimizer with a private number that no state has."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self._rounds = []

    def step(self, closure=None):
        self._rounds.append(1)
        return super().step(closure)


def all_uses():
    from internals.fsdp import leave_arenas

    leave_arenas()
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
