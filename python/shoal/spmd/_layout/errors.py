"""Errors that are of torch_xla's class and of Shoal's, so that scripts that catch either work."""

from __future__ import annotations

from shoal.exceptions import InvalidArgument, ShoalError


class MeshError(InvalidArgument, AssertionError):
    """The mesh is wrong: fix it."""


class SpecError(InvalidArgument, AssertionError):
    """The partition spec does not fit its mesh or its tensor: fix it."""


class MarkError(InvalidArgument, RuntimeError):
    """The tensor cannot be marked, or is not marked: fix it."""


class DivergedError(InvalidArgument, RuntimeError):
    """Processes that run one program have different values: fix the program."""


def located(error: BaseException, where: str) -> BaseException:
    """Returns the error itself, with the place where it was raised added to its text."""
    if isinstance(error, ShoalError):
        error.context = (*error.context, where)
    elif error.args and isinstance(error.args[0], str) and not isinstance(error, KeyError):
        error.args = (f"{error.args[0]}\n  in: {where}", *error.args[1:])
    return error
