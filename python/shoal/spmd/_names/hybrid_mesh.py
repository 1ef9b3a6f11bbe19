"""A mesh over several slices, groups of devices with a fast network. Axes within a slice follow its torus of devices, axes between slices
the slow network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from shoal.exceptions import InvalidArgument
from shoal.spmd import runtime, xla_model
from shoal.spmd._layout.errors import MeshError
from shoal.spmd._layout.mesh import Mesh


class HybridMesh(Mesh):
    """A mesh over several slices. ``ici_mesh_shape``: the mesh within a slice. ``dcn_mesh_shape``: the mesh of slices, with as many axes.
    The size of an axis is the product of both. Follows torch_xla.distributed.spmd.HybridMesh. Raises InvalidArgument (a ValueError) or
    MeshError."""

    def __init__(self, ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int] | None = None, axis_names: Sequence[str] | None = None):
        ici = tuple(ici_mesh_shape)
        dcn = (1,) * len(ici) if dcn_mesh_shape is None else tuple(dcn_mesh_shape)
        if len(ici) != len(dcn):
            raise MeshError(
                f"ici_mesh_shape {ici} and dcn_mesh_shape {dcn} have different numbers of axes",
                hint="give both one size per axis, 1 for none",
            )
        # A device's number is the one in its name; the list may have another order.
        attributes = {int(str(a["name"]).rpartition(":")[2]): a for a in runtime.global_runtime_device_attributes()}
        slices: dict[int, list[int]] = {}
        for device, a in attributes.items():
            slices.setdefault(int(a.get("slice_index", 0)), []).append(device)
        if len(slices) == 1 and math.prod(dcn) > 1:
            raise InvalidArgument(
                f"Invalid dcn_mesh_shape for single slice mesh: {dcn} has {math.prod(dcn)} slices", hint="leave dcn_mesh_shape out"
            )
        if len(slices) > 1 and dcn_mesh_shape is None:
            raise InvalidArgument(
                f"Provide dcn_mesh_shape to create a mesh for multislice: there are {len(slices)} slices", hint="pass the mesh of slices"
            )
        if math.prod(dcn) != len(slices):
            raise InvalidArgument(
                f"Number of slices {len(slices)} must equal the product of dcn_mesh_shape {dcn}",
                hint=f"choose sizes whose product is {len(slices)}",
            )
        meshes = [_within(devices, attributes, ici) for _, devices in sorted(slices.items())]
        whole = np.empty(tuple(i * d for i, d in zip(ici, dcn, strict=True)), dtype=int)
        for mesh, place in zip(meshes, itertools.product(*map(range, dcn)), strict=True):
            whole[tuple(slice(p * n, (p + 1) * n) for p, n in zip(place, ici, strict=True))] = mesh
        self.ici_mesh_shape, self.dcn_mesh_shape = ici, dcn
        super().__init__(whole.flatten(), whole.shape, axis_names)


def _within(devices: list[int], attributes: dict[int, dict], shape: tuple[int, ...]) -> np.ndarray:
    """Arranges the devices of one slice. The last axis, which communicates most, gets the first fitting axes of the torus."""
    if math.prod(shape) != len(devices):
        raise InvalidArgument(
            f"Number of devices {len(devices)} must equal the product of mesh_shape {shape}: ici_mesh_shape is the mesh of one slice",
            hint=f"choose sizes whose product is {len(devices)}",
        )
    if xla_model.xla_device_hw(None) != "TPU" or "coords" not in attributes[devices[0]]:
        return np.array(devices).reshape(shape)  # the devices have no torus
    places = np.array([(*attributes[d]["coords"], attributes[d].get("core_on_chip", 0)) for d in devices])
    low = places.min(0)
    torus = np.empty(places.max(0) - low + 1, dtype=int)
    for d, place in zip(devices, places, strict=True):
        torus[tuple(place - low)] = d
    free, chosen = list(range(torus.ndim)), {}
    for axis in reversed(range(len(shape))):
        chosen[axis] = _axes_for(shape[axis], torus.shape, free)
        if chosen[axis] is None:
            raise InvalidArgument(f"ici_mesh_shape {shape} does not fit a torus of {torus.shape}", hint="use sizes that its axes give")
        free = [a for a in free if a not in chosen[axis]]
    return torus.transpose([a for axis in range(len(shape)) for a in chosen[axis]] + free).reshape(shape)


def _axes_for(size: int, torus: tuple[int, ...], free: list[int]) -> tuple[int, ...] | None:
    if size == 1:
        return ()
    for count in range(1, len(free) + 1):
        for axes in itertools.combinations(free, count):
            if math.prod(torus[a] for a in axes) == size:
                return axes
    return None
