"""Which of several ranks' errors is the first cause."""

from __future__ import annotations

from shoal.exceptions import ActorDiedError, TaskError

# Texts by which an error of gloo or of torch's stores is recognised as a broken connection: not every version has a class for it.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Connection was likely closed", "Broken pipe")


def is_about_another_rank(error: BaseException) -> bool:
    """Returns True if a rank raised the error because it has lost another one, or the process with the ranks' store."""
    cause = error.cause if isinstance(error, TaskError) else None
    if isinstance(cause, ActorDiedError):
        return True
    return isinstance(cause, RuntimeError) and any(words in str(cause) for words in _LOST_CONNECTION)
