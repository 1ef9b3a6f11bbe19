"""torch's placements, one per axis of a mesh, and the partition specs that mean the same."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Placement, Replicate, Shard

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout.mesh import Mesh, Spec, axes_of


class _DimError(InvalidArgument, IndexError):
    """Error for a placement that names a dimension which the tensor does not have."""


def convert_to_xla_partition_spec(rank: int, placements: Sequence[Placement]) -> tuple:
    """Returns a partition spec. Placement i is for axis i of the mesh; entry d of a spec names the axes that split dimension d."""
    axes: list[list[int]] = [[] for _ in range(rank)]
    for axis, p in enumerate(placements):
        if isinstance(p, Shard):
            if not -rank <= p.dim < rank:
                raise _DimError(f"Shard dimension {p.dim} is out of bounds for tensor with {rank} dimensions")
            axes[p.dim].append(axis)
        elif not isinstance(p, Replicate):
            raise InvalidArgument(
                f"Unsupported placement type: {type(p).__name__} on a mesh of type xla", hint="use Shard(dim) or Replicate()"
            )
    return tuple(None if not a else a[0] if len(a) == 1 else tuple(a) for a in axes)


def placements_of(mesh: Mesh, spec: Spec) -> tuple[Placement, ...]:
    """Returns a placement per axis of the mesh."""
    dim_of = {axis: dim for dim, axes in enumerate(axes_of(mesh, spec)) for axis in axes}
    return tuple(Shard(dim_of[axis]) if axis in dim_of else Replicate() for axis in range(len(mesh.mesh_shape)))
