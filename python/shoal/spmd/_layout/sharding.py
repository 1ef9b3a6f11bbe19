"""The layout of a tensor on devices: parts per dimension, and copies of each part.

The rule is XLA's. A dimension of size n in p parts has chunks of ceil(n / p): part i holds [min(i * chunk, n), min((i + 1) * chunk, n)).
Trailing parts may be short or empty.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property


class ShardingType(IntEnum):
    """The kinds of shardings, with torch_xla's names and numbers. Shoal uses REPLICATED, TILED and PARTIAL."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


@dataclass(frozen=True)
class Sharding:
    """A layout in normal form: two shardings are equal if every device holds the same ranges of every shape.

    ``parts``: per dimension of the tensor. ``devices``: ids, for parts in row-major order, and the copies of one part in ascending order.
    """

    parts: tuple[int, ...]
    devices: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.parts, self.devices))

    @classmethod
    @functools.cache
    def replicated(cls, rank: int, num_devices: int) -> Sharding:
        return cls((1,) * rank, tuple(range(num_devices)))

    @classmethod
    def of_columns(cls, parts: Sequence[int], columns: Sequence[Sequence[int]], num_devices: int) -> Sharding | None:
        """Makes a sharding from ``columns``: per dimension, the part that each device holds. Returns None unless every combination of parts
        has equally many devices."""
        parts = tuple(parts)
        if all(p == 1 for p in parts):
            return cls.replicated(len(parts), num_devices)
        groups: dict[tuple[int, ...], list[int]] = {part: [] for part in itertools.product(*map(range, parts))}
        for device in range(num_devices):
            groups[tuple(column[device] for column in columns)].append(device)
        if len({len(group) for group in groups.values()}) != 1:
            return None
        return cls(parts, tuple(d for group in groups.values() for d in group))

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """For each dimension: by device, the part that the device holds."""
        held = [self.part(d) for d in range(len(self.devices))]
        return tuple(tuple(part[i] for part in held) for i in range(len(self.parts)))

    @property
    def copies(self) -> int:
        return len(self.devices) // math.prod(self.parts)

    @cached_property
    def is_replicated(self) -> bool:
        return all(p == 1 for p in self.parts)

    @property
    def type(self) -> ShardingType:
        if self.is_replicated:
            return ShardingType.REPLICATED
        return ShardingType.TILED if self.copies == 1 else ShardingType.PARTIAL

    def __str__(self) -> str:
        """Returns the sharding in XLA's text form."""
        if self.is_replicated:
            return "{replicated}"
        tiles = self.parts if self.copies == 1 else (*self.parts, self.copies)
        last = "" if self.copies == 1 else " last_tile_dim_replicate"
        return f"{{devices=[{','.join(map(str, tiles))}]{','.join(map(str, self.devices))}{last}}}"

    @cached_property
    def _position(self) -> dict[int, int]:
        return {device: i for i, device in enumerate(self.devices)}

    def part(self, device: int) -> tuple[int, ...]:
        """Returns the coordinate of the part that a device holds."""
        flat = self._position[device] // self.copies
        coordinate = []
        for p in reversed(self.parts):
            flat, c = divmod(flat, p)
            coordinate.append(c)
        return tuple(reversed(coordinate))

    def position(self, device: int) -> int:
        """The index of a device's part among all parts in row-major order."""
        return self._position[device] // self.copies

    def holders(self, position: int) -> tuple[int, ...]:
        """The devices that hold the part of this index."""
        return self.devices[position * self.copies : (position + 1) * self.copies]

    def replica(self, device: int) -> int:
        """The position of a device among those that hold the same part."""
        return self._position[device] % self.copies

    def tile(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of every part with its padding: that of the largest part."""
        return tuple(-(-n // p) for n, p in zip(shape, self.parts, strict=True))

    def ranges(self, device: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """The ranges of a tensor of this shape that a device holds."""
        cuts = zip(shape, self.tile(shape), self.part(device), strict=True)
        return tuple(slice(min(i * chunk, n), min((i + 1) * chunk, n)) for n, chunk, i in cuts)

    def even(self, shape: Sequence[int]) -> bool:
        return all(n % p == 0 for n, p in zip(shape, self.parts, strict=True))


def parts_of(shape: Sequence[int], sharding: Sharding) -> tuple[tuple[slice, ...], ...]:
    """The ranges of each part of a tensor of this shape."""
    return _parts_of(tuple(shape), sharding)


@functools.lru_cache(maxsize=4096)
def _parts_of(shape: tuple[int, ...], sharding: Sharding) -> tuple[tuple[slice, ...], ...]:
    tile = sharding.tile(shape)
    return tuple(
        tuple(slice(min(i * chunk, n), min((i + 1) * chunk, n)) for i, chunk, n in zip(part, tile, shape, strict=True))
        for part in itertools.product(*map(range, sharding.parts))
    )
