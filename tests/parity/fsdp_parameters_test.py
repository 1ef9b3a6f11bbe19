"""Parameters that are added, replaced or tied after sharding, and torch's replicate around units, in one run of two ranks."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from fsdp2_net import WORLD, Net, batch, expect_gradients, full, loss_of, rank, shard
from launching.trained import Uses, check, ranks, run
from torch import nn

use = Uses()


# ---- added parameters ----------------------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    def __init__(self, base, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features, generator=generator))
        self.up = nn.Parameter(torch.randn(base.out_features, 2, generator=generator))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def _adapt(model, seed, of_rank=0):
    for i, block in enumerate(model.blocks):
        block[2] = Adapted(block[2], seed + i + 100 * of_rank)
    model.scale = nn.Parameter(torch.full((5,), 1.5 + of_rank))
    model.head.register_forward_hook(lambda m, args, out: out * model.scale)


def _train_both(models, step, backwards=1):
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1) for m in models]
    for i in range(backwards):
        if hasattr(models[0], "set_requires_gradient_sync"):
            models[0].set_requires_gradient_sync(i != 0 or backwards == 1)
        loss_of(models[0], step + i).backward()
        (sum(loss_of(models[1], step + i, r) for r in range(WORLD)) / WORLD).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _expect_same(models):
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(full(p), q, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@use
def adapters_added_after_sharding():
    for frozen in (False, True):
        for trained_before in (False, True):
            models = shard(Net()), Net()
            if trained_before:
                _train_both(models, 0)
            for m in models:
                m.requires_grad_(not frozen)
            _adapt(models[0], 1, of_rank=rank())  # the other rank's adapter differs; all ranks must train the first rank's
            _adapt(models[1], 1)
            for step in range(3):
                _train_both(models, 10 * step, backwards=1 + step)
            assert models[0].scale.grad is None
            assert models[0].blocks[0][2].unused.grad is None
            _expect_same(models)


@use
def parameters_added_after_sharding_cause_a_warning():
    model = shard(Net())
    _adapt(model, 1)
    with pytest.warns(UserWarning, match=r"added after the model was sharded \(.*scale.*blocks\.0\.2\.down"):
        loss_of(model).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an error, if the warning came again
        loss_of(model).backward()
    model.set_gradient_divide_factor(1.0)
    with pytest.raises(NotImplementedError, match=r"set_gradient_divide_factor.*blocks\.0\.2\.down"):
        loss_of(model).backward()
    model.extra = nn.Parameter(model.head.weight.detach().clone())  # a parameter that is a DTensor already
    with pytest.raises(NotImplementedError, match=r"parameter extra was added.*is a DTensor"):
        loss_of(model).backward()


@use
def gradients_of_added_parameters_are_averaged_per_dtype_and_device():
    from internals.fsdp import Added

    class Kept(Added):
        def _average(self, dtype, device, parameters):
            calls.append((dtype, device.type, len(parameters)))
            for p in parameters:
                assert (p.dtype, p.device) == (dtype, device)

    calls = []
    added = Kept(SimpleNamespace(step=SimpleNamespace(joining=False), units=[]))
    devices = ("cpu", "meta", "cpu")  # a second device besides the CPU: it needs no GPU, but tensors on meta take part in no collective
    added._parameters = {nn.Parameter(torch.ones(2, device=device)): device for device in devices}
    added._parameters[nn.Parameter(torch.ones(2, dtype=torch.bfloat16))] = "bf16"
    added.reduce()
    assert calls == [(torch.float32, "cpu", 2), (torch.float32, "meta", 1), (torch.bfloat16, "cpu", 1)]


@use
def parameters_that_are_ignored_keep_this_ranks_gradients():
    from shoal.fsdp import fully_shard

    for replaced in (False, True):
        model = Net()
        fully_shard(model, ignored_params={model.head.weight})
        if replaced:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        loss_of(model).backward()
        plain = Net()
        loss_of(plain).backward()
        torch.testing.assert_close(model.head.weight.grad, plain.head.weight.grad)


# ---- replaced parameters -------------------------------------------------------------------------------------------------------------


def _filled(model, value):
    return {name: torch.full_like(t, value) for name, t in model.state_dict().items()}


@use
def load_state_dict_with_assign_then_an_inner_module():
    model = shard(Net())
    loss_of(model).backward()
    model.load_state_dict(_filled(model, 7.0), assign=True)
    with torch.no_grad():
        # the block computes its bias and nine weights times tanh(7), which is 1 within rtol
        torch.testing.assert_close(model.blocks[0](torch.zeros(1, 7)), torch.full((1, 7), 7 + 9 * 7.0), rtol=1e-4, atol=0)
    model.zero_grad()
    loss_of(model).backward()
    plain = Net()
    plain.load_state_dict(_filled(plain, 7.0))
    expect_gradients(model, plain, lambda m, r: loss_of(m, 0, r))


@use
def load_state_dict_with_assign_of_a_tied_parameter():
    from shoal.fsdp import fully_shard

    model = fully_shard(Tied())
    model.load_state_dict(_filled(model, 0.5), assign=True)
    plain = Tied()
    plain.load_state_dict(_filled(plain, 0.5))
    _tied_loss(model, rank()).backward()
    expect_gradients(model, plain, _tied_loss)


@use
def a_parameter_assigned_in_the_window():
    import shoal.fsdp

    model = shard(Net())
    with torch.no_grad():
        model(batch(0, rank()))
    with shoal.fsdp.write(model):
        model.head.bias = nn.Parameter(torch.full_like(model.head.bias, 7.0))
    plain = Net()
    plain.head.bias.data.fill_(7.0)
    loss_of(model).backward()
    expect_gradients(model, plain, lambda m, r: loss_of(m, 0, r))


@use
def a_parameter_assigned_while_the_window_is_closed_is_refused():
    model = shard(Net())
    with torch.no_grad():
        model(batch(0, rank()))
    model.head.bias = nn.Parameter(model.state_dict()["head.bias"] * 0 + 7)
    with torch.no_grad(), pytest.raises(ValueError, match=r"head.bias of the root was replaced while the write window was closed"):
        model(batch(0, rank()))


def _tied_late(*units):
    from shoal.fsdp import fully_shard

    model = Tied()
    model.head.weight = nn.Parameter(model.emb.weight.detach().clone())
    for unit in units:
        fully_shard(getattr(model, unit))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.weight = model.emb.weight
    plain = Tied()
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        _tied_loss(model, rank()).backward()
        expect_gradients(model, plain, _tied_loss)
        for o in (optimizer, plain_optimizer):
            o.step()
            o.zero_grad()
    assert model.head.weight is model.emb.weight


@use
def tying_after_fully_shard():
    _tied_late()


@use
def tying_parameters_of_two_units_after_fully_shard():
    _tied_late("emb", "head")


# ---- torch's composable replicate ----------------------------------------------------------------------------------------------------


def _replicated(replicate):
    from shoal.fsdp import fully_shard

    around, inside = Net(), Net()
    for block in around.blocks:
        fully_shard(block)
    for block in inside.blocks:
        replicate(block)
    for model in (replicate(around), fully_shard(inside)):
        for step in range(2):
            loss_of(model, step).backward()
            expect_gradients(model, Net(), lambda m, r, s=step: loss_of(m, s, r))
            model.zero_grad()
    with pytest.raises(RuntimeError, match=r"Cannot apply `replicate\(\)` on a Module already managed by `fully_shard`"):
        replicate(around.blocks[0])


@use
def replicate_around_units_and_inside():
    from torch.distributed._composable import replicate

    _replicated(replicate)


@use
def replicate_of_fsdp2_around_units_and_inside():
    from torch.distributed._composable.replicate_with_fsdp import replicate

    _replicated(replicate)


# ---- tied parameters -----------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.mid, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, i):
        return self.head(self.mid(self.emb(i)))


def _tied_loss(model, of_rank):
    return model(torch.arange(4) + 3 * of_rank).square().mean()


@use
def a_parameter_tied_inside_a_unit():
    from shoal.fsdp import fully_shard

    model = Tied()
    fully_shard(model.mid)
    fully_shard(model)
    _tied_loss(model, rank()).backward()
    expect_gradients(model, Tied(), _tied_loss)


@use
def a_parameter_tied_across_units_belongs_to_the_outer_unit():
    from shoal.fsdp import fully_shard

    for inner in (("head",), ("emb",), ("emb", "mid", "head")):
        model = Tied()
        for name in inner:
            fully_shard(getattr(model, name))
        fully_shard(model)
        assert model.head.weight is model.emb.weight
        _tied_loss(model, rank()).backward()
        expect_gradients(model, Tied(), _tied_loss)


@use
def a_parameter_tied_outside_of_every_unit_is_an_error():
    from shoal.fsdp import fully_shard

    model = Tied()
    fully_shard(model.head)
    fully_shard(model.emb)
    with pytest.raises(ValueError, match=r"Parameter 'weight' of Linear is shared with a module outside"):
        model.emb(torch.arange(3))


@use
def an_inner_module_sharded_after_the_outer_one_is_refused():
    from shoal.fsdp import fully_shard

    model = fully_shard(Net())
    with pytest.raises(ValueError, match=r"a module around this one was sharded before"):
        fully_shard(model.head)


@use
def an_optimizer_built_before_sharding_gets_the_sharded_parameters():
    from shoal.optim import AdamW

    for make in (AdamW, lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
        models = Net(), Net()
        optimizers = [make(m.parameters()) for m in models]
        shard(models[0])
        for step in range(2):
            loss_of(models[0], step).backward()
            (sum(loss_of(models[1], step, r) for r in range(WORLD)) / WORLD).backward()
            for o in optimizers:
                o.step()
                o.zero_grad()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(full(p), q)


@use
def an_optimizer_that_has_trained_before_sharding_is_refused():
    model = Net()
    early = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(batch(0, rank())).sum().backward()
    early.step()
    shard(model)
    model(batch(0, rank())).sum().backward()
    with pytest.raises(ValueError, match=r"has a state for the unsharded parameter .*"):
        early.step()


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
