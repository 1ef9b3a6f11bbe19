"""Ids as objects, under Ray's names: hexadecimal text with ``hex()``, ``binary()`` and ``is_nil()``."""

from __future__ import annotations

__all__ = ["ActorID", "JobID", "NodeID", "ObjectID", "PlacementGroupID", "TaskID", "UniqueID", "WorkerID"]


class UniqueID(str):
    """An id that equals its text."""

    __slots__ = ()
    _digits = 16

    @classmethod
    def from_hex(cls, text: str):
        bytes.fromhex(text)  # ValueError
        return cls(text)

    @classmethod
    def from_binary(cls, data: bytes):
        return cls(data.hex())

    @classmethod
    def nil(cls):
        return cls("0" * cls._digits)

    @classmethod
    def size(cls) -> int:
        """The size in bytes."""
        return cls._digits // 2

    def hex(self) -> str:
        return str(self)

    def binary(self) -> bytes:
        return bytes.fromhex(self)

    def is_nil(self) -> bool:
        return not self.strip("0")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


class ActorID(UniqueID):
    __slots__ = ()


class JobID(UniqueID):
    __slots__ = ()


class NodeID(UniqueID):
    __slots__ = ()


class ObjectID(UniqueID):
    __slots__ = ()
    _digits = 32


class PlacementGroupID(UniqueID):
    __slots__ = ()


class TaskID(UniqueID):
    __slots__ = ()
    _digits = 32


class WorkerID(UniqueID):
    __slots__ = ()
