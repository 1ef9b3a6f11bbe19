"""The devices of a program as an array with named axes, and the partition specs that name these axes."""

from __future__ import annotations

import ast
import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout.errors import MeshError, SpecError
from shoal.spmd._layout.sharding import Sharding

# An entry of a partition spec, for one dimension: a name or an index of a mesh axis, a tuple of them (most significant first), or None.
Entry = str | int | tuple["str | int", ...] | None
Spec = Sequence[Entry]


class Mesh:
    """A mesh of the program's devices. ``device_ids``: each device once, in row-major order of ``mesh_shape``. ``axis_names``: one per
    axis, or None; a partition spec then names axes by index. Follows torch_xla.distributed.spmd.Mesh. Raises MeshError, an
    AssertionError."""

    def __init__(self, device_ids: Any, mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None):
        ids = np.atleast_1d(device_ids if isinstance(device_ids, np.ndarray) else list(device_ids))
        shape = tuple(int(n) for n in mesh_shape)
        names = None if axis_names is None else tuple(axis_names)
        devices = _devices.global_runtime_device_count()
        if len(ids) != devices:
            raise MeshError(
                f"Number of device IDs ({len(ids)}) must match the global number of devices ({devices}): a mesh has all of them",
                hint=f"np.arange({devices})",
            )
        if ids.ndim != 1:
            raise MeshError(f"device ids are an array of shape {ids.shape}", hint="pass a flat list: mesh_shape gives the shape")
        if names is not None and len(names) != len(shape):
            raise MeshError(
                f"Number of axis names ({len(names)}) must match mesh dimensions ({len(shape)}): names {names}, mesh shape {shape}",
                hint="give one per axis",
            )
        if names is not None and len(set(names)) != len(names):
            raise MeshError(f"Axis names must be unique, got: {names}", hint="give each axis a name of its own")
        if len(ids) != math.prod(shape):
            raise MeshError(
                f"Number of device IDs ({len(ids)}) must match mesh size ({math.prod(shape)}): the mesh shape is {shape}",
                hint=f"choose sizes whose product is {len(ids)}",
            )
        if len(set(ids.tolist())) != len(ids):
            raise MeshError(f"Device IDs must be unique, got: {ids}", hint=f"np.arange({devices})")
        if set(ids.tolist()) != set(range(devices)):
            raise MeshError(
                f"Device IDs must be less than mesh size ({devices}), got: {ids}: they are the numbers from 0, each once",
                hint=f"np.arange({devices})",
            )
        self.device_ids, self.mesh_shape, self.axis_names = ids, shape, names
        self.shardings: dict[tuple[str | None, ...], Sharding] = {}  # cache for specs that consist of names only

    def size(self) -> int:
        """The number of devices in the mesh."""
        return len(self.device_ids)

    def shape(self) -> OrderedDict[str | int, int]:
        """The sizes of the axes by axis name, or by index if there are no names."""
        return OrderedDict((self.axis_label(i), n) for i, n in enumerate(self.mesh_shape))

    def axis_label(self, axis: int) -> str | int:
        return axis if self.axis_names is None else self.axis_names[axis]

    def get_logical_mesh(self) -> np.ndarray:
        """Device ids in the mesh's shape."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Returns the index of an axis, or None for an unknown name."""
        return self.axis_names.index(name) if self.axis_names is not None and name in self.axis_names else None

    def get_op_sharding(self, partition_spec: Spec) -> Sharding:
        """The sharding of a tensor with this spec. ``str`` gives XLA's text; ``torch_xla._XLAC._xla_mark_sharding`` accepts it. Raises
        SpecError or InvalidArgument (a ValueError) for a spec that does not fit the mesh."""
        entries = axes_of(self, partition_spec)
        sizes = self.mesh_shape
        parts = tuple(math.prod(sizes[a] for a in axes) for axes in entries)
        at = {int(device): c for device, c in zip(self.device_ids, itertools.product(*map(range, sizes)), strict=True)}
        columns = [[_ravel(at[d], sizes, axes) for d in range(self.size())] for axes in entries]
        sharding = Sharding.of_columns(parts, columns, self.size())
        assert sharding is not None  # every axis is used once, so each combination of parts has equally many devices
        return sharding

    def __str__(self) -> str:
        return str({"device_ids": self.device_ids.tolist(), "mesh_shape": self.mesh_shape, "axis_names": self.axis_names})

    @classmethod
    def from_str(cls, text: str) -> Mesh | None:
        """Returns the mesh that ``str`` describes, or None for other text."""
        try:
            fields = ast.literal_eval(text)
            return cls(np.array(fields["device_ids"]), fields["mesh_shape"], fields["axis_names"])
        except (SyntaxError, ValueError, TypeError, KeyError):
            return None


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


_global: Mesh | None = None


def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the mesh that calls without a mesh use."""
    global _global
    _global = mesh


def get_global_mesh() -> Mesh | None:
    return _global


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Returns a mesh of all devices along one axis."""
    n = _devices.global_runtime_device_count()
    return Mesh(np.arange(n), (n,), None if axis_name is None else (axis_name,))
