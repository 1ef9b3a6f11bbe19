"""Protected optimizer steps beside unprotected ones: the same bits, whatever the program does with gradients and states."""

import copy
from contextlib import nullcontext

import pytest
import torch
from launching.trained import Uses, check, ranks, run
from planned_net import STEPS, WORLD, adamw, batch, sgd, sharded

import shoal.optim
from shoal.exceptions import InvalidArgument, Unimplemented

use = Uses()


def protected(model, optimizer, **options):
    from internals.fsdp import protect

    return protect(model, optimizer, **options)


def content(model, optimizer):
    """All numbers of a model and its optimizer on this rank, as bytes."""
    tensors = [p.to_local() for p in model.parameters()]
    for p in model.parameters():
        for key, value in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(value, torch.Tensor):
                tensors.append(value.to_local() if hasattr(value, "to_local") else value)
                assert key in ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "master_param")
    return b"".join(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def train(protects, make=adamw, step_of=None, dtype=None, first=0, last=STEPS, model=None, optimizer=None):
    """Trains some steps; ``step_of(model, optimizer, step)`` replaces a plain step. Returns model, optimizer and Protection."""
    if model is None:
        model = sharded()
        if dtype is not None:
            model.to(dtype)
        optimizer = make(model)
    protection = protected(model, optimizer, step=first) if protects else None
    for step in range(first, last):
        model(batch(step).to(next(model.parameters()).dtype)).square().mean().backward()
        if step_of is None:
            optimizer.step()
        else:
            step_of(model, optimizer, step)
        optimizer.zero_grad()
    return model, optimizer, protection


def expect_same(**how):
    contents = []
    for protects in (False, True):
        model, optimizer, protection = train(protects, **how)
        contents.append(content(model, optimizer))
    assert contents[0] == contents[1]
    assert protection.step == STEPS
    return model, optimizer, protection


@use
def protected_steps_have_the_bits_of_plain_ones():
    for make in (
        adamw,
        sgd,
        lambda m: adamw(m, amsgrad=True),
        lambda m: shoal.optim.Adam(m.parameters()),
        lambda m: shoal.optim.SGD(m.parameters()),
    ):
        expect_same(make=make)


@use
def the_moments_of_a_step_come_once_and_in_their_order():
    from internals.fsdp import Moment, at_next

    seen = []
    for moment in reversed(Moment):
        at_next(moment, lambda protection, moment=moment: seen.append((moment, protection.words)))
    train(True, last=2)
    assert seen == [(moment, (1, 0, 0)) for moment in (Moment.UNSENT, Moment.RECORDED, Moment.COMMITTED)]


@use
def low_precision_has_its_master_copies_in_the_record():
    _, optimizer, protection = expect_same(dtype=torch.bfloat16)
    for p, state in optimizer.state.items():
        for key in ("exp_avg", "exp_avg_sq", "master_param"):
            assert state[key].to_local().data_ptr() == protection.home(p, key).data_ptr()


@use
def gradients_and_states_lie_in_the_record():
    def step_of(model, optimizer, step):
        protection = optimizer._protection
        if protection is not None:
            for p in model.parameters():
                assert p.grad.to_local().data_ptr() == protection.home(p, "grad").data_ptr()
        optimizer.step()

    _, optimizer, protection = expect_same(step_of=step_of)
    for p, state in optimizer.state.items():
        assert state["step"].data_ptr() == protection.home(p, "step").data_ptr()
        assert state["exp_avg"].to_local().data_ptr() == protection.home(p, "exp_avg").data_ptr()


@use
def gradients_that_the_program_replaces():
    def step_of(model, optimizer, step):
        for i, p in enumerate(model.parameters()):
            if i % 3 == 0:
                p.grad = p.grad * 0.5
            elif i % 3 == 1:
                p.grad.mul_(0.5)
        optimizer.step()

    expect_same(step_of=step_of)


@use
def a_gradient_of_an_earlier_step_that_is_kept_is_an_error():
    kept = []

    def step_of(model, optimizer, step):
        kept.append(next(model.parameters()).grad)
        before = kept[0].to_local().clone()
        with pytest.raises(InvalidArgument, match="still held") if step else nullcontext():
            optimizer.step()
        assert torch.equal(kept[0].to_local(), before)

    train(True, step_of=step_of, last=2)


@use
def a_scaler_unscales_and_skips():
    def step_of(model, optimizer, step):
        optimizer.grad_scale = torch.tensor(4.0)
        optimizer.found_inf = torch.tensor(float(step == 1))
        optimizer.step()

    expect_same(step_of=step_of)


@use
def a_loaded_state_dict_moves_into_the_record():
    model, optimizer, _ = train(False, last=2)
    saved, values = copy.deepcopy(optimizer.state_dict()), [p.to_local().detach().clone() for p in model.parameters()]
    contents = []
    for protects in (False, True):
        model, optimizer, protection = train(protects, last=1)
        optimizer.load_state_dict(copy.deepcopy(saved))
        with torch.no_grad():
            for p, v in zip(model.parameters(), values, strict=True):
                p.to_local().copy_(v)
        if protection is not None:
            for p, state in optimizer.state.items():
                assert state["exp_avg"].to_local().data_ptr() == protection.home(p, "exp_avg").data_ptr()
                assert protection.home(p, "step").item() == 2
            protection.end()
        train(protects, first=2, model=model, optimizer=optimizer)
        contents.append(content(model, optimizer))
    assert contents[0] == contents[1]


@use
def mistakes_are_named():
    import shoal.fsdp

    model = sharded()
    with pytest.raises(Unimplemented, match=r"torch\.optim.*AdamW"):
        protected(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(InvalidArgument, match="was not sharded"):
        protected(torch.nn.Linear(2, 2), adamw(model))
    with pytest.raises(InvalidArgument, match="has not sharded"):
        protected(model, shoal.optim.SGD([torch.nn.Parameter(torch.ones(2))]))
    optimizer = adamw(model)
    protected(model, optimizer)
    with pytest.raises(InvalidArgument, match="protected already"):
        protected(model, optimizer)
    with pytest.raises(Unimplemented, match="in backward"):
        shoal.fsdp.plan(model, optimizer_in_backward=optimizer)
    model(batch(0)).square().mean().backward()
    with pytest.raises(InvalidArgument, match="second one, SGD, stepped"):
        torch.optim.SGD(model.parameters()).step()
    optimizer.step()
    optimizer._protection.end()
    model(batch(0)).square().mean().backward()
    torch.optim.SGD(model.parameters()).step()


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
