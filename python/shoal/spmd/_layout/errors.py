"""Errors that are of torch_xla's class and of Shoal's, so that scripts that catch either work."""

from __future__ import annotations

import contextlib

from shoal.exceptions import InvalidArgument, ShoalError


class MeshError(InvalidArgument, AssertionError):
    """Error for a mesh that is wrong."""


class SpecError(InvalidArgument, AssertionError):
    """Error for a partition spec that does not fit its mesh or its tensor."""


class MarkError(InvalidArgument, RuntimeError):
    """Error for a tensor that cannot be marked, or that is not marked."""


class DivergedError(InvalidArgument, RuntimeError):
    """Error for processes of one program that have different values."""


def located(error: BaseException, where: str) -> BaseException:
    """Adds the place where an error was raised to its text, and returns the error."""
    if isinstance(error, ShoalError):
        error.context = (*error.context, where)
    elif error.args and isinstance(error.args[0], str) and not isinstance(error, KeyError):
        with contextlib.suppress(AttributeError):  # an exception of the program whose args are read-only
            error.args = (f"{error.args[0]}\n  in: {where}", *error.args[1:])
    return error
