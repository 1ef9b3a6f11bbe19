"""Uses of a sharded model, in one run of two ranks: each gives the result of a plain process, or an error with the reason."""

import copy
import functools
import gc
import io
import itertools
import pickle
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fsdp2_faults import FAULTS, try_fault
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from uses import Uses, check, ranks, run

import shoal

WORLD = 2
use = Uses()


class Net(nn.Module):
    """Blocks that may run several times per forward, each run under a checkpoint or not (``reentrant``: False or True, else without)."""

    def __init__(self, reentrant=None, times=1):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, 7)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(3))
        self.head = nn.Linear(7, 5)
        self.reentrant, self.times = reentrant, times

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            for _ in range(self.times):
                x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def shard(model, **options):
    from shoal.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def rank():
    return torch.distributed.get_rank()


def batch(step, of_rank):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + of_rank))


def loss_of(model, step=0, of_rank=None):
    return model(batch(step, rank() if of_rank is None else of_rank)).square().mean()


def full(t):
    return None if t is None else t.full_tensor() if hasattr(t, "full_tensor") else t


def expect_gradients(model, plain, loss):
    """Compares gradients. ``loss(model, rank)`` is this rank's loss; the plain model gets the mean over all ranks."""
    for p in plain.parameters():
        p.grad = None
    (sum(loss(plain, r) for r in range(WORLD)) / WORLD).backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        got = full(p.grad)
        assert (got is None) == (q.grad is None), f"{name}: {got} is not {q.grad}"
        if got is not None:
            torch.testing.assert_close(got, q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"gradient of {n}: {m}")


# ---- units that run more than once ---------------------------------------------------------------------------------------------------


def _block_twice(reentrant):
    model = shard(Net(reentrant, times=2))
    if rank() == 1:
        model.head.register_full_backward_hook(lambda *_: time.sleep(0.2))  # rank 0 publishes long before it can sum
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


# ---- several backwards ---------------------------------------------------------------------------------------------------------------


@use
def one_loss_backward_twice():
    model = shard(Net(times=2))
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()
    expect_gradients(model, Net(times=2), lambda m, r: 2 * loss_of(m, 0, r))


@use
def two_losses_over_one_forward():
    model = shard(Net())
    out = model(batch(0, rank()))
    out[:, 0].mean().backward(retain_graph=True)
    out[:, 1].mean().backward()
    expect_gradients(model, Net(), lambda m, r: m(batch(0, r))[:, :2].mean(0).sum())


@use
def a_gradient_penalty():
    def loss(model, of_rank):
        x = batch(0, of_rank).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return grad.square().mean()

    model = shard(Net())
    loss(model, rank()).backward()
    expect_gradients(model, Net(), loss)


@use
def one_backward_over_two_versions_is_refused():
    from shoal.fsdp import fully_shard

    model = fully_shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = loss_of(model)
    loss_of(model).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"needs parameters of version 1, but version 2 is current"):
        (old + loss_of(model)).backward()


@use
def a_second_backward_is_an_error_that_names_retain_graph():
    from shoal.fsdp import fully_shard

    model = Net()
    fully_shard(model.head)
    optimizer = torch.optim.SGD(shard(model).parameters(), lr=0.1)
    total = model(batch(0, rank())).sum()
    total.backward()
    stale = r"backward of module 'head' needs parameters .*\n.*\n *hint: .*"
    with pytest.raises(RuntimeError, match=rf"a second time: {stale}backward\(retain_graph=True\)"):
        total.backward()
    kept = model(batch(0, rank())).sum()
    kept.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match=rf"^{stale}optimizer's step call forward again"):
        kept.backward()


@use
def an_optimizer_built_too_early_causes_a_warning():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(shard(model)).backward()
    with pytest.warns(UserWarning, match=r"not sharded: it has the sharded ones now; build it after fully_shard$"):
        optimizer.step()


