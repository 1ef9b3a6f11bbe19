"""``register_serializer``: how instances of a class travel, in place of their pickles. Names are Ray's."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

__all__ = ["deregister_serializer", "register_serializer"]


def register_serializer(cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """In this process: whoever sends some has to register it. ``deserializer`` travels along."""
    copyreg.pickle(cls, lambda value: (deserializer, (serializer(value),)))


def deregister_serializer(cls: type) -> None:
    """Does nothing where there is none."""
    copyreg.dispatch_table.pop(cls, None)
