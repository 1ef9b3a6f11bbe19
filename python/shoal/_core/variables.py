"""Environment variables. One that is set to nothing counts as not set, since templates of scripts and containers leave some empty."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["variable"]

T = TypeVar("T")


def variable(name: str, default: T = "") -> str | T:
    """Returns the variable, or ``default`` if it is not set."""
    return os.environ.get(name) or default
