"""Opens a dead rank's record in memory of the node: its rows, its optimizer states, and their step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shoal import _native


@dataclass(frozen=True, slots=True)
class AdoptedArray:
    """One array of a parameter's shard. ``values``: flat, in the record's memory. They are the elements
    ``[begin + k * stride, begin + k * stride + length)`` of the whole parameter, for each k below ``runs``."""

    name: str  # "param", "step" (number of updates), or the name of a state
    unit: int  # positions of unit and parameter, as in the model
    parameter: int
    begin: int
    length: int
    stride: int
    runs: int
    values: torch.Tensor

    def within(self, begin: int, end: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (position in the whole parameter, values) of this array's elements in ``[begin, end)``, run by run."""
        for k in range(self.runs):
            first = self.begin + k * self.stride
            low, high = max(begin, first), min(end, first + self.length)
            if low < high:
                yield low, self.values[k * self.length + low - first : k * self.length + high - first]


class AdoptedRank:
    """A dead rank's shard, opened by this process. The node keeps it until ``release``: if this process dies, another one can adopt it."""

    def __init__(self, actor: _native.ShardActor, key: str):
        self._actor, self._native = actor, actor.adopt(key)
        native = self._native
        self.rank, self.world_size, self.replicas = native.rank, native.world_size, native.replicas

    @property
    def words(self) -> tuple[int, int, int]:
        """Numbers of steps: (recorded, begun, finished), for ``committed_step``."""
        return self._native.words

    def settle(self, committed: int) -> None:
        """Brings the shard to the committed step; finishes the rank's update where that is due.

        Raises Unavailable while the rank's process lives, and DataLoss if the record cannot yield that step.
        """
        self._native.settle(committed)

    def release(self) -> None:
        """Frees the record at the node: rows and states have new owners. Tensors over its memory stay valid."""
        self._actor.release(self._native)

    def arrays(self) -> list[AdoptedArray]:
        """Returns every array of the shard. To be called after ``settle``. If "step" is 0, the states have no meaning."""
        return [
            AdoptedArray(name, unit, parameter, *piece, values.view(getattr(torch, dtype)))
            for name, unit, parameter, dtype, piece, values in self._native.arrays
        ]


def adopt(actor: _native.ShardActor, key: str) -> AdoptedRank:
    """Opens the record of a dead rank of this host. ``key``: ``Protection.record.key``, or ``key_of`` a rank. ``actor``: any of this
    process. Raises NotFound if there is no such record, DataLoss if it is damaged."""
    return AdoptedRank(actor, key)
