"""The error of an elastic training that cannot recover."""

from __future__ import annotations

from shoal.exceptions import Unavailable


class WorkerLost(Unavailable):
    """A worker of an elastic training is gone with its part of the model, and the others cannot go on. The message has the reason."""

    def __init__(self, message: str = "", **options):
        super().__init__(message, **{"reason": "WorkerLost", **options})
