"""Parameters that are tensor subclasses with extensions of all_gather, beside torch's FSDP2 and a plain process."""

import compared_runs
import pytest
import torch
from compared_runs import Cases, Net, Seen, batch, rank, run_cases, sharded, train, world
from launching.trained import check, worlds
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

case = Cases()

# ---- tensors with extensions ---------------------------------------------------------------------------------------------------------


class Halved(torch.Tensor):
    """A tensor whose fsdp_pre_all_gather casts it to bf16, whatever dtype the policy has."""

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
    """Two inner tensors. Later gathers write into the memory of the first one's outputs: ``out=`` is the whole pair."""

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
    """The gradient of each inner tensor is reduced on its own, as in FSDP2."""
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
    for p in model.parameters():  # the next backward adds to gradients that the user made
        p.grad = torch.ones_like(p)
    model(batch(9, rank())[0]).square().mean().backward()
    for name, p in model.named_parameters():
        local = p.grad._local_tensor
        seen.see(f"last gradient {name}", torch.empty(local.shape).copy_(local))
    return seen


@case(worlds=(2,), theirs=False)  # FSDP2 raises "_chunk_cat expects non-empty tensor"
def a_parameter_without_elements_has_a_gradient(api):
    model = Net()
    model.none = nn.Parameter(torch.empty(0, 12))
    forward = model.forward
    model.forward = lambda x: forward(x) + model.none.sum()
    return train(api, sharded(api, model))


def _in_bf16(model):
    """Sets extensions of all_gather on the local tensors of 2-D parameters, which are then gathered in bf16."""

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
    assert len(asked) > 8 * compared_runs.STEPS
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
        # Not one value for all: behind a LayerNorm gradients would then be rounding errors, which AdamW takes for whole steps.
        generator = torch.Generator().manual_seed(1)
        for p in model.parameters():
            value = torch.randn(p.shape, generator=generator) / 4
            p.copy_(value if api.plain else distribute_tensor(value, p.device_mesh, p.placements))
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
    """A tensor whose inner tensors are cast to the policy's param_dtype after the gather. The extension gets the mesh of the shards,
    without replicas."""

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
    """A tensor that is gathered as float8, with a row of scales."""

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


@case(worlds=(2,), plain=False)  # FSDP2 drops what forward writes to parameters, and so does Shoal
def embeddings_renormalised_in_forward(api):
    model = Net()
    torch.manual_seed(1)
    model.emb = nn.Embedding(8, 8, max_norm=1.0)
    forward = model.forward
    model.forward = lambda x: forward(x + model.emb(torch.arange(4) + rank()))
    return train(api, sharded(api, model))


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_cases():
    return run_cases(case)


failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), case.by_world())
def test_case(workers, name, failed):
    check(name, failed(workers))
