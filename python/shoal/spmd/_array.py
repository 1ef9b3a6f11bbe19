"""The value of a tensor on the devices: a local tensor per part. In one process, devices that hold copies of a part share it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from shoal.spmd._sharding import Sharding


class Array:
    """``locals``: per part of the sharding, in row-major order, a tensor of this part's ranges without padding."""

    __slots__ = ("dtype", "locals", "shape", "sharding")

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, sharding: Sharding, local_tensors: list[torch.Tensor]):
        self.shape, self.dtype, self.sharding, self.locals = tuple(shape), dtype, sharding, local_tensors

    @classmethod
    def whole(cls, value: torch.Tensor, num_devices: int) -> Array:
        """A replicated array of this memory."""
        return cls(value.shape, value.dtype, Sharding.replicated(value.dim(), num_devices), [value])

    def gathered(self) -> torch.Tensor:
        """The whole tensor; the local tensor itself when the array is replicated."""
        if self.sharding.is_replicated:
            return self.locals[0]
        whole = torch.empty(self.shape, dtype=self.dtype)
        for cut, local in zip(parts_of(self.shape, self.sharding), self.locals, strict=True):
            whole[cut] = local
        return whole

    def resharded(self, sharding: Sharding) -> Array:
        """Itself when it lies so already; otherwise of memory of its own."""
        if sharding == self.sharding:
            return self
        if sharding.parts == self.sharding.parts:  # other devices hold the same parts
            return Array(self.shape, self.dtype, sharding, [local.clone() for local in self.locals])
        whole = self.gathered()
        if sharding.is_replicated:
            return Array(self.shape, self.dtype, sharding, [whole.clone() if whole is self.locals[0] else whole])
        pieces = [whole[cut].clone(memory_format=torch.contiguous_format) for cut in parts_of(self.shape, sharding)]
        return Array(self.shape, self.dtype, sharding, pieces)

    def write(self, whole: torch.Tensor) -> None:
        """Into the memory that is there."""
        for cut, local in zip(parts_of(self.shape, self.sharding), self.locals, strict=True):
            local.copy_(whole[cut])


def parts_of(shape: Sequence[int], sharding: Sharding) -> list[tuple[slice, ...]]:
    """Per part the ranges that it has of a tensor of this shape."""
    tile = sharding.tile(shape)
    return [
        tuple(slice(min(i * chunk, n), min((i + 1) * chunk, n)) for i, chunk, n in zip(part, tile, shape, strict=True))
        for part in itertools.product(*map(range, sharding.parts))
    ]
