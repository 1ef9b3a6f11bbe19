"""Optimizers and clipping over shards give torch's results on whole tensors. All checks run in one job of two ranks and one of four."""

import os

os.environ.setdefault("SHOAL_TIMEOUT", "100")  # seconds, after which a rank that waits alone raises an error

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.train import ScalingConfig, Trainer

CHECKS = {2: {}, 4: {}}


def check(world):
    def register(function):
        CHECKS[world][function.__name__] = function
        return function

    return register


def mesh_of(*shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=tuple("abc"[: len(shape)]))


def distributed(t, mesh, placements):
    """Cuts a tensor, which every rank has whole, without communication. Parts may be uneven or empty."""
    from torch.distributed.tensor import DTensor, Replicate

    whole = DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, placements).detach().clone()


def full(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def noise(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- two ranks: updates --------------------------------------------------------------------------------------------------------------

SHAPES = [(5, 3), (1, 7), (64, 9), (300, 1100)]  # the second rank has no row of (1, 7); the last shape is large enough for a second thread
CASES = [
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"maximize": True}),
    ("AdamW", {"weight_decay": 0.2}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {}),
    ("Muon", {}),
    ("Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
]


def both(name, options, dtype=torch.float32, dim=0):
    from torch.distributed.tensor import Shard

    import shoal.optim

    mesh = mesh_of(2)
    shapes = SHAPES[:3] if name == "Muon" else SHAPES
    whole = [nn.Parameter(noise(s, i, dtype)) for i, s in enumerate(shapes)]
    ours = [nn.Parameter(distributed(p.detach(), mesh, [Shard(dim)])) for p in whole]
    return ours, getattr(shoal.optim, name)(ours, lr=0.05, **options), whole, getattr(torch.optim, name)(whole, lr=0.05, **options)


def give(ps, step):
    for i, p in enumerate(ps):
        g = noise(p.shape, 100 * step + i, p.dtype)
        p.grad = distributed(g, p.device_mesh, p.placements) if hasattr(p, "device_mesh") else g


def train(optimizer, ps, first, last):
    for step in range(first, last):
        give(ps, step)
        optimizer.step()


def expect_close(ours, whole, **close):
    for a, b in zip(ours, whole, strict=True):
        torch.testing.assert_close(full(a).detach(), b.detach(), **(close or {"rtol": 2e-5, "atol": 2e-6}))


@check(2)
def every_optimizer_updates_its_rows():
    for name, options in CASES:
        for dim in (0, 1):
            ours, optimizer, whole, reference = both(name, options, dim=dim)
            train(optimizer, ours, 0, 4)
            train(reference, whole, 0, 4)
            expect_close(ours, whole)


@check(2)
def a_state_dict_goes_to_torch_and_back():
    import shoal.optim

    for name, options in CASES:
        ours, optimizer, whole, reference = both(name, options)
        train(optimizer, ours, 0, 2)
        train(reference, whole, 0, 4)
        theirs = (shoal.optim if name == "Muon" else torch.optim).__dict__[name](ours)  # not torch's Muon, which sums in another order
        theirs.load_state_dict(optimizer.state_dict())
        train(theirs, ours, 2, 3)
        again = type(optimizer)(ours)
        again.load_state_dict(theirs.state_dict())
        train(again, ours, 3, 4)
        expect_close(ours, whole)


@check(2)
def master_weights_are_sharded_as_their_parameter():
    for name in ("AdamW", "SGD", "Muon"):
        ours, optimizer, whole, _ = both(name, {}, torch.bfloat16)
        wide = [nn.Parameter(p.detach().float()) for p in whole]
        reference = getattr(torch.optim, name)(wide, lr=0.05)
        for step in range(3):
            give(ours, step)
            for i, p in enumerate(wide):
                p.grad = noise(p.shape, 100 * step + i, torch.bfloat16).float()
            optimizer.step()
            reference.step()
        masters = [optimizer.state[p]["master_param"] for p in ours if p.to_local().numel() or name == "Muon"]
        assert all(m.placements == ours[0].placements for m in masters)
        expect_close(ours, [p.bfloat16() for p in wide], rtol=1e-2, atol=1e-6)


@check(2)
def a_gradient_laid_out_otherwise_is_moved():
    from torch.distributed.tensor import Replicate

    ours, optimizer, whole, reference = both("AdamW", {})
    give(ours, 0)
    give(whole, 0)
    for p in ours:
        p.grad = p.grad.redistribute(p.device_mesh, [Replicate()])
    optimizer.step()
    reference.step()
    expect_close(ours, whole)


@check(2)
def one_rank_finds_infinity_and_both_skip():
    ours, optimizer, *_ = both("AdamW", {})
    before = [full(p).clone() for p in ours]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    give(ours, 0)
    if torch.distributed.get_rank() == 1:
        ours[0].grad.to_local()[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(full(a), b) for a, b in zip(ours, before, strict=True))
    give(ours, 0)
    scaler.step(optimizer)
    assert not torch.equal(full(ours[0]), before[0])


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.out = nn.Linear(6, 37, dtype=dtype), nn.Linear(37, 1, dtype=dtype)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


def fully_sharded(dtype=torch.float32):
    from shoal.fsdp import fully_shard

    model = Net(dtype)
    fully_shard(model.inp)
    return fully_shard(model)


def backward(model, step, whole=False):
    x = noise((8, 6), step).to(next(model.parameters()).dtype)
    mine = slice(None) if whole else slice(4 * torch.distributed.get_rank(), 4 * torch.distributed.get_rank() + 4)
    F.mse_loss(model(x[mine]), x[mine].sum(1, keepdim=True)).backward()


@check(2)
def a_fully_sharded_model_trains_and_clips():
    import shoal.optim

    clips = [shoal.optim.clip_grad_norm_, torch.nn.utils.clip_grad_norm_]
    for clip in clips:
        for order in (2.0, 1.0, float("inf")):
            if order == float("inf") and clip is torch.nn.utils.clip_grad_norm_:
                continue  # torch computes no maximum norm of an empty shard, which the second rank has of out.weight
            plain, model = Net(), fully_sharded()
            reference, optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01), shoal.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(4):
                backward(plain, step, whole=True)
                backward(model, step)
                expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1, order)
                norm = clip(model.parameters(), 0.1, order)
                torch.testing.assert_close(full(norm), expected, rtol=1e-5, atol=0)
                for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(full(p.grad), q.grad, rtol=1e-4, atol=1e-6)
                for each in (reference, optimizer):
                    each.step()
                    each.zero_grad()
            expect_close(model.parameters(), plain.parameters(), rtol=1e-3, atol=1e-4)