# ---- writing by hand -----------------------------------------------------------------------------------------------------------------


def _sgd_by_hand(model):
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.5 * p.grad
            p.grad = None


def _plain_after(steps):
    plain = Net()
    for step in range(steps):
        (sum(loss_of(plain, step, r) for r in range(WORLD)) / WORLD).backward()
        _sgd_by_hand(plain)
    return plain


@use
def writing_by_hand_while_an_output_is_kept():
    import shoal.fsdp

    model = shard(Net())
    kept = model(batch(9, rank()))
    for step in range(2):
        loss_of(model, step).backward()
        if rank() == 1:
            time.sleep(0.1)
        with shoal.fsdp.write(model):
            _sgd_by_hand(model)
    assert kept.requires_grad
    torch.testing.assert_close(model(batch(5, 0)), _plain_after(2)(batch(5, 0)))


@use
def unannounced_writing_by_hand_while_an_output_is_kept():
    model = shard(Net())
    kept = model(batch(9, rank()))
    for step in range(2):
        loss_of(model, step).backward()
        _sgd_by_hand(model)
    torch.testing.assert_close(model(batch(5, 0)), _plain_after(2)(batch(5, 0)))
    with pytest.raises(ValueError, match="needs parameters of version 1"):  # as torch does after a write to a saved tensor
        kept.sum().backward()


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


WRITES = Uses()  # direct writes to parameters, or to references taken before training


@WRITES
def copied_into(parameters, kept, model):
    for p in parameters:
        p.copy_(p * 1.1)


@WRITES
def through_data(parameters, kept, model):
    for p in parameters:
        p.data.copy_(p.data * 1.1)
        p.detach().data.mul_(1.1)


@WRITES
def through_local_rows(parameters, kept, model):
    for p in parameters:
        local(p).mul_(1.1)
        local(p.data).data.mul_(1.1)
        local(p).view(-1).detach()[0:].mul_(1.1)
        local(p)[:] = local(p) * 1.1
        for row in local(p).split(1):
            row.mul_(1.1)
        torch.mul(local(p), 1.1, out=local(p))
    with torch.enable_grad():
        for p in parameters:
            local(p).data.mul_(1.1)


@WRITES
def through_the_private_name_of_local_rows(parameters, kept, model):
    for p in parameters:
        (p._local_tensor if isinstance(p, DTensor) else p).data.mul_(1.1)


@WRITES
def by_foreach_operators(parameters, kept, model):
    torch._foreach_mul_(parameters, 1.1)
    torch._foreach_lerp_(parameters, [p * 0 for p in parameters], 0.3)
    torch._foreach_mul_([local(p) for p in parameters], 1.1)


@WRITES
def by_swa_utils(parameters, kept, model):
    torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)(parameters, [p * 2 for p in parameters], torch.ones(()))


@WRITES
def clamped_and_initialised(parameters, kept, model):
    for p in parameters[::2]:
        p.clamp_(-0.1, 0.1)
    nn.init.constant_(parameters[1], 0.2)


@WRITES
def loaded(parameters, kept, model):
    model.load_state_dict({name: t * 1.1 for name, t in model.state_dict().items()})


@WRITES
def loaded_into_a_module_inside(parameters, kept, model):
    inner = model.blocks[0][0]
    inner.load_state_dict({name: t * 1.1 for name, t in inner.state_dict().items()})


@WRITES
def through_a_state_dict(parameters, kept, model):
    for t in model.state_dict().values():
        t.mul_(1.1)


@WRITES
def by_an_optimizer_of_the_users(parameters, kept, model):
    class Decay(torch.optim.Optimizer):
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.data.mul_(0.9)

    Decay(parameters, {}).step()


@WRITES
def through_references_kept_from_before(parameters, kept, model):
    for of_each in kept:
        for t in of_each:
            t.mul_(1.1)


