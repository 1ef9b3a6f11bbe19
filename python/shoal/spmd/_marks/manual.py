"""Manual sharding: between enable_manual_sharding and disable_manual_sharding operators run on each device's part alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.exceptions import InvalidArgument
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.errors import MarkError
from shoal.spmd._layout.mesh import Mesh, Spec, get_global_mesh
from shoal.spmd._layout.processes import world
from shoal.spmd._marks.marking import XLAShardedTensor, sharding_for


class ManualTensor(torch.Tensor):
    """The parts of a tensor as local tensors, all of one shape. Operators run on each part separately, without communication."""

    @staticmethod
    def __new__(cls, local_tensors: dict[int, torch.Tensor]):
        first = next(iter(local_tensors.values()))
        t = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype, device="cpu")
        t.locals = local_tensors
        return t

    def __init__(self, local_tensors: dict[int, torch.Tensor]):
        pass

    @property
    def device(self) -> torch.device:
        return DEVICE

    @property
    def global_tensor(self) -> ManualTensor:
        """The tensor itself; the attribute exists as in XLAShardedTensor."""
        return self

    def __repr__(self, *, tensor_contents=None):
        return f"ManualTensor({len(self.locals)} parts of shape {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        flat, tree = tree_flatten((args, kwargs or {}))
        positions = list(next(a for a in flat if isinstance(a, ManualTensor)).locals)
        outs = []
        for position in positions:
            local = [_local(a, position) for a in flat]
            local_args, local_kwargs = tree_unflatten(local, tree)
            outs.append(func(*local_args, **local_kwargs))
        if func._schema.is_mutable:
            return args[0]
        if isinstance(outs[0], (tuple, list)):
            return type(outs[0])(ManualTensor(dict(zip(positions, column, strict=True))) for column in zip(*outs, strict=True))
        return ManualTensor(dict(zip(positions, outs, strict=True))) if isinstance(outs[0], torch.Tensor) else outs[0]


def _local(a: Any, part: int) -> Any:
    if isinstance(a, ManualTensor):
        return a.locals[part]
    if isinstance(a, Tensor):
        if not a._box.array.sharding.is_replicated:
            raise MarkError("an operator mixes a manual tensor with a sharded one", hint="make both manual, or clear the other's sharding")
        return a._box.array.locals[0]
    return a


def _mesh(mesh: Mesh | None) -> Mesh:
    mesh = mesh or get_global_mesh()
    if mesh is None:
        raise InvalidArgument("No mesh is provided and no global mesh is set", hint="pass mesh=, or set one with set_global_mesh")
    return mesh


def enable_manual_sharding(t: torch.Tensor, partition_spec: Spec, *, mesh: Mesh | None = None) -> ManualTensor:
    """Returns every device's part of ``t``, all of one shape: dimensions must divide evenly."""
    sharding = sharding_for(_mesh(mesh), partition_spec, t.dim())
    if not sharding.even(t.shape):
        raise MarkError(f"shape {tuple(t.shape)} does not divide evenly by {sharding.parts}", hint="pad the tensor")
    return ManualTensor({position: local.clone() for position, local in t._box.array.resharded(sharding).locals.items()})


def disable_manual_sharding(t: ManualTensor, partition_spec: Spec, full_shape: Any, *, mesh: Mesh | None = None) -> XLAShardedTensor:
    """Returns the tensor of shape ``full_shape`` with these parts."""
    mesh = _mesh(mesh)
    sharding = sharding_for(mesh, partition_spec, len(full_shape))
    tile = sharding.tile(full_shape)
    if list(world().held(sharding)) != sorted(t.locals) or tuple(t.shape) != tile:
        raise MarkError(
            f"{len(t.locals)} parts of shape {tuple(t.shape)} do not make a tensor of shape {tuple(full_shape)} under {sharding}"
        )
    box = Box(Array(full_shape, t.dtype, sharding, t.locals))
    box.mark = sharding
    return XLAShardedTensor(Tensor(box), mesh.mesh_shape, partition_spec, mesh=mesh)


__all__ = ["disable_manual_sharding", "enable_manual_sharding"]
