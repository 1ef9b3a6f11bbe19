"""The ranks that save or load a checkpoint together: agreement on errors and values, and the parts of tensors that each has."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shoal._core.telemetry import waiting
from shoal._distributed.ranks import cpu_backend
from shoal._objects.tensors import dtensor
from shoal.checkpoint._manifest import PLAIN
from shoal.exceptions import InvalidArgument, ShoalError, TaskError, Unimplemented

T = TypeVar("T")

_groups: dict[tuple, dist.ProcessGroup] = {}  # those of own_group, by the default group, their ranks and purpose


class Ranks:
    """The ranks over which a model is sharded; a single rank for a model that is not, such as one of DDP. ``apart``: their group is one
    that nothing else uses, so that a thread may communicate in it. Then the constructor is collective at its first use. ``failed``: a
    gather has failed, so that this rank does not know what the others do."""

    failed = False

    def __init__(self, tensors: Iterable[torch.Tensor], apart: bool = False):
        self.waited_s = 0.0  # in gathers so far
        self._apart = apart
        meshes = {t.device_mesh for t in tensors if isinstance(t, DTensor)}
        sharded = bool(meshes) or any(hasattr(t, "local_shards") for t in tensors)
        self.group = _group(meshes, apart) if sharded else None
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.size = dist.get_world_size(self.group) if self.group is not None else 1

    def agree(self, action: Callable[[], T]) -> T:
        """Runs ``action`` and returns its result. Collective: an error on one rank is raised on all. An error that is not Shoal's is a
        TaskError of its class on the other ranks."""
        result, error = None, None
        try:
            result = action()
        except Exception as raised:
            error = raised
        sent = error
        if error is not None and not isinstance(error, ShoalError):
            sent = TaskError(error, "".join(traceback.format_exception(error)), "a checkpoint's save or load", os.getpid())
        for rank, other in enumerate(self.gather(sent)):
            if error is None and other is not None:
                other.context = (*other.context, f"rank {rank}")
                raise other.as_instance_of_cause() if isinstance(other, TaskError) else other
        if error is not None:
            raise error
        return result

    def gather(self, value: Any) -> list[Any]:
        """Gathers every rank's value, by rank."""
        if self.group is None:
            return [value]
        values = [None] * self.size
        begin = time.perf_counter()
        try:
            with contextlib.nullcontext() if self._apart else waiting():  # a wait of the thread that trains
                dist.all_gather_object(values, value, group=self.group)  # pickles between the ranks of one job, never on disk
        except Exception:
            self.failed = True
            forget_group(self.group)
            raise
        self.waited_s += time.perf_counter() - begin
        return values


def expect_alike(ranks: Ranks, digests: list[str], facts: dict[str, str]) -> None:
    """Raises InvalidArgument on all ranks unless they have the same facts, because only rank 0's are written. ``digests``: those of
    the facts of all ranks. Collective if they differ."""
    if len(set(digests)) == 1:
        return
    first, *others = ranks.gather(facts)
    for rank, of in enumerate(others, 1):
        name = next((n for n in sorted({*first, *of}) if first.get(n) != of.get(n)), None)
        if name is not None:
            without = 0 if name not in first else rank if name not in of else None
            raise InvalidArgument(
                f"{name} differs between ranks 0 and {rank}, and a checkpoint holds one value of it"
                if without is None
                else f"rank {without} has no {name}, which rank {rank - without} has",
                reason="RanksDiffer",
                hint="make it a DTensor, placed as its parameter (DTensor.from_local), or the same on all ranks",
            )


def is_one_of_many(ranks: Ranks) -> bool:
    """True if the model is not sharded and the job has several ranks. Other ranks may save it to the same path, and no rank knows which
    ones do, so that the saves take turns."""
    return ranks.group is None and dist.is_initialized() and dist.get_world_size() > 1


def _group(meshes: set, apart: bool) -> dist.ProcessGroup:
    """Returns the group of all ranks of the meshes."""
    roots = [m._get_root_mesh() for m in meshes]
    ranks = sorted({r for m in roots for r in m.mesh.flatten().tolist()}) or list(range(dist.get_world_size()))
    if not apart:
        if len(meshes) == 1 and (mesh := next(iter(meshes))).ndim == 1 and mesh.size() == len(ranks):
            return mesh.get_group()
        if len(ranks) == dist.get_world_size():
            return dist.group.WORLD
    return own_group(ranks, "saves" if apart else "meshes")


