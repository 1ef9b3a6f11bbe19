"""Boxes: rectangular parts of a tensor, as offsets and shapes. Pure arithmetic on tuples of integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

Numbers = tuple[int, ...]
Box = tuple[Numbers, Numbers]  # offset, shape


def intersect(a: Box, b: Box) -> Box | None:
    """Returns the common part of two boxes, or None if it has no element."""
    begin = tuple(map(max, a[0], b[0]))
    shape = tuple(min(x + n, y + m) - z for x, n, y, m, z in zip(*a, *b, begin, strict=True))
    return (begin, shape) if all(n > 0 for n in shape) else None


def slices(box: Box, origin: Numbers) -> tuple[slice, ...]:
    """The box as slices of a tensor that begins at ``origin``."""
    return tuple(slice(x - o, x - o + n) for x, n, o in zip(*box, origin, strict=True))


def spans(shape: Numbers, begin: int, end: int) -> Iterator[Box]:
    """Divides the elements ``begin`` to ``end`` of a tensor in row-major order into boxes, in that order: at most two per dim."""
    if begin >= end:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if first > last:  # inside of one row
        yield from _within(shape, first - 1, begin - (first - 1) * row, end - (first - 1) * row)
        return
    if begin < first * row:
        yield from _within(shape, first - 1, begin - (first - 1) * row, row)
    if first < last:
        yield (first, *[0] * (len(shape) - 1)), (last - first, *shape[1:])
    if end > last * row:
        yield from _within(shape, last, 0, end - last * row)


def _within(shape: Numbers, index: int, begin: int, end: int) -> Iterator[Box]:
    for offset, part in spans(shape[1:], begin, end):
        yield (index, *offset), (1, *part)


def tile(shape: Numbers, boxes: list[Box]) -> bool:
    """Returns True if the boxes cover a tensor of this shape, each element once."""
    if any(len(o) != len(shape) or len(s) != len(shape) for o, s in boxes):
        return False
    for offset, part in boxes:
        if any(x < 0 or n <= 0 or x + n > whole for x, n, whole in zip(offset, part, shape, strict=True)):
            return False
    if sum(math.prod(s) for _, s in boxes) != math.prod(shape):
        return False
    ordered = sorted(boxes)
    if all(not any(o[1:]) and s[1:] == shape[1:] for o, s in ordered):  # rows: the usual case, in linear time
        return all(a[0][0] + a[1][0] <= b[0][0] for a, b in pairwise(ordered))
    return not any(intersect(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :])
