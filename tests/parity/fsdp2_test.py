"""The same script with torch's FSDP2 over gloo, with ours, and on one plain process: losses, gradients and parameters after some steps.

Each case is written once and takes ``fully_shard`` as an argument. All cases of a world size share one run of ranks.
"""

import functools

import pytest
import torch
from compared_runs import CASES, STEPS, Net, Seen, batch, case, full, loss_of, rank, run_cases, sharded, train, world
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import softplus
from torch.testing._internal.two_tensor import TwoTensor
from uses import check

import shoal
from shoal.train import ScalingConfig, Trainer

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
    """A model whose experts differ between places on the mesh's second dim."""

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
    """The experts share a unit with parameters on all ranks, as torchtitan shards a block with expert parallelism."""
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
    (model(torch.ones(1, 8)).sum() * 40000).backward()  # the gradient of a rank fits into fp16, the sum does not
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
    assert calls == [(1, torch.float32)] * 4 * STEPS
    return seen


@case(worlds=(4,))
def hooks_that_communicate_between_replicas(api):
    # Each replica has a mesh of its own; the hooks average over replicas. Ranks reach the end of a unit's backward at different times.
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
    assert calls.count("scatter") == STEPS
    assert calls.count("gather") >= STEPS
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


# ---- with tensor parallelism ---------------------------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


def _tp(api):
    model = nn.Sequential(TwoLayers(), TwoLayers(), nn.Linear(8, 5))
    if api.plain:
        return model
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = api.mesh_tp
    for layers in model[:2]:
        parallelize_module(layers, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        api.fully_shard(layers, mesh=mesh["dp"])
    api.fully_shard(model, mesh=mesh["dp"])
    return model


def _tp_loss(api, model, step):
    ranks = range(world() // 2) if api.plain else [rank() // 2]
    return sum(nn.functional.cross_entropy(model(batch(step, r)[0]), batch(step, r)[1]) for r in ranks) / len(ranks)


@case(worlds=(2, 4))
def over_tensor_parallelism(api):
    torch.manual_seed(1)
    model = _tp(api)
    return train(api, model, loss=_tp_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@case(worlds=(4,), plain=False)
def on_dims_of_a_larger_mesh(api):
    torch.manual_seed(1)
    mesh = api.mesh_tp
    from torch.distributed.tensor import distribute_module, distribute_tensor

    def place(name, module, mesh):
        for key, p in list(module.named_parameters(recurse=False)):
            dim = {"up": Shard(0), "down": Shard(1) if p.ndim == 2 else Replicate()}[name]
            module.register_parameter(key, nn.Parameter(distribute_tensor(p.data, mesh, [Replicate(), dim])))

    def inputs(module, args, mesh):
        return tuple(DTensor.from_local(a, mesh, [Shard(0), Replicate()], run_check=False) for a in args)

    model = TwoLayers()
    distribute_module(model, mesh, place, inputs)
    api.fully_shard(model, mesh=mesh, dp_mesh_dims=api.DataParallelMeshDims(shard="dp"))

    def loss(api, model, step):
        return model(batch(step, rank() // 2)[0]).square().sum().redistribute(placements=[Replicate()] * 2).to_local() / 32

    return train(api, model, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class Half(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))])
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.blocks[0](x)))


def pipelined(api, schedule, stages_per_rank):
    """Pipeline stages over one mesh dim, each sharded over the other. Gradients of four microbatches are reduced at the end of a step."""
    from torch.distributed import pipelining

    stages, place = api.mesh_tp["tp"], api.mesh_tp.get_local_rank("tp")
    parts = [sharded(api, Half(2 * turn + place), mesh=api.mesh_tp["dp"]) for turn in range(stages_per_rank)]
    kept = [
        pipelining.PipelineStage(part, 2 * turn + place, 2 * stages_per_rank, torch.device("cpu"), group=stages.get_group())
        for turn, part in enumerate(parts)
    ]
    run = getattr(pipelining, schedule)(
        kept if stages_per_rank > 1 else kept[0], n_microbatches=4, loss_fn=lambda y, target: (y - target).square().mean()
    )
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-2)
    seen = Seen()
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank() // 2)
        x, target = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
        losses = []
        if place == 0:
            run.step(x)
        else:
            run.step(target=target, losses=losses)
            seen.see(f"loss {step}", torch.stack(losses).mean())
        for part in parts:
            seen.gradients(part, f"step {step}, ")
        optimizer.step()
        optimizer.zero_grad()
    for part in parts:
        seen.parameters(part)
    return seen


