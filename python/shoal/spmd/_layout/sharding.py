"""The layout of a tensor on devices: parts per dimension, and copies of each part.

The rule is XLA's. An entry of a partition spec names the mesh axes that split one dimension, most significant first. A dimension of size n
in p parts has chunks of ceil(n / p): part i holds [min(i * chunk, n), min((i + 1) * chunk, n)). Trailing parts may be short or empty.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout.errors import SpecError

if TYPE_CHECKING:
    from shoal.spmd._layout.mesh import Mesh

# An entry of a partition spec, for one dimension: a name or an index of a mesh axis, a tuple of them, or None.
Entry = str | int | tuple["str | int", ...] | None
Spec = Sequence[Entry]


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
    def of(cls, mesh: Mesh, spec: Spec) -> Sharding:
        """Raises SpecError or InvalidArgument (a ValueError) for a spec that does not fit the mesh."""
        entries = axes_of(mesh, spec)
        sizes = mesh.mesh_shape
        parts = tuple(math.prod(sizes[a] for a in axes) for axes in entries)
        at = {int(device): c for device, c in zip(mesh.device_ids, itertools.product(*map(range, sizes)), strict=True)}
        columns = [[_ravel(at[d], sizes, axes) for d in range(mesh.size())] for axes in entries]
        sharding = cls.of_columns(parts, columns, mesh.size())
        assert sharding is not None  # every axis is used once, so each combination of parts has equally many devices
        return sharding

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
        """The shape of every local tensor with its padding."""
        return tuple(-(-n // p) for n, p in zip(shape, self.parts, strict=True))

    def ranges(self, device: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """The ranges of a tensor of this shape that a device holds."""
        cuts = zip(shape, self.tile(shape), self.part(device), strict=True)
        return tuple(slice(min(i * chunk, n), min((i + 1) * chunk, n)) for n, chunk, i in cuts)

    def even(self, shape: Sequence[int]) -> bool:
        return all(n % p == 0 for n, p in zip(shape, self.parts, strict=True))


def _ravel(coordinate: tuple[int, ...], sizes: tuple[int, ...], axes: tuple[int, ...]) -> int:
    flat = 0
    for a in axes:
        flat = flat * sizes[a] + coordinate[a]
    return flat


def axes_of(mesh: Mesh, spec: Spec) -> list[tuple[int, ...]]:
    """Returns, for each entry of a spec, the indices of the mesh's axes. Raises InvalidArgument for an unknown name or type, SpecError for
    other mistakes."""
    entries = [_axes_of(mesh, entry, spec) for entry in spec]
    seen: dict[int, int] = {}
    for dim, axes in enumerate(entries):
        for a in axes:
            if a in seen:
                where = f"dimension {dim}" if seen[a] == dim else f"dimensions {seen[a]} and {dim}"
                raise SpecError(
                    f"Each device mesh dimension should appear at most once in partition_spec {_by_index(spec, entries)}. {tuple(spec)} "
                    f"uses mesh axis {mesh.axis_label(a)} twice, for {where} of the tensor",
                    hint="an axis splits one dimension; several axes split one dimension as a tuple",
                )
            seen[a] = dim
    return entries


def _by_index(spec: Spec, entries: list[tuple[int, ...]]) -> tuple:
    """Returns the spec with indices in the place of names."""
    pairs = zip(spec, entries, strict=True)
    return tuple(None if not axes else axes if isinstance(entry, (tuple, list)) else axes[0] for entry, axes in pairs)


def _axes_of(mesh: Mesh, entry: object, spec: Spec) -> tuple[int, ...]:
    if entry is None:
        return ()
    if isinstance(entry, (tuple, list)):
        if any(isinstance(e, (tuple, list)) for e in entry):
            raise SpecError(
                f"Partition spec cannot contain nested tuples: {tuple(spec)}", hint="write the axes of a dimension as one tuple"
            )
        if any(e is None for e in entry):
            raise SpecError(f"partition spec {tuple(spec)} has None inside a tuple", hint="leave it out: a tuple holds axes")
        return tuple(a for e in entry for a in _axes_of(mesh, e, spec))
    if isinstance(entry, str):
        index = mesh.get_axis_name_idx(entry)
        if index is None:
            names = "has no axis names" if mesh.axis_names is None else f"has axes {', '.join(map(repr, mesh.axis_names))}"
            use = "an index" if mesh.axis_names is None else "one of them"
            raise InvalidArgument(
                f"Axis name {entry} is not defined in the given mesh: partition spec {tuple(spec)} names it, and the mesh {names}",
                hint=f"use {use}, or give the mesh this name: Mesh(ids, shape, axis_names)",
            )
        return (index,)
    if isinstance(entry, bool) or not hasattr(entry, "__index__"):
        raise InvalidArgument(
            f"Spec type {type(entry)} is not supported in partition spec {tuple(spec)}",
            hint="an entry is an axis name, an axis index, a tuple of them, or None",
        )
    index = entry.__index__()
    if not 0 <= index < len(mesh.mesh_shape):
        raise SpecError(
            f"partition_spec ({tuple(spec)}) contains out of bound index into mesh_shape. It has axis index {index}, and the mesh has "
            f"{len(mesh.mesh_shape)} axes, from 0",
            hint=f"use an index up to {len(mesh.mesh_shape) - 1}",
        )
    return (index,)


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
