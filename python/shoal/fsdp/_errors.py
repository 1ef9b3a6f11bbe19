"""Errors that torch raises for the same faults: each is of Shoal's class and of torch's, and its message begins with torch's words."""

from __future__ import annotations

from shoal.exceptions import InvalidArgument


class ShardedTwice(InvalidArgument, AssertionError):
    """``fully_shard`` was called twice for one module."""


class OnMetaDevice(InvalidArgument, RuntimeError):
    """Parameters were still on the meta device when they were needed."""


class RootRanLater(InvalidArgument, RuntimeError):
    """An inner module ran a forward before the model that contains it."""


class StaleBackward(InvalidArgument, RuntimeError):
    """A backward pass needs values of parameters, or a graph, that are gone."""


class ShardedOutsideForward(InvalidArgument, RuntimeError):
    """A method other than forward computed with a parameter that is sharded."""