@WRITES
def by_collectives(parameters, kept, model):
    for p in parameters:
        if p.shape[0] % WORLD == 0 and isinstance(p, DTensor):
            torch.distributed.broadcast(p.to_local(), 0)
            torch.distributed.all_reduce(p.data.to_local())
        elif p.shape[0] % WORLD == 0:
            for part in p.chunk(WORLD)[::-1]:
                part.copy_(p.chunk(WORLD)[0] * WORLD)


def _reshard(model):
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def _written_between_steps(model, write, ranks_of_loss, evaluations):
    kept = [[p.data for p in model.parameters()], [local(p.detach()) for p in model.parameters()], list(model.state_dict().values())]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(2):
        (sum(loss_of(model, step, r) for r in ranks_of_loss) / len(ranks_of_loss)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(evaluations):
                model(batch(7, 0))
            _reshard(model)
            write(list(model.parameters()), kept, model)
            seen.append(model(batch(8, 0)))
            _reshard(model)
    return seen + [full(p).detach().clone() for p in model.parameters()]


@use
def writing_by_hand_after_an_evaluation():
    for name, write in WRITES.items():
        # One rank evaluates more often: it reads the old values while the other is about to write.
        got = _written_between_steps(shard(Net()), write, [rank()], evaluations=1 + 4 * rank())
        want = _written_between_steps(Net(), write, range(WORLD), evaluations=1)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@use
def writing_by_hand_between_two_forwards():
    def evaluation(model):
        with torch.no_grad():
            model(batch(0, 0))

    def unsynchronised(model):
        model.set_requires_gradient_sync(False)
        loss_of(model).backward()
        model.set_requires_gradient_sync(True)

    def dropped(model):
        model(batch(0, 0))

    def alone(model):
        with torch.no_grad():
            model.blocks[1](torch.ones(2, 7))

    plain = Net()
    with torch.no_grad():
        plain.blocks[1][0].weight.mul_(2)
    for before in (evaluation, unsynchronised, dropped, alone):
        model = shard(Net())
        evaluation(model)
        before(model)
        with torch.no_grad():
            model.blocks[1][0].weight.to_local().mul_(2)
        torch.testing.assert_close(model.blocks[1](torch.ones(2, 7)), plain.blocks[1](torch.ones(2, 7)))
        torch.testing.assert_close(model(batch(0, 0)), plain(batch(0, 0)))


@use
def writing_in_a_hook_behind_each_gradient():
    # The write window is closed in the hook while the output of another forward is kept.
    def train(model, ranks_of_loss):
        def step(p):
            p.data.add_(p.grad, alpha=-0.1)
            p.grad = None

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for i in range(3):
            kept = model(batch(9, 0)) if i == 1 else None
            (sum(loss_of(model, i, r) for r in ranks_of_loss) / len(ranks_of_loss)).backward()
            del kept
        return [full(p).detach() for p in model.parameters()]

    for a, b in zip(train(shard(Net()), [rank()]), train(Net(), range(WORLD)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@use
def writing_in_place_from_a_checkpoint_after_an_evaluation():
    from torch.distributed import checkpoint

    saved, model, plain = shard(Net()), shard(Net()), Net()
    with torch.no_grad():
        for p in (*saved.parameters(), *plain.parameters()):
            p.mul_(1.5)
        model(batch(0, 0))
    path = [tempfile.mkdtemp()] if rank() == 0 else [None]
    torch.distributed.broadcast_object_list(path, 0)
    checkpoint.save(saved.state_dict(), checkpoint_id=path[0])
    checkpoint.load(model.state_dict(), checkpoint_id=path[0])  # into the tensors of the state dict, which share the parameters' memory
    torch.testing.assert_close(model(batch(0, 0)), plain(batch(0, 0)))
    torch.distributed.barrier()
    if rank() == 0:
        shutil.rmtree(path[0])


@use
def writing_where_no_operator_sees_it_is_refused():
    model = shard(Net())
    with torch.no_grad():
        model(batch(0, 0))
    weight = model.blocks[1][0].weight
    array = weight.detach().to_local().numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 0
    plain = Net().blocks[1][0].weight.detach().chunk(WORLD)[rank()]
    assert (array == plain.numpy()).all()
    torch.utils.swap_tensors(weight, nn.Parameter(weight.detach() * 2))
    with pytest.raises(ValueError, match=r"parameters of unit blocks.1 were written while .* closed \(.*0.weight\): a forward"):
        model(batch(0, 0))


def gather_by_extension(local):
    """Sets a gather extension for a parameter of seven elements on two ranks."""
    local.fsdp_pre_all_gather = lambda mesh: ((nn.functional.pad(local.detach(), (0, 4 - len(local))),), None)
    local.fsdp_post_all_gather = lambda outputs, metadata, dtype, out=None: None if out is not None else (outputs[0], outputs)


@use
def writing_inside_a_forward_is_refused():
    # Sharded rows of another unit, or whole parameters of this one; alone in their unit, or beside a parameter with all-gather extensions.
    for of_a_shown_module, beside_an_extension in itertools.product((False, True), (False, True)):
        model = shard(Net())
        for block in model.blocks if beside_an_extension else ():
            gather_by_extension(block[2].bias._local_tensor)

        def halve(module, args, model=model, shown=of_a_shown_module):
            with torch.no_grad():
                (module if shown else model.blocks[2])[0].weight.mul_(0.5)

        model.blocks[0].register_forward_pre_hook(halve)
        with pytest.raises(ValueError, match=r"parameter 0.weight of blocks.2 is written inside|whole parameter 0.weight of blocks.0 was"):
            model(batch(0, 0))


@use
def rows_among_dtensors_are_refused_as_plain_tensors_are():
    weight = shard(Net()).blocks[1][0].weight.detach()
    for write in (lambda: weight.to_local().copy_(weight), lambda: torch._foreach_mul_([weight.to_local(), weight], 2)):
        with pytest.raises(RuntimeError, match=r"got mixed torch.Tensor and DTensor"):
            write()
    gathered = torch.distributed._functional_collectives.all_reduce(torch.ones(()), "sum", weight.device_mesh)
    weight.to_local().copy_(gathered)
    assert (weight.full_tensor() == WORLD).all()


@use
def rows_in_a_loss_have_gradients():
    model, plain = shard(Net()), Net()
    for m in (model, plain):
        sum(local(p).square().sum() for p in m.blocks.parameters()).backward()
    for p, q in zip(model.blocks.parameters(), plain.blocks.parameters(), strict=True):
        torch.testing.assert_close(full(p.grad), q.grad)


@use
def copies_of_rows_are_plain_tensors():
    weight = shard(Net()).blocks[1][0].weight.detach()
    rows = weight.to_local()
    for copied in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows)), rows.clone(), rows + 0, copy.deepcopy(weight)._local_tensor):
        assert type(copied) is torch.Tensor
        assert torch.equal(copied, rows)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded.to_local()) is torch.Tensor
    assert torch.equal(loaded.to_local(), rows)
    assert repr(rows) == repr(rows.clone())
    assert rows.tolist() == rows.clone().tolist()
    assert rows[0, 0].item() == rows.clone()[0, 0].item()


