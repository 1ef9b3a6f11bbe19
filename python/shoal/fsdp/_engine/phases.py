"""The life cycle of a unit: which view its modules hold, and how far its forwards and their backward are."""

from __future__ import annotations

import enum


class Shown(enum.Enum):
    """The view of the parameters that modules hold."""

    SHARDED = enum.auto()
    UNSHARDED = enum.auto()
    POST_FORWARD = enum.auto()  # on a smaller mesh, or as a Whole


class Phase(enum.Enum):
    """A unit's place between its forwards with gradients and the end of their backward."""

    IDLE = enum.auto()
    RAN = enum.auto()  # a forward with gradients has run, or runs
    BACKWARD = enum.auto()  # its backward runs; a forward may run again inside
