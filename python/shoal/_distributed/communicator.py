"""The communicator of ranks that do not all share memory."""

from __future__ import annotations

from shoal import _native
from shoal._distributed.process_group import ProcessGroupBackend
from shoal._distributed.ranks import TIMEOUT, WARN_AFTER

__all__ = ["process_group_communicator"]


def process_group_communicator(name: str, ranks: tuple[int, ...]) -> _native.Communicator:
    """Returns a communicator of ranks that do not all share memory; gloo moves the bytes."""
    mover = ProcessGroupBackend(ranks, name, TIMEOUT, WARN_AFTER)
    return _native.Communicator.over(mover, rank=mover.rank, world_size=mover.world_size, transport="gloo")
