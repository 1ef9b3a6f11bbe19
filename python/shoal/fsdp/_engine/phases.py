"""The life cycle of a unit: the view of the parameters that its modules hold, and the progress of its forwards and their backward."""

from __future__ import annotations

import enum


class Shown(enum.Enum):
    """The views of a unit's parameters, one of which its modules hold."""

    SHARDED = enum.auto()
    UNSHARDED = enum.auto()
    POST_FORWARD = enum.auto()  # sharded over a smaller mesh, or a Whole, which intercepts writes


class Phase(enum.Enum):
    """A unit's place between its forwards with gradients and the end of their backward."""

    IDLE = enum.auto()
    RAN = enum.auto()  # a forward with gradients has run, or runs
    BACKWARD = enum.auto()  # the unit's backward runs; in a checkpoint, a forward may run again inside
