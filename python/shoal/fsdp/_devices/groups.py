"""The groups of a mesh's ranks whose collectives move parameters and gradients between devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from shoal._core.process import state
from shoal._distributed.devices import PROCESS_GROUP, Choice, DeviceGroup, open_group
from shoal.fsdp._parameters.mesh import DataMesh

# Opens the group of these ranks, of which this process is ``ranks[index]``; None: torch's process group.
Open = Callable[[tuple[int, ...], int, torch.device], tuple[DeviceGroup | None, Choice]]


def open_mesh_group(ranks: tuple[int, ...], index: int, device: torch.device) -> tuple[DeviceGroup | None, Choice]:
    """Opens Shoal's own group if ``SHOAL_DEVICE_TRANSPORT`` names its transport. Process groups are the default, because Shoal's have not
    run on several devices yet."""
    return open_group(ranks, index, device, default=PROCESS_GROUP)


class DeviceGroups:
    """Groups by their ranks. All ranks have to request their groups in the same order, because the first request of a group opens it.

    ``opens`` and ``device_types`` are attributes so that tests can use ranks without devices.
    """

    def __init__(self, opens: Open = open_mesh_group):
        self.opens = opens
        self.device_types = ("cuda",)  # meshes of these have groups here; all others have torch's process groups
        self._groups: dict[tuple[tuple[int, ...], int], DeviceGroup | None] = {}

    def shards(self, data: DataMesh) -> DeviceGroup | None:
        """Returns the group of the ranks that share one replica's shards; None: torch's process group moves their bytes."""
        return None if data.shards == 1 else self._group(data, data.shard_dim)

    def replicas(self, data: DataMesh) -> DeviceGroup | None:
        return None if data.replicas == 1 else self._group(data, data.replicate_dim)

    def failure(self, data: DataMesh) -> Exception | None:
        """Returns what has ended an open group of the mesh, or None. Sums of that group may have a part of their gradients only."""
        if data.mesh.device_type not in self.device_types or not any(list(self._groups.values())):
            return None
        dims = [*([data.shard_dim] if data.shards > 1 else []), *([data.replicate_dim] if data.replicas > 1 else [])]
        opened = (self._groups.get(self._key(data, dim)) for dim in dims)
        return next((failure for group in opened if group is not None and (failure := group.native.failed()) is not None), None)

    @staticmethod
    def _key(data: DataMesh, dim: int) -> tuple[tuple[int, ...], int]:
        ranks = tuple(dist.get_process_group_ranks(data.mesh.get_group(dim)))
        return ranks, ranks.index(dist.get_rank())  # the index too, because ranks may be threads of one process

    def _group(self, data: DataMesh, dim: int) -> DeviceGroup | None:
        if data.mesh.device_type not in self.device_types:
            return None
        key = self._key(data, dim)
        if key not in self._groups:
            group, _ = self.opens(*key, data.device)
            self._groups[key] = group
            if group is not None:
                state.ending.append(lambda: self._close(key))
        return self._groups[key]

    def leave_all(self) -> None:
        """Closes all groups: this process's ranks are done with their models."""
        for key in list(self._groups):
            self._close(key)

    def _close(self, key: tuple[tuple[int, ...], int]) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            group.close()


groups = DeviceGroups()
