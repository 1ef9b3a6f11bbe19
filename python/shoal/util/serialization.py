"""``register_serializer``: custom pickling of a class's instances. Names are Ray's."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

__all__ = ["deregister_serializer", "register_serializer"]


def register_serializer(cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """Registers functions for this process; each sending process must do so. ``deserializer`` is sent along."""
    copyreg.pickle(cls, lambda value: (deserializer, (serializer(value),)))


def deregister_serializer(cls: type) -> None:
    """Removes the functions for ``cls``, if any."""
    copyreg.dispatch_table.pop(cls, None)