def same_after_a_step(model, plain):
    loss_of(model).backward()
    (sum(loss_of(plain, of_rank=r) for r in range(WORLD)) / WORLD).backward()
    for m in (model, plain):
        torch.optim.SGD(m.parameters(), lr=0.1).step()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(full(p), q, rtol=1e-4, atol=1e-5)


@use
def writing_to_the_roots_whole_parameters_after_an_evaluation():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, plain = shard(Net()), Net()
    with torch.no_grad():
        model(batch(0, 0))
        before = model.head.weight
        assert before.detach().numpy().flags.writeable is False
        for i in range(3):
            for m in (model, plain):
                whole, bias, view = m.head.weight, m.head.bias, m.head.weight.data.t()[1:]
                assert whole.mul_(1.1) is whole
                torch._foreach_mul_([whole, bias], 1.1)
                view.add_(whole.t()[1:], alpha=0.5)
                m.inp.weight.data.copy_(m.inp.weight * 0.9)
                whole[0] = 0.1 * i
            if rank() == 0:  # the slower rank must still read the values from before this rank's writes
                for _ in range(20):
                    before @ before.T
            torch.testing.assert_close(model(batch(i, 0)), plain(batch(i, 0)))
        model.reshard()
        torch.testing.assert_close(full(model.head.weight), plain.head.weight)
        model.head.weight.mul_(1)  # opens the window
        with pytest.raises(ValueError, match=r"head.weight of the root is unsharded after a forward"):
            before.mul_(2)
    same_after_a_step(model, plain)
    model = shard(Net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with torch.no_grad():
        model(batch(0, 0))
        with pytest.raises(ValueError, match=r"head.weight of the root is unsharded after a forward"):
            model.head.weight.mul_(2)


@use
def a_model_of_inference_tensors_and_one_initialised_after_its_first_forward_are_not_held():
    with torch.inference_mode():
        model = shard(Net())
        expected = model(batch(0, 0))
        torch.testing.assert_close(model(batch(0, 0)), expected)
    with torch.device("meta"):
        model = Net()
    model = shard(model)
    model.to_empty(device="cpu")
    with pytest.raises(ValueError, match="initialise"):
        model(batch(0, 0))
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().zero_()
    assert not model(batch(0, 0)).any()


@use
def a_kept_output_and_an_optimizer():
    model = shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kept = model(batch(9, rank()))
    for step in range(2):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert kept.requires_grad
    torch.testing.assert_close(model(batch(5, 0)), _plain_after(2)(batch(5, 0)))


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
    """Names of this mesh's shared memories that any process of this machine has open."""
    gang = torch.distributed.distributed_c10d._get_default_store().get("shoal/mesh/0-1").decode()
    names = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            name = str(fd.readlink())
        except OSError:
            continue  # it ended
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
    assert len(_arenas() - before) == 4 + 2  # units, control and gradients
    torch.distributed.barrier()
    del model, optimizer
    gc.collect()
    for _ in range(1000):  # the node is notified a little later
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
    for n in methods:
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


# ---- gradients' memory ---------------------------------------------------------------------------------------------------------------


@use
def a_gradients_memory_is_reused_unless_referenced():
    model = shard(Net())
    weight = model.inp.weight

    def gradient(step):
        model.zero_grad()
        loss_of(model, step).backward()
        return weight.grad

    assert len({gradient(step).to_local().data_ptr() for step in range(4)}) == 1
    other = nn.Parameter(weight.detach().clone())
    holders = {
        "itself": gradient(0),
        "its rows": gradient(1).to_local(),
        "a view": gradient(2).to_local()[1:],
        "an array": gradient(3).to_local().numpy(),
    }
    other.grad = gradient(4)
    holders["another parameter"] = other.grad
    copies = {name: torch.as_tensor(full(h)).clone() for name, h in holders.items() if name != "another parameter"}
    copies["another parameter"] = full(other.grad).clone()
    del holders["another parameter"]  # the parameter has the only reference now
    for step in range(5, 8):
        gradient(step)
    for name, holder in holders.items():
        assert torch.equal(torch.as_tensor(full(holder)), copies[name]), name
    assert torch.equal(full(other.grad), copies["another parameter"])


# ---- inputs changed in place ---------------------------------------------------------------------------------------------------------


class Doubling(nn.Linear):
    """A layer that changes its input in place, or a view of it, or returns it."""

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


# ---- hooks ---------------------------------------------------------------------------------------------------------------------------


@use
def an_optimizer_in_hooks_after_accumulation():
    def train(model, loss):
        optimizers = {p: torch.optim.SGD([p], lr=0.5) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for step in range(3):
            loss(step).backward()
        assert all(p.grad is None for p in model.parameters())

    model, plain = shard(Net()), Net()
    train(model, lambda step: loss_of(model, step))
    train(plain, lambda step: sum(loss_of(plain, step, r) for r in range(WORLD)) / WORLD)
    torch.testing.assert_close(model(batch(5, 0)), plain(batch(5, 0)))


def _halved(g):
    return g / 2


def _clipped(g):
    g.mul_((0.01 / g.norm()).clamp(max=1))  # the norm over all rows is a collective


def _hooked(register, hook):
    """Calls ``register(model, hook)`` before and after fully_shard, on sharded and on whole parameters."""
    for when in ("before", "after", "after an evaluation", "after a forward"):
        model, plain = Net(), Net()
        register(plain, hook)
        if when == "before":
            register(model, hook)
        shard(model)
        if when == "after an evaluation":
            with torch.no_grad():
                model(batch(7, 0))
        if when == "after a forward":
            model(batch(7, 0))
        if when != "before":
            register(model, hook)
        for step in range(2):  # the second step accumulates
            loss_of(model, step).backward()
            (sum(loss_of(plain, step, r) for r in range(WORLD)) / WORLD).backward()
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(p.grad), q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name, w=when: f"{n}, {w}: {m}")


def _on_all(model, hook):
    for p in model.parameters():
        p.register_hook(hook)


@use
def hooks_that_change_gradients():
    _hooked(_on_all, _halved)


@use
def hooks_that_clip_gradients_by_their_norm():
    _hooked(_on_all, _clipped)


@use
def hooks_on_gradients_of_meta_parameters_and_ones_that_are_removed():
    with torch.device("meta"):
        model = Net()
    _on_all(model, _halved)
    handles = [p.register_hook(lambda g: g * 0) for p in model.parameters()]
    shard(model)
    _on_all(model, _halved)
    model.to_empty(device="cpu")
    for p, q in zip(model.parameters(), Net().parameters(), strict=True):
        torch.nn.init.zeros_(p)
        with torch.no_grad():
            p.add_(torch.distributed.tensor.distribute_tensor(q, p.device_mesh, p.placements))
    for handle in handles:
        handle.remove()
    loss_of(model).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) / 4)


