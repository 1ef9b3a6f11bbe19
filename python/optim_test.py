"""Optimizers on plain tensors, compared with torch's own classes. For sharded tensors see tests/parity/optim_parity_test.py."""

import copy
import io
import itertools
import os
import signal

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import shoal.optim
from shoal.exceptions import InvalidArgument, Unimplemented

SHAPES = [(5,), (33, 70), (1,), (3, 4, 5)]
# Adam divides by the root of a moment, so an element whose gradients nearly cancel may differ by more than a rounding.
CLOSE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
}

ADAM = [
    {},
    {"betas": (0.5, 0.7), "eps": 1e-3},
    {"weight_decay": 0.3},
    {"amsgrad": True, "betas": (0.9, 0.5)},
    {"maximize": True},
    {"maximize": True, "amsgrad": True, "weight_decay": 0.1},
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    {"lr": torch.tensor(0.05, dtype=torch.float64)},
]
SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.3},
    {"maximize": True, "momentum": 0.5, "weight_decay": 0.1},
    {"fused": True},
    {"lr": torch.tensor(0.05, dtype=torch.float64)},
]
MUON = [{}, {"nesterov": False}, {"weight_decay": 0.5}, {"adjust_lr_fn": "match_rms_adamw"}, {"momentum": 0.5, "ns_steps": 3}]
CASES = [
    *(("Adam", o) for o in [*ADAM, {"decoupled_weight_decay": True, "weight_decay": 0.1}]),
    *(("AdamW", o) for o in ADAM),
    *(("SGD", o) for o in SGD),
    *(("Muon", o) for o in MUON),
]
NAMES = ["Adam", "AdamW", "SGD", "Muon"]


def parameters(dtype=torch.float32, shapes=None, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=random).to(dtype)) for s in shapes or SHAPES]


def gradients(of, seed):
    random = torch.Generator().manual_seed(seed)
    for p in of:
        p.grad = torch.randn(p.shape, generator=random).to(p.dtype)


def shapes_of(name):
    return [(5, 3), (33, 70), (64, 8)] if name == "Muon" else None


def both(name, dtype=torch.float32, **options):
    options = {"lr": 0.05, **options}
    ours, theirs = (parameters(dtype, shapes_of(name)) for _ in range(2))
    # The first matrix has a group of its own.
    theirs_options = {k: copy.copy(v) for k, v in options.items() if k != "master_weights"}
    groups = [[{"params": ps[:1], "lr": 0.01}, {"params": ps[1:]}] for ps in (ours, theirs)]
    return ours, getattr(shoal.optim, name)(groups[0], **options), theirs, getattr(torch.optim, name)(groups[1], **theirs_options)


def train(ps, optimizer, first, last):
    for step in range(first, last):
        gradients(ps, 100 + step)
        optimizer.step()