@case(worlds=(4,), plain=False)
def pipeline_stages(api):
    return pipelined(api, "Schedule1F1B", 1)


@case(worlds=(4,), plain=False)
def pipeline_stages_without_bubbles(api):
    return pipelined(api, "ScheduleInterleavedZeroBubble", 2)


# ---- tensors with extensions ---------------------------------------------------------------------------------------------------------


class Halved(torch.Tensor):
    """A tensor that is gathered in bf16 whatever the policy's dtype, by fsdp_pre_all_gather."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, metadata, size, stride):
        return Halved(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        def unwrap(t):
            return t.inner if isinstance(t, Halved) else t

        out = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        out = func(*out[0], **out[1])
        kept = {
            torch.ops.aten.new_zeros.default,
            torch.ops.aten.slice.Tensor,
            torch.ops.aten.view.default,
            torch.ops.aten.split.Tensor,
            torch.ops.aten.clone.default,
            torch.ops.aten.detach.default,
            torch.ops.aten.copy_.default,
            torch.ops.aten.as_strided.default,
            torch.ops.aten.empty_like.default,
            torch.ops.aten._to_copy.default,
        }
        if func is torch.ops.aten.copy_.default:
            return args[0]
        return torch.utils._pytree.tree_map_only(torch.Tensor, Halved, out) if func in kept else out

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        return (self.inner.bfloat16(),), None

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        (gathered,) = outputs
        if out is not None:
            with torch.no_grad():
                out.copy_(gathered.view(out.shape))
            return None
        whole = gathered.to(param_dtype)
        return whole, (whole,)


class Pair(TwoTensor):
    """Two inner tensors that are gathered into the outputs of the first gather: ``out=`` is set."""

    def fsdp_pre_all_gather(self, mesh):
        assert mesh.ndim == 1
        assert mesh.size() == world()
        return (self.a, self.b), ("metadata", rank())

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        assert metadata == ("metadata", rank())
        a, b = outputs
        if out is None:
            whole = Pair(a, b)
            return whole, (a, b)
        assert type(out) is Pair
        for given, kept in ((a, out.a), (b, out.b)):
            assert given.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr()
        return None


def _pairs(api, kind=Pair):
    model = Net()
    for block in model.blocks:
        block[0].weight = nn.Parameter(kind(block[0].weight.detach(), block[0].weight.detach().clone()))
    return model


@case(worlds=(2,))
def extensions_whose_outputs_are_the_gathered_tensors(api):
    model = _pairs(api) if not api.plain else Net()
    sharded(api, model, reshard_after_forward=True)
    with torch.no_grad():
        x = batch(7, 0)[0]
        values = [model(x) for _ in range(4)]
        for value in values[1:]:
            torch.testing.assert_close(value, values[0], rtol=0, atol=0)
    return train(api, model)


@case(worlds=(2,), plain=False)
def gradients_of_wrapper_tensors_are_added_up(api):
    """Each inner tensor is reduced on its own, as in FSDP2."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 5))
    model[0].weight = nn.Parameter(Pair(model[0].weight.detach(), model[0].weight.detach() / 2))
    api.fully_shard(model[0], mesh=api.mesh)
    api.fully_shard(model, mesh=api.mesh)
    seen = Seen()
    for step in range(4):
        model.set_requires_gradient_sync(step != 1)
        model(batch(step, rank())[0]).square().mean().backward()
        if step != 1:
            for name, p in model.named_parameters():
                assert type(p.grad._local_tensor) is torch.Tensor
                seen.see(f"gradient {name} {step}", p.grad)
    for p in model.parameters():  # accumulates onto a gradient that the user made
        p.grad = torch.ones_like(p)
    model(batch(9, rank())[0]).square().mean().backward()
    for name, p in model.named_parameters():
        local = p.grad._local_tensor
        seen.see(f"last gradient {name}", torch.empty(local.shape).copy_(local))
    return seen


