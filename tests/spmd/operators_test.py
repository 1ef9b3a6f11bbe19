"""Operators of torch on randomly sharded tensors, compared with plain tensors: results, gradients, in place, ``out=``.

The samples are those of torch's own tests (``op_db``). Every operator has one case in float64 with gradients, and one of another dtype, in
place, or with ``out=``. The operators in USUAL have three times as many. ``SHOAL_SEEDS=n`` takes n / 100 rounds.
"""

from __future__ import annotations

import os

os.environ["SHOAL_SPMD_DEVICES"] = "8"

import itertools
import random

import numpy as np
import pytest
import torch
from internals.spmd import Tensor, execution
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

xr.use_spmd()
DEVICE = xm.xla_device()
ROUNDS = max(1, int(os.environ.get("SHOAL_SEEDS", "1")) // 100)
SHAPES = [(8,), (2, 4), (2, 2, 2)]
MESHES = [xs.Mesh(ids, shape) for shape in SHAPES for ids in (range(8), np.random.default_rng(5).permutation(8))]
DTYPES = [torch.float64, torch.float32, torch.int64, torch.bool, torch.complex128]

# The results of these operators are not determined by their arguments.
UNDETERMINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
NOT_THERE = {
    "resize_": "changes the size of memory",
    "resize_as_": "changes the size of memory",
    "as_strided.partial_views": "reads memory beyond the tensor",
    "as_strided": "reads memory as it lies: refused for views of split tensors",
    "as_strided_copy": "reads memory as it lies: refused for views of split tensors",
    "as_strided_scatter": "reads memory as it lies: refused for views of split tensors",
    "to_sparse": "the device has strided tensors only",
    "tensor_split": "takes indices from a tensor of the host only, as on other devices",
}
# The rounding in these operators' kernels depends on the layout in memory: on vectors and their remainders, or on the order of a sum.
ROUNDED = {
    "_batch_norm_with_update", "_embedding_bag", "_embedding_bag_backward", "_embedding_bag_forward_only", "_fused_rms_norm",
    "_fused_rms_norm_backward", "_log_softmax", "_log_softmax_backward_data", "_native_batch_norm_legit", "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward", "_softmax",
    "_softmax_backward_data", "acos", "acosh", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "asin", "asinh", "atan",
    "atan2", "atanh", "baddbmm", "batch_norm_backward", "bmm", "celu", "cholesky", "cholesky_inverse", "cholesky_solve",
    "convolution", "convolution_backward", "cos", "cosh", "cumprod", "cumsum", "cumulative_trapezoid", "digamma", "dist", "dot",
    "elu", "elu_backward", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "float_power", "gelu", "gelu_backward", "glu",
    "glu_backward", "grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward", "hypot", "i0",
    "igamma", "igammac", "lgamma", "linalg_vector_norm", "log", "log10", "log1p", "log2", "log_sigmoid_backward",
    "log_sigmoid_forward", "logaddexp", "logaddexp2", "logcumsumexp", "logit", "logsumexp", "mean", "mish", "mish_backward", "mm",
    "mv", "mvlgamma", "nansum", "native_batch_norm", "native_batch_norm_backward", "native_group_norm", "native_group_norm_backward",
    "native_layer_norm", "native_layer_norm_backward", "norm", "polar", "polygamma", "pow", "prod", "reciprocal", "renorm", "rsqrt",
    "sgn", "sigmoid", "silu", "silu_backward", "sin", "sinc", "sinh", "softplus", "softplus_backward", "std", "std_mean", "sum",
    "tan", "tanh", "torch_nn::_linear_cross_entropy_batch_chunked", "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
    "trace", "var", "var_mean", "vdot", "xlogy",
}  # fmt: skip
ROUNDED_KINDS = ("linalg_", "_fft_", "special_", "upsample", "avg_pool", "dist_")
# These operators draw random numbers in the order of memory. For tensors in parts, that is the order of the whole tensor's indices.
RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint_like", "randn_like"),
    *("uniform", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
    *(
        "nn.functional.feature_alpha_dropout",
        "nn.functional.rrelu",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
    ),
}
NOT_WITH_OUT = {
    "linalg.solve": "gives several out= tensors their shapes",
    "fft.ihfft2": "torch leaves part of it unwritten",
    "fft.ihfftn": "torch leaves part of it unwritten",
    "linalg.matrix_rank": "torch does not write it where a tensor is of a subclass",
    "linalg.matrix_rank.hermitian": "torch does not write it where a tensor is of a subclass",
    "matmul": "gives its out= tensor another shape on the way",
    "linspace.tensor_overload": "takes bounds from tensors of the host",
    "logspace.tensor_overload": "takes bounds from tensors of the host",
}


# Operators that most programs use, and which therefore get more rounds.
USUAL = (
    *("__getitem__", "add", "amax", "amin", "baddbmm", "bmm", "cat", "conj", "cumsum", "diagonal", "einsum", "expand", "flatten", "gather"),
    *("index", "linalg.vector_norm", "log_softmax", "matmul", "max", "mean", "min", "mm", "movedim", "narrow", "nn.functional.", "norm"),
    *("permute", "repeat", "reshape", "roll", "scatter", "select", "slice", "softmax", "sort", "split", "squeeze", "stack", "std", "sum"),
    *("take_along_dim", "topk", "transpose", "tril", "triu", "unsqueeze", "var", "view", "where"),
)


def _name(op) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def _dtype(op) -> torch.dtype | None:
    supported = op.supported_dtypes("cpu")
    return next((d for d in DTYPES if d in supported), None)


OPERATORS = {_name(op): op for op in op_db if _dtype(op) is not None and not op.name.startswith("jiterator")}


VIEWS = [  # by kind of view: makes a base from values, and the view of the base that has these values
    (lambda t: t.clone(), lambda x: x),
    (lambda t: t.mT.contiguous(), lambda x: x.mT),
    (lambda t: t.repeat_interleave(2, -1), lambda x: x[..., ::2]),
    (lambda t: torch.stack([t, t], 0), lambda x: x[1]),
]


def _pair(t: torch.Tensor, draw: random.Random, may_be_view: bool) -> tuple[torch.Tensor, Tensor]:
    """A tensor on the host, and one with the same values and a random sharding on the device. Sometimes both are views."""
    make, view = draw.choice(VIEWS) if may_be_view and t.dim() > 1 and draw.random() < 0.3 else VIEWS[0]
    here = make(t.detach())
    there = here.to(DEVICE)
    mesh = draw.choice(MESHES)
    spec = [() for _ in range(here.dim())]
    for axis in draw.sample(range(len(mesh.mesh_shape)), len(mesh.mesh_shape)):
        if here.dim() and draw.random() < 0.8:
            spec[draw.randrange(here.dim())] += (axis,)
    xs.mark_sharding(there, mesh, tuple(spec))
    return tuple(view(x).requires_grad_(t.requires_grad) for x in (here, there))


def _on_host(value):
    return value.detach().cpu() if isinstance(value, Tensor) else value.detach() if isinstance(value, torch.Tensor) else value


def _gradients(outputs, arguments) -> list:
    """Gradients of all inputs. The gradients of the outputs are equal on host and device."""
    of = [o for o in tree_leaves(outputs) if isinstance(o, torch.Tensor) and o.requires_grad]
    inputs = [a for a in tree_leaves(arguments) if isinstance(a, torch.Tensor) and a.requires_grad]
    if not of or not inputs:
        return []
    given = [torch.randn(o.shape, dtype=o.dtype, generator=torch.Generator().manual_seed(i)) for i, o in enumerate(of)]
    given = [g.to(DEVICE) if isinstance(o, Tensor) else g for g, o in zip(given, of, strict=True)]
    return list(torch.autograd.grad(of, inputs, given, allow_unused=True))


class Watch:
    """Records what the engine does for a case: the operators that ran, those that ran on split tensors, and whether it added partial
    sums."""

    def __init__(self, patch):
        self.ran, self.split, self.added = set(), set(), False
        run_flat, by_parts, summed = execution.run_flat, execution._by_parts, execution._summed

        def watched_run(func, *args):
            self.ran.add(func._schema.name.removeprefix("aten::").removesuffix("_"))
            return run_flat(func, *args)

        def watched_parts(func, *args):
            self.split.add(str(func))
            return by_parts(func, *args)

        def watched_sum(*args):
            self.added = True
            return summed(*args)

        patch.setattr(execution, "run_flat", watched_run)
        patch.setattr(execution, "_by_parts", watched_parts)
        patch.setattr(execution, "_summed", watched_sum)

    def clear(self):
        self.ran, self.split, self.added = set(), set(), False

    @property
    def exact(self) -> bool:
        return not self.added and not any(name in ROUNDED or any(kind in name for kind in ROUNDED_KINDS) for name in self.ran)


@pytest.fixture(scope="module")
def watch():
    with pytest.MonkeyPatch.context() as patch:
        yield Watch(patch)


@pytest.fixture(scope="module")
def checked():
    counts = {"operators": set(), "split": set(), "cases": 0, "bitwise": 0}
    yield counts
    print(
        f"\n{len(counts['operators'])} operators, {len(counts['split'])} of them ran split by a rule; "
        f"{counts['cases']} cases, {counts['bitwise']} of them bitwise"
    )


def _compare(ours, expected, exact: bool, where: str) -> None:
    for i, (a, b) in enumerate(zip(ours, expected, strict=True)):
        assert type(a) is type(b), f"result {i} is {type(a)} instead of {type(b)}: {where}"
        if not isinstance(a, torch.Tensor):
            assert a == b, f"result {i}: {where}"
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"result {i} is {a.dtype} {a.shape}, not {b.dtype} {b.shape}: {where}"
        if a.dtype == torch.complex32:
            a, b = a.to(torch.complex64), b.to(torch.complex64)
        real = a.is_floating_point() or a.is_complex()
        tolerance = 0.0 if exact or not real else max(1e-9, 16 * torch.finfo(b.dtype).eps)
        scale = b.abs().nan_to_num(0, 0, 0).max().item() if tolerance and b.numel() else 1.0
        torch.testing.assert_close(
            a.resolve_conj(), b.resolve_conj(), rtol=tolerance, atol=tolerance * max(1.0, scale), equal_nan=True,
            msg=lambda m, i=i: f"result {i}: {m}\n{where}",
        )  # fmt: skip


def _sample(op, dtype, requires_grad: bool, draw: random.Random):
    torch.default_generator.manual_seed(0)
    first = itertools.islice(op.sample_inputs_func(op, "cpu", dtype, requires_grad), draw.choice((4, 16)))
    strided = [s for s in first if all(t.layout == torch.strided for t in tree_leaves((s.input, s.args, s.kwargs)) if hasattr(t, "layout"))]
    return draw.choice(strided) if strided else None


def _check(op, call, sample, draw: random.Random, watch: Watch, checked: dict, with_gradients: bool) -> None:
    given = (sample.input, sample.args, sample.kwargs)

    def of(arguments):
        torch.default_generator.manual_seed(1)
        out = sample.output_process_fn_grad(call(arguments[0], *arguments[1], **arguments[2]))
        return [*tree_leaves(out), *(_gradients(out, arguments) if with_gradients else [])]

    # No views for stft, which reads memory directly: that is refused for views of split tensors.
    leaves, tree = tree_flatten(given)
    pairs = [_pair(t, draw, op.name not in RANDOM and op.name != "stft") if isinstance(t, torch.Tensor) else (t, t) for t in leaves]
    plain, there = (tree_unflatten([pair[i] for pair in pairs], tree) for i in (0, 1))
    try:
        expected = list(map(_on_host, of(plain)))
    except RuntimeError:
        return  # plain torch refuses this sample because of its layout in memory
    how = [(tuple(t.shape), str(t._box.array.sharding)) for t in tree_leaves(there) if isinstance(t, Tensor)]
    watch.clear()
    ours = list(map(_on_host, of(there)))
    where = (
        f"{_name(op)} of {how}, {tree_map(lambda a: a if not isinstance(a, torch.Tensor) else '..', given[1:])}, ran {sorted(watch.ran)}"
    )
    checked["operators"].add(_name(op))
    checked["cases"] += 1
    exact = watch.exact and not any(isinstance(v, torch.Tensor) and v.is_complex() for v in (*tree_leaves(given), *expected))
    checked["bitwise"] += exact
    if watch.split:
        checked["split"].add(_name(op))
    _compare(ours, expected, exact, where)


def _in_place(op):
    return lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs)


