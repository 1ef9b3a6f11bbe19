"""What Shoal raises. One class per code, named by what the caller should do, and the names that users of Ray know beneath them."""

from __future__ import annotations

__all__ = [
    "ActorDiedError",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "GetTimeoutError",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "ResourceExhausted",
    "ShoalError",
    "TaskError",
    "Unavailable",
    "Unimplemented",
]


class ShoalError(Exception):
    """Base of all. ``code`` and ``reason`` are stable names; ``context`` says where it passed, innermost first."""

    code = "Internal"

    def __init__(self, message: str, *, reason: str = "", hint: str = "", context: tuple[str, ...] = ()):
        self.message, self.reason, self.hint, self.context = message, reason, hint, tuple(context)
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message
        if self.context:
            text += "\n  in: " + ", ".join(self.context)
        if self.hint:
            text += "\n  hint: " + self.hint
        return text

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.reason, self.hint, self.context)


def _rebuild(cls, message, reason, hint, context):
    return cls(message, reason=reason, hint=hint, context=context)


class Cancelled(ShoalError):
    """The caller asked for it."""

    code = "Cancelled"


class Unavailable(ShoalError, ConnectionError):
    """Somebody is gone: reconnect or give up."""

    code = "Unavailable"


class DeadlineExceeded(ShoalError, TimeoutError):
    """It took too long: retry or wait longer."""

    code = "DeadlineExceeded"


class ResourceExhausted(ShoalError):
    """Too much at once, or the cluster is too small: back off."""

    code = "ResourceExhausted"


class InvalidArgument(ShoalError, ValueError):
    """The request is wrong: fix it."""

    code = "InvalidArgument"


class NotFound(ShoalError, LookupError):
    """There is no such thing."""

    code = "NotFound"


class DataLoss(ShoalError):
    """Bytes are wrong or gone."""

    code = "DataLoss"


class Unimplemented(ShoalError, NotImplementedError):
    """Not here, not yet."""

    code = "Unimplemented"


class Internal(ShoalError):
    """A bug of ours."""

    code = "Internal"


class ActorDiedError(Unavailable):
    """The actor is dead; the message says how it died and what it said last."""


class GetTimeoutError(DeadlineExceeded):
    """``get`` with a timeout: the value was not there in time."""


# In the order of runtime/core/error.h.
_CODES = [
    Cancelled,
    Unavailable,
    DeadlineExceeded,
    ResourceExhausted,
    InvalidArgument,
    NotFound,
    DataLoss,
    Unimplemented,
    Internal,
]


def from_error(code: int, reason: str, message: str, hint: str, context: list[str]) -> ShoalError:
    """The exception for an Error of the engine."""
    cls = ActorDiedError if reason == "ActorDied" else _CODES[code]
    return cls(message, reason=reason, hint=hint, context=tuple(context))


class TaskError(ShoalError):
    """User code raised on the other side. ``cause`` is what it raised; the message carries its traceback.

    What ``get`` raises is an instance of this *and* of the cause's own class.
    """

    def __init__(self, cause: BaseException | None, traceback_text: str, where: str):
        super().__init__(f"{where} raised\n{traceback_text.rstrip()}", reason="UserCode")
        self.cause, self.traceback_text, self.where = cause, traceback_text, where

    def __reduce__(self):
        return TaskError, (self.cause, self.traceback_text, self.where)

    def as_instance_of_cause(self) -> BaseException:
        """This error as an exception that ``except CauseClass`` catches, too."""
        if self.cause is None or isinstance(self.cause, TaskError):
            return self.cause or self
        cls = type(self.cause)
        outer = self

        class _Both(TaskError, cls):
            def __init__(self):
                self.__dict__.update(getattr(outer.cause, "__dict__", {}))
                TaskError.__init__(self, outer.cause, outer.traceback_text, outer.where)
                self.args = outer.cause.args  # what code that catches the cause's class looks at

            def __str__(self):
                return TaskError.__str__(self)

            def __reduce__(self):
                return _revive, (outer.cause, outer.traceback_text, outer.where)

        _Both.__name__ = f"TaskError({cls.__name__})"
        _Both.__qualname__ = _Both.__name__
        try:
            return _Both()
        except TypeError:  # its class forbids such a mix
            return self


def _revive(cause, traceback_text, where):
    return TaskError(cause, traceback_text, where).as_instance_of_cause()