def expect_close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **CLOSE[a.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_option_equals_torchs_result(name, options, dtype):
    ours, our_optimizer, theirs, their_optimizer = both(name, dtype, **options)
    train(ours, our_optimizer, 0, 6)
    train(theirs, their_optimizer, 0, 6)
    expect_close(ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert our_optimizer.state[a].keys() == their_optimizer.state[b].keys()
        for key, value in their_optimizer.state[b].items():
            torch.testing.assert_close(our_optimizer.state[a][key], value, **CLOSE[dtype])


@pytest.mark.parametrize("direction", ["from torch", "to torch", "to ourselves"])
@pytest.mark.parametrize(
    ("name", "options"), [("Adam", {"amsgrad": True}), ("AdamW", {}), ("SGD", {"momentum": 0.9}), ("SGD", {}), ("Muon", {})]
)
def test_a_state_dict_goes_both_ways(name, options, direction):
    ours, our_optimizer, theirs, their_optimizer = both(name, **options)
    train(ours, our_optimizer, 0, 3)
    train(theirs, their_optimizer, 0, 3)
    kind = torch.optim if direction == "to torch" else shoal.optim
    saved = (their_optimizer if direction == "from torch" else our_optimizer).state_dict()
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    others = [nn.Parameter(p.detach().clone()) for p in theirs]
    other = getattr(kind, name)([{"params": others[:1]}, {"params": others[1:]}], lr=7.0)
    other.load_state_dict(torch.load(file))
    assert [g["lr"] for g in other.param_groups] == [0.01, 0.05]
    train(theirs, their_optimizer, 3, 6)
    train(others, other, 3, 6)
    expect_close(others, theirs)


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_moves_the_rate(name, tensor_lr):
    def run(optimizer, ps):
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8, cycle_momentum=False)
        for step in range(6):
            gradients(ps, step)
            optimizer.step()
            scheduler.step()

    shapes = shapes_of(name)
    results = []
    for kind in (shoal.optim, torch.optim):
        ps = parameters(shapes=shapes)
        run(getattr(kind, name)(ps, lr=torch.tensor(0.1) if tensor_lr else 0.1), ps)
        results.append(ps)
    expect_close(*results)


@pytest.mark.parametrize("name", NAMES)
def test_a_closure_is_run_with_gradients_and_its_loss_returned(name):
    results = []
    for kind in (shoal.optim, torch.optim):
        (p,) = parameters(shapes=[(4, 6)])
        optimizer = getattr(kind, name)([p], lr=0.1)

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (p**2).sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        results.append((p, losses))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("layout", ["transposed", "channels_last", "gradient transposed"])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_any_dense_memory_layout_works(name, layout):
    results = []
    for kind in (shoal.optim, torch.optim):
        values = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
        if layout == "transposed":
            values = values.transpose(0, 1)
        if layout == "channels_last":
            values = values.to(memory_format=torch.channels_last)
        p = nn.Parameter(values)
        optimizer = getattr(kind, name)([p], lr=0.1)
        for step in range(3):
            g = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            p.grad = g.transpose(0, 1).contiguous().transpose(0, 1) if layout == "gradient transposed" else g
            optimizer.step()
        results.append(p)
    torch.testing.assert_close(results[0], results[1])


def test_a_state_with_another_memory_layout_is_converted():
    p = nn.Parameter(torch.randn(4, 6).T)
    optimizer = shoal.optim.AdamW([p])
    gradients([p], 0)
    optimizer.step()
    before = optimizer.state[p]["exp_avg"].clone()
    optimizer.state[p]["exp_avg"] = before.contiguous()
    p.grad.zero_()
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["exp_avg"], before * 0.9)
    assert optimizer.state[p]["exp_avg"].stride() == p.stride()


