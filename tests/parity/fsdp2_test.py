"""The same script with torch's FSDP2 over gloo, with Shoal, and in one plain process: losses, gradients and parameters after some steps.

Each case is written once and takes ``fully_shard`` as an argument. All cases of a world size share one run of ranks.
"""

import compared_runs
import pytest
import torch
from compared_runs import Cases, Net, Seen, batch, full, loss_of, rank, run_cases, sharded, train, world
from launching.trained import check, worlds
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

case = Cases()

# ---- fully_shard's arguments ---------------------------------------------------------------------------------------------------------


@case()
def blocks_and_root(api):
    return train(api, sharded(api, Net()))


@case()
def the_root_alone(api):
    return train(api, api.fully_shard(Net(), mesh=api.mesh))


@case()
def uneven_rows(api):
    return train(api, sharded(api, Net(width=7)))


@case(worlds=(2, 3))
def kept_after_forward(api):
    return train(api, sharded(api, Net(), reshard_after_forward=False))


@case(worlds=(4,))
def resharded_to_two_ranks_after_forward(api):
    model = sharded(api, Net(), reshard_after_forward=2)
    if not api.plain:
        model.blocks[0].register_forward_hook(
            lambda module, args, out: shown.append(next(module.parameters()).placements), prepend=False, always_call=False
        )
    shown = []
    seen = train(api, model)
    if not api.plain:
        assert shown[0] == (Replicate(), Shard(0)), shown[0]
    return seen


@case(worlds=(1, 2, 4))
def sharded_on_another_dim(api):
    def place(p):
        return Shard(p.ndim - 1) if p.ndim == 2 and p.shape[1] % 4 == 0 else None

    model = sharded(api, Net(), shard_placement_fn=place)
    if not api.plain:
        assert model.blocks[0][0].weight.placements == (Shard(1),)
    return train(api, model)


@case(worlds=(2, 3), theirs=False)
def sharded_unevenly_on_another_dim(api):
    return train(api, sharded(api, Net(width=7), shard_placement_fn=lambda p: Shard(-1)))


class Routed(nn.Module):
    """A model whose experts are other ones at each index of the mesh's second dim."""

    def __init__(self, place):
        super().__init__()
        torch.manual_seed(1)
        self.dense, self.head = nn.Linear(8, 8), nn.Linear(8, 5)
        torch.manual_seed(2 + place)
        self.experts = nn.Parameter(torch.randn(3, 8, 8) / 8)

    def forward(self, x):
        x = torch.tanh(self.dense(x))
        return self.head(x + torch.einsum("bi,eij->bj", x, self.experts))


