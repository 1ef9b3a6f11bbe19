"""Rules for indexing, scattering, padding, and factories."""

from __future__ import annotations

import torch

from shoal.spmd._rules.registry import Labels, Plan, Steps, argument, pointwise, rule

aten = torch.ops.aten


def _but(rank: int, *dims: int) -> Labels:
    """Returns labels that keep the dimensions ``dims`` whole, and may split all others."""
    gone = {d % max(rank, 1) for d in dims}
    return tuple(None if d in gone else d for d in range(rank))


def _common(labels: Labels, shape, *others) -> Labels:
    """Removes the labels of dimensions whose sizes differ among the shapes."""
    return tuple(label if all(o[d] == shape[d] for o in others) else None for d, label in enumerate(labels))


@rule("gather")
def gather(func, arrays, args, kwargs):
    (a, index), dim = arrays, args[1]
    rank = len(index.shape)
    if len(a.shape) != rank or rank == 0:
        return Plan([(None,) * len(a.shape), (None,) * rank], [(None,) * rank])
    labels = _common(_but(rank, dim), index.shape, a.shape)
    of_index = tuple("i" if d == dim % rank else label for d, label in enumerate(labels))
    return Plan([labels, of_index], [of_index])


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(func, arrays, args, kwargs):
    a, index, *sources = arrays
    rank = len(a.shape)
    if len(index.shape) != rank or rank == 0 or any(len(s.shape) not in (0, rank) for s in sources):
        return Plan([(None,) * len(x.shape) for x in arrays], [(None,) * rank])
    shapes = [index.shape, *(s.shape for s in sources if s.shape)]
    labels = _common(_but(rank, args[1]), a.shape, *shapes)
    return Plan([labels, labels, *(labels if s.shape else () for s in sources)], [labels])


@rule("index_select")
def index_select(func, arrays, args, kwargs):
    a, index = arrays
    rank = len(a.shape)
    if rank == 0 or not index.shape:
        return Plan([_but(rank, args[1]), (None,) * len(index.shape)], [_but(rank, args[1])])
    labels = _but(rank, args[1])
    return Plan([labels, ("i",)], [tuple("i" if d == args[1] % rank else d for d in range(rank))])


@rule("index_add", "index_copy", "index_fill", "index_reduce")
def along_index(func, arrays, args, kwargs):
    a, index, *sources = arrays
    if "prod" in args and a.dtype in (torch.bfloat16, torch.float16):
        return None  # torch's kernel fails an assertion where a part has one element per index
    labels = _but(len(a.shape), args[1])
    others = [labels if len(s.shape) == len(labels) else (None,) * len(s.shape) for s in sources]
    return Plan([labels, (None,) * len(index.shape), *others], [labels])


def _indexed(a, indices) -> tuple[Labels, list[Labels], Labels] | None:
    """Returns the labels of the tensor, of its indices, and of the result. For masks it returns None: the result's size depends on
    values."""
    given = [i for i in indices if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for i in given):
        return None
    dims = [d for d, i in enumerate(indices) if i is not None]
    inside = _but(len(a.shape), *dims) if dims else tuple(range(len(a.shape)))
    shape = torch.broadcast_shapes(*(i.shape for i in given))
    taken = tuple(f"i{k}" for k in range(len(shape)))
    of_indices = []
    for i in given:
        behind = len(shape) - len(i.shape)
        of_indices.append(tuple(None if n == 1 != shape[behind + k] else taken[behind + k] for k, n in enumerate(i.shape)))
    rest = tuple(d for d in range(len(a.shape)) if d not in dims)
    adjacent = bool(dims) and dims == list(range(dims[0], dims[0] + len(dims)))
    at = sum(d < dims[0] for d in rest) if adjacent else 0
    return inside, of_indices, (*rest[:at], *taken, *rest[at:])


