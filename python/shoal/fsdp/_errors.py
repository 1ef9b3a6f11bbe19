"""Errors that torch raises for the same faults: each is of Shoal's class and of torch's, and its message begins with torch's words."""

from __future__ import annotations

from shoal.exceptions import InvalidArgument, Unimplemented


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


# ---- FSDP1 ----


class NotTheRoot(InvalidArgument, RuntimeError):
    """A method of the root was called on an inner unit."""


class HookRefused(InvalidArgument, AssertionError):
    """A communication hook was registered on an inner unit, or twice."""


class HookUnsupported(Unimplemented, AssertionError):
    """A communication hook was registered where parameters are replicated."""


class SettingsDiffer(InvalidArgument, AssertionError):
    """The units of one model have different settings of state dicts."""


class OtherConfig(TypeError, RuntimeError):
    """A configuration belongs to another type of state dict."""


class KeyTypeUnknown(TypeError, AssertionError):
    """Keys of an optimizer state are neither to be names nor numbers."""


class OtherType(TypeError, ValueError):
    """An argument is of another type."""


class NoResetParameters(InvalidArgument, AttributeError):
    """A module on the meta device cannot give values to its parameters."""


class SummonedInside(InvalidArgument, AssertionError):
    """Whole parameters were asked for inside a forward or backward pass."""