@case(worlds=(4,), plain=False)
def experts_on_a_mesh_of_their_own(api):
    """The experts, which are sharded over a mesh of their own, share a unit with parameters on all ranks: torchtitan's expert
    parallelism."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
    from torch.distributed.fsdp._fully_shard._fsdp_init import _get_mesh_info

    experts, all_ranks = _get_mesh_info(api.mesh_tp["dp"], None), _get_mesh_info(api.mesh, None)
    model = Routed(api.mesh_tp.get_local_rank("tp"))

    def place(p):
        return ShardPlacementResult(Shard(0), experts) if p is model.experts else ShardPlacementResult(Shard(0), all_ranks)

    api.fully_shard(model, mesh=api.mesh, shard_placement_fn=place)
    assert model.experts.device_mesh == api.mesh_tp["dp"]
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)
    return train(api, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@case(worlds=(1, 2, 3))
def modules_in_one_unit(api):
    model = Net()
    api.fully_shard([model.norm, model.head], mesh=api.mesh)
    for block in model.blocks:
        api.fully_shard(block, mesh=api.mesh)
    return train(api, api.fully_shard(model, mesh=api.mesh))


@case(worlds=(2, 3))
def ignored_parameters(api):
    model = Net()
    ignored = {model.norm.weight, model.norm.bias, model.inp.bias}
    for p in ignored:
        p.requires_grad_(False)
    sharded(api, model, ignored_params=ignored)
    assert not isinstance(model.norm.weight, DTensor)
    return train(api, model)


@case(worlds=(2, 3))
def frozen_parameters(api):
    model = Net()
    for p in (*model.blocks[0].parameters(), model.inp.bias):
        p.requires_grad_(False)
    return train(api, sharded(api, model))


@case(worlds=(2,), plain=False)
def offload_to_host_memory(api):
    return train(api, sharded(api, Net(), offload_policy=api.CPUOffloadPolicy(pin_memory=False)))


# ---- mixed precision -----------------------------------------------------------------------------------------------------------------


@case(plain=False, rtol=2e-3, atol=2e-4)
def bf16_reduced_in_fp32(api):
    model = Net()
    for module in (*model.blocks, model):
        output = torch.float32 if module is model else None
        policy = api.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=output)
        api.fully_shard(module, mesh=api.mesh, mp_policy=policy)
    model.unshard()
    assert model.inp.weight.dtype == torch.bfloat16
    model.reshard()
    assert model.inp.weight.dtype == torch.float32
    return train(api, model)


@case(worlds=(1, 2, 3), plain=False, rtol=2e-2, atol=2e-3)
def bf16_reduced_in_bf16(api):
    return train(api, sharded(api, Net(), mp_policy=api.MixedPrecisionPolicy(param_dtype=torch.bfloat16)))


@case(worlds=(2,), plain=False, rtol=2e-3, atol=2e-4)
def fp16_reduced_in_fp32(api):
    policy = api.MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32, cast_forward_inputs=True)
    return train(api, sharded(api, Net(), mp_policy=policy))


@case(worlds=(2,), plain=False, rtol=2e-3)
def fp16_sums_of_large_gradients(api):
    model = sharded(api, Net(), mp_policy=api.MixedPrecisionPolicy(reduce_dtype=torch.float16))
    (model(torch.ones(1, 8)).sum() * 40000).backward()  # each rank's gradient fits into fp16, their sum does not
    seen = Seen()
    seen.see("gradient of the head's bias", model.head.bias.grad)
    assert full(model.head.bias.grad).isfinite().all()
    return seen


@case(worlds=(2,), plain=False, rtol=2e-2, atol=2e-3)
def fp32_reduced_in_bf16(api):
    return train(api, sharded(api, Net(), mp_policy=api.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)))


@case(worlds=(2,), plain=False, rtol=2e-3, atol=2e-4)
def bf16_accumulated_in_fp32(api):
    policy = api.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _accumulated(api, sharded(api, Net(), mp_policy=policy))


@case(worlds=(2,), theirs=False)
def fp64_beside_fp32(api):
    model = Net()
    model.blocks[1].double()
    cast = model.blocks[1].forward
    model.blocks[1].forward = lambda x: cast(x.double()).float()
    return train(api, sharded(api, model))


@case(worlds=(2,), theirs=False)
def dtypes_mixed_in_one_unit(api):
    model = Net()
    model.norm.double()
    cast = model.norm.forward
    model.norm.forward = lambda x: cast(x.double()).float()
    return train(api, sharded(api, model))


# ---- several backward passes per step ------------------------------------------------------------------------------------------------


def _accumulated(api, model, *by):
    def loss(api, model, step):
        def say(last):
            for method in () if api.plain else (*(by or ("set_requires_gradient_sync",)), "set_is_last_backward"):
                getattr(model, method)(last)

        total = 0
        for micro in range(2):
            say(False)
            value = loss_of(api, model, step, micro) / 3
            value.backward()
            total += value.detach()
        say(True)
        return total + loss_of(api, model, step, 2) / 3

    return train(api, model, loss=loss)


@case(worlds=(1, 2, 3))
def accumulated_without_communication(api):
    return _accumulated(api, sharded(api, Net()))


@case(worlds=(2,))
def accumulated_with_communication(api):
    model = sharded(api, Net())

    def loss(api, model, step):
        first = loss_of(api, model, step, 0) / 2
        first.backward()
        return first.detach() + loss_of(api, model, step, 1) / 2

    return train(api, model, loss=loss)


@case(worlds=(2,))
def accumulated_without_resharding(api):
    return _accumulated(api, sharded(api, Net()), "set_requires_gradient_sync", "set_reshard_after_backward")


@case(worlds=(1, 2))
def checkpointed_activations(api):
    model = Net()
    model.checkpointed = True
    return train(api, sharded(api, model))


# ---- replicas ------------------------------------------------------------------------------------------------------------------------


@case(worlds=(2, 4))
def replicas_of_shards(api):
    model = sharded(api, Net(width=7), mesh=api.mesh_2d)
    if not api.plain:
        assert model.head.weight.placements == (Replicate(), Shard(0))
    return train(api, model)


@case(worlds=(4,))
def replicas_reduced_once_per_three_backwards(api):
    return _accumulated(api, sharded(api, Net(), mesh=api.mesh_2d), "set_requires_all_reduce")


@case(worlds=(4,), plain=False, rtol=2e-3, atol=2e-4)
def replicas_in_bf16(api):
    policy = api.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(api, sharded(api, Net(), mesh=api.mesh_2d, mp_policy=policy))


# ---- methods -------------------------------------------------------------------------------------------------------------------------


@case(worlds=(2,))
def prefetched_by_lists(api):
    model = sharded(api, Net())
    if not api.plain:
        for i, block in enumerate(model.blocks):
            block.set_modules_to_forward_prefetch(list(model.blocks[i + 1 : i + 3]))
            block.set_modules_to_backward_prefetch(list(model.blocks[max(i - 2, 0) : i])[::-1])
    return train(api, model)


@case(worlds=(2,), plain=False)
def divided_by_another_factor(api):
    model = sharded(api, Net())
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(5.0)
        module.set_force_sum_reduction_for_comms(True)
    return train(api, model)


@case(worlds=(2,), plain=False)
def hooks_on_reduced_gradients(api):
    model = sharded(api, Net())
    calls = []

    def hook(reduced):
        calls.append((reduced.ndim, reduced.dtype))
        reduced.mul_(0.5)

    for module in (model, *model.blocks):
        module.set_all_reduce_hook(hook)
    seen = train(api, model)
    assert calls == [(1, torch.float32)] * 4 * compared_runs.STEPS
    return seen


@case(worlds=(4,))
def hooks_that_communicate_between_replicas(api):
    # Each replica has a mesh of its own, and hooks average over replicas. Ranks reach the end of a unit's backward at different times.
    model, replicas = Net(), None
    if not api.plain:
        replicas = api.mesh_2d["replicate"].get_group()
        sharded(api, model, mesh=api.mesh_2d["shard"])
        spin = torch.ones(100, 100)

        def late(module, grad_input, grad_output):
            for _ in range(100 * (rank() % 3)):
                torch.mm(spin, spin)

        for block in model.blocks:
            block.register_full_backward_hook(late)

        def average(reduced):
            torch.distributed.all_reduce(reduced, group=replicas)
            reduced.div_(2)

        for module in (model, *model.blocks):
            module.set_all_reduce_hook(average)
    return train(api, model, steps=8)


@case(worlds=(2, 3))
def clipped_gradients(api):
    norms = []

    def clip(model):
        norms.append(full(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))

    seen = train(api, sharded(api, Net(width=7)), between=clip)
    for i, norm in enumerate(norms):
        seen.see(f"norm {i}", norm)
    return seen


@case(worlds=(2,))
def not_unsharded_in_backward(api):
    model = Net()
    model.emb = nn.Embedding(8, 8)
    forward = model.forward
    model.forward = lambda x: forward(x + model.emb(torch.arange(4)))
    api.fully_shard(model.emb, mesh=api.mesh)
    sharded(api, model)
    if not api.plain:
        model.emb.set_unshard_in_backward(False)
    return train(api, model)


class TwoForwards(Net):
    def encode(self, x):
        return self.blocks[0](self.inp(x))


@case(worlds=(2,))
def another_method_as_forward(api):
    model = TwoForwards()
    api.fully_shard(model.blocks[0], mesh=api.mesh)
    api.fully_shard(model, mesh=api.mesh)
    api.register_fsdp_forward_method(model, "encode")

    def loss(api, model, step):
        ranks = range(world()) if api.plain else [rank()]
        return sum(model.encode(batch(step, r)[0]).square().mean() for r in ranks) / len(ranks)

    return train(api, model, loss=loss)


@case(worlds=(2,), plain=False)
def gradients_of_unused_parameters(api):
    model = Net()
    model.spare = nn.Linear(3, 3)
    sharded(api, model)
    model.set_reduce_scatter_unused_params(True)
    model.set_reduce_scatter_max_input_buffers(3)
    seen = train(api, model)
    assert seen.values["gradient spare.weight"].abs().max() == 0
    return seen


@case(worlds=(2,), plain=False)
def communication_by_user_classes(api):
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    calls = []

    class Gather(AllGather):
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            calls.append("gather")
            return torch.distributed.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)

    class Scatter(ReduceScatter):
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            calls.append("scatter")
            return torch.distributed.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    model = sharded(api, Net(width=7))
    model.blocks[1].set_custom_all_gather(Gather())
    model.blocks[1].set_custom_reduce_scatter(Scatter())
    seen = train(api, model)
    assert calls.count("scatter") == compared_runs.STEPS
    assert calls.count("gather") >= compared_runs.STEPS
    return seen


# ---- other ways to initialise --------------------------------------------------------------------------------------------------------


@case(worlds=(2, 3))
def initialised_on_the_meta_device(api):
    if api.plain:
        return train(api, Net(width=7))
    with torch.device("meta"):
        model = sharded(api, Net(width=7))
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu")
    for (_, p), q in zip(model.named_parameters(), Net(width=7).parameters(), strict=True):
        p.data.copy_(torch.distributed.tensor.distribute_tensor(q.data, p.device_mesh, p.placements))
    return train(api, model)


@case(worlds=(2,))
def tied_weights(api):
    class Tied(Net):
        def __init__(self):
            super().__init__(width=5)
            self.head.weight = self.inp.weight = nn.Parameter(torch.randn(5, 8) / 4)
            self.back = nn.Linear(5, 8)

        def forward(self, x):
            x = self.inp(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(self.back(self.norm(x)))

    return train(api, sharded(api, Tied()))


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_cases():
    return run_cases(case)


failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), case.by_world())
def test_case(workers, name, failed):
    check(name, failed(workers))
