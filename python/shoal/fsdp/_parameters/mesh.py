"""The ranks that share a unit's parameters: fully_shard's ``DeviceMesh`` in the engine's terms, replicas and shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from shoal.exceptions import InvalidArgument, Unimplemented

_HOST_DIMS = ("host_replicas", "host_shards")


@dataclass(frozen=True, eq=False)
class DataMesh:
    """The mesh of one call of fully_shard. ``mesh`` has a shard dim, a replicate dim, or both, the replicate dim first.

    ``spmd``: a larger mesh, on which the parameters are DTensors already; ``dims``: its data parallel dims (``dp_mesh_dims``). ``info``:
    torch's description of the mesh, if a ``shard_placement_fn`` returned one.
    """

    mesh: DeviceMesh
    shard_dim: int | None = 0
    replicate_dim: int | None = None
    dims: Any = None
    spmd: DeviceMesh | None = None
    info: Any = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks, ordered by replica, then by shard."""
        return tuple(self.mesh.mesh.flatten().tolist())

    @cached_property
    def replicas(self) -> int:
        return 1 if self.replicate_dim is None else self.mesh.size(self.replicate_dim)

    @cached_property
    def shards(self) -> int:
        return 1 if self.shard_dim is None else self.mesh.size(self.shard_dim)

    @cached_property
    def shard(self) -> int:
        """The index of this rank's shard."""
        return 0 if self.shard_dim is None else self.mesh.get_local_rank(self.shard_dim)

    @cached_property
    def index(self) -> int:
        """This rank's position in ``ranks``."""
        replica = 0 if self.replicate_dim is None else self.mesh.get_local_rank(self.replicate_dim)
        return replica * self.shards + self.shard

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        return self.ranks, self.replicas

    @property
    def in_arena(self) -> bool:
        """True for a CPU mesh: parameters live in arenas. Elsewhere collectives gather them to private memory."""
        return self.mesh.device_type == "cpu"

    @cached_property
    def device(self) -> torch.device:
        """The device that this rank computes on."""
        kind = self.mesh.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())

    @property
    def shard_group(self):
        return self.mesh.get_group(self.shard_dim)

    @cached_property
    def groups(self) -> tuple[Any, Any]:
        """The process groups of the shards and of the replicas; None for a missing dim."""
        return tuple(None if dim is None else self.mesh.get_group(dim) for dim in (self.shard_dim, self.replicate_dim))

    @cached_property
    def shard_mesh(self) -> DeviceMesh:
        if self.mesh.ndim == 1:
            return self.mesh
        names = self.mesh.mesh_dim_names
        return self.mesh[names[-1]] if names else DeviceMesh.from_group(self.shard_group, self.mesh.device_type)

    def own_bounds(self, size: int) -> tuple[int, int]:
        """Begin and end of this rank's slice of a dim of this size, as torch.chunk divides it."""
        piece = -(-size // self.shards)
        return min(self.shard * piece, size), min((self.shard + 1) * piece, size)

    # ---- DTensors ----

    def sharded_spec(self, dim: int, meta: TensorMeta | None) -> DTensorSpec:
        """The spec of a tensor that was plain before it was sharded on ``dim``."""
        placements: list[Placement] = [] if self.replicate_dim is None else [Replicate()]
        if self.shard_dim is not None:
            placements.append(Shard(dim))
        return DTensorSpec(self.mesh, tuple(placements), tensor_meta=meta)

    def spec_of(self, name: str, original: torch.Tensor, dim: int) -> DTensorSpec:
        """The sharded parameter's spec. Raises ValueError for a DTensor on another mesh than ``dp_mesh_dims`` requires."""
        if self.spmd is not None:
            return self._spmd_spec(name, original, dim)
        if not isinstance(original, DTensor):
            return self.sharded_spec(dim, _meta(original))
        placements: list[Placement] = [] if self.replicate_dim is None else [Replicate()]
        # The mesh of a tensor parallel parameter: this mesh's dims, followed by those of the parameter's.
        inner = original._spec
        if len(inner.placements) > 2:
            raise NotImplementedError(f"FSDP only supports 1D TP/EP or 2D EP+TP, not {inner.placements}")
        if self.shard_dim is not None:
            split = inner.num_shards_map[dim]
            placements.append(_StridedShard(dim, split_factor=split) if split > 1 else Shard(dim))
        return DTensorSpec(
            DeviceMesh._concatenate([self.mesh, inner.mesh]), (*placements, *inner.placements), tensor_meta=inner.tensor_meta
        )

    def _spmd_spec(self, name: str, original: torch.Tensor, dim: int) -> DTensorSpec:
        if not isinstance(original, DTensor):
            raise ValueError(
                "When dp_mesh_dims is provided, all parameters must be DTensors on the full SPMD mesh (e.g. via distribute_module). "
                f"Got plain tensor for parameter '{name}'."
            )
        spec = original._spec
        if spec.mesh is not self.spmd:
            raise ValueError(
                "Expected param's DTensor mesh to be the same mesh passed to fully_shard, but got different mesh objects: parameter "
                f"'{name}' is on another one"
            )
        names, placements = spec.mesh.mesh_dim_names, list(spec.placements)
        for what, dims in (("shard", self.dims.shard_names), ("replicate", self.dims.replicate_names)):
            for index in map(names.index, dims):
                if not isinstance(placements[index], Replicate):
                    raise ValueError(
                        f"Expected Replicate() on DP {what} dim '{names[index]}' (index {index}) but got {placements[index]}: parameter "
                        f"'{name}'"
                    )
        for shard_name in self.dims.shard_names:
            at, split = names.index(shard_name), 1
            for later in range(at + 1, spec.mesh.ndim):
                p = spec.placements[later]
                if isinstance(p, (Shard, _StridedShard)) and p.dim == dim:
                    split *= spec.mesh.size(later)
            placements[at] = _StridedShard(dim, split_factor=split) if split > 1 else Shard(dim)
        if len(self.dims.shard_names) <= 1:
            return DTensorSpec(spec.mesh, tuple(placements), tensor_meta=spec.tensor_meta)
        # Several dims of the mesh shard the parameter: one flattened dim replaces them.
        meshes, flat, shard_replaced = [], [], False
        for dim_name, placement in zip(names, placements, strict=True):
            if dim_name in self.dims.shard_names:
                if not shard_replaced:
                    meshes.append(self.mesh)
                    flat += [placement] if self.replicate_dim is None else [Replicate(), placement]
                shard_replaced = True
            elif dim_name not in self.dims.replicate_names:
                meshes.append(spec.mesh[dim_name])
                flat.append(placement)
        return DTensorSpec(DeviceMesh._concatenate(meshes), tuple(flat), tensor_meta=spec.tensor_meta)


def _meta(t: torch.Tensor) -> TensorMeta:
    return TensorMeta(t.size(), t.stride(), t.dtype)


def data_mesh(mesh: DeviceMesh, dims: Any = None) -> DataMesh:
    """Reads fully_shard's ``mesh`` and ``dp_mesh_dims``. Raises ValueError or AssertionError for unsupported meshes, as FSDP2 does."""
    if dims is not None:
        _check_device(mesh)
        return _of_named_dims(mesh, dims)
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        raise AssertionError("Please init the 2D mesh for HSDP with mesh_dim_names specified")
    return shards_of(mesh)


def shards_of(mesh: DeviceMesh) -> DataMesh:
    """Reads a mesh of shards, or of replicas and shards, whose dims may lack names. Raises as ``data_mesh``."""
    _check_device(mesh)
    return DataMesh(mesh) if mesh.ndim == 1 else DataMesh(mesh, shard_dim=1, replicate_dim=0)


def _check_device(mesh: DeviceMesh) -> None:
    if mesh.device_type not in ("cpu", "cuda"):
        raise Unimplemented(f"a {mesh.device_type} mesh is not in this release", hint='use init_device_mesh("cpu" or "cuda", ...)')
    if mesh.device_type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument("the mesh is of CUDA devices, and torch finds none here", hint='use init_device_mesh("cpu", ...)')


def _of_named_dims(mesh: DeviceMesh, dims: Any) -> DataMesh:
    if dims.shard is None and dims.replicate is None:
        raise ValueError("At least one of shard or replicate must be set in dp_mesh_dims")
    if mesh.mesh_dim_names is None:
        raise ValueError("mesh must have mesh_dim_names when dp_mesh_dims is provided")
    for name in (*dims.shard_names, *dims.replicate_names):
        if name not in mesh.mesh_dim_names:
            raise ValueError(f"Mesh dim name {name!r} not found in mesh.mesh_dim_names {mesh.mesh_dim_names}")

    def sub(names: tuple[str, ...]) -> DeviceMesh:
        return mesh[names[0]] if len(names) == 1 else mesh[names]._flatten("_".join(names))

    if not dims.shard_names:
        return DataMesh(sub(dims.replicate_names), shard_dim=None, replicate_dim=0, dims=dims, spmd=mesh)
    if not dims.replicate_names:
        return DataMesh(sub(dims.shard_names), dims=dims, spmd=mesh)
    both = DeviceMesh._concatenate([sub(dims.replicate_names), sub(dims.shard_names)])
    return DataMesh(both, shard_dim=1, replicate_dim=0, dims=dims, spmd=mesh)


def of_mesh_info(info: Any) -> DataMesh:
    """Converts torch's ``FSDPMeshInfo``, from a ``shard_placement_fn``."""
    dims, spmd = getattr(info, "dp_mesh_dims", None), getattr(info, "spmd_mesh", None)
    return DataMesh(info.mesh, info.shard_mesh_dim, info.replicate_mesh_dim, dims, spmd, info)


def in_arenas(meshes: Iterable[DataMesh]) -> bool:
    """True if the rows of units on these meshes lie in arenas, False if they lie on devices. Raises Unimplemented for a mixture."""
    kinds = {data.in_arena for data in meshes}
    if len(kinds) > 1:
        raise Unimplemented("some units of this model are on devices and others on CPUs", hint="shard all units on one mesh")
    return kinds.pop()


def on_hosts(data: DataMesh) -> DataMesh:
    """The ranks of a mesh of devices as a mesh of their CPUs, whose rows lie in arenas. It has no process groups, and needs none."""
    mesh = DeviceMesh("cpu", data.mesh.mesh, mesh_dim_names=_HOST_DIMS[-data.mesh.ndim :], _init_backend=False)
    hosts = DataMesh(mesh, data.shard_dim, data.replicate_dim)
    hosts.__dict__["groups"] = (None, None)
    if "index" in data.__dict__ or dist.get_rank() in data.ranks:  # else this rank is not on it
        hosts.__dict__.update(index=data.index, shard=data.shard)  # copied: the groups that compute them may have ended
    return hosts


def is_host_mesh(mesh: DeviceMesh) -> bool:
    """True for a mesh that ``on_hosts`` has made."""
    return mesh.mesh_dim_names == _HOST_DIMS[-mesh.ndim :]


def post_forward_mesh(data: DataMesh, size: int) -> DeviceMesh:
    """The mesh of reshard_after_forward=``size``: each row is ``size`` ranks that together hold all parameters."""
    return DeviceMesh(data.mesh.device_type, data.mesh.mesh.view(-1, size))