@case(worlds=(2,), theirs=False)  # FSDP2: "_chunk_cat expects non-empty tensor"
def a_parameter_without_elements_has_a_gradient(api):
    model = Net()
    model.none = nn.Parameter(torch.empty(0, 12))
    forward = model.forward
    model.forward = lambda x: forward(x) + model.none.sum()
    return train(api, sharded(api, model))


def _in_bf16(model):
    """Sets all-gather extensions on the local tensors of 2-D parameters."""

    def pre(self, mesh):
        padded = -(-self.shape_of_all[0] // world()) * self.shape_of_all[1]
        flat = self.detach().to(torch.bfloat16).reshape(-1)
        return (nn.functional.pad(flat, (0, padded - flat.numel())).view(-1, self.shape_of_all[1]),), None

    def post(self, outputs, metadata, param_dtype, *, out=None):
        (gathered,) = outputs
        asked.append(out is None)
        if out is None:
            whole = gathered.to(param_dtype)
            return whole, (gathered, whole)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(gathered[: out.shape[0]])
        return None

    asked = []
    for p in model.parameters():
        if p.ndim == 2:
            local = p._local_tensor
            local.shape_of_all = tuple(p.shape)
            local.fsdp_pre_all_gather = pre.__get__(local)
            local.fsdp_post_all_gather = post.__get__(local)
    return asked


@case(worlds=(2, 3), plain=False)
def extensions_set_on_local_tensors_after_fully_shard(api):
    model = sharded(api, Net(width=12), reshard_after_forward=True)
    asked = _in_bf16(model)
    seen = train(api, model)
    assert len(asked) > 8 * STEPS
    assert asked.count(True) == 8
    return seen


@case(worlds=(2,), plain=False)
def extensions_set_on_local_tensors_after_to_empty(api):
    with torch.device("meta"):
        model = sharded(api, Net())
    model.to_empty(device="cpu")
    asked = _in_bf16(model)
    _fill(model)
    seen = train(api, model)
    assert asked.count(True) == 8
    return seen


def _fill(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(
                torch.distributed.tensor.distribute_tensor(torch.linspace(-0.5, 0.4, p.numel()).view(p.shape), p.device_mesh, p.placements)
            )


@case(worlds=(2,))
def a_wrapper_tensor_with_extensions_initialised_on_the_meta_device(api):
    if api.plain:
        model = Net()
    else:
        with torch.device("meta"):
            model = sharded(api, _pairs(api))
        local = model.blocks[0][0].weight._local_tensor
        assert type(local) is Pair
        assert local.is_meta
        model.to_empty(device="cpu")
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.fill_(0.1 - 0.02 * i)
    if not api.plain:
        assert type(model.blocks[0][0].weight._local_tensor) is Pair
    return train(api, model)


@case(worlds=(2,), plain=False)
def wrapper_tensors_without_extensions_keep_their_class(api):
    model = sharded(api, _pairs(api, TwoTensor))
    assert type(model.blocks[0][0].weight._local_tensor) is TwoTensor
    seen = train(api, model)
    assert type(model.blocks[0][0].weight._local_tensor) is TwoTensor
    return seen


class CastPair(TwoTensor):
    """A tensor whose inner tensors are cast to the policy's param_dtype after the gather; the mesh is the shards' mesh only."""

    def fsdp_pre_all_gather(self, mesh):
        assert mesh.ndim == 1
        assert mesh.size() == 2
        return (self.a, self.b), None

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        a, b = outputs
        if out is None:
            whole = CastPair(a, b).to(param_dtype)
            return whole, (a, b) if a.dtype == param_dtype else (a, b, whole.a, whole.b)
        if a.dtype != param_dtype:
            with torch.no_grad():
                out.a.copy_(a)
                out.b.copy_(b)
        return None


@case(worlds=(4,), plain=False)
def extensions_among_the_shards_of_replicas(api):
    return train(api, sharded(api, _pairs(api, CastPair), mesh=api.mesh_2d, reshard_after_forward=True))


@case(worlds=(2,), plain=False, rtol=1e-4)
def extensions_whose_whole_parameter_has_another_dtype(api):
    policy = api.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(api, sharded(api, _pairs(api, CastPair), mp_policy=policy, reshard_after_forward=True))


@case(worlds=(2,), plain=False)
def extensions_of_parameters_sharded_on_dim_1(api):
    def place(p):
        return Shard(1) if isinstance(p, CastPair) else None

    return train(api, sharded(api, _pairs(api, CastPair), shard_placement_fn=place))


class Eighth(TwoTensor):
    """A tensor that is gathered as float8 with a row of scales."""

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        assert outer_stride == (outer_size[1], 1)
        assert isinstance(module, nn.Linear)
        assert mp_policy.param_dtype is None
        scale = self.a.abs().amax(dim=1)
        return ((self.a / scale[:, None]).to(torch.float8_e4m3fn), scale), None

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        values, scale = outputs
        whole = values.to(param_dtype) * scale[:, None]
        if out is None:
            return whole, (*outputs, whole)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(whole)
        return None


@case(worlds=(2,), plain=False)
def extensions_that_travel_in_several_dtypes_beside_plain_parameters(api):
    return train(api, sharded(api, _pairs(api, Eighth), reshard_after_forward=True))


@case(worlds=(2,), plain=False)
def a_tensor_that_gathers_itself(api):
    model = Net()
    model.head.weight = nn.Parameter(Halved(torch.randn(6, 12) / 4))
    model.head.bias = None
    sharded(api, model)

    def loss(api, model, step):
        x, y = batch(step, rank())
        return nn.functional.cross_entropy(model(x), y)

    seen = Seen()
    for step in range(2):
        value = loss(api, model, step)
        value.backward()
        seen.see(f"loss {step}", value)
        seen.see(f"gradient {step}", model.head.weight.grad._local_tensor)
        for p in model.parameters():
            p.grad = None
    return seen


@case(worlds=(2,), plain=False)  # FSDP2 drops writes of forward, and so does Shoal
def embeddings_renormalised_in_forward(api):
    model = Net()
    torch.manual_seed(1)
    model.emb = nn.Embedding(8, 8, max_norm=1.0)
    forward = model.forward
    model.forward = lambda x: forward(x + model.emb(torch.arange(4) + rank()))
    return train(api, sharded(api, model))


# ---- models that train in turns -----------------------------------------------------------------------------------------------------


def _pair(api):
    """A generator and a discriminator: sharded roots of their own, each with a unit inside."""
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6))
    d = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    for m in (g, d):
        api.fully_shard(m[0], mesh=api.mesh, reshard_after_forward=True)
        api.fully_shard(m, mesh=api.mesh)
    return g, d, *(torch.optim.AdamW(m.parameters(), lr=0.02) for m in (g, d))


