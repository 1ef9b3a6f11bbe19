"""Tensors of the logical device beside plain ones: views, writes, errors in backward passes, and refusals."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import pytest
import torch
from torch import nn

import shoal.optim
import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm
from shoal.exceptions import Unimplemented

xr.use_spmd()
DEVICE = xm.xla_device()
MESH = xs.Mesh(range(8), (2, 4), ("x", "y"))
SPECS = [("x", "y"), ("y", "x"), (None, "x"), (("y", "x"), None), (None, None)]

# Each writes to its argument in place, through a view, or reads a view that was taken before a write.
WRITES = {
    "rows": lambda t: t[2:5].fill_(-1),
    "columns": lambda t: t[:, 1:3].mul_(2),
    "transposed": lambda t: t.t()[1].add_(7),
    "transposed rows": lambda t: t.t()[1:3].copy_(torch.zeros(2, t.shape[0], device=t.device)),
    "view of a view": lambda t: t.view(-1)[3:11].view(2, 4)[1].zero_(),
    "one element": lambda t: t[3, 2].fill_(9),
    "several": lambda t: [part.add_(i) for i, part in enumerate(t.split(2, 1))],
    "indices": lambda t: t.__setitem__(torch.tensor([1, 4], device=t.device), 5.0),
    "mask": lambda t: t.masked_fill_(t > 10, 0.0),
    "whole": lambda t: t.copy_(t.flip(0)),
    "diagonal": lambda t: t.diagonal().add_(100),
}


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", [(8, 4), (7, 5)], ids=str)
@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_writes_through_views_reach_the_tensor_and_its_other_views(shape, spec):
    for name, write in WRITES.items():
        plain, t = values(*shape), values(*shape).to(DEVICE)
        before = t[1:6].t()
        xs.mark_sharding(t, MESH, spec)
        after = t.view(-1)
        write(plain)
        write(t)
        assert torch.equal(t.cpu(), plain), name
        assert torch.equal(after.cpu(), plain.view(-1)), name
        assert torch.equal(before.cpu(), plain[1:6].t()), name


# Tensors whose memory has gaps, another order, or elements that several indices share.
GAPS = {
    "rows": lambda t: t[1:3],
    "columns": lambda t: t[:, 1:3],
    "select": lambda t: t[:, 0],
    "steps": lambda t: t[::2],
    "transposed": lambda t: t.t(),
    "diagonal": lambda t: t.diagonal(),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "expand": lambda t: t[:1].expand(3, -1),
    "chunk": lambda t: t.chunk(2, 1)[1],
    "clone": lambda t: t.t().clone(),
    "like": lambda t: torch.zeros_like(t.t()),
    "sum": lambda t: t.t() + 1,
    "cast": lambda t: t.t().double(),
    "last": lambda t: t.view(1, *t.shape, 1).clone(memory_format=torch.channels_last),
    "unsqueeze": lambda t: t[:, 1].unsqueeze(0),
    "whole": lambda t: t[:],
}
ALONG = {
    "contiguous": lambda t: t.contiguous(),
    "reshape": lambda t: t.reshape(-1),
    "flatten": lambda t: t.flatten(),
    "halves": lambda t: t.reshape(*t.shape[:-1], -1, 1),
    "ravel": lambda t: t.ravel(),
    "clone": lambda t: t.clone().reshape(-1),
    "to": lambda t: t.to(memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_operators_that_copy_plain_tensors_copy(spec, inference):
    for (gap, of), (name, along) in itertools.product(GAPS.items(), ALONG.items()):
        found = []
        with torch.inference_mode(inference):
            writes = torch._debug_has_internal_overlap(along(of(values(4, 6)))) == 0
            for device in ("cpu", DEVICE):
                t = values(4, 6).to(device)
                if device == DEVICE:
                    xs.mark_sharding(t, MESH, spec)
                seen = of(t)
                made = along(seen)
                if writes:
                    made.mul_(0)
                found.append([x.cpu() for x in (t, seen, made)] + [seen.stride(), made.stride()])
        for plain, ours in zip(*found, strict=True):
            assert torch.equal(plain, ours) if isinstance(plain, torch.Tensor) else plain == ours, (gap, name, plain, ours)


@pytest.mark.filterwarnings("ignore:shoal.spmd")
def test_random_programs_equal_plain_torch():
    steps = [
        lambda a, b: a + b,
        lambda a, b: a * b.mean(0),
        lambda a, b: (a.t() @ b).t()[: a.shape[0]].sum() + a,
        lambda a, b: torch.softmax(a / 10, random.choice([0, 1])),
        lambda a, b: torch.cat([a[:3], b[3:]]),
        lambda a, b: torch.where(a > b, a, b),
        lambda a, b: nn.functional.layer_norm(a, a.shape[1:]),
        lambda a, b: a.unsqueeze(0).expand(2, -1, -1).sum(0),
        lambda a, b: a.reshape(-1).flip(0).view(a.shape),
        lambda a, b: torch.stack([a, b]).amax(0),
    ]
    for seed in range(40):
        random.seed(seed)
        shape = random.choice([(8, 4), (7, 5), (6, 12)])
        hosts = [torch.randn(shape, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64) for i in range(2)]
        there = [h.to(DEVICE) for h in hosts]
        for h, t in zip(hosts, there, strict=True):
            xs.mark_sharding(t, MESH, random.choice(SPECS))
            h.requires_grad_(), t.requires_grad_()
        results = []
        chosen, state = random.sample(steps, 4), random.getstate()
        for a, b in (hosts, there):
            random.setstate(state)
            x, y = a, b
            for step in chosen:
                x, y = step(x, y), x
            (x.square().sum() + y.sum()).backward()
            results.append([x.detach().cpu(), a.grad.cpu(), b.grad.cpu() if b.grad is not None else torch.zeros(shape)])
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9, msg=lambda m, s=seed: f"seed {s}: {m}")


def test_a_resharded_view_of_a_view_writes_to_both():
    base = torch.zeros(6, 4).to(DEVICE)
    middle = base[0:4]
    nested = middle[0]
    xs.mark_sharding(middle, MESH, ("x", None))
    nested.fill_(7)
    assert [t.flatten()[0].item() for t in (base, middle, nested)] == [7.0] * 3


@pytest.mark.parametrize("spec", [None, ("x", None)], ids=str)
def test_overlapping_views_in_lists_are_written_one_by_one(spec):
    base = torch.zeros(6, 2).to(DEVICE)
    if spec:
        xs.mark_sharding(base, MESH, spec)
    torch._foreach_add_([base[0:4], base[2:6]], 1.0)
    assert base[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]


def test_writes_to_data_are_not_seen_by_autograd():
    w = torch.ones(3).to(DEVICE).requires_grad_()
    loss = (w * w).sum()
    w.data.clamp_(-1, 1)
    loss.backward()
    assert w.grad.tolist() == [2.0] * 3
    assert copy.deepcopy(w).grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_sums_accumulate_in_float32(dtype):
    plain = torch.cat([torch.full((2000,), 100.0), torch.full((2000,), -60.0)]).to(dtype)
    t = plain.to(DEVICE)
    xs.mark_sharding(t, MESH, (("x", "y"),))
    f = nn.functional
    for of in (
        lambda x: (x + 200).mean(),
        lambda x: x.float().half().mean(dtype=torch.float32),
        lambda x: x.var(),
        lambda x: x.std(),
        lambda x: f.mse_loss(x, x - 60),
        lambda x: f.l1_loss(x, x * 0),
        lambda x: f.smooth_l1_loss(x, x * 0),
        lambda x: f.huber_loss(x, x * 0),
    ):
        assert of(t).dtype == of(plain).dtype
        torch.testing.assert_close(of(t).cpu(), of(plain), rtol=0.01, atol=0.0)


def test_means_of_integers_are_refused():
    t = torch.arange(8).to(DEVICE)
    xs.mark_sharding(t, MESH, ("x",))
    for of in (torch.mean, torch.std, torch.var_mean):
        with pytest.raises(RuntimeError):
            of(t)
    assert t.mean(dtype=torch.float32).item() == 3.5


def test_errors_in_backward_reach_the_program():
    x = torch.randn(4, 8).to(DEVICE).requires_grad_()
    y = x * 2
    y.register_hook(lambda g: 1 / 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            y.sum().backward(retain_graph=True)


def test_dropout_equals_the_unsharded_program():
    t = torch.ones(64, 8).to(DEVICE)
    xs.mark_sharding(t, MESH, ("y", "x"))
    torch.manual_seed(3)
    ours = nn.functional.dropout(t, 0.5)
    torch.manual_seed(3)
    assert torch.equal(ours.cpu(), nn.functional.dropout(torch.ones(64, 8), 0.5))


@pytest.mark.parametrize("spec", [(None, None), ("y", None), (None, "x")], ids=str)
def test_a_fused_optimizer_updates_a_transposed_parameter(spec):
    """The kernel reads memory in order, so that it would add a gradient with other strides to the wrong elements."""
    plain, transposed = nn.Parameter(values(4, 8)), values(4, 8).t().contiguous().to(DEVICE)
    xs.mark_sharding(transposed, MESH, spec)
    ours = nn.Parameter(transposed.t())
    for p in (plain, ours):
        p.grad = values(4, 8).add(1).sin().to(p.device)
        torch.optim.AdamW([p], lr=0.1, fused=True).step()
    torch.testing.assert_close(ours.detach().cpu(), plain.detach())


@pytest.mark.filterwarnings("error:shoal.spmd")  # a warning is an error here: every operator of these has a rule
@pytest.mark.parametrize(
    "make_optimizer",
    [
        torch.optim.AdamW,
        functools.partial(torch.optim.AdamW, foreach=True),
        functools.partial(torch.optim.AdamW, fused=True),
        shoal.optim.AdamW,
        functools.partial(shoal.optim.SGD, momentum=0.9),
    ],
    ids=["loop", "foreach", "fused", "shoal.optim.AdamW", "shoal.optim.SGD"],
)
def test_optimizers_equal_plain_torch(make_optimizer):
    plain, model = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    model.to(DEVICE)
    xs.mark_sharding(model[0].weight, MESH, ("y", "x"))
    xs.mark_sharding(model[2].weight, MESH, (None, "y"))
    for m, make in ((plain, lambda x: x), (model, lambda x: x.to(DEVICE))):
        optimizer = make_optimizer(m.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            m(make(values(4, 6) / 24 + step)).square().sum().backward()
            optimizer.step()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.detach().cpu(), p.detach())


def test_parameters_of_another_dtype_are_the_same_objects():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).to(DEVICE)
    xs.mark_sharding(model[0].weight, MESH, ("y", "x"))
    parameters, optimizer = list(model.parameters()), torch.optim.SGD(model.parameters(), lr=1.0)
    sharding = model[0].weight._box.array.sharding
    model(torch.randn(6, 4).to(DEVICE)).square().sum().backward()
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        before = model[0].weight.detach().clone()
        assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
        assert {p.dtype for p in parameters} == {p.grad.dtype for p in parameters} == {before.dtype} == {dtype}
        model(torch.randn(6, 4).to(DEVICE, dtype)).square().sum().backward()
        optimizer.step()
        assert model[0].weight._box.array.sharding == sharding
        assert not torch.equal(before.cpu(), model[0].weight.cpu())


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_in_place_changes_of_the_shape_leave_a_view(spec):
    plain = values(6, 1, 4)
    base = values(6, 1, 4).to(DEVICE)
    xs.mark_sharding(base, MESH, (spec[0], None, spec[1]))
    t = base.view(6, 1, 4)
    for x in (plain, t):
        x.transpose_(0, 2).squeeze_(1).unsqueeze_(0).mul_(2)
    assert t.shape == plain.shape == (1, 4, 6)
    assert torch.equal(t.cpu(), plain)
    assert torch.equal(base.cpu(), 2 * values(6, 1, 4))


@pytest.mark.parametrize("spec", [None, ("x",), (("y", "x"),)], ids=str)
def test_conjugate_views_have_conjugate_values(spec):
    plain = torch.complex(values(7), values(7) - 3)
    t = plain.to(DEVICE)
    if spec:
        xs.mark_sharding(t, MESH, spec)
    for f in (lambda a: a.conj() * a, lambda a: a.conj().imag, lambda a: (a.imag + a.conj().imag).abs(), lambda a: torch.vdot(a, a)):
        assert torch.equal(f(t).cpu(), f(plain))
    for a in (plain, t):
        a.conj().add_(1j)
    assert torch.equal(t.cpu(), plain)


def test_mixing_devices_is_refused_except_for_torchs_own_tensors():
    t, held, layer = torch.ones(4, 4).to(DEVICE), torch.ones(4, 4), nn.Linear(4, 4, bias=False)
    for mix in (
        lambda: t + torch.ones(4, 4),
        lambda: t @ held.t(),
        lambda: torch.cat([held, t]),
        lambda: layer(t),
        lambda: held.add_(t),
        lambda: torch.ones(4, dtype=torch.int64).add_(t[0].long()),
        lambda: nn.functional.cross_entropy(t, torch.arange(4)),
        lambda: nn.functional.embedding(torch.arange(4), t),
        lambda: nn.functional.embedding(torch.tensor(2), t),
        lambda: torch.where(held > 0, t, t),
        lambda: t.clone().masked_fill_(held > 0, 1.0),
        lambda: t.index_select(0, torch.arange(4)),
        lambda: t.clone().index_put_((torch.arange(4),), held),
        lambda: torch._foreach_add([t], [held]),
        lambda: torch.arange(4)[t[0].long()],
        lambda: torch.equal(t, held),
    ):
        with pytest.raises(RuntimeError, match=r"on the same device.*shape"):
            mix()
    at, two, mask = torch.tensor([2, 0]), torch.tensor(2), held > 0
    for allowed in (  # CUDA allows these, too: indices on the host, and single numbers
        lambda x: x[at],
        lambda x: x[:, [1, 2]],
        lambda x: x[mask],
        lambda x: x.index_put((at,), x[:2]),
        lambda x: x * two,
        lambda x: torch.where(x > 0, x, two),
        lambda x: torch._foreach_mul([x], two)[0],
    ):
        assert torch.equal(allowed(t).cpu(), allowed(held))
    q = torch.randn(3, 5, 8, dtype=torch.float64)
    ours, plain = q.to(DEVICE).requires_grad_(), q.requires_grad_()
    attend = nn.functional.scaled_dot_product_attention  # its mask is on the host; the backward of indexing makes zeros there, too
    for x in (ours, plain):
        attend(x, x, x, is_causal=True)[[2, 0, 2]].sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), plain.grad, rtol=1e-12, atol=1e-12)


def test_views_of_running_statistics_see_batch_norm_updates():
    mean, x = torch.zeros(4).to(DEVICE), torch.randn(8, 4).to(DEVICE)
    xs.mark_sharding(x, MESH, ("x", None))
    xs.mark_sharding(mean, MESH, ("y",))
    seen = mean.view(2, 2)
    before = seen + 0
    nn.functional.batch_norm(x, mean, torch.ones(4).to(DEVICE), training=True, momentum=1.0)
    torch.testing.assert_close(seen.cpu().view(-1), x.cpu().mean(0))
    assert not torch.equal(seen.cpu(), before.cpu())


def test_unsupported_operations_are_an_error():
    split = torch.ones(4, 8).to(DEVICE)
    xs.mark_sharding(split, MESH, ("x", None))
    with pytest.raises(Unimplemented, match="of a view of a tensor that is split"):
        split[:, 1:].as_strided((2, 2), (1, 2))
    t = torch.ones(4, 8).to(DEVICE)
    with pytest.raises(Unimplemented, match="changes the shape"):
        t.resize_(2, 2)
    with pytest.raises(Unimplemented, match="cannot be pickled"):
        torch.save(t, os.devnull)


def test_operators_without_a_rule_are_named_once():
    t = torch.ones(8, 4).to(DEVICE)
    xs.mark_sharding(t, MESH, ("x", "y"))
    before = xs.replicated_ops().get("aten.trace.default", 0)
    with pytest.warns(UserWarning, match=r"aten\.diag_embed\.default has no rule"):
        t.diag_embed()
    t.trace()
    assert xs.replicated_ops()["aten.trace.default"] == before + 1


@pytest.mark.parametrize("move", [lambda t: t.cpu(), lambda t: xs.mark_sharding_with_gradients(t, MESH, ("x",))], ids=["cpu", "mark"])
def test_gradients_through_moves_can_be_differentiated_again(move):
    found = []
    for device, through in (("cpu", lambda t: t), (DEVICE, move)):
        x = values(8).to(device).requires_grad_()
        (g,) = torch.autograd.grad((through(x) ** 3).sum(), x, create_graph=True)
        (g.square().sum() + x.sum()).backward()
        found.append(x.grad.cpu())
    assert torch.equal(*found)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("spec", [("x", None), (None, None)], ids=str)
def test_errors_name_the_operator_and_the_line_once(spec, context):
    t = values(8, 4).to(DEVICE)
    xs.mark_sharding(t, MESH, spec)
    sites = {
        "aten.mm.default": (RuntimeError, lambda: t @ values(3, 3).to(DEVICE)),
        "aten.select.int": (IndexError, lambda: t.select(0, 9)),
        "aten.embedding.default": (IndexError, lambda: nn.functional.embedding(torch.tensor([99], device=DEVICE), t)),
    }
    for name, (kind, act) in sites.items():
        with context(), pytest.raises(kind) as raised:
            act()
        text = f"\n  in: {name}, line {act.__code__.co_firstlineno} of {__file__}"
        assert str(raised.value).endswith(text), raised.value
        assert str(raised.value).count("in: ") == 1


def test_errors_in_custom_backward_functions_name_their_line():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient @ gradient  # IN BACKWARD

    loss = Wrong.apply(values(8, 4).to(DEVICE).requires_grad_()).sum()
    with pytest.raises(RuntimeError, match=rf"\n  in: aten\.mm\.default, line {Wrong.backward.__code__.co_firstlineno + 2} of {__file__}"):
        loss.backward()


def test_type_as_and_to_move_to_the_others_device():
    x, host = torch.arange(4.0).to(DEVICE), torch.ones(4, dtype=torch.float64)
    assert x.to(x) is x
    assert x.type_as(x) is x
    for here in (x.to(host), x.type_as(host), x.to(tensor=host)):
        assert (here.device.type, here.dtype) == ("cpu", torch.float64)


@pytest.mark.parametrize("mark", [("x",), (None,)])
def test_writes_through_views_reach_transposed_memory(mark):
    x = torch.arange(8.0).view(2, 4)
    there = x.to(DEVICE)
    xs.mark_sharding(there, MESH, (None, "y"))
    copy, plain = there.t().clone(), x.t().clone()
    view, expected = copy.reshape(-1), plain.reshape(-1)
    xs.mark_sharding(view, MESH, mark)
    view[1].fill_(9)
    expected[1].fill_(9)
    assert torch.equal(view.cpu(), expected)
    assert torch.equal(copy.cpu(), plain)