@use
def a_hook_that_returns_a_plain_tensor_is_refused():
    model = shard(Net())
    model.head.bias.register_hook(lambda g: g.to_local())
    with pytest.raises(TypeError, match=r"a hook on the gradient of parameter bias|a hook on the gradient of parameter head\.bias"):
        loss_of(model).backward()


# ---- autocast ------------------------------------------------------------------------------------------------------------------------


def _in_one_autocast_region(run, reentrant=None):
    """``run(model, losses)`` calls backward itself; ``losses(i)`` is the loss of the i-th batch. The plain model runs outside of the
    region."""

    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    model, plain = shard(Net(reentrant)), Net()
    for step in range(0, 20, 10):
        with autocast():
            run(model, lambda i, s=step: loss_of(model, s + i).float())
        for r in range(WORLD):

            def loss(i, s=step, r=r):
                with autocast():
                    return loss_of(plain, s + i, r).float() / WORLD

            run(plain, loss)
        for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(p.grad), q.grad, rtol=2e-2, atol=1e-4, msg=lambda m, n=name: f"gradient of {n}: {m}")
        for m in (model, plain):
            m.zero_grad()


def _evaluation_then_step(model, losses):
    with torch.no_grad():
        losses(0)
    losses(1).backward()


def _accumulated_steps(model, losses):
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
    losses(0).backward()
    with torch.no_grad():
        losses(1)
    losses(2).backward()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(True)
    losses(3).backward()
    losses(4).backward()


