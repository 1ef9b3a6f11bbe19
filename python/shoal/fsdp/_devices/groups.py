"""The groups of a mesh's ranks whose collectives move parameters and gradients between devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist

from shoal._core.process import state
from shoal._distributed.devices import ASKED, Choice, DeviceGroup, open_group
from shoal.fsdp._parameters.mesh import DataMesh

# Opens the group of these ranks, of which this process is ``ranks[index]``; None: torch's process group.
Open = Callable[[tuple[int, ...], int, torch.device], tuple[DeviceGroup | None, Choice]]


class DeviceGroups:
    """Groups by their ranks. All ranks of a group ask for it in the same order, because the first request of each opens it.

    ``opens`` and ``device_types`` are attributes so that tests can take ranks without devices.
    """

    def __init__(self, opens: Open = open_group):
        self.opens = opens
        self.device_types = ("cuda",)  # meshes of these have groups here; all others have torch's process groups
        self._groups: dict[tuple[int, ...], DeviceGroup | None] = {}

    def shards(self, data: DataMesh) -> DeviceGroup | None:
        """Returns the group of the ranks that share one replica's shards; None: torch's process group moves their bytes."""
        return None if data.shards == 1 else self._group(data, data.shard_dim)

    def replicas(self, data: DataMesh) -> DeviceGroup | None:
        return None if data.replicas == 1 else self._group(data, data.replicate_dim)

    def _group(self, data: DataMesh, dim: int) -> DeviceGroup | None:
        if data.mesh.device_type not in self.device_types:
            return None
        ranks = tuple(dist.get_process_group_ranks(data.mesh.get_group(dim)))
        if ranks not in self._groups:
            group, choice = self.opens(ranks, ranks.index(dist.get_rank()), data.device)
            self._groups[ranks] = group
            if group is not None:
                state.ending.append(lambda: self._close(ranks))
            elif not ASKED and ranks[0] == dist.get_rank():
                warnings.warn(f"ranks {list(ranks)} use torch's process group between their devices: {choice.why}", stacklevel=2)
        return self._groups[ranks]

    def leave_all(self) -> None:
        """Closes all groups: this process's ranks are done with their models."""
        for ranks in list(self._groups):
            self._close(ranks)

    def _close(self, ranks: tuple[int, ...]) -> None:
        group = self._groups.pop(ranks, None)
        if group is not None:
            group.close()


groups = DeviceGroups()
