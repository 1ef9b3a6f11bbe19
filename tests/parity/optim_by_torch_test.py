"""Optimizers whose update torch's fused operators make, as on devices without kernels and under a GradScaler: torch's results.

The CPU plays the device: its fused operators take the same arguments.
"""

import copy
import warnings

import pytest
import torch
from internals.optim import Scaling, kernels_fail_with, lacks_kernels, updates_by_torch
from torch import nn
from torch.overrides import TorchFunctionMode

import shoal.optim
from shoal.exceptions import Unavailable, Unimplemented

CASES = [
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "betas": (0.9, 0.5), "maximize": True}),
    ("AdamW", {"lr": torch.tensor(0.05)}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
]
SHAPES = [(5, 3), (1,), (33, 70)]


def both(name, options, dtype=torch.float32):
    """Parameters and optimizer of Shoal, and those of torch."""
    options = {"lr": 0.05, **options}
    found = []
    for kind, own in ((shoal.optim, {}), (torch.optim, {"fused": True})):
        random = torch.Generator().manual_seed(0)
        ps = [nn.Parameter(torch.randn(s, generator=random).to(dtype)) for s in SHAPES]
        found += [ps, getattr(kind, name)([{"params": ps[:1]}, {"params": ps[1:], "weight_decay": 0.2}], **options, **own)]
    return found


def updates(options):
    """With dampening the host waits for the first step."""
    return updates_by_torch(waits="dampening" in options)


def give(of, step, scale=1.0):
    random = torch.Generator().manual_seed(step)
    for p in of:
        p.grad = (torch.randn(p.shape, generator=random) * scale).to(p.dtype)


def tensors_of(ps, optimizer):
    states = [optimizer.state[p][name] for p in ps for name in sorted(optimizer.state[p])]
    return [*ps, *states]


def expect_same_bits(ours, optimizer, theirs, reference):
    for a, b in zip(tensors_of(ours, optimizer), tensors_of(theirs, reference), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_bits_are_those_of_torchs_fused_optimizer(name, options):
    ours, optimizer, theirs, reference = both(name, options)
    with updates(options):
        for step in range(4):
            for ps, o in ((ours, optimizer), (theirs, reference)):
                give(ps, step)
                if step == 2:
                    ps[1].grad = None
                o.step()
    expect_same_bits(ours, optimizer, theirs, reference)


class Copies(TorchFunctionMode):
    """Keeps the arguments of copies of one tensor to a device."""

    def __init__(self, of):
        self.of, self.made = of, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to and args[0] is self.of:
            self.made.append((*args[1:], kwargs))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_learning_rate_is_copied_once_per_step_and_device(name):
    ps = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    lr = torch.tensor(0.1)
    optimizer = getattr(shoal.optim, name)([{"params": ps[:1]}, {"params": ps[1:]}], lr=lr)
    with updates_by_torch(), Copies(lr) as copies:
        for step in range(2):
            give(ps, step)
            optimizer.step()
    assert len(copies.made) == 2
    with Copies(lr) as copies:
        Scaling(None, None).option_on(lr, torch.device("meta"))
    assert copies.made == [(torch.device("meta"), {"non_blocking": True})]  # a copy to a device leaves the host free


def losses_with_inf(ps, step, infinite):
    return sum((p * p).sum() for p in ps) * (float("inf") if step == infinite else 1.0)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_host_does_not_wait_for_a_grad_scaler(name, options, unscale):
    ours, optimizer, theirs, reference = both(name, options)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2) for _ in range(2)]
    with updates(options):
        for step in range(5):
            for ps, o, scaler in ((ours, optimizer, scalers[0]), (theirs, reference, scalers[1])):
                o.zero_grad()
                scaler.scale(losses_with_inf(ps, step, 2)).backward()
                if unscale:
                    scaler.unscale_(o)
                scaler.step(o)
                scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 128.0
    expect_same_bits(ours, optimizer, theirs, reference)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_a_momentum_begins_behind_the_steps_that_a_scaler_skips(dampening):
    ours, optimizer, theirs, _ = both("SGD", {"momentum": 0.9, "dampening": dampening})
    reference = torch.optim.SGD(theirs, lr=0.05, momentum=0.9, dampening=dampening)
    optimizer.param_groups[1]["weight_decay"] = 0
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0) for _ in range(2)]
    with updates_by_torch(waits=dampening > 0):
        for step in range(4):
            for ps, o, scaler in ((ours, optimizer, scalers[0]), (theirs, reference, scalers[1])):
                o.zero_grad()
                scaler.scale(losses_with_inf(ps, step, 0)).backward()
                scaler.step(o)
                scaler.update()
    for a, b in zip(tensors_of(ours, optimizer), tensors_of(theirs, reference), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_master_weights_are_torchs_parameters_in_fp32(name):
    low, optimizer, _, _ = both(name, {}, torch.float16)
    _, _, wide, reference = both(name, {})
    with torch.no_grad():
        for p, q in zip(low, wide, strict=True):
            q.copy_(p)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    with updates_by_torch():
        for step in range(4):
            give(low, step, 8.0)
            for p, q in zip(low, wide, strict=True):
                q.grad = p.grad.float() / 8.0
            scaled = [p.grad.clone() for p in low]
            scaler.step(optimizer)
            reference.step()
            scaler.update()
            assert all(torch.equal(p.grad, s / 8.0) for p, s in zip(low, scaled, strict=True))
    for p, q in zip(low, wide, strict=True):
        torch.testing.assert_close(optimizer.state[p]["master_param"], q.detach())
        assert torch.equal(p, optimizer.state[p]["master_param"].half())


def test_a_state_dict_goes_on_with_the_kernels_and_with_torch():
    ours, optimizer, theirs, reference = both("AdamW", {})
    with updates_by_torch():
        for step in range(2):
            give(ours, step)
            optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    reference.load_state_dict(saved)
    with torch.no_grad():
        for p, q in zip(theirs, ours, strict=True):
            p.copy_(q)
    for ps, o in ((ours, optimizer), (theirs, reference)):  # the kernels of the CPU go on
        give(ps, 2)
        o.step()
    for a, b in zip(tensors_of(ours, optimizer), tensors_of(theirs, reference), strict=True):
        torch.testing.assert_close(a, b)


def test_a_build_without_kernels_warns_once():
    device = torch.device("cuda", 0)
    with kernels_fail_with(Unimplemented("this build has no kernels for CUDA devices", reason="NoKernels")):
        with pytest.warns(UserWarning, match="so torch's fused ones update its parameters"):
            assert lacks_kernels(device)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert lacks_kernels(device)
    for error in (Unavailable("no driver"), Unimplemented("no such device")):
        with kernels_fail_with(error), pytest.raises(type(error), match="no "):
            lacks_kernels(device)
