"""Marking: the program assigns mesh axes to the dimensions of a tensor, which is then split so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.errors import MarkError, SpecError
from shoal.spmd._layout.mesh import Mesh, Spec
from shoal.spmd._layout.placements import convert_to_xla_partition_spec, placements_of
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding, ShardingType, parts_of


@dataclass
class XLAShard:
    """One device's part. ``data``: a copy on the host, padded with zeros to the common size. ``indices``: its ranges in the whole tensor,
    ``...`` for all of it. ``replica_id``: its number among the devices that hold the same part."""

    data: torch.Tensor
    indices: Any
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        return self.data if self.indices is ... else self.data[tuple(slice(0, i.stop - i.start) for i in self.indices)]

    @unpadded_data.setter
    def unpadded_data(self, value: torch.Tensor) -> None:
        self.unpadded_data.copy_(value)


class XLAShardedTensor(Tensor):
    """A marked tensor with its sharding; operators on it return such tensors. ``global_tensor``: the tensor that was marked."""

    def __new__(cls, tensor: Any, mesh_shape=None, partition_spec=None, requires_grad: bool = False, mesh: Mesh | None = None):
        is_box = not isinstance(tensor, torch.Tensor)  # True if `tensor` is the Box of an operator's result
        box = tensor if is_box else _tensor(tensor, "XLAShardedTensor")._box
        t = super().__new__(cls, box, requires_grad)
        t._global = None if is_box else tensor.global_tensor if isinstance(tensor, XLAShardedTensor) else tensor
        t._cached_spec = None
        t.mesh_shape, t.partition_spec, t._mesh = mesh_shape, partition_spec, mesh
        if isinstance(tensor, XLAShardedTensor) and mesh_shape is None and partition_spec is None:
            t.mesh_shape, t.partition_spec, t._mesh = tensor.mesh_shape, tensor.partition_spec, tensor._mesh
        return t

    def __init__(self, tensor: Any, mesh_shape=None, partition_spec=None, requires_grad: bool = False, mesh: Mesh | None = None):
        pass

    @classmethod
    def result(cls, box: Box) -> XLAShardedTensor:
        return cls(box)

    @property
    def global_tensor(self) -> Tensor:
        if self._global is None:
            self._global = Tensor(self._box)
        return self._global

    @property
    def sharding_spec(self) -> str:
        return text_of(self)

    @property
    def sharding_type(self) -> ShardingType | None:
        return type_of(self)

    @property
    def local_shards(self) -> list[XLAShard]:
        """The shards of this process's devices, in order of the devices."""
        array = _marked_array(self)
        sharding, tile = array.sharding, array.sharding.tile(array.shape)
        cuts = parts_of(array.shape, sharding)
        shards = []
        for device in world().devices:
            at = sharding.position(device)
            data = torch.zeros(tile, dtype=array.dtype)
            data[tuple(slice(0, c.stop - c.start) for c in cuts[at])] = array.locals[at]
            indices = ... if sharding.is_replicated else [slice(c.start, c.stop, 1) for c in cuts[at]]
            shards.append(XLAShard(data, indices, f"CPU:{device}", sharding.replica(device)))
        return shards

    @property
    def _spec(self) -> DTensorSpec:
        """The mark as the spec of a torch DTensor, made once per mark. Raises InvalidArgument (a ValueError) for an operator's result."""
        if self._cached_spec is None:
            for name in ("mesh_shape", "partition_spec"):
                if getattr(self, name) is None:
                    raise InvalidArgument(
                        f"{name} must be specified to create DTensorSpec. The result of an operator has none",
                        hint="mark the tensor with mark_sharding",
                    )
            mesh = self._mesh or Mesh(range(world().num_devices), self.mesh_shape)
            self._cached_spec = DTensorSpec(
                DeviceMesh(DEVICE.type, mesh.get_logical_mesh().tolist(), mesh_dim_names=mesh.axis_names),
                placements_of(mesh, self.partition_spec),
                tensor_meta=TensorMeta(self.shape, self.stride(), self.dtype),
            )
        return self._cached_spec

    def invalidate_spec_cache(self) -> None:
        """Makes the next use of ``placements`` read the mark again."""
        self._cached_spec = None

    def _describe(self, mesh_shape: Any, partition_spec: Spec | None, mesh: Mesh | None = None) -> None:
        """Sets the description of the tensor's mark, without the values that are ``None``."""
        if mesh_shape is not None:
            self.mesh_shape, self._mesh = mesh_shape, mesh
        if partition_spec is not None:
            self.partition_spec = partition_spec
        self.invalidate_spec_cache()

    @property
    def placements(self) -> tuple:
        """By axis of the mesh: torch's Shard or Replicate. Raises InvalidArgument (a ValueError) for an operator's result."""
        if self.mesh_shape is None or self.partition_spec is None:
            raise InvalidArgument(
                "Placements not available: XLAShardedTensor requires mesh_shape and partition_spec to be set. "
                "Use mark_sharding() to properly initialize sharding information."
            )
        return self._spec.placements

    def redistribute(self, mesh: Mesh, placements: Any) -> XLAShardedTensor:
        """Returns a copy with these placements, one per axis of the mesh."""
        if len(placements) != len(mesh.mesh_shape):
            raise InvalidArgument(
                f"Number of placements ({len(placements)}) must match mesh dimensions ({len(mesh.mesh_shape)})", hint="give one per axis"
            )
        if any(p.is_partial() for p in placements):
            raise Unimplemented(
                "Partial placement is not yet implemented and may have unexpected behavior. Use Shard or Replicate placements instead."
            )
        spec = convert_to_xla_partition_spec(self.dim(), placements)
        copied = Tensor(self._box).clone()
        mark_freely(copied, sharding_for(mesh, spec, self.dim()))
        return XLAShardedTensor(copied, mesh.mesh_shape, spec, mesh=mesh)

    def load_local_shards_(self, shards: list[XLAShard]) -> None:
        """Writes the shards of this process's devices, in order, into the tensor. All processes must call it. Raises MarkError on all
        processes for shards that do not fit on one of them."""
        array = _marked_array(self)
        if array.sharding.is_replicated:
            raise MarkError(
                "Replicated tensor should not be loaded from _load_local_shards", hint="write the tensor itself: tensor.copy_(value)"
            )
        wrong = [(rank, text) for rank, text in enumerate(world().passed(_misfit(array, shards))) if text is not None]
        if wrong:
            where = f" on rank {wrong[0][0]}" if world().num_processes > 1 else ""
            raise MarkError(f"load_local_shards_{where}: {wrong[0][1]}", hint="pass one shard per device of the process, in their order")
        self._box.before_write()
        written = set()
        for device, shard in zip(world().devices, shards, strict=True):
            at = array.sharding.position(device)
            if at not in written:  # devices of this process that hold the same part share its local tensor
                written.add(at)
                array.locals[at].copy_(shard.data[tuple(slice(0, n) for n in array.locals[at].shape)])
        self._box.wrote()


