"""The mesh of a unit, from process groups or a mesh, and the sharding strategy."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shoal._core.variables import variable
from shoal._distributed.ranks import require_process_group
from shoal.exceptions import InvalidArgument
from shoal.fsdp1._arguments import HYBRID, check
from shoal.fsdp1.api import ShardingStrategy

_NAMES = ("replicate", "shard")


def base_mesh(process_group: Any, device_mesh: DeviceMesh | None, strategy: ShardingStrategy, auto_wrap: bool, device: str) -> DeviceMesh:
    """Returns a 1-D mesh, or a 2-D one (replicate, shard) for a hybrid strategy. Other strategies shard over the first dim of
    ``device_mesh``; along its further dims (of tensor parallelism) ranks hold copies.

    ``process_group``: a group, or for a hybrid strategy a pair (shard, replicate). Without it and ``device_mesh`` all ranks take part; a
    hybrid strategy then shards over the ranks of a host and replicates over hosts. Raises InvalidArgument for arguments that do not fit.
    """
    if process_group is not None and device_mesh is not None:
        raise InvalidArgument("Cannot pass both process_group and device_mesh at the same time. Please just pass only one of them.")
    hybrid = strategy in HYBRID
    if device_mesh is not None:
        if hybrid and device_mesh.ndim != 2:
            raise InvalidArgument(
                f"Expected device_mesh to have ndim=2 but got {device_mesh.ndim} with {strategy.name}",
                hint="init_device_mesh(..., (replicas, shards))",
            )
        if hybrid or device_mesh.ndim == 1:
            return device_mesh
        names = device_mesh.mesh_dim_names
        return device_mesh[names[0]] if names else DeviceMesh.from_group(device_mesh.get_group(0), device_mesh.device_type)
    require_process_group("gloo" if device == "cpu" else None)
    if not hybrid:
        if isinstance(process_group, tuple):
            raise InvalidArgument(f"{strategy.name} takes one process group, not {len(process_group)}", hint="pairs are for HYBRID_SHARD")
        check("process_group", process_group, dist.ProcessGroup)
        group = process_group if process_group is not None else dist.group.WORLD
        return DeviceMesh.from_group(group, device)
    if process_group is None:
        if not auto_wrap:
            raise InvalidArgument(
                f"Manual wrapping with {strategy} requires explicit specification of process group or device_mesh. Units must share their "
                "groups",
                hint="pass device_mesh (2-D), or process_group=(shard, replicate)",
            )
        world = dist.get_world_size()
        per_host = int(variable("LOCAL_WORLD_SIZE", world))
        if world % per_host:
            raise InvalidArgument(f"{world} ranks do not fill hosts of {per_host}", hint="pass a 2-D device_mesh")
        return init_device_mesh(device, (world // per_host, per_host), mesh_dim_names=_NAMES)
    if not (isinstance(process_group, tuple) and len(process_group) == 2):
        raise InvalidArgument(
            "Expected process_group to be passed in as either None or Tuple[dist.ProcessGroup, dist.ProcessGroup] but got "
            f"{type(process_group)}: {strategy.name} takes process_group=(shard, replicate)"
        )
    for group in process_group:
        check("a member of process_group", group, dist.ProcessGroup, optional=False)
    return _from_groups(*process_group, device)


def _from_groups(shard: dist.ProcessGroup, replicate: dist.ProcessGroup, device: str) -> DeviceMesh:
    """The mesh whose rows are the shard groups. Ranks exchange their groups, because each has only its own."""
    rows: list = [None] * dist.get_world_size()
    dist.all_gather_object(rows, dist.get_process_group_ranks(shard))
    replicas = dist.get_process_group_ranks(replicate)
    ranks = torch.tensor([rows[r] for r in replicas])
    return DeviceMesh.from_group([replicate, shard], device, mesh=ranks, mesh_dim_names=_NAMES)


def unit_mesh(base: DeviceMesh, strategy: ShardingStrategy) -> DeviceMesh:
    """The mesh for ``fully_shard``. NO_SHARD makes every rank a replica with a single shard."""
    if strategy is not ShardingStrategy.NO_SHARD:
        return base
    found = base.__dict__.get("_shoal_replicated")
    if found is None:
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)  # only this rank takes part
        ranks = base.mesh.reshape(-1, 1)
        found = DeviceMesh.from_group([base.get_group(), alone], base.device_type, mesh=ranks, mesh_dim_names=_NAMES)
        base._shoal_replicated = found
    return found
