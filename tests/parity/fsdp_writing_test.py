"""Parameters that the user's code writes: by hand, by collectives or by optimizers; in one run of two ranks."""

import copy
import io
import itertools
import pickle
import shutil
import tempfile
import time

import pytest
import torch
from fsdp2_net import WORLD, Net, batch, full, local, loss_of, rank, shard
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch.distributed.tensor import DTensor

use = Uses()


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
    # torch, too, refuses a backward that needs a tensor which was written to since
    with pytest.raises(ValueError, match="needs parameters of version 1"):
        kept.sum().backward()


WRITES = Uses()  # functions that write to parameters, directly or by references that were taken before training


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
        # Rank 1 evaluates more often, so that it still reads the old values when rank 0 is about to write.
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
    # While another forward's output is kept, the hook runs with a closed write window.
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
    # loads into the tensors of this state dict, which share their memory with the parameters
    checkpoint.load(model.state_dict(), checkpoint_id=path[0])
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
    """Sets an extension of all_gather on this rank's part of a parameter with seven elements, for two ranks."""
    local.fsdp_pre_all_gather = lambda mesh: ((nn.functional.pad(local.detach(), (0, 4 - len(local))),), None)
    local.fsdp_post_all_gather = lambda outputs, metadata, dtype, out=None: None if out is not None else (outputs[0], outputs)


@use
def writing_inside_a_forward_is_refused():
    # Writes sharded rows of another unit, or whole parameters of this one. The parameter is alone in its unit, or beside one with an
    # extension of all_gather.
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
def replacing_the_data_of_a_parameter_inside_a_forward_is_refused():
    model = shard(Net())

    def clamp(module, args):
        module[0].weight.data = module[0].weight.data.clamp(-0.1, 0.1)

    model.blocks[0].register_forward_pre_hook(clamp)
    with pytest.raises(ValueError, match=r"the data of the whole parameter 0.weight of blocks.0 was replaced by another tensor"):
        model(batch(0, 0))


@use
def a_forward_that_is_refused_at_its_end_has_ended():
    model, replaced = shard(Net()), []
    model(batch(0, 0))

    def clamp(module, args):
        whole = module[0].weight
        replaced.append((whole, whole.data))
        whole.data = whole.data.clamp(-0.1, 0.1)

    handle = model.blocks[0].register_forward_pre_hook(clamp)
    with pytest.raises(ValueError, match=r"the data of the whole parameter 0.weight of blocks.0 was replaced"):
        model.blocks[0](torch.ones(2, 7))
    assert isinstance(model.blocks[0][0].weight, DTensor)  # resharded
    assert not model.blocks[0][0].weight._shoal_state.root.forwards
    handle.remove()
    for whole, data in replaced:
        whole.data = data
    same_after_a_step(model, Net())


@use
def writing_through_data_inside_a_forward_is_refused():
    model = shard(Net())

    def halve(module, args):
        module[0].weight.data.mul_(0.5)

    model.blocks[0].register_forward_pre_hook(halve)
    with pytest.raises(ValueError, match=r"the whole parameter 0.weight of blocks.0 was written"):
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
            if rank() == 0:  # rank 0 is slower: it must still read the values from before the other rank's writes
                for _ in range(20):
                    before @ before.T
            torch.testing.assert_close(model(batch(i, 0)), plain(batch(i, 0)))
        model.reshard()
        torch.testing.assert_close(full(model.head.weight), plain.head.weight)
        model.head.weight.mul_(1)  # opens the write window
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


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
