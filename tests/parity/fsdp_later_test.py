"""Additions to FSDP2 after torch 2.13, with every supported torch; in one run of two ranks."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fsdp2_net import WORLD, Net, batch, expect_gradients, loss_of, rank, shard
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import MixedPrecisionPolicy

from shoal.exceptions import InvalidArgument, Unimplemented

use = Uses()


@use
def a_backward_pass_that_is_finalized_later():
    import shoal.fsdp

    model = shard(Net())
    assert model.finalize_backward() is None  # before the first forward it does nothing
    model.set_manual_backward_finalization(True)
    loss_of(model).backward()
    with pytest.raises(InvalidArgument, match=r"(?s)not finalized.*call finalize_backward"), shoal.fsdp.write(model):
        pass
    with pytest.raises(RuntimeError, match="cannot change mode after backward starts"):
        model.set_manual_backward_finalization(False)
    handle = model.finalize_backward(async_op=True)
    assert isinstance(handle, shoal.fsdp.GradientReductionHandle)
    handle.wait()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    loss_of(model).backward()
    with pytest.raises(InvalidArgument, match="another backward pass began"):
        loss_of(model, 1).backward()
    model.reset_iter_state()
    model.zero_grad()
    loss_of(model).backward()
    model.finalize_backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))


@use
def backward_passes_that_are_finalized_together():
    model = shard(Net())
    model.set_manual_backward_finalization(True)
    for last in (False, True):
        model.zero_grad()
        model.set_requires_gradient_sync(False)
        loss_of(model, 0).backward()
        model.set_requires_gradient_sync(last)
        loss_of(model, 1).backward()
        model.set_requires_gradient_sync(True)
        model.finalize_backward()
        expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) + loss_of(m, 1, r))
    model.finalize_backward()  # there is nothing to end
    with pytest.raises(RuntimeError, match="must be called on the root"):
        model.blocks[0].finalize_backward()
    with pytest.raises(RuntimeError, match="must be called on the root"):
        model.blocks[0].set_manual_backward_finalization(True)
    model.set_manual_backward_finalization(False)
    with pytest.raises(RuntimeError, match="requires manual backward finalization"):
        model.finalize_backward()
    model.zero_grad()
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r))


@dataclass(frozen=True)
class Policy(MixedPrecisionPolicy):
    """torch's policy of 2.15."""

    param_dtype_override_fn: Any = None


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.norm = nn.Linear(6, 7), nn.LayerNorm(7)
        self.dtypes = []

    def forward(self, x):
        self.dtypes = [p.dtype for p in self.parameters()]
        return self.norm(self.inp(x).float())


@use
def parameters_that_compute_in_their_own_dtype():
    from shoal.fsdp import fully_shard

    model, asked = Normed(), []

    def override(p):
        asked.append(tuple(p.shape))
        return p.dtype if any(p is q for q in model.norm.parameters()) else None

    policy = Policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, param_dtype_override_fn=override)
    fully_shard(model, mp_policy=policy)
    assert asked == [(7, 6), (7,), (7,), (7,)]
    out = model(batch(0, rank()))
    assert model.dtypes == [torch.bfloat16] * 2 + [torch.float32] * 2
    plain = Normed()
    plain.inp.bfloat16()
    torch.testing.assert_close(out, plain(batch(0, rank()).bfloat16()))
    out.square().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    for result, says in (
        (torch.float64, "or the parameter's original dtype but got torch.float64"),
        ("fp32", "torch.dtype or None but got"),
    ):
        with pytest.raises(ValueError, match=says):
            fully_shard(Normed(), mp_policy=Policy(param_dtype=torch.bfloat16, param_dtype_override_fn=lambda _, result=result: result))


@use
def memory_of_gathered_parameters_that_stays():
    from internals.fsdp import state_of

    from shoal.fsdp import fully_shard

    table = fully_shard(nn.Embedding(8, 4, max_norm=1.0))  # each rank has a private whole copy
    table.unshard()
    whole = table.weight
    table.reshard()
    assert whole.untyped_storage().size() == 0
    table.set_keep_unsharded_storage(True)
    table.unshard()
    at = whole.data_ptr()
    table.reshard()
    assert whole.untyped_storage().size() > 0
    table.unshard()
    assert table.weight.data_ptr() == at
    table.reshard()
    gathered = state_of(table).units[0].gathered
    gathered._gather = SimpleNamespace(drop=lambda: None)  # a gather may begin ahead
    gathered.drop_begun()
    assert whole.untyped_storage().size() > 0


@use
def a_method_of_a_later_torch_is_refused_by_name():
    from internals.fsdp import _later

    from shoal.fsdp import FSDPModule

    TorchFSDPModule.set_what_a_later_torch_has = lambda self, much: None
    try:
        _later.refuse_unknown(FSDPModule)
        with pytest.raises(Unimplemented, match=rf"FSDPModule.set_what_a_later_torch_has of torch {torch.__version__[:4]}"):
            shard(Net()).set_what_a_later_torch_has(1)
    finally:
        del TorchFSDPModule.set_what_a_later_torch_has, FSDPModule.set_what_a_later_torch_has


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