@rule("index", "_unsafe_index")
def index(func, arrays, args, kwargs):
    found = _indexed(arrays[0], args[1])
    if found is None:
        return None
    inside, of_indices, out = found
    return Plan([inside, *of_indices], [out])


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(func, arrays, args, kwargs):
    found = _indexed(arrays[0], args[1])
    if found is None:
        return None
    inside, of_indices, out = found
    a, values = arrays[0], arrays[-1]
    aligned = out[len(out) - len(values.shape) :]
    if len(values.shape) > len(out):
        return None
    of_values = tuple(
        label if isinstance(label, int) and n == a.shape[label] else None for label, n in zip(aligned, values.shape, strict=True)
    )
    return Plan([inside, *((None,) * len(labels) for labels in of_indices), of_values], [inside])


@rule("bucketize")
def bucketize(func, arrays, args, kwargs):
    if len(arrays) != 2 or not isinstance(args[0], type(arrays[0])):
        return None
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels, (None,)], [labels])


@rule("select_scatter")
def select_scatter(func, arrays, args, kwargs):
    labels = _but(len(arrays[0].shape), args[2])
    return Plan([labels, tuple(label for label in labels if label is not None)], [labels])


@rule("slice_scatter")
def slice_scatter(func, arrays, args, kwargs):
    labels = _but(len(arrays[0].shape), argument(func, args, kwargs, "dim", 0))
    return Plan([labels, labels], [labels])


# ---- backward passes of views, which take the size of their result as an argument --------------------------------------------------------


@rule("slice_backward")
def slice_backward(func, arrays, args, kwargs):
    labels = _but(len(args[1]), args[2])
    return Plan([labels], [labels], [tuple(args[1])], size_argument=1)


@rule("select_backward")
def select_backward(func, arrays, args, kwargs):
    labels = _but(len(args[1]), args[2])
    return Plan([tuple(label for label in labels if label is not None)], [labels], [tuple(args[1])], size_argument=1)


@rule("diagonal_backward")
def diagonal_backward(func, arrays, args, kwargs):
    labels = _but(len(args[1]), args[3], args[4])
    return Plan([(*(label for label in labels if label is not None), None)], [labels], [tuple(args[1])], size_argument=1)


@rule("unfold_backward")
def unfold_backward(func, arrays, args, kwargs):
    if not args[1]:
        return None
    labels = _but(len(args[1]), args[2])
    return Plan([(*labels, None)], [labels], [tuple(args[1])], size_argument=1)


# ---- padding and factories ---------------------------------------------------------------------------------------------------------------


@rule("constant_pad_nd")
def constant_pad(func, arrays, args, kwargs):
    rank, pad = len(arrays[0].shape), args[1]
    padded = [rank - 1 - i // 2 for i, n in enumerate(pad) if n != 0]
    labels = _but(rank, *padded) if padded else tuple(range(rank))
    return Plan([labels], [labels])


@rule("repeat")
def repeat(func, arrays, args, kwargs):
    rank, times = len(arrays[0].shape), args[1]
    new = len(times) - rank
    labels = tuple(d if times[new + d] == 1 else None for d in range(rank))
    return Plan([labels], [(*(None,) * new, *labels)])


@rule("new_zeros", "new_ones", "new_full", "new_empty")
def new(func, arrays, args, kwargs):
    if tuple(args[1]) != arrays[0].shape:
        return Steps(_new, func)
    plan = pointwise(func, arrays, args, kwargs)
    return Plan(plan.inputs, plan.outputs, [arrays[0].shape], size_argument=1)


@rule("new_empty_strided")
def new_strided(func, arrays, args, kwargs):
    """Ignores the strides: they are those of the program's tensor, and the layout of parts in memory is free."""
    return Steps(_new_strided)


def _new_strided(op, like, size, strides, **kwargs):
    return [op(aten.new_empty.default, like, size, **kwargs)]


def _new(op, func, like, *args, **kwargs):
    return [op(func, torch.empty((), dtype=like.dtype), *args, **kwargs)]
