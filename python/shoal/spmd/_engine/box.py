"""The value that tensors of one memory share, and its strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shoal.spmd._engine import execution
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.sharding import Sharding


class Box:
    """The value that all tensors over one memory share. The box of a view refers to its base's box, and recomputes its array after a write
    to the base."""

    strides: tuple[int, ...] | None = None  # the strides that a plain tensor would have; None if contiguous

    def __init__(self, array: Array, base: Box | None = None, view: Any = None, aliases: bool = False, origins: dict | None = None):
        self._array, self.base, self._view, self._aliases, self._origins = array, base, view, aliases, origins
        self.mark: Sharding | None = None
        self._written = 0  # number of writes; a view compares it with the number that it has seen
        self._seen = 0 if base is None else base.written

    @property
    def written(self) -> int:
        self._refresh()
        return self._written

    @property
    def array(self) -> Array:
        if self.base is not None:
            self._refresh()
        return self._array

    def _refresh(self) -> None:
        if self.base is None or self._seen == self.base.written:
            return
        self._seen, self._written = self.base.written, self._written + 1
        func, args, kwargs, index = self._view
        result = execution.run(func, (self.base.array, *args), kwargs)
        self._array, self._aliases, self._origins = result.values[index], result.aliases, result.origins
        if self.mark is not None and self._array.sharding != self.mark:
            self._array, self._aliases, self._origins = self._array.resharded(self.mark), False, None

    @property
    def laid(self) -> tuple[Any, int]:
        """The origin of the sharding (Array.origin), and the number of views between this box and the origin's. These views share memory
        with their bases."""
        box, views = self, 0
        array = box.array
        while box.base is not None and box._aliases and box.base.array.origin is not None:
            box, views = box.base, views + 1
            array = box.array
        return array.origin, views

    def lay(self, sharding: Sharding) -> None:
        """Reshards the value, unless it has this sharding."""
        array = self.array
        if array.sharding != sharding:
            self.put(array.resharded(sharding))

    def let_yield(self) -> None:
        """Lets operators reshard the value to fit their other arguments."""
        self.array.yields = True

    def put(self, array: Array) -> None:
        """Replaces the layout of the value, which is not a write."""
        array.yields = self._array.yields
        self._array, self._aliases, self._origins = array, False, None
        self._written += 1  # makes views recompute their arrays, which are in the old memory

    def before_write(self) -> None:
        """To be called before an operator changes the local tensors in place: an EngineBox, of an FSDP unit, opens a write window."""
        if self.base is not None:
            self.base.before_write()

    def wrote(self) -> None:
        """To be called after an operator has changed the local tensors in place."""
        if self.base is None:
            self._written += 1
            return
        self.carry_over()
        self.touch()

    def touch(self) -> None:
        """Makes views of this value recompute their arrays at the next access."""
        if self.base is not None:
            self.base.touch()
            self._seen = self.base.written
        self._written += 1

    @property
    def is_written_locally(self) -> bool:
        """True if a write reaches the base's memory without communication."""
        return self.base is None or (self._origins is not None and self.base.is_written_locally)

    def carry_over(self) -> None:
        """Copies a write to this view to its base, where the base has other memory."""
        if self.base is None:
            return
        if self._origins is not None:
            if not self._aliases:
                self._carry_over_by_parts(self._origins)
        else:
            func, args, kwargs, index = self._view
            below = self.base.array
            whole = below.gathered(str(func))
            if func in execution.RESOLVED:  # conjugate and negative are their own inverses
                whole.copy_(execution.RESOLVED[func](self._array.gathered(str(func))))
            else:
                part = func(whole, *args, **kwargs)
                (part[index] if isinstance(part, (tuple, list)) else part).copy_(self._array.gathered(str(func)))
            if not below.sharding.is_replicated:
                below.write(whole)
        self.base.carry_over()

    def _carry_over_by_parts(self, origins: dict[int, int]) -> None:
        """Copies this view's local tensors back to the base's: reshape has copied local tensors whose memory has gaps. This must not
        communicate, because memory may have gaps on some processes only, and the others do not get here."""
        func, args, kwargs, index = self._view
        below = self.base.array
        if func in execution.RESOLVED:  # conjugate and negative are their own inverses
            for position, local in self._array.locals.items():
                below.locals[origins[position]].copy_(execution.RESOLVED[func](local))
            return
        numbered = {p: torch.arange(local.numel()).view(local.shape) for p, local in below.locals.items()}
        places = execution.run(func, (Array(below.shape, torch.int64, below.sharding, numbered), *args), kwargs).values[index]
        for position, local in self._array.locals.items():
            to = below.locals[origins[position]]
            elements = to.flatten()
            elements[places.locals[position].flatten()] = local.flatten()
            to.copy_(elements.view(to.shape))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))


def known_strides(t: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides that a box records for this plain tensor; None if it is contiguous."""
    strides = t.stride()
    return None if strides == contiguous_strides(t.shape) else strides


def strided(box: Box, strides: tuple[int, ...] | None) -> Box:
    box.strides = strides
    return box
