"""Logical ranks: their number is fixed, and each worker plays some of them one after the other, so that no sum depends on the workers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAXIMUM = 64  # leaves of the engine's tree of additions (fsdp/kernels/kernels.h)


@dataclass
class Part:
    """A worker's present part of a batch. ``number``: the logical rank that plays it. ``total``: the number of logical ranks. ``last``:
    this worker's gradients are complete with it."""

    number: int
    total: int
    last: bool
    backward_ran: bool = False


def blocks(logical: int, workers: int) -> list[range]:
    """Returns each worker's logical ranks: the leaves below one node of the aligned binary tree over ``logical`` ranks, a power of two.
    Blocks ascend, and none is more than twice as large as another."""
    whole = 1 << workers.bit_length() - 1  # the workers, rounded down to a power of two
    size, halved = logical // whole, workers - whole
    sizes = [size // 2] * (2 * halved) + [size] * (whole - halved)
    begins = [sum(sizes[:w]) for w in range(workers)]
    return [range(begin, begin + n) for begin, n in zip(begins, sizes, strict=True)]


class PartialSums:
    """Adds up gradients of ascending logical ranks along the tree. It holds one sum per level at most. The sum of all leaves of a node has
    the bits of the engine's sum over them; a rank without a gradient is left out."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, torch.Tensor]] = []  # (the last leaf in it, a sum), in the order of leaves

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, leaf: int, gradient: torch.Tensor) -> None:
        """Adds the gradient of a leaf behind all leaves so far. The memory of the gradient may be overwritten."""
        while len(self._sums) >= 2 and not self._last_two_meet_above(leaf):
            self._merge()
        self._sums.append((leaf, gradient))

    def take(self) -> torch.Tensor:
        """Returns the sum of all, and begins anew."""
        while len(self._sums) >= 2:
            self._merge()
        return self._sums.pop()[1]

    def clear(self) -> None:
        self._sums.clear()

    def _last_two_meet_above(self, leaf: int) -> bool:
        """Returns True if the lowest node above the last two sums is above ``leaf``, too: then its right half is not complete."""
        (left, _), (right, _) = self._sums[-2:]
        level = (left ^ right).bit_length()
        return leaf >> level == right >> level

    def _merge(self) -> None:
        last, right = self._sums.pop()
        _, left = self._sums.pop()
        self._sums.append((last, left.add_(right)))