def own_group(ranks: list[int], purpose: str) -> dist.ProcessGroup:
    """Returns the group of these ranks that nothing but ``purpose`` uses. Collective at its first use in each default group, and after
    ``forget_group``."""
    world = dist.group.WORLD
    for old in [key for key in list(_groups) if key[0] is not world]:  # their process groups have ended
        _groups.pop(old, None)
    key = (world, tuple(ranks), purpose)
    if key not in _groups:
        # Torch names a group by the calls so far, which are the same on all ranks, or else by the number of this process's groups.
        everyone = ranks == list(range(dist.get_world_size()))
        _groups[key] = dist.new_group(ranks, backend=cpu_backend(), use_local_synchronization=not everyone)
    return _groups[key]


def forget_group(group: dist.ProcessGroup) -> None:
    """After a failure in the group, which every rank sees: the ranks make another one at the next use."""
    for key in [key for key, known in list(_groups.items()) if known is group]:
        _groups.pop(key, None)


def parts_of(t: torch.Tensor, name: str) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """Returns this rank's parts of a tensor, each with its offset in the whole. Parts without elements are left out.

    Raises Unimplemented for a Partial placement, whose local tensors still have to be added up.
    """
    if hasattr(t, "local_shards"):  # the ShardedTensor of FSDP1's state dicts
        found = [(s.tensor, tuple(s.metadata.shard_offsets)) for s in t.local_shards()]
    elif not isinstance(t, DTensor):
        found = [(t, (0,) * t.dim())]
    else:
        if any(isinstance(p, Partial) for p in t.placements):
            raise Unimplemented(f"{name} is placed as {t.placements}", hint="reduce it first: t.redistribute(placements=[Replicate()])")
        shape, offset = _place(t.shape, t.device_mesh, tuple(t.placements), tuple(t.device_mesh.get_coordinate() or ()))
        with torch.no_grad():  # to_local() is a function of autograd otherwise
            local = t.to_local()
        if tuple(local.shape) != tuple(shape):
            raise Unimplemented(f"{name} is placed as {t.placements}, and rank {dist.get_rank()} has {tuple(local.shape)} of it")
        found = [(local, tuple(offset))]
    return [(local.detach() if local.requires_grad else local, offset) for local, offset in found if local.numel()]


@lru_cache(maxsize=4096)  # a step waits for a save's plan, and a model's tensors share few shapes
def _place(shape: torch.Size, mesh: DeviceMesh, placements: tuple, at: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``at``: this rank's coordinate, only as a key of the cache: this process may have been another rank of an earlier, equal mesh."""
    return compute_local_shape_and_global_offset(shape, mesh, placements)


def zeros_on_mesh(shape: tuple[int, ...], dtype: torch.dtype, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """Returns a DTensor of zeros with memory for this rank's part."""
    meta = TensorMeta(torch.Size(shape), torch.empty(shape, device="meta").stride(), dtype)
    part, _ = _place(meta.shape, mesh, placements, tuple(mesh.get_coordinate() or ()))
    return dtensor(torch.zeros(part, dtype=dtype, device=mesh.device_type), DTensorSpec(mesh, placements, meta))


def is_sharded(t: torch.Tensor) -> bool:
    return isinstance(t, DTensor) or hasattr(t, "local_shards")


def sharding_of(t: torch.Tensor, ranks: Ranks) -> str:
    if isinstance(t, DTensor):
        return ", ".join(f"Shard({p.dim})" if hasattr(p, "dim") else f"{type(p).__name__.lstrip('_')}()" for p in t.placements)
    return "Shard(0)" if hasattr(t, "local_shards") else "Replicate()" if ranks.group is None else PLAIN


def is_first_replica(t: torch.Tensor, index: int) -> bool:
    """True on one of the ranks that have the same part of a DTensor. ``index``: the tensor's number, which divides the work."""
    if not isinstance(t, DTensor):
        return True
    mesh = t.device_mesh
    where = mesh.get_coordinate()
    if where is None:
        return False
    copies = [(at, mesh.size(d)) for d, (at, p) in enumerate(zip(where, t.placements, strict=True)) if not hasattr(p, "dim")]
    root = mesh._get_root_mesh()
    if root is not mesh and root.mesh_dim_names and mesh.mesh_dim_names:  # a mesh of some dims: ranks along the others have copies
        others = [d for d, name in enumerate(root.mesh_dim_names) if name not in mesh.mesh_dim_names]
        copies += [(root.get_coordinate()[d], root.size(d)) for d in others]
    for at, size in copies:
        if at != index % size:
            return False
        index //= size
    return True


def elsewhere(device: torch.device, move: str) -> str:
    """Returns the hint for a tensor that is not on the CPU. ``move``: the call that moves the model there."""
    if device.type == "xla":
        return "shoal.spmd.checkpoint saves and loads tensors of shoal.spmd's device: CheckpointManager, or its planners"
    return f"move the model to the CPU: {move}"
