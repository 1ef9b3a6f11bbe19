"""Rules for layers of networks: attention, convolutions, embeddings, losses, norms, pooling."""

from __future__ import annotations

import math

import torch

from shoal.spmd._rules.arithmetic import as_dtype, wide
from shoal.spmd._rules.registry import Labels, Plan, Steps, argument, changed, pointwise, rule

aten = torch.ops.aten


def _leading(rank: int, whole: int) -> Labels:
    """Returns labels that keep the last ``whole`` dimensions whole, and may split those before."""
    return tuple(d if d < rank - whole else None for d in range(rank))


def _whole(a) -> Labels:
    return (None,) * len(a.shape)


# ---- embeddings and attention --------------------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(func, arrays, args, kwargs):
    rank = len(arrays[1].shape)
    return Plan([(None, "w"), tuple(range(rank))], [(*range(rank), "w")])


@rule("embedding_dense_backward")
def embedding_backward(func, arrays, args, kwargs):
    rank, counted = len(arrays[1].shape), args[4]  # counting frequencies needs all indices, so they stay whole
    places = (None,) * rank if counted else tuple(range(rank))
    return Plan([(*places, "w"), places], [(None, "w")], combine="sum")


def _attended(query, key, masks) -> tuple[Labels, list[Labels]]:
    labels = ("b", "h" if query.shape[1] == key.shape[1] else None, None, None)
    sizes = dict(zip(labels, query.shape, strict=True))
    return labels, [
        tuple(label if label and n == sizes[label] else None for label, n in zip(labels[4 - len(m.shape) :], m.shape, strict=True))
        for m in masks
    ]


@rule("_scaled_dot_product_flash_attention_for_cpu", reads_floats=True)
def attention(func, arrays, args, kwargs):
    if argument(func, args, kwargs, "dropout_p") > 0:
        return None
    query, key, _, *masks = arrays
    labels, masked = _attended(query, key, masks)
    return Plan([labels] * 3 + masked, [labels, labels[:3]], nonempty=True)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(func, arrays, args, kwargs):
    _, query, key, _, _, _, *masks = arrays
    labels, masked = _attended(query, key, masks)
    return Plan([labels] * 5 + [labels[:3]] + masked, [labels] * 3, nonempty=True)


# ---- norms ---------------------------------------------------------------------------------------------------------------------------


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(func, arrays, args, kwargs):
    labels = _leading(len(arrays[0].shape), len(args[1]))
    return Plan([labels, *map(_whole, arrays[1:])], [labels] * len(func._schema.returns))


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(func, arrays, args, kwargs):
    labels = _leading(len(arrays[1].shape), len(args[2]))
    statistics = len(func._schema.returns) - 1  # number of statistics among the arguments: mean and rstd, or rstd
    weight = (None,) * len(args[2])
    return Plan(
        [labels] * (2 + statistics) + [_whole(a) for a in arrays[2 + statistics :]], [labels] + [weight] * statistics, combine="sum"
    )


@rule("native_group_norm")
def group_norm(func, arrays, args, kwargs):
    labels = ("n", *_whole(arrays[0])[1:])
    outputs = [labels, ("n", None), ("n", None)]
    return Plan([labels, *map(_whole, arrays[1:])], outputs, [arrays[0].shape], size_argument=3, nonempty=True)


@rule("native_group_norm_backward")
def group_norm_backward(func, arrays, args, kwargs):
    labels = ("n", *_whole(arrays[1])[1:])
    inputs = [labels, labels, ("n", None), ("n", None), *map(_whole, arrays[4:])]
    return Plan(inputs, [labels, (None,), (None,)], [arrays[1].shape], combine="sum", size_argument=5, nonempty=True)


def _of_channels(op, x, value):
    """Reshapes a vector with a value per channel so that it can be multiplied with x."""
    return op(aten.view.default, value, [1, -1, *(1 for _ in x.shape[2:])])


def _over(x) -> list[int]:
    return [0, *range(2, len(x.shape))]


