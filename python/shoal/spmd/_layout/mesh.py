"""The devices of a program as an array with named axes."""

from __future__ import annotations

import ast
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout.errors import MeshError
from shoal.spmd._layout.sharding import Sharding, Spec


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
        """The sharding of a tensor with this spec. ``str`` gives XLA's text; ``torch_xla._XLAC._xla_mark_sharding`` accepts it."""
        return Sharding.of(self, partition_spec)

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