@use
def an_evaluation_and_a_step_in_one_autocast_region():
    _in_one_autocast_region(_evaluation_then_step)


@use
def accumulated_steps_in_one_autocast_region():
    _in_one_autocast_region(_accumulated_steps)


@use
def checkpointed_steps_in_one_autocast_region():
    for reentrant in (False, True):
        _in_one_autocast_region(_accumulated_steps, reentrant)


@use
def an_optimizers_step_inside_an_autocast_region():
    models = shard(Net()), Net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in models]
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(3):
            loss_of(models[0], step).float().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
    for step in range(3):
        for r in range(WORLD):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(models[1], step, r).float() / WORLD
            loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(full(p), q, rtol=2e-2, atol=1e-3)


@use
def a_gradient_after_its_units_backward_is_an_error():
    class Late(nn.Linear):
        early = None

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias + self.early.sum() * 0)

    model = Net()
    model.blocks[1] = Late(7, 7)
    shard(model, reshard_after_forward=False)
    model.blocks[1].unshard()
    Late.early = model.blocks[1].bias * 2  # before the forward of its unit
    with pytest.raises(shoal.exceptions.InvalidArgument, match=r"gradients arrived after the backward of their unit.*bias of blocks\.1"):
        loss_of(model).backward()
    Late.early = torch.zeros(1)
    model.zero_grad()
    loss_of(model).backward()


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
            _adapt(models[0], 1, of_rank=rank())  # the number of the first rank
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
        warnings.simplefilter("error")  # warns once
        loss_of(model).backward()
    model.set_gradient_divide_factor(1.0)
    with pytest.raises(NotImplementedError, match=r"set_gradient_divide_factor.*blocks\.0\.2\.down"):
        loss_of(model).backward()
    model.extra = nn.Parameter(model.head.weight.detach().clone())  # a DTensor
    with pytest.raises(NotImplementedError, match=r"parameter extra was added.*is a DTensor"):
        loss_of(model).backward()


