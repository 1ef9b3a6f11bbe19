"""Shoal's errors as torch's: a program that catches ``RuntimeError`` or ``DistBackendError`` catches them, too."""

from __future__ import annotations

import torch.distributed as dist

from shoal.exceptions import ShoalError

_classes: dict[type[ShoalError], type[ShoalError]] = {}


def _reduce(self: ShoalError):
    base = type(self).__mro__[1]  # the class made here has no importable name
    return base, (self.message,), {"reason": self.reason, "hint": self.hint, "context": self.context, "cause_reason": self.cause_reason}


def as_torch(error: ShoalError) -> ShoalError:
    """Returns the same error, as an instance of its own class and of torch's ``DistBackendError`` (a ``RuntimeError``)."""
    if isinstance(error, dist.DistBackendError):
        return error
    base = type(error)
    raised = _classes.get(base)
    if raised is None:
        names = {"__module__": base.__module__, "__doc__": base.__doc__, "__reduce__": _reduce}
        raised = _classes[base] = type(base.__name__, (base, dist.DistBackendError), names)
    return raised(error.message, reason=error.reason, hint=error.hint, context=error.context, cause_reason=error.cause_reason)
