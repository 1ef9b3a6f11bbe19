"""The value of a tensor on the devices: a local tensor per part. Devices of one process that hold copies of a part share it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from shoal.spmd._layout import traffic
from shoal.spmd._layout.processes import Piece, world
from shoal.spmd._layout.sharding import Sharding, parts_of


class Array:
    """The value of a tensor, as its parts on the devices. ``locals``: the local tensors of this process's parts, by position among all
    parts in row-major order. A local tensor has the part's ranges without padding. ``origin``: the operator that made this sharding; None
    for a whole array. ``yields``: operators reshard the array to fit their other arguments, whatever the sizes. It is set on a parameter of
    SpmdFullyShardedDataParallel, which is gathered for the rows of the batch."""

    __slots__ = ("dtype", "locals", "order", "origin", "shape", "sharding", "yields")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, sharding: Sharding, local_tensors: dict[int, torch.Tensor]):
        self.shape, self.dtype, self.sharding, self.locals = tuple(shape), dtype, sharding, local_tensors
        self.origin: traffic.Origin | None = None
        self.yields = False
        self.order: tuple[int, ...] | None = (
            None  # order of dimensions in memory, outermost first, after a transposition; the same on all processes
        )

    @classmethod
    def whole(cls, value: torch.Tensor, num_devices: int) -> Array:
        """Returns an array that is whole on every device, in the memory of ``value``."""
        return cls(value.shape, value.dtype, Sharding.replicated(value.dim(), num_devices), {0: value})

    def gathered(self, label: str = "read") -> torch.Tensor:
        """Returns the whole tensor: the local tensor itself if the array is replicated, else a gathered copy."""
        if self.sharding.is_replicated:
            return self.locals[0]
        return self.resharded(Sharding.replicated(len(self.shape), world().num_devices), label).locals[0]

    def resharded(self, sharding: Sharding, label: str = "mark_sharding") -> Array:
        """Returns this array if it has this sharding, otherwise one in new memory. Processes communicate unless each has all the data that
        it needs."""
        if sharding == self.sharding:
            return self
        if not self.sharding.is_replicated:
            note(f"{label} needs it laid out in another way")
        plan = world().transfer(self.sharding, sharding, self.shape)
        received: list[list[torch.Tensor]] = [[] for _ in plan.receives]
        if plan.remote:
            # elements are sent in the order in which they lie in memory, so that copies are contiguous
            order = self.order or tuple(range(len(self.shape)))
            back = [order.index(d) for d in range(len(order))]
            sent = [[self.locals[p.source][p.source_range].permute(order) for p in pieces] for pieces in plan.sends]
            expected = [[tuple(p.shape[d] for d in order) for p in pieces] for pieces in plan.receives]
            received = [[t.permute(back) for t in ts] for ts in world().travel(sent, expected, self.dtype, label)]
        found = [(p, self.locals[p.source][p.source_range]) for p in plan.own]
        found += [(p, t) for pieces, ts in zip(plan.receives, received, strict=True) for p, t in zip(pieces, ts, strict=True)]
        by_target: dict[int, list[tuple[Piece, torch.Tensor]]] = {t: [] for t in world().held(sharding)}
        for piece, value in found:
            by_target[piece.target].append((piece, value))
        cuts, order = parts_of(self.shape, sharding), list(self.order or _order(next(iter(self.locals.values()))))
        array = Array(self.shape, self.dtype, sharding, {t: _assembled(cuts[t], by_target[t], self.dtype, order) for t in by_target})
        array.yields, array.order = self.yields, self.order
        move = traffic.move_of(self.shape, self.sharding, sharding)
        moves = () if move is None else traffic.count(label, move.collective, move.total * self.dtype.itemsize)
        array.origin = traffic.origin(label, moves)
        return array

    def write(self, whole: torch.Tensor) -> None:
        """Writes each part of ``whole`` into the existing memory of that part."""
        cuts = parts_of(self.shape, self.sharding)
        for position, local in self.locals.items():
            local.copy_(whole[cuts[position]])


_seen: list[str] | None = None


@contextlib.contextmanager
def observed() -> Iterator[list[str]]:
    """Yields a list of notes about operators in the ``with`` block that move elements between devices, sum over devices, or draw random
    numbers."""
    global _seen
    before, _seen = _seen, []
    try:
        yield _seen
    finally:
        _seen = before


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    global _seen
    before, _seen = _seen, None
    try:
        yield
    finally:
        _seen = before


def note(what: str) -> None:
    if _seen is not None:
        _seen.append(what)


def _assembled(cut: tuple[slice, ...], pieces: list[tuple[Piece, torch.Tensor]], dtype: torch.dtype, order: list[int]) -> torch.Tensor:
    """Joins the pieces of one part into a tensor whose dimensions lie in memory in this order, outermost first."""
    shape = tuple(c.stop - c.start for c in cut)
    assembled = torch.empty([shape[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(order))])
    for piece, value in pieces:
        assembled[piece.to] = value
    return assembled


def _order(local: torch.Tensor) -> list[int]:
    """Returns a tensor's dimensions in memory order. A reshard keeps a transposed matrix transposed, for products with the same bits."""
    return sorted(range(local.dim()), key=lambda d: (-local.stride(d), d))
