"""Numbers as users give them: of numpy and others as well as Python's own."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["amount", "flag", "number", "whole"]

_BOOLS = ("bool", "bool_")  # Python's, and numpy's under its names


def whole(name: str, value: Any) -> int:
    """``value`` as an int: what stands for one (``__index__``), such as numpy's integers, but no bool. TypeError otherwise."""
    if type(value) is int:
        return value
    if type(value).__name__ not in _BOOLS:
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} is an int, not {type(value).__name__}")


def number(name: str, value: Any) -> int | float:
    """``value`` as an int or float: what stands for one (``__index__``, ``__float__``), but no bool. TypeError otherwise."""
    if type(value) is int or type(value) is float:
        return value
    if type(value).__name__ not in _BOOLS and (hasattr(value, "__index__") or hasattr(value, "__float__")):
        try:
            return operator.index(value)
        except (AttributeError, TypeError):  # an array of floats has the method, too
            return float(value)
    raise TypeError(f"{name} is a number, not {type(value).__name__}")


def amount(name: str, value: Any) -> int | float:
    """``value`` as a finite int or float of at least 0. TypeError or ValueError otherwise."""
    value = number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is 0 or more, not {value}")
    return value


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool: Python's or numpy's. TypeError otherwise."""
    if type(value).__name__ not in _BOOLS:
        raise TypeError(f"{name} is a bool, not {type(value).__name__}")
    return bool(value)
