"""Modules of a sharded model whose parameters are replaced, or that are called on their own, in one run of two ranks."""

import dataclasses
import re

import pytest
import torch
from fsdp2_encoder import Net, same_as_plain
from fsdp2_net import WORLD, batch, full, rank, shard
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.nn.utils import prune

use = Uses()


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
    of_root, of_blocks = r"'inp\.weight'[^\]]*'head\.bias'", r"'blocks\.0[^\]]*'blocks\.2\.2\.bias'"
    with pytest.raises(ValueError, match=rf"on meta device: \[{of_root}\]\nFor example, [\s\S]*on meta device: \[{of_blocks}\]"):
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
    optimizer.step()  # the optimizer was built before the conversion to double, and still has the parameters
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
        for evaluated in (False, True):  # loads while the write window is open, and while it is closed
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


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
