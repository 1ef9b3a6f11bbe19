"""Rules of reductions, means and norms, products of matrices, and concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from shoal.spmd._layout.array import Array
from shoal.spmd._rules.registry import Plan, Steps, argument, dims_of, pointwise, rule

aten = torch.ops.aten

KEEPING = {
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "flip", "roll", "glu"),
    *("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax", "_fft_r2c", "_fft_c2r", "_fft_c2c"),
}
REDUCING = {
    *("sum", "nansum", "mean", "prod", "any", "all", "norm", "logsumexp", "var", "std", "var_mean", "std_mean", "count_nonzero"),
    *("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "median", "nanmedian", "mode", "kthvalue"),
}
COMBINE = {
    "sum": "sum", "nansum": "sum", "count_nonzero": "sum", "prod": "prod", "any": "max", "all": "min", "amax": "max", "amin": "min",
}  # fmt: skip


@rule(*REDUCING, *KEEPING)
def along_dims(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return pointwise(func, arrays, args, kwargs) if func._schema.name in ("aten::max", "aten::min") else None
    (a,) = arrays
    rank, name = len(a.shape), func._schema.name.removeprefix("aten::").removesuffix("_")
    dims = argument(func, args, kwargs, "dims", None)
    if dims is None:
        default = -1 if name in ("sort", "topk", "argsort") else None
        dims = argument(func, args, kwargs, "dim", default)
    over = dims_of(dims, rank)
    if name in KEEPING:
        over = over or list(range(rank))
        inside = tuple(None if d in over else d for d in range(rank))
        return Plan([inside], [inside] * len(func._schema.returns), nonempty="fft" in name)
    keepdim = bool(argument(func, args, kwargs, "keepdim", False))
    if name in MEANS and any(a.sharding.parts[d] > 1 for d in over) and not a.dtype.is_complex:
        if not (kwargs.get("dtype") or a.dtype).is_floating_point:
            return None  # torch raises the error for this dtype
        return Steps(MEANS[name], over, keepdim)
    combine = COMBINE.get(name)
    if name in ("max", "min") and len(func._schema.returns) == 1:
        combine = name
    return _reduced(func, a, over, keepdim, combine)


def _reduced(func: Any, a: Array, over: Sequence[int], keepdim: bool, combine: str | None) -> Plan:
    rank = len(a.shape)
    inputs = tuple(d if d not in over else (f"r{d}" if combine else None) for d in range(rank))
    out = tuple(None if d in over else d for d in range(rank) if keepdim or d not in over)
    empty_is_neutral = combine in (None, "sum", "prod", "hypot") or func._schema.name in ("aten::any", "aten::all")
    return Plan([inputs], [out] * len(func._schema.returns), combine=combine, nonempty=not empty_is_neutral)


def wide(op, x):
    """Converts half precision to float32, in which many elements are summed."""
    low = x.dtype in (torch.bfloat16, torch.float16)
    return op(aten._to_copy.default, x, dtype=torch.float32) if low else x


def as_dtype(op, value, dtype):
    return value if value.dtype == dtype else op(aten._to_copy.default, value, dtype=dtype)


def _mean(op, over, kept, a, *args, dtype=None, **kwargs):
    total = op(aten.sum.dim_IntList, wide(op, as_dtype(op, a, dtype or a.dtype)), over, kept)
    return [as_dtype(op, op(aten.div.Tensor, total, math.prod(a.shape[d] for d in over)), dtype or a.dtype)]


def _var_mean(op, over, kept, a, *args, correction=None, **kwargs):
    count, x = math.prod(a.shape[d] for d in over), wide(op, a)
    mean = op(aten.div.Tensor, op(aten.sum.dim_IntList, x, over, True), count)
    centered = op(aten.sub.Tensor, x, mean)
    squares = op(aten.sum.dim_IntList, op(aten.mul.Tensor, centered, centered), over, kept)
    var = op(aten.div.Tensor, squares, float(max(0, count - (1 if correction is None else correction))))
    return [var, mean if kept else op(aten.sum.dim_IntList, mean, over)]


def _in_dtype(values):
    def steps(op, over, kept, a, *args, **kwargs):
        return [as_dtype(op, v, a.dtype) for v in values(op, over, kept, a, *args, **kwargs)]

    return steps


def _roots(values):
    def steps(op, *args, **kwargs):
        var, *rest = values(op, *args, **kwargs)
        return [op(aten.sqrt.default, var), *rest]

    return steps


def _var(op, *args, **kwargs):
    return _var_mean(op, *args, **kwargs)[:1]


MEANS = {
    "mean": _mean, "var": _in_dtype(_var), "var_mean": _in_dtype(_var_mean), "std": _in_dtype(_roots(_var)),
    "std_mean": _in_dtype(_roots(_var_mean)),
}  # fmt: skip


@rule("linalg_vector_norm", reads_floats=True)
def vector_norm(func, arrays, args, kwargs):
    (a,) = arrays
    order = float(argument(func, args, kwargs, "ord"))
    combine = {2.0: "hypot", 1.0: "sum", 0.0: "sum", math.inf: "max", -math.inf: "min"}.get(order)
    over = dims_of(argument(func, args, kwargs, "dim"), len(a.shape))
    return _reduced(func, a, over, bool(argument(func, args, kwargs, "keepdim")), combine)


@rule("_foreach_norm")
def foreach_norm(func, arrays, args, kwargs):
    return Steps(_norms)


def _norms(op, tensors, order=2, dtype=None):
    return [op(aten.linalg_vector_norm.default, t, order, dtype=dtype) for t in tensors]


@rule("glu_backward")
def glu_backward(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    labels = tuple(None if d == args[2] % max(rank, 1) else d for d in range(rank))
    return Plan([labels, labels], [labels])


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(func, arrays, args, kwargs):
    rank, dim = len(arrays[0].shape), args[2]
    labels = tuple(None if d == dim % max(rank, 1) else d for d in range(rank))
    return Plan([labels, labels], [labels])


@rule("mm")
def mm(func, arrays, args, kwargs):
    return Plan([("m", "k"), ("k", "n")], [("m", "n")], combine="sum")


@rule("bmm")
def bmm(func, arrays, args, kwargs):
    return Plan([("b", "m", "k"), ("b", "k", "n")], [("b", "m", "n")], combine="sum")


def _added_product(op, bias, a, b, *, beta=1, alpha=1):
    product = op(aten.mm.default, a, b)
    product = product if alpha == 1 else op(aten.mul.Tensor, product, alpha)
    return [product if beta == 0 else op(aten.add.Tensor, product, bias, alpha=beta)]


@rule("addmm")
def addmm(func, arrays, args, kwargs):
    bias, a, b = arrays
    if func._schema.name == "aten::addmm" and a.sharding.parts[1] > 1 and a.sharding.columns[1] == b.sharding.columns[0]:
        return Steps(_added_product)  # both arguments split the summed dimension alike, so only results are communicated
    labels = ("m", "n")[2 - len(bias.shape) :]
    out = (arrays[1].shape[0], arrays[2].shape[1])
    labels = tuple(None if n == 1 and o != 1 else label for label, n, o in zip(labels, bias.shape, out[2 - len(bias.shape) :], strict=True))
    return Plan([labels, ("m", None), (None, "n")], [("m", "n")])


@rule("baddbmm", "addbmm", "addmv", "addr")
def added(func, arrays, args, kwargs):
    """Products added to a first argument. The summed dimension is not split, so that the first argument is added once."""
    inputs, out = {
        "baddbmm": ([("b", "m", None), ("b", None, "n")], ("b", "m", "n")),
        "addbmm": ([(None, "m", None), (None, None, "n")], ("m", "n")),
        "addmv": ([("m", None), (None,)], ("m",)),
        "addr": ([("m",), ("n",)], ("m", "n")),
    }[func._schema.name.removeprefix("aten::").removesuffix("_")]
    sizes = {label: n for labels, a in zip(inputs, arrays[1:], strict=True) for label, n in zip(labels, a.shape, strict=True)}
    shape = arrays[0].shape
    bias = tuple(label if n == sizes[label] else None for label, n in zip(out[len(out) - len(shape) :], shape, strict=True))
    return Plan([bias, *inputs], [out], nonempty=True)


@rule("dot", "vdot")
def dot(func, arrays, args, kwargs):
    return Plan([("k",), ("k",)], [()], combine="sum")


@rule("mv")
def mv(func, arrays, args, kwargs):
    return Plan([("m", "k"), ("k",)], [("m",)], combine="sum")


# By operator on matrices: number of matrix dimensions of each result. The dimensions before them are a batch.
OF_MATRICES = {
    "triu": (2,), "tril": (2,), "linalg_qr": (2, 2), "linalg_inv_ex": (2, 0), "_linalg_det": (0, 2, 1), "_linalg_slogdet": (0, 0, 2, 1),
    "linalg_cholesky_ex": (2, 0), "cholesky": (2,), "linalg_lu_factor_ex": (2, 1, 0), "linalg_lu": (2, 2, 2), "linalg_matrix_exp": (2,),
    "linalg_eig": (1, 2), "_linalg_eigh": (1, 2), "_linalg_svd": (2, 1, 2), "linalg_solve_triangular": (2,), "cholesky_solve": (2,),
    "cholesky_inverse": (2,),
}  # fmt: skip


@rule(*OF_MATRICES)
def of_matrices(func, arrays, args, kwargs):
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    whole = argument(func, args, kwargs, "compute_uv") is False or argument(func, args, kwargs, "compute_v") is False
    if whole or argument(func, args, kwargs, "mode") == "r" or any(len(a.shape) != len(arrays[0].shape) for a in arrays):
        return None
    batch = tuple(d if all(a.shape[d] == n for a in arrays) else None for d, n in enumerate(arrays[0].shape[:-2]))
    return Plan([(*batch, None, None)] * len(arrays), [(*batch, *(None,) * n) for n in OF_MATRICES[name]])


@rule("linalg_cross")
def cross(func, arrays, args, kwargs):
    plan = pointwise(func, arrays, args, kwargs)
    dim = argument(func, args, kwargs, "dim") % len(plan.outputs[0])
    return replace(
        plan,
        inputs=[tuple(None if d == dim else d for d in labels) for labels in plan.inputs],
        outputs=[tuple(None if d == dim else d for d in plan.outputs[0])],
    )


@rule("cat")
def cat(func, arrays, args, kwargs):
    rank = max(len(a.shape) for a in arrays)
    if any(len(a.shape) != rank for a in arrays):  # torch permits an empty 1-D tensor among tensors of other rank
        return None
    dim = dims_of(argument(func, args, kwargs, "dim", 0), rank)[0]
    labels = tuple(None if d == dim else d for d in range(rank))
    return Plan([labels] * len(arrays), [labels])


@rule("stack")
def stack(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = argument(func, args, kwargs, "dim", 0) % (rank + 1)
    labels = tuple(range(rank))
    return Plan([labels] * len(arrays), [(*labels[:dim], None, *labels[dim:])])
