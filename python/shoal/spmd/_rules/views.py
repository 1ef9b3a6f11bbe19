"""Rules of operators that show the same elements in another shape or order."""

from __future__ import annotations

import math

from shoal.spmd._rules.registry import Label, Plan, argument, dims_of, rule


@rule("t")
def transposed(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [labels[::-1]])


@rule("transpose")
def transpose(func, arrays, args, kwargs):
    labels = list(range(len(arrays[0].shape)))
    out = list(labels)
    if labels:
        i, j = (d % len(labels) for d in args[1:3])
        out[i], out[j] = out[j], out[i]
    return Plan([tuple(labels)], [tuple(out)])


@rule("permute")
def permute(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [tuple(labels[d] for d in args[1])])


@rule("unsqueeze")
def unsqueeze(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = args[1] % (rank + 1)
    labels = tuple(range(rank))
    return Plan([labels], [(*labels[:dim], None, *labels[dim:])])


@rule("squeeze")
def squeeze(func, arrays, args, kwargs):
    shape = arrays[0].shape
    over = set() if len(args) > 1 and args[1] == [] else set(dims_of(args[1] if len(args) > 1 else None, len(shape)))
    gone = {d for d in over if shape[d] == 1}
    # squeezed dimensions stay whole: a part may have size 1 where the whole tensor has not
    labels = tuple(None if d in over else d for d in range(len(shape)))
    return Plan([labels], [tuple(label for d, label in enumerate(labels) if d not in gone)])


@rule("select")
def select(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    dim = args[1] % rank
    return Plan([tuple(None if d == dim else d for d in range(rank))], [tuple(d for d in range(rank) if d != dim)])


@rule("slice", "narrow", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind")
def along_one(func, arrays, args, kwargs):
    if len(arrays) != 1:
        return None
    rank = len(arrays[0].shape)
    dim = argument(func, args, kwargs, "dim", 0) % rank
    inside = tuple(None if d == dim else d for d in range(rank))
    out = tuple(d for d in range(rank) if d != dim) if func._schema.name.startswith("aten::unbind") else inside
    return Plan([inside], [out])


@rule("diagonal")
def diagonal(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    gone = {argument(func, args, kwargs, "dim1") % rank, argument(func, args, kwargs, "dim2") % rank}
    inside = tuple(None if d in gone else d for d in range(rank))
    return Plan([inside], [(*(d for d in range(rank) if d not in gone), None)])


@rule("unfold")
def unfold(func, arrays, args, kwargs):
    rank = len(arrays[0].shape)
    inside = tuple(None if d == args[1] % max(rank, 1) else d for d in range(rank))
    return Plan([inside], [(*inside, None)])


@rule("view_as_real")
def view_as_real(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape)))
    return Plan([labels], [(*labels, None)])


@rule("view_as_complex")
def view_as_complex(func, arrays, args, kwargs):
    labels = tuple(range(len(arrays[0].shape) - 1))
    return Plan([(*labels, None)], [labels])


@rule("expand")
def expand(func, arrays, args, kwargs):
    shape, size = arrays[0].shape, args[1]
    new = len(size) - len(shape)
    out_shape = tuple(shape[i - new] if n == -1 else n for i, n in enumerate(size))
    labels = tuple(None if n == 1 else i for i, n in enumerate(shape))
    out = tuple(None if i < new or shape[i - new] == 1 else i - new for i in range(len(size)))
    return Plan([labels], [out], [out_shape], size_argument=1)


@rule("view", "_unsafe_view", "_reshape_alias")
def view(func, arrays, args, kwargs):
    if not isinstance(args[1], (list, tuple)):
        return None  # a view with another dtype, not another shape
    shape, size = arrays[0].shape, list(args[1])
    total = math.prod(shape)
    if -1 in size:
        known = math.prod(n for n in size if n != -1)
        size[size.index(-1)] = total // known if known else 0
    inside: list[Label] = [None] * len(shape)
    out: list[Label] = [None] * len(size)
    i = j = 0
    while i < len(shape) and j < len(size):  # finds groups of dimensions in both shapes that have equally many elements
        if shape[i] == 1 or size[j] == 1:
            i, j = (i + 1, j) if shape[i] == 1 else (i, j + 1)
            continue
        a, b, begin_i, begin_j = shape[i], size[j], i, j
        while a != b:
            if a < b:
                i += 1
                if i == len(shape):
                    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)
                a *= shape[i]
            else:
                j += 1
                if j == len(size):
                    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)
                b *= size[j]
        inside[begin_i] = out[begin_j] = begin_i  # the first dimension of a group is the most significant, and may be split
        i, j = i + 1, j + 1
    return Plan([tuple(inside)], [tuple(out)], [tuple(size)], size_argument=1)