def _over_ranks(api, loss):
    ranks = range(world()) if api.plain else [rank()]
    return sum(loss(r) for r in ranks) / len(ranks)


def _noise(step, of_rank, features=8):
    return batch(step, of_rank, features)[0]


def _show_both(g, d):
    seen = Seen()
    seen.parameters(g, "generator: ")
    seen.parameters(d, "discriminator: ")
    return seen


def _fooled(api, d, fake):
    """The loss of a generator with the output ``fake(r)``."""
    return _over_ranks(api, lambda r: softplus(-d(fake(r))).mean())


def _told_apart(api, d, step, fake):
    """The loss of a discriminator."""
    return _over_ranks(api, lambda r: softplus(-d(_noise(step, r, 6))).mean() + softplus(d(fake(r).detach())).mean())


@case(worlds=(2, 3))
def two_roots_in_turns_with_the_other_frozen(api):
    g, d, g_opt, d_opt = _pair(api)
    for step in range(4):
        d.requires_grad_(True)
        g.requires_grad_(False)
        _told_apart(api, d, step, lambda r, step=step: g(_noise(step + 50, r))).backward()
        assert all(p.grad is None for p in g.parameters())
        d_opt.step()
        d_opt.zero_grad()
        d.requires_grad_(False)
        g.requires_grad_(True)
        _fooled(api, d, lambda r, step=step: g(_noise(step + 90, r))).backward()
        assert all(p.grad is None for p in d.parameters())
        g_opt.step()
        g_opt.zero_grad()
    return _show_both(g, d)


