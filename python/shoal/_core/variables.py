"""Environment variables. One that is set to nothing counts as not set, since templates of scripts and containers leave some empty."""

from __future__ import annotations

import os
from typing import TypeVar

from _shoal_switch import OFF, ON

from shoal.exceptions import InvalidArgument

__all__ = ["switch", "variable"]

T = TypeVar("T")


def variable(name: str, default: T = "") -> str | T:
    """Returns the variable, or ``default`` if it is not set."""
    return os.environ.get(name) or default


def switch(name: str, default: bool = False) -> bool:
    """Returns True if the variable is on, in upper or lower case. InvalidArgument for a value that is neither on nor off."""
    value = variable(name)
    if not (word := value.strip().lower()):
        return default
    if word not in ON + OFF:
        raise InvalidArgument(f"{name} is 1, true, on or yes, or 0, false, off, no or empty, not {value!r}")
    return word in ON