@rule("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(func, arrays, args, kwargs):
    """Means over a split batch are computed from the parts' sums, in the order of parts."""
    training = args[5] if len(args) == 8 else args[3]
    labels = (0, "c", *range(2, len(arrays[0].shape)))
    if not training:  # in evaluation the results with the batch's statistics are empty
        return Plan([labels, *(("c",) for _ in arrays[1:])], [labels, (None,), (None,)], combine="sum")
    if len(args) != 8:
        return None
    return Steps(_batch_norm)


def _batch_norm(op, x, weight, bias, running_mean, running_var, training, momentum, eps):
    x_wide, over, channels = wide(op, x), _over(x), x.shape[1]
    count = math.prod(x.shape) // max(channels, 1)
    mean = op(aten.div.Tensor, op(aten.sum.dim_IntList, x_wide, over), count)
    centered = op(aten.sub.Tensor, x_wide, _of_channels(op, x, mean))
    var = op(aten.div.Tensor, op(aten.sum.dim_IntList, op(aten.mul.Tensor, centered, centered), over), count)
    inverse = op(aten.rsqrt.default, op(aten.add.Tensor, var, eps))
    out = op(aten.mul.Tensor, centered, _of_channels(op, x, inverse if weight is None else op(aten.mul.Tensor, inverse, weight)))
    if bias is not None:
        out = op(aten.add.Tensor, out, _of_channels(op, x, bias))
    unbiased = op(aten.mul.Tensor, var, count / (count - 1) if count > 1 else math.nan)
    for running, seen in ((running_mean, mean), (running_var, unbiased)):
        if running is not None:
            op(aten.mul_.Tensor, running, 1 - momentum)
            op(aten.add_.Tensor, running, op(aten.mul.Tensor, seen, momentum))
    kept = x.dtype if weight is None else weight.dtype
    return [as_dtype(op, out, x.dtype), as_dtype(op, mean, kept), as_dtype(op, inverse, kept)]


@rule("native_batch_norm_backward")
def batch_norm_backward(func, arrays, args, kwargs):
    return Steps(_batch_norm_backward)


def _batch_norm_backward(op, gradient, x, weight, running_mean, running_var, mean, inverse, training, eps, mask):
    x_wide, g, over = wide(op, x), wide(op, gradient), _over(x)
    if not training:
        mean, inverse = running_mean, op(aten.rsqrt.default, op(aten.add.Tensor, running_var, eps))
    normed = op(aten.mul.Tensor, op(aten.sub.Tensor, x_wide, _of_channels(op, x, mean)), _of_channels(op, x, inverse))
    of_bias = op(aten.sum.dim_IntList, g, over)
    of_weight = op(aten.sum.dim_IntList, op(aten.mul.Tensor, g, normed), over)
    if training:
        count = math.prod(x.shape) // max(x.shape[1], 1)
        g = op(aten.sub.Tensor, g, _of_channels(op, x, op(aten.div.Tensor, of_bias, count)))
        along = op(aten.mul.Tensor, normed, _of_channels(op, x, op(aten.div.Tensor, of_weight, count)))
        g = op(aten.sub.Tensor, g, along)
    scale = inverse if weight is None else op(aten.mul.Tensor, inverse, weight)
    of_input = op(aten.mul.Tensor, g, _of_channels(op, x, scale))
    kept = x.dtype if weight is None else weight.dtype
    return [
        as_dtype(op, value, dtype) if wanted else None
        for value, dtype, wanted in zip((of_input, of_weight, of_bias), (x.dtype, kept, kept), mask, strict=True)
    ]


# ---- convolutions and pooling --------------------------------------------------------------------------------------------------------


@rule("convolution")
def convolution(func, arrays, args, kwargs):
    transposed, groups = args[6], args[8]
    rest = (None,) * (len(arrays[0].shape) - 2)
    channel = "o" if groups == 1 else None
    weight = (None, channel, *rest) if transposed else (channel, None, *rest)
    return Plan([("n", None, *rest), weight, *((channel,) for _ in arrays[2:])], [("n", channel, *rest)], nonempty=True)


@rule("convolution_backward")
def convolution_backward(func, arrays, args, kwargs):
    labels = ("n", *_whole(arrays[0])[1:])
    return Plan([labels, labels, _whole(arrays[2])], [labels, _whole(arrays[2]), (None,)], combine="sum", nonempty=True)


def _spatial(name: str) -> int:
    """Returns the number of spatial dimensions that the operator's name states: 2 for avg_pool2d."""
    return int(next(c for c in name if c.isdigit()))


WINDOWS = [
    *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool2d", "max_unpool3d"),
    *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
]


@rule(*WINDOWS, *(f"{name}_backward" for name in WINDOWS if "upsample" not in name))
def windows(func, arrays, args, kwargs):
    labels = _leading(len(arrays[0].shape), _spatial(func._schema.name))
    return Plan([labels] * len(arrays), [labels] * len(func._schema.returns), nonempty=True)


@rule(*(f"{name}_backward" for name in WINDOWS if "upsample" in name))
def upsample_backward(func, arrays, args, kwargs):
    labels = _leading(len(arrays[0].shape), _spatial(func._schema.name))
    return Plan([labels], [labels], [tuple(args[2])], size_argument=2, nonempty=True)


@rule("pixel_shuffle", "pixel_unshuffle", "im2col")
def of_images(func, arrays, args, kwargs):
    labels = _leading(len(arrays[0].shape), 3)
    rank = len(labels) if func._schema.name != "aten::im2col" else len(labels) - 1
    return Plan([labels], [tuple(labels[:-3]) + (None,) * (rank - len(labels) + 3)], nonempty=True)


@rule("grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler(func, arrays, args, kwargs):
    backward = len(func._schema.returns) == 2
    labels = [("n", *_whole(a)[1:]) for a in arrays]
    return Plan(labels, labels[1:] if backward else labels[:1], nonempty=True)


# ---- losses --------------------------------------------------------------------------------------------------------------------------

NONE, MEAN = 0, 1
LOSSES = ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss", "binary_cross_entropy_with_logits"]


@rule(*LOSSES)
def loss(func, arrays, args, kwargs):
    plan = pointwise(func, arrays, args, kwargs)
    reduction = argument(func, args, kwargs, "reduction")
    if reduction == NONE:
        return plan
    if reduction == MEAN:
        return Steps(_mean_of_sum, func)
    return Plan(plan.inputs, [()], combine="sum")


def _mean_of_sum(op, func, *args, **kwargs):
    shape, dtype = torch.broadcast_shapes(args[0].shape, args[1].shape), torch.promote_types(args[0].dtype, args[1].dtype)
    if dtype in (torch.bfloat16, torch.float16):  # elements are rounded as on whole tensors, and summed in float32
        args, kwargs = changed(func, args, kwargs, reduction=NONE)
        total = op(aten.sum.dim_IntList, wide(op, op(func, *args, **kwargs)), list(range(len(shape))))
    else:
        args, kwargs = changed(func, args, kwargs, reduction=2)
        total = op(func, *args, **kwargs)
    return [as_dtype(op, op(aten.div.Tensor, total, math.prod(shape) or math.nan), dtype)]


@rule(*(f"{name}_backward" for name in LOSSES[:-1]))
def loss_backward(func, arrays, args, kwargs):
    if argument(func, args, kwargs, "reduction") == MEAN:
        return Steps(_backward_of_sum, func)
    return pointwise(func, arrays, args, kwargs)


def _backward_of_sum(op, func, gradient, *args, **kwargs):
    args, kwargs = changed(func, (gradient, *args), kwargs, reduction=2)
    count = math.prod(torch.broadcast_shapes(args[1].shape, args[2].shape))
    return [op(func, op(aten.div.Tensor, gradient, count or math.nan), *args[1:], **kwargs)]


def _classes(scores) -> tuple[Labels, Labels]:
    """Returns the labels of scores and of targets, in which the dimension of classes stays whole."""
    rank = len(scores.shape)
    scored = tuple(d if d != (1 if rank > 1 else 0) else None for d in range(rank))
    return scored, tuple(d for d in scored if d is not None)


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(func, arrays, args, kwargs):
    scored, target = _classes(arrays[0])
    inputs = [scored, target, *map(_whole, arrays[2:])]
    if args[3] == MEAN:
        return Steps(_weighted_mean, func)
    return Plan(inputs, [target if args[3] == NONE else (), ()], combine="sum", nonempty=True)


def _weighted_mean(op, func, scores, target, weight, reduction, ignored):
    total, weights = op(func, wide(op, scores), target, None if weight is None else wide(op, weight), 2, ignored)
    return [as_dtype(op, v, scores.dtype) for v in (op(aten.div.Tensor, total, weights), weights)]


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(func, arrays, args, kwargs):
    scored, target = _classes(arrays[1])
    gradient = target if args[4] == NONE else ()
    return Plan([gradient, scored, target, *map(_whole, arrays[3:])], [scored], nonempty=True)
