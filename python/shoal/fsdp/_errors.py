"""Errors for faults that torch also raises: each has Shoal's class and torch's, and its message begins with torch's."""

from __future__ import annotations

from shoal.exceptions import InvalidArgument, Unimplemented


class ShardedTwice(InvalidArgument, AssertionError):
    """``fully_shard`` was called twice for one module."""


class OnMetaDevice(InvalidArgument, RuntimeError):
    """Parameters were still on the meta device when they were needed."""


class RootRanLater(InvalidArgument, RuntimeError):
    """An inner module ran a forward before the model that contains it."""


class StaleBackward(InvalidArgument, RuntimeError):
    """A backward pass needs parameter values, or a graph, that no longer exist."""


class ShardedOutsideForward(InvalidArgument, RuntimeError):
    """A method other than forward computed with a sharded parameter."""


# ---- FSDP1 ----


class NotTheRoot(InvalidArgument, RuntimeError):
    """A method of the root was called on an inner unit."""


class HookRefused(InvalidArgument, AssertionError):
    """A communication hook was registered on an inner unit, or twice."""


class HookUnsupported(Unimplemented, AssertionError):
    """A communication hook was registered where parameters are replicated."""


class SettingsDiffer(InvalidArgument, AssertionError):
    """The units of one model have different state dict settings."""


class OtherConfig(TypeError, RuntimeError):
    """A configuration belongs to another type of state dict."""


class KeyTypeUnknown(TypeError, AssertionError):
    """The requested key type of an optimizer state is neither names nor numbers."""


class OtherType(TypeError, ValueError):
    """An argument has the wrong type."""


class NoResetParameters(InvalidArgument, AttributeError):
    """A module on the meta device has no reset_parameters to initialise its parameters."""


class SummonedInside(InvalidArgument, AssertionError):
    """Unsharded parameters were requested inside a forward or backward pass."""