@use
def gradients_of_added_parameters_are_averaged_per_dtype_and_device():
    from shoal.fsdp._engine.added import Added

    class Kept(Added):
        def _average(self, dtype, device, parameters):
            calls.append((dtype, device.type, len(parameters)))
            for p in parameters:
                assert (p.dtype, p.device) == (dtype, device)

    calls = []
    added = Kept(SimpleNamespace(joining=False, units=[]))
    devices = ("cpu", "meta", "cpu")  # no collective runs on meta tensors: it stands for a second device
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
        torch.testing.assert_close(model.blocks[0](torch.zeros(1, 7)), torch.full((1, 7), 7 + 9 * 7.0), rtol=1e-4, atol=0)  # tanh(7) is 1
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
    for _ in range(2):  # first the group is the root, then the model
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


# ---- exceptions ----------------------------------------------------------------------------------------------------------------------


class _Raise(torch.autograd.Function):
    """The identity; its backward raises while ``why`` is not empty."""

    @staticmethod
    def forward(ctx, x, why):
        ctx.why = why
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.why:
            raise RuntimeError(ctx.why.pop())
        return grad, None


def _left_by_an_exception(then, ranks=(0, 1), block=0):
    model, why = shard(Net()), []
    model.blocks[block].register_forward_hook(lambda module, args, out: _Raise.apply(out, why))
    if rank() in ranks:
        why.append("boom")
    loss = loss_of(model, 7)
    if rank() == 1:
        time.sleep(0.2)  # the other rank starts over long before
    expected = pytest.raises(RuntimeError, match="boom") if rank() in ranks else pytest.raises(ValueError, match="started step 0 over")
    with expected:
        loss.backward()
    del loss
    then(model)
    for step in range(2):  # the second step continues from the first
        loss_of(model, step).backward()
    expect_gradients(model, Net(), lambda m, r: loss_of(m, 0, r) + loss_of(m, 1, r))


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