def _with_out(op):
    def call(*args, **kwargs):
        out = op.op(*args, **kwargs)
        return op.op(*args, **kwargs, out=torch.empty_like(out)) if isinstance(out, torch.Tensor) else out

    return call


def _round(name: str, seed: int, watch: Watch, checked: dict) -> None:
    op = OPERATORS[name]
    draw = random.Random(f"{name} {seed}")
    dtype = _dtype(op)
    with_gradients = op.supports_autograd and dtype.is_floating_point
    others = sorted(op.supported_dtypes("cpu") - {dtype}, key=str)
    sample = _sample(op, dtype, with_gradients, draw)
    if sample is None:
        return
    _check(op, op.op, sample, draw, watch, checked, with_gradients)
    way = draw.choice(
        ["dtype"] * bool(others) + ["in place"] * bool(op.inplace_variant) + ["out"] * (op.supports_out and name not in NOT_WITH_OUT)
        or [""]
    )
    if way == "dtype" and (other := _sample(op, draw.choice(others), False, draw)) is not None:
        _check(op, op.op, other, draw, watch, checked, False)
    elif way == "in place" and not sample.broadcasts_input:
        _check(op, _in_place(op), sample, draw, watch, checked, with_gradients and op.supports_inplace_autograd)
    elif way == "out":
        with torch.no_grad():
            _check(op, _with_out(op), sample, draw, watch, checked, False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("initial", sorted({name[0] for name in OPERATORS}))
def test_operators_equal_plain_torch(initial, watch, checked):
    failed = []
    for name in OPERATORS:
        if name[0] == initial and OPERATORS[name].name not in UNDETERMINED and name not in NOT_THERE:
            for seed in range(ROUNDS * (3 if name.startswith(USUAL) else 1)):
                try:
                    _round(name, seed, watch, checked)
                except (AssertionError, RuntimeError) as error:
                    failed.append(f"{name}, seed {seed}: {error}")
    assert not failed, "\n\n".join(failed)


# Cases that are easily wrong. Each gets tensors of shapes (6, 5, 4), (6, 5, 4) and (2, 4, 8, 8), the last for images and attention.
DIRECTED = {
    "one index": lambda a, b, c: a[:, [0, 3, 3]],
    "two indices": lambda a, b, c: a[:, [0, 3, 3], [1, 1, 2]],
    "indices apart": lambda a, b, c: a[[5, 0], :, [1, 2]],
    "index that broadcasts": lambda a, b, c: a[torch.tensor([[0], [4]]), torch.tensor([1, 2, 3])],
    "put of rows": lambda a, b, c: a.clone().index_put_([torch.tensor([1, 4])], b[:2]),
    "accumulated put": lambda a, b, c: a.clone().index_put_([torch.tensor([1, 1, 0])], b[2:5], accumulate=True),
    "put at a mask": lambda a, b, c: torch.where(a > 0, a, b).masked_fill(b > 1, 0.5),
    "gather": lambda a, b, c: a.gather(1, (b.detach()[:4] * 10).long() % 5),
    "scatter": lambda a, b, c: a.scatter(1, (b.detach()[:, :3] * 10).long() % 1 + torch.arange(3, device=a.device)[:, None], b[:, :3]),
    "scatter of sums": lambda a, b, c: a.scatter_add(2, (b.detach() * 10).long() % 4, b),
    "attention": lambda a, b, c: F.scaled_dot_product_attention(c, c.flip(2), c * 2, is_causal=True),
    "attention of views": lambda a, b, c: F.scaled_dot_product_attention(c.mT, c.mT, (c + 1).mT),
    "grouped attention": lambda a, b, c: F.scaled_dot_product_attention(c, c[:, :2], c[:, 2:], enable_gqa=True),
    "layer norm": lambda a, b, c: F.layer_norm(a, (5, 4), b[0], b[1]),
    "rms norm": lambda a, b, c: F.rms_norm(a, (4,), b[0, 0]),
    "group norm of a view": lambda a, b, c: F.group_norm(c.transpose(2, 3), 2, b[0, 0], b[0, 1]),
    "batch norm": lambda a, b, c: F.batch_norm(c, None, None, b[0, 0], b[0, 1], training=True),
    "batch norm of given statistics": lambda a, b, c: F.batch_norm(c, b[0, 0].detach(), b[0, 1].detach().abs() + 1, b[0, 2], b[0, 3]),
    "convolution": lambda a, b, c: F.conv2d(c, c[:, :, :3, :3].expand(2, 4, 3, 3), b[0, 0, :2], padding=1),
    "transposed convolution": lambda a, b, c: F.conv_transpose2d(c, c[0, :, None, :3, :3].expand(4, 2, 3, 3), stride=2),
    "pooling": lambda a, b, c: F.max_pool2d(c, 2) + F.avg_pool2d(c, 2) + F.adaptive_avg_pool2d(c, 4),
    "embedding": lambda a, b, c: F.embedding((b.detach()[0] * 10).long() % 6, a[:, 0]),
    "cross entropy": lambda a, b, c: F.cross_entropy(a.flatten(0, 1), (b.detach()[..., 0] * 10).long().flatten() % 4),
    "float classes": lambda a, b, c: F.cross_entropy(a.flatten(0, 1), _classes(a, (b.detach()[..., 0] * 10).trunc().abs().flatten() % 4)),
    "float classes of planes": lambda a, b, c: F.nll_loss(c.contiguous(), _classes(c, (c.detach()[:, 0] * 9).abs().trunc() % 4)),
    "weighted": lambda a, b, c: F.cross_entropy(a, (b.detach()[:, 0] * 9).long() % 5, b[0, :, 0].detach().abs(), label_smoothing=0.1),
    "squared error": lambda a, b, c: F.mse_loss(a, b) + F.huber_loss(a, b) + F.smooth_l1_loss(a, b, reduction="sum"),
    "cross entropies": lambda a, b, c: F.binary_cross_entropy_with_logits(a, b.abs()) + F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
    "moments": lambda a, b, c: a.var(1) + b.std((1,), correction=0) + a.mean((0, 1)) + torch.var_mean(b, (0, 1), keepdim=True)[1][0],
    "extremes": lambda a, b, c: a.amax((0, 2)) + b.amin(0).sum() + a.max() - b.min() + a.prod(1).sum(),
    "norms": lambda a, b, c: sum(torch.linalg.vector_norm(a, order, (0, 1)) for order in (0, 1, 2, 3, float("inf"), -float("inf"))),
    "conjugates": lambda a, b, c: (torch.complex(a, b).conj() * torch.fft.fft(torch.complex(b, a))).real,
    "determinant of a view": lambda a, b, c: torch.linalg.slogdet(c.mT + 9)[1] + torch.linalg.solve(c, c.mT)[0, :, :, 0].sum(-1),
    "determinant": lambda a, b, c: torch.linalg.det(c.mT),
    "diagonals": lambda a, b, c: a.diagonal(0, 0, 2) @ b.diagonal(1, 1, 2).tril()[:4],
    "added products": lambda a, b, c: torch.baddbmm(b[:, :, :1], a, b.mT) + torch.addbmm(b[0, :, :1], a, b.mT),
    "einsum": lambda a, b, c: torch.einsum("nij,nkj,kj->ni", a, b, b[0]),
    "windows": lambda a, b, c: F.pad(a, (1, 2, 0, 0, 3, 0)).unfold(1, 2, 2).repeat(1, 2, 1, 1),
    "padding of images": lambda a, b, c: F.interpolate(F.pad(c, (1, 1, 2, 0), mode="reflect"), scale_factor=2, mode="bilinear"),
    "squeezed": lambda a, b, c: a[:1].squeeze() + b[:, :1].squeeze(1)[0] + a.unsqueeze(1).squeeze((1,))[2],
    "writes through views": lambda a, b, c: _written(a.clone(), b),
}  # fmt: skip


def _classes(scores, targets):
    """Class targets as floats on the device, where torch_xla takes them, and as integers on the host."""
    return targets if isinstance(scores, Tensor) else targets.long()


def _written(x, y):
    x[1:4].mul_(y[:3])
    x.mT[:, 1].add_(y[:, :, 1])
    x[..., ::2] = y[..., 1::2]
    x.select(1, 2).zero_()
    return x


@pytest.mark.filterwarnings("ignore")
def test_directed_cases_equal_plain_torch(watch):
    for name, f in DIRECTED.items():
        for seed in range(4 * ROUNDS):
            draw, generator = random.Random(f"{name} {seed}"), torch.Generator().manual_seed(seed)
            shapes = ((6, 5, 4), (6, 5, 4), (2, 4, 8, 8))
            made = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
            pairs = [_pair(t, draw, True) for t in made]
            expected, ours = [], []
            for given, found in zip(zip(*pairs, strict=True), (expected, ours), strict=True):
                out = f(*given)
                found += map(_on_host, (out, *_gradients(out, given)))
            how = [str(t._box.array.sharding) for _, t in pairs]
            _compare(ours, expected, False, f"{name}, seed {seed}, of {how}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_at_indices_of_parts_of_one_row(dtype):
    here, source, index = torch.full((5, 5), 2, dtype=dtype), torch.full((5, 10), 3, dtype=dtype), torch.arange(10) % 5
    there = here.to(DEVICE)
    xs.mark_sharding(there, MESHES[0], (0, None))
    ours = there.index_reduce(1, index.to(DEVICE), source.to(DEVICE), "prod")
    torch.testing.assert_close(ours.cpu(), here.index_reduce(1, index, source, "prod"), rtol=0, atol=0)