def _misfit(array: Array, shards: list[XLAShard]) -> str | None:
    """Returns why the array cannot take these shards of this process's devices; None if it can."""
    devices, tile = world().devices, array.sharding.tile(array.shape)
    if len(shards) != len(devices):
        return f"Shards must be provided for all local devices: {len(shards)} shards for {len(devices)} devices"
    for device, shard in zip(devices, shards, strict=True):
        if tuple(shard.data.shape) != tile:
            shape = tuple(shard.data.shape)
            return f"Input shard shape must include padding: {shape} instead of {tile} for the shard of device {device}"
        if shard.shard_device.rpartition(":")[2] != str(device):
            return f"the shard for device {device} belongs to device {shard.shard_device}"
    return None


def _marked_array(t: Tensor) -> Array:
    if text_of(t) == "":
        raise MarkError("Tensor is not sharded", hint="mark it with mark_sharding")
    return t._box.array


def text_of(t: Any) -> str:
    """The sharding in XLA's text form; "" for an unmarked tensor that is whole on every device."""
    sharding = t._box.array.sharding
    return "" if t._box.mark is None and sharding.is_replicated else str(sharding)


def type_of(t: Any) -> ShardingType | None:
    return None if text_of(t) == "" else t._box.array.sharding.type


def _tensor(t: Any, what: str) -> Tensor:
    if not isinstance(t, Tensor):
        of = t.type() if isinstance(t, torch.Tensor) else type(t).__name__
        raise MarkError(f"Expected XLA tensor. Got: {of}. {what} takes tensors of the device", hint="move it with .to(xm.xla_device())")
    return t


def sharding_for(mesh: Mesh, spec: Spec, rank: int) -> Sharding:
    if not isinstance(mesh, Mesh):
        raise InvalidArgument(f"mesh is {type(mesh).__name__}, not a Mesh", hint="pass one, or set it with set_global_mesh")
    spec = (spec,) if isinstance(spec, str) else tuple(spec)
    plain = all(e is None or type(e) is str for e in spec)
    if plain and len(spec) == rank and spec in mesh.shardings:
        return mesh.shardings[spec]
    sharding = mesh.get_op_sharding(spec)
    if len(spec) != rank:
        raise SpecError(
            f"Partition spec length ({len(spec)}) should be equal to the input rank ({rank}). The spec is {spec}",
            hint="give one entry per dimension, None for whole",
        )
    if plain:
        mesh.shardings[spec] = sharding
    return sharding


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Spec) -> XLAShardedTensor:
    """Splits ``t`` in place: entry i of the spec names the mesh axes (a name, an index, a tuple of them, or None) that split dimension i.
    Returns ``t`` as an XLAShardedTensor. Follows torch_xla.distributed.spmd.mark_sharding; raises SpecError, ValueError or MarkError."""
    _tensor(t, "mark_sharding")
    if not _devices.is_spmd():
        raise MarkError(
            "SPMD is off. Please enable SPMD via `torch_xla.runtime.use_spmd()`",
            hint="call use_spmd() (also shoal.spmd.runtime's) at the program's begin",
        )
    sharding = sharding_for(mesh, partition_spec, t.dim())
    box = t._box
    if box.mark is not None and not box.mark.is_replicated and box.mark != sharding:
        raise MarkError(
            f"Existing annotation must be cleared first: the tensor of shape {tuple(t.shape)} is marked {box.mark} and cannot be marked "
            f"{sharding}",
            hint="clear_sharding(t)",
        )
    box.lay(sharding)
    box.mark = sharding
    return _described(t, mesh, partition_spec)