@check(2)
def a_fully_sharded_bf16_model_moves_by_less_than_bf16_can_say():
    import shoal.optim

    model = fully_sharded(torch.bfloat16)
    optimizer = shoal.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    first = [full(p).clone() for p in model.parameters()]
    for step in range(40):
        backward(model, step % 2)
        optimizer.step()
        optimizer.zero_grad()
    moved = [(full(p) - q).abs().float().mean().item() for p, q in zip(model.parameters(), first, strict=True)]
    assert moved[0] > 1e-3  # 40 steps of about 1e-4 are kept in sum, although one step is less than half the spacing of bf16 weights


# ---- four ranks: clipping over any placements ---------------------------------------------------------------------------------------


def gradients(meshes):
    """Shapes of gradients in a mix, each with its placements and mesh; without a mesh it is a plain tensor."""
    from torch.distributed.tensor import Replicate, Shard

    line, grid = meshes
    return [
        ((9, 4), None, None),
        ((9, 4), [Shard(0)], line),
        ((3, 4), [Shard(0)], line),  # the last rank has no row of this one
        ((6, 5), [Replicate()], line),
        ((6, 5), [Replicate(), Shard(0)], grid),
        ((6, 5), [Shard(0), Replicate()], grid),
        ((7, 5), [Shard(0), Shard(1)], grid),
        ((7, 5), [Shard(0), Shard(0)], grid),
    ]


def mixed(meshes, scale=1.0, dtype=torch.float32):
    ours, whole = [], []
    for i, (shape, placements, mesh) in enumerate(gradients(meshes)):
        g = noise(shape, i, dtype) * scale
        p, q = (nn.Parameter(torch.zeros(shape, dtype=dtype)) for _ in range(2))
        q.grad = g.clone()
        if placements is None:
            p.grad = g
        else:
            p = nn.Parameter(distributed(p.detach(), mesh, placements))
            p.grad = distributed(g, mesh, placements)
        ours.append(p)
        whole.append(q)
    return ours, whole


@check(4)
def any_mix_of_placements_and_meshes():
    import shoal.optim

    meshes = mesh_of(4), mesh_of(2, 2)
    for order in (2.0, 1.0, 3.0, 0.0, float("inf"), float("-inf")):
        for scale in (1.0, 1e-3, 1e25):  # the norm is above the limit, below it, or has squares beyond fp32
            if scale == 1e25 and order != float("inf"):
                continue
            ours, whole = mixed(meshes, scale)
            norm = shoal.optim.clip_grad_norm_(ours, 1.0, order)
            expected = torch.nn.utils.clip_grad_norm_(whole, 1.0, order)
            assert type(norm) is torch.Tensor
            torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
            for p, q in zip(ours, whole, strict=True):
                torch.testing.assert_close(full(p.grad), q.grad, rtol=1e-5, atol=0)
            everywhere = [None] * 4
            torch.distributed.all_gather_object(everywhere, norm.item())
            assert len(set(everywhere)) == 1