@case(worlds=(2,))
def two_roots_in_turns_over_one_forward_of_the_generator(api):
    # The discriminator's step runs between the generator's forward and backward. Its gradients from the generator's backward are dropped
    # late.
    g, d, g_opt, d_opt = _pair(api)
    for step in range(3):
        fakes = {r: g(_noise(step, r)) for r in (range(world()) if api.plain else [rank()])}
        _told_apart(api, d, step + 50, fakes.get).backward()
        d_opt.step()
        g_opt.zero_grad()
        _fooled(api, d, fakes.get).backward()
        g_opt.step()
        d_opt.zero_grad()
        del fakes
    return _show_both(g, d)


@case(worlds=(2,))
def two_roots_in_one_backward(api):
    g, d, g_opt, d_opt = _pair(api)

    def loss(step, r):
        return d(g(_noise(step, r))).square().mean() + 0.1 * g(_noise(step + 9, r)).mean()

    for step in range(3):
        for opt in (g_opt, d_opt):
            opt.zero_grad()
        _over_ranks(api, functools.partial(loss, step)).backward()
        for opt in (d_opt, g_opt):
            opt.step()
    return _show_both(g, d)


@case(worlds=(2,), theirs=False)  # FSDP2 keeps the sharded gradients of the unsharded root
def gradients_dropped_between_forward_and_backward(api):
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = loss_of(api, model, step)
        model.zero_grad(set_to_none=step % 2 == 0)
        loss.backward()
        optimizer.step()
    seen = Seen()
    seen.gradients(model)
    seen.parameters(model)
    return seen


@case(worlds=(2,), theirs=False)  # FSDP2 ignores requires_grad of sharded parameters while the whole ones are shown
def frozen_and_thawed_after_an_evaluation(api):
    # The root stays unsharded after a forward without gradients. Parameters frozen and thawed then take effect in the next step.
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = list(model.parameters())  # the sharded parameters
    seen = Seen()
    for step, (frozen, where) in enumerate([("head", model), (None, ()), ("inp", model), ("blocks.1", kept), ("", kept), ("head", kept)]):
        with torch.no_grad():
            model(batch(step, 0)[0])
        shown = zip([name for name, _ in model.named_parameters()], kept if where is kept else model.parameters(), strict=True)
        for name, p in shown if frozen is not None else ():
            p.requires_grad_(not (frozen and name.startswith(frozen)))
        loss_of(api, model, step).backward()
        seen.gradients(model, f"{step}: ")
        optimizer.step()
        optimizer.zero_grad()
    seen.parameters(model)
    return seen


@case(worlds=(2,))
def frozen_and_thawed_while_gradients_are_accumulated(api):
    model = sharded(api, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Seen()
    for step in range(3):
        for micro, trained in enumerate([(0, 1, 2), (0, 2), (1, 2)]):
            for i, block in enumerate(model.blocks):
                block.requires_grad_(i in trained)
            model.head.requires_grad_(micro != 1)
            if not api.plain:
                model.set_requires_gradient_sync(micro == 2 or step == 1)
                model.set_is_last_backward(micro == 2)
            loss_of(api, model, step, micro).backward()
        for module in (*model.blocks, model.head):
            module.requires_grad_(True)
        seen.gradients(model, f"{step}: ")
        optimizer.step()
        optimizer.zero_grad()
    seen.parameters(model)
    return seen


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_cases():
    return run_cases()


@pytest.fixture(scope="module")
def failed():
    shoal.init(num_cpus=16)
    yield functools.cache(lambda workers: Trainer(all_cases, scaling_config=ScalingConfig(num_workers=workers)).fit().returns)
    shoal.shutdown()


@pytest.mark.parametrize(("workers", "name"), [(n, name) for n in (1, 2, 3, 4) for name, spec in CASES.items() if n in spec.worlds])
def test_case(workers, name, failed):
    check(name, failed(workers))