# ---- low precision -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_master_weights_are_fp32_training_rounded_once(name, dtype):
    low, optimizer, _, _ = both(name, dtype)
    wide = [nn.Parameter(p.detach().float()) for p in low]
    reference = getattr(torch.optim, name)([{"params": wide[:1], "lr": 0.01}, {"params": wide[1:]}], lr=0.05)
    for step in range(6):
        gradients(low, step)
        for a, b in zip(low, wide, strict=True):
            b.grad = a.grad.float()
        optimizer.step()
        reference.step()
    for a, b in zip(low, wide, strict=True):
        state = optimizer.state[a]
        torch.testing.assert_close(state["master_param"], b.detach(), **CLOSE[torch.float32])
        assert torch.equal(a, state["master_param"].to(dtype))
        assert {v.dtype for v in state.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_training_without_master_weights_equals_torch(name):
    # torch's fused Adam computes in fp32, as Shoal's does; torch's fused SGD is inaccurate in bfloat16 (2.13).
    ours, our_optimizer, theirs, their_optimizer = both(name, torch.bfloat16, master_weights=False, fused=name != "SGD")
    train(ours, our_optimizer, 0, 4)
    train(theirs, their_optimizer, 0, 4)
    expect_close(ours, theirs)
    assert "master_param" not in our_optimizer.state[ours[0]]


@pytest.mark.parametrize("grad", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_gradients_may_have_another_dtype(grad):
    p, q = (nn.Parameter(torch.ones(1500)) for _ in range(2))
    g = torch.randn(1500, generator=torch.Generator().manual_seed(1)).to(grad)
    p.grad_dtype = None
    p.grad, q.grad = g, g.float()
    shoal.optim.AdamW([p]).step()
    shoal.optim.AdamW([q]).step()
    assert torch.equal(p, q)


def test_the_master_copy_survives_a_state_dict():
    low, optimizer, _, _ = both("AdamW", torch.bfloat16)
    train(low, optimizer, 0, 3)
    others = [nn.Parameter(p.detach().clone()) for p in low]
    other = shoal.optim.AdamW([{"params": others[:1]}, {"params": others[1:]}])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(low, others, strict=True):
        assert torch.equal(other.state[b]["master_param"], optimizer.state[a]["master_param"])
        assert other.state[b]["exp_avg"].dtype == torch.float32
    train(low, optimizer, 3, 6)
    train(others, other, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(low, others, strict=True))


def test_a_low_precision_state_from_torch_is_widened():
    _, _, theirs, their_optimizer = both("AdamW", torch.bfloat16)
    train(theirs, their_optimizer, 0, 3)
    others = [nn.Parameter(p.detach().clone()) for p in theirs]
    other = shoal.optim.AdamW([{"params": others[:1]}, {"params": others[1:]}])
    other.load_state_dict(their_optimizer.state_dict())
    train(others, other, 3, 4)
    assert torch.equal(other.state[others[1]]["master_param"].to(torch.bfloat16), others[1])
    assert other.state[others[1]]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("counted", [True, False])
def test_weights_written_between_steps_reach_the_master_copy(counted):
    p = nn.Parameter(torch.ones(10, dtype=torch.bfloat16))
    optimizer = shoal.optim.SGD([p], lr=1e-3)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert p[0] == 1
    assert optimizer.state[p]["master_param"][0] == 0.999
    with torch.no_grad():
        (p if counted else p.data)[3:] = 5.0  # p.data has a version counter of its own
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["master_param"], torch.tensor([0.998] * 3 + [4.999] * 7))


def test_a_copied_optimizer_trains_on():
    low, optimizer, _, _ = both("AdamW", torch.bfloat16)
    train(low, optimizer, 0, 2)
    others, other = copy.deepcopy((low, optimizer))
    train(low, optimizer, 2, 4)
    train(others, other, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(low, others, strict=True))


# ---- GradScaler ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_grad_scaler_unscales_and_skips(name, unscale):
    def run(kind):
        ps = parameters(shapes=[(7, 9)])
        optimizer = getattr(kind, name)(ps, lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        for step in range(5):
            loss = sum((p * p).sum() for p in ps) * (float("inf") if step == 2 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return ps[0], ps[0].grad, torch.tensor(scaler.get_scale())

    torch.testing.assert_close(run(shoal.optim), run(torch.optim))


def test_a_grad_scaler_takes_fp16_parameters_with_master_weights():
    p = nn.Parameter(torch.ones(6, dtype=torch.float16))
    optimizer, scaler = shoal.optim.SGD([p], lr=0.25), torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    assert torch.equal(p, torch.full((6,), 0.75, dtype=torch.float16))


# ---- refusals, and other cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_unsupported_options_are_refused_by_name(option):
    (p,) = parameters(shapes=[(2,)])
    with pytest.raises(Unimplemented, match=f"no {option}=True"):
        shoal.optim.AdamW([p], **{option: True})
    optimizer = shoal.optim.AdamW([p])
    with pytest.raises(Unimplemented, match=f"no {option}=True"):
        optimizer.add_param_group({"params": parameters(shapes=[(2,)]), option: True})
    saved = optimizer.state_dict()
    saved["param_groups"][0][option] = True
    with pytest.raises(Unimplemented, match=f"no {option}=True"):
        optimizer.load_state_dict(saved)


def test_invalid_options_raise_torchs_errors():
    for options in ({"lr": -1.0}, {"betas": (1.0, 0.9)}, {"eps": -1.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match="Invalid"):
            shoal.optim.AdamW(parameters(), **options)
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        shoal.optim.Adam(parameters(), fused=True, foreach=True)


def test_bad_tensors_are_refused():
    table = nn.Embedding(4, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgument, match="sparse gradients"):
        shoal.optim.SGD(table.parameters()).step()
    spread = nn.Parameter(torch.zeros(8, 4)[:, ::2])
    spread.grad = torch.zeros(8, 2)
    with pytest.raises(InvalidArgument, match="has gaps"):
        shoal.optim.Adam([spread]).step()
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    p.grad = torch.zeros_like(p)
    with pytest.raises(Unimplemented, match="complex64"):
        shoal.optim.Adam([p]).step()
    pair = nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    for kind in (shoal.optim.SGD, shoal.optim.AdamW):
        pair.grad = torch.ones(3)
        with pytest.raises(Unimplemented, match="inner tensors of a TwoTensor"):
            kind([pair]).step()
    on_meta = nn.Parameter(torch.zeros(3, device="meta"))
    on_meta.grad = torch.zeros(3, device="meta")
    for kind in (shoal.optim.SGD, shoal.optim.AdamW):
        with pytest.raises(Unimplemented, match="on the CPU and CUDA devices, not float32 on meta"):
            kind([on_meta]).step()


def test_gradients_that_are_wrapper_tensors_work():
    p = nn.Parameter(torch.zeros(3))
    p.grad = TwoTensor(torch.ones(3), torch.full((3,), 2.0))
    assert shoal.optim.clip_grad_norm_([p], 100.0) == pytest.approx(12**0.5)
    shoal.optim.SGD([p], lr=1.0).step()
    assert p.tolist() == [-2.0, -2.0, -2.0]  # the result of p.add_(p.grad, alpha=-1)


def test_parameters_without_gradient_or_elements_stay():
    p, empty, without = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0, 4)), nn.Parameter(torch.ones(2))
    optimizer = shoal.optim.AdamW([p, empty, without], lr=0.1)
    p.grad, empty.grad = torch.ones(3), torch.ones(0, 4)
    optimizer.step()
    assert (p < 1).all()
    assert torch.equal(without, torch.ones(2))
    assert without not in optimizer.state
    assert optimizer.state[empty]["step"] == 1


def test_autograd_sees_that_a_parameter_changed():
    p = nn.Parameter(torch.ones(3))
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    shoal.optim.SGD([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_threads_change_no_bit_and_none_is_needed_in_a_fork():
    n = 600_001

    def run(threads):
        torch.set_num_threads(threads)
        p = nn.Parameter(torch.arange(n, dtype=torch.float32))
        optimizer = shoal.optim.AdamW([p], lr=0.1)
        for _ in range(2):
            p.grad = torch.ones(n)
            optimizer.step()
        return p.detach(), shoal.optim.clip_grad_norm_([p], 1.0)

    before = torch.get_num_threads()
    try:
        one, two = run(1), run(2)
        assert torch.equal(one[0], two[0])
        torch.testing.assert_close(one[1], two[1])
        p = nn.Parameter(torch.zeros(n))
        p.grad = torch.ones(n)  # starts the threads of OpenMP
        optimizer = shoal.optim.SGD([p], lr=1.0)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            optimizer.step()
            os._exit(0 if p[0] == -1 and p[n - 1] == -1 else 3)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


# ---- clipping -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, 0.5, float("inf"), float("-inf"), 0.0, "inf"], ids=str)
def test_clipping_is_torchs(order):
    for dtype, max_norm in itertools.product([torch.float32, torch.float64, torch.bfloat16], [0.5, 1e9]):
        ours, theirs = parameters(dtype), parameters(dtype)
        ours[0].requires_grad_(False)
        for ps in (ours, theirs):
            gradients(ps[1:], 3)
        norm = shoal.optim.clip_grad_norm_(iter(ours), max_norm, order)
        reference = torch.nn.utils.clip_grad_norm_(theirs, max_norm, order)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert type(norm) is torch.Tensor
        assert (norm.shape, norm.dtype) == ((), wide)
        close = {"rtol": 2e-2, "atol": 1e-4} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(norm, reference.to(norm.dtype), **close)
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            torch.testing.assert_close(a.grad, b.grad, **close)


def test_clipping_handles_a_norm_that_is_not_finite():
    (p,) = parameters(shapes=[(4,)])
    for bad in (float("nan"), float("inf")):
        p.grad = torch.tensor([1.0, bad, 2.0, 3.0])
        with pytest.raises(RuntimeError, match="the norm of order 2"):
            shoal.optim.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
        assert p.grad[0] == 1
    with pytest.raises(InvalidArgument, match="the norm of order inf"):
        shoal.optim.clip_grad_norm_(p, 1.0, "inf", error_if_nonfinite=True)
    shoal.optim.clip_grad_norm_(p, 1.0)
    assert p.grad[1].isnan()
    assert p.grad[0] == 0  # as in torch
    p.grad = torch.tensor([1.0, float("nan")] * 2)
    for order in (2.0, "inf", "-inf"):
        assert shoal.optim.clip_grad_norm_(p, 1.0, order).isnan()
        p.grad = torch.tensor([1.0, float("nan")] * 2)


def test_clipping_without_gradients_works():
    assert shoal.optim.clip_grad_norm_([], 1.0) == 0
    assert shoal.optim.clip_grad_norm_(parameters(), 1.0) == 0
    with pytest.raises(InvalidArgument, match="max_norm"):
        shoal.optim.clip_grad_norm_(parameters(), float("nan"))
