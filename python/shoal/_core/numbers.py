"""Checks of numbers from users: Python's own, numpy's and others."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["amount", "flag", "number", "whole"]

_BOOLS = ("bool", "bool_")  # bool of Python, both names of numpy


def whole(name: str, value: Any) -> int:
    """Returns ``value`` as an int. It accepts any ``__index__``, such as numpy's integers, but no bool. TypeError otherwise."""
    if type(value) is int:
        return value
    if type(value).__name__ not in _BOOLS:
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} is an int, not {type(value).__name__}")


def number(name: str, value: Any) -> int | float:
    """Returns ``value`` as an int or float. It accepts any ``__index__`` or ``__float__``, but no bool. TypeError otherwise."""
    if type(value) is int or type(value) is float:
        return value
    if type(value).__name__ not in _BOOLS and (hasattr(value, "__index__") or hasattr(value, "__float__")):
        try:
            return operator.index(value)
        except (AttributeError, TypeError):  # an array of floats has __index__, too
            return float(value)
    raise TypeError(f"{name} is a number, not {type(value).__name__}")


def amount(name: str, value: Any) -> int | float:
    """Returns ``value`` as a finite int or float of at least 0. TypeError or ValueError otherwise."""
    value = number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is 0 or more, not {value}")
    return value


def flag(name: str, value: Any) -> bool:
    """Returns ``value``, Python's or numpy's, as a bool. TypeError otherwise."""
    if type(value).__name__ not in _BOOLS:
        raise TypeError(f"{name} is a bool, not {type(value).__name__}")
    return bool(value)