def _described(t: Tensor, mesh: Mesh, partition_spec: Spec) -> XLAShardedTensor:
    if not isinstance(t, XLAShardedTensor):
        return XLAShardedTensor(t, mesh.mesh_shape, partition_spec, mesh=mesh)
    t._describe(mesh.mesh_shape, partition_spec, mesh)
    return t


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Makes ``t`` whole on every device and returns it."""
    box = _tensor(t, "clear_sharding")._box
    box.lay(Sharding.replicated(t.dim(), _devices.global_runtime_device_count()))
    box.mark = None
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


class MarkShardingFunction(torch.autograd.Function):
    """``apply(t, mesh, partition_spec)``: mark_sharding_with_gradients as a function of autograd."""

    @staticmethod
    def forward(ctx, t, mesh, spec):
        ctx.sharding = (mesh, spec)
        out = t.detach().clone()
        mark_freely(out, sharding_for(mesh, spec, t.dim()))
        return out

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        mark_freely(gradient, sharding_for(*ctx.sharding, gradient.dim()))
        return gradient, None, None


def mark_freely(t: Tensor, sharding: Sharding) -> None:
    t._box.lay(sharding)
    t._box.mark = sharding


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: Spec) -> torch.Tensor:
    """Returns a copy of ``t`` with this sharding, which its gradient gets as well. ``t`` is unchanged."""
    _tensor(t, "mark_sharding_with_gradients")
    sharding_for(mesh, partition_spec, t.dim())
    return MarkShardingFunction.apply(t, mesh, partition_spec)


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Spec) -> XLAShardedTensor:
    """As mark_sharding, but replaces a mark that the tensor has."""
    _tensor(t, "annotate_custom_sharding")
    mark_freely(t, sharding_for(mesh, partition_spec, t.dim()))
    return _described(t, mesh, partition_spec)


def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """Copies two structures of tensors and shards tensors of one place alike: as in ``a``, or as in ``b`` where ``a`` is whole. Raises
    SpecError for different structures or shapes."""

    def alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape != y.shape:
            raise SpecError(f"shard_as takes tensors of equal shapes, not {tuple(x.shape)} and {tuple(y.shape)}")
        sharding = (x if not x._box.array.sharding.is_replicated else y)._box.array.sharding
        copies = x.clone(), y.clone()
        for t in copies:
            mark_freely(t, sharding)
        return copies

    (of_a, tree), (of_b, other) = tree_flatten(a), tree_flatten(b)
    if tree != other:
        raise SpecError(f"shard_as takes equal structures, not {tree} and {other}")
    pairs = [alike(_tensor(x, "shard_as"), _tensor(y, "shard_as")) for x, y in zip(of_a, of_b, strict=True)]
    return tree_unflatten([x for x, _ in pairs], tree), tree_unflatten([y for _, y in pairs], tree)


def wrap_if_sharded(t: Any) -> Any:
    return XLAShardedTensor(t) if type(t) is not XLAShardedTensor and isinstance(t, Tensor) and text_of(t) else t


def wrap_as_sharded_tensor(t: Any, mesh_shape=None, partition_spec=None) -> XLAShardedTensor:
    """Returns ``t`` as an XLAShardedTensor with this description of its mark, which stays as it is."""
    if not isinstance(t, XLAShardedTensor):
        return XLAShardedTensor(t, mesh_shape, partition_spec)
    t._describe(mesh_shape, partition_spec)
    return t


def unwrap_sharded_tensor(t: Any) -> Any:
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


@dataclass
class ShardingSpec:
    """The sharding of loaded batches. ``minibatch``: each process loads only its part of the batch."""

    mesh: Mesh
    partition_spec: Spec
    minibatch: bool | None = False

    def __post_init__(self) -> None:
        self.mesh.get_op_sharding(self.partition_spec)

    def can_apply(self, t: torch.Tensor) -> bool:
        return len(t.shape) == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        assert isinstance(t, Tensor), "the tensor is not on the device"
        mark_sharding(t, self.mesh, self.partition_spec)