@check(4)
def squares_beyond_fp32_are_summed():
    import shoal.optim

    ours, whole = mixed((mesh_of(4), mesh_of(2, 2)), 1e25)
    norm = shoal.optim.clip_grad_norm_(ours, 1.0)
    expected = torch.cat([q.grad.double().flatten() for q in whole]).norm().float()
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)


@check(4)
def a_sum_still_to_be_taken_and_a_gradient_that_one_rank_lacks():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    import shoal.optim

    line = mesh_of(4)
    p = nn.Parameter(distributed(torch.zeros(4, 4), line, [Replicate()]))
    # four ranks add 1, so every element is 4: the squares add up to 16 * 16 = 256
    p.grad = DTensor.from_local(torch.ones(4, 4), line, [Partial()], run_check=False)
    q = nn.Parameter(distributed(torch.zeros(8), line, [Shard(0)]))
    if torch.distributed.get_rank() != 2:
        # two elements on each of three ranks: their squares add up to 6 * 4 = 24
        q.grad = distributed(torch.full((8,), 2.0), line, [Shard(0)])
    norm = shoal.optim.clip_grad_norm_([p, q], 1e6)
    torch.testing.assert_close(norm, torch.tensor(280.0).sqrt())
    shoal.optim.clip_grad_norm_([p, q], norm.item() / 2)
    torch.testing.assert_close(p.grad.full_tensor(), torch.full((4, 4), 2.0))


@check(4)
def nan_and_infinity_on_one_rank_are_known_to_all():
    import shoal.optim

    meshes = mesh_of(4), mesh_of(2, 2)
    for bad in (float("nan"), float("inf")):
        for order in (2.0, float("inf"), float("-inf")):
            if bad == float("inf") and order == float("-inf"):
                continue
            ours, _ = mixed(meshes)
            if torch.distributed.get_rank() == 2:
                ours[1].grad.to_local()[0, 0] = bad
            with pytest.raises(RuntimeError, match="the norm of order"):
                shoal.optim.clip_grad_norm_(ours, 1.0, order, error_if_nonfinite=True)
            norm = shoal.optim.clip_grad_norm_(ours, 1.0, order)
            assert norm.isnan() if bad != bad else norm.isinf()


@check(4)
def norms_by_torchs_operators_as_on_devices():
    from internals.optim import norms_by_operators

    with norms_by_operators():
        any_mix_of_placements_and_meshes()
        squares_beyond_fp32_are_summed()
        a_sum_still_to_be_taken_and_a_gradient_that_one_rank_lacks()
        nan_and_infinity_on_one_rank_are_known_to_all()


@check(4)
def muon_over_two_axes():
    from torch.distributed.tensor import Replicate, Shard

    import shoal.optim

    grid = mesh_of(2, 2)
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(0)]):
        whole = [nn.Parameter(noise((12, 9), i)) for i in range(3)]
        ours = [nn.Parameter(distributed(p.detach(), grid, placements)) for p in whole]
        optimizer, reference = shoal.optim.Muon(ours, lr=0.05), torch.optim.Muon(whole, lr=0.05)
        train(optimizer, ours, 0, 3)
        train(reference, whole, 0, 3)
        expect_close(ours, whole)


@check(4)
def torchs_muon_refuses_matrices_with_fewer_rows_than_ranks():
    """The README states this. Shoal's Muon takes these matrices."""
    from torch.distributed.tensor import Shard

    import shoal.optim

    for shape, taken in (((3, 8), False), ((8, 3), True), ((4, 8), True), ((3, 2), False)):
        whole = nn.Parameter(noise(shape, 0))
        ours, theirs = (nn.Parameter(distributed(whole.detach(), mesh_of(4), [Shard(0)])) for _ in range(2))
        train(shoal.optim.Muon([ours]), [ours], 0, 2)
        train(torch.optim.Muon([whole]), [whole], 0, 2)
        expect_close([ours], [whole])
        if taken:
            train(torch.optim.Muon([theirs]), [theirs], 0, 2)
            expect_close([theirs], [whole], rtol=0.1, atol=0.1)
        else:
            with pytest.raises(RuntimeError, match="placement changes are not supported"):
                train(torch.optim.Muon([theirs]), [theirs], 0, 2)


# ---- the runs ---------------------------------------------------------------------------------------------------------------------------


def all_checks():
    done = []
    for name, function in CHECKS[torch.distributed.get_world_size()].items():
        try:
            function()
        except BaseException as error:
            # ends the other ranks, which would wait for this one
            raise AssertionError(f"{name} failed, after {', '.join(done) or 'nothing'}") from error
        done.append(name)
        torch.distributed.barrier()
    return done


@pytest.mark.parametrize("world", CHECKS)
def test_all_checks(world):
    returns = Trainer(all_checks, scaling_config=ScalingConfig(num_workers=world)).fit().returns
    assert returns == [list(CHECKS[world])] * world
