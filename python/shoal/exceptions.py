"""The exceptions that Shoal raises: one class per error code, named by the caller's reaction, with Ray's names as subclasses."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable

from shoal._printable import printable_lines

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorNotFound",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "Cancelled",
    "CrossLanguageError",
    "DataLoss",
    "DeadlineExceeded",
    "GetTimeoutError",
    "Internal",
    "InvalidArgument",
    "LocalRayletDiedError",
    "NodeDiedError",
    "NotFound",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReferenceCountingAssertionError",
    "ResourceExhausted",
    "RpcError",
    "RuntimeEnvSetupError",
    "ShoalError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "Unavailable",
    "Unimplemented",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
]


class ShoalError(Exception):
    """Base of all. ``code`` and ``reason`` are stable names; ``context`` lists the places that it passed, innermost first. ``cause_reason``
    is the reason of the error that caused this one. ``str()`` is for people: control characters are escaped, and ``message`` has them."""

    code = "Internal"

    def __init__(self, message: str = "", *, reason: str = "", hint: str = "", context: tuple[str, ...] = (), cause_reason: str = ""):
        message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.message, self.reason, self.hint, self.context, self.cause_reason = message, reason, hint, tuple(context), cause_reason
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message
        if self.context:
            text += "\n  in: " + ", ".join(self.context)
        if self.hint:
            text += "\n  hint: " + self.hint
        return printable_lines(text)

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.reason, self.hint, self.context, self.cause_reason)


def _rebuild(cls, message, reason, hint, context, cause_reason):
    return cls(message, reason=reason, hint=hint, context=context, cause_reason=cause_reason)


class Cancelled(ShoalError):
    """The caller has cancelled the operation."""

    code = "Cancelled"


class Unavailable(ShoalError):
    """A process or a connection is gone: reconnect or give up."""

    code = "Unavailable"


class DeadlineExceeded(ShoalError, TimeoutError):
    """The time limit has passed: retry or wait longer."""

    code = "DeadlineExceeded"


class ResourceExhausted(ShoalError):
    """The request exceeds what is free, or the whole cluster: wait, or ask for less."""

    code = "ResourceExhausted"


class InvalidArgument(ShoalError, ValueError):
    """The request is wrong: fix it."""

    code = "InvalidArgument"


class NotFound(ShoalError, LookupError):
    """The named object does not exist."""

    code = "NotFound"


class DataLoss(ShoalError):
    """Stored or sent bytes are damaged or gone."""

    code = "DataLoss"


class Unimplemented(ShoalError, NotImplementedError):
    """This release does not have the feature: use the alternative in the hint."""

    code = "Unimplemented"


class Internal(ShoalError):
    """A bug of Shoal."""

    code = "Internal"


# ---- Ray's names. The base class (the code) gives the reaction, the name gives the cause. Classes marked "For ``except`` alone" are
# never raised.


class RpcError(Unavailable, ConnectionError):
    """The head, a node or the way to it does not answer."""


class LocalRayletDiedError(RpcError):
    """The node of this process is gone."""


class NodeDiedError(Unavailable):
    """A node is gone, or cannot be reached."""


class RayActorError(Unavailable):
    """A call on an actor failed, but not by an exception of its code."""

    @property
    def error_msg(self) -> str:
        """The message, by Ray's name."""
        return str(self)

    @property
    def preempted(self) -> bool:
        """True if the actor's node was drained."""
        return self.cause_reason == "NodeDrained"

    @property
    def actor_id(self) -> str | None:
        """The id of the actor, where it is known."""
        for frame in self.context:
            if frame.startswith("actor ") and frame.endswith(")"):
                return frame[:-1].rpartition("(")[2]
        return None


class ActorDiedError(RayActorError):
    """The actor is dead; the message has the cause of its death, and its last output."""


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached now, but may be later: its process is started again, or the connection to it broke.

    The call may have been executed."""


class WorkerCrashedError(Unavailable):
    """The process that ran a remote function died, each time that it was run."""


class ObjectLostError(Unavailable):
    """A value is lost."""


class ObjectFreedError(ObjectLostError):
    """The object was freed, as no reference to it was left, before this call asked for it."""


class OwnerDiedError(ObjectLostError):
    """The process that was to make a value, or had it, is gone."""


class ObjectReconstructionFailedError(ObjectLostError):
    """A value could not be made again. For ``except`` alone: Shoal makes none again."""


class ObjectFetchTimedOutError(ObjectLostError):
    """A value did not come from another node. For ``except`` alone."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """A value was deleted despite a reference to it. For ``except`` alone."""


class PlasmaObjectNotAvailable(Unavailable):
    """A value is not in the store. For ``except`` alone."""


class ActorNotFound(NotFound, ValueError):
    """No living actor has this name in this namespace."""


class ActorHandleNotFoundError(NotFound, ValueError):
    """The cluster does not know the actor of this handle."""


class ActorAlreadyExistsError(InvalidArgument):
    """A living actor or a placement group has this name already."""


class AuthenticationError(InvalidArgument):
    """The cluster's token is missing or wrong."""


class CrossLanguageError(Unimplemented):
    """The actor is of another language."""


class UserCodeException(ShoalError):
    """User code raised an exception while Shoal ran it. For ``except`` alone: TaskError is what ``get`` raises."""


class UnserializableException(ShoalError):
    """The exception that was raised could not travel. For ``except`` alone: a TaskError without a cause is what ``get`` raises."""


class ObjectRefStreamEndOfStreamError(ShoalError):
    """A generator has no more results. For ``except`` alone: Shoal raises StopIteration."""


class StreamingGeneratorReplayInconsistentError(Internal):
    """A generator that was run again had another number of results. For ``except`` alone."""


class OufOfBandObjectRefSerializationException(ShoalError):
    """A reference was pickled by other means than Shoal's. For ``except`` alone."""


class RayDirectTransportError(Internal):
    """A tensor did not come from another device. For ``except`` alone."""


class TaskPlacementGroupRemoved(Cancelled):
    """The placement group of a remote function, or of a waiting ``ready()``, was removed."""


class ActorPlacementGroupRemoved(Cancelled):
    """The placement group of an actor was removed before it was made."""


class GetTimeoutError(DeadlineExceeded):
    """The value did not arrive within the timeout of ``get``."""


class TaskCancelledError(Cancelled):
    """The call was cancelled."""


class PendingCallsLimitExceeded(ResourceExhausted):
    """More calls wait for an actor than its ``max_pending_calls``."""


class TaskUnschedulableError(ResourceExhausted):
    """No node can ever run the function."""


class ActorUnschedulableError(ResourceExhausted):
    """No node can ever hold the actor."""


class OutOfMemoryError(ResourceExhausted):
    """The process that ran a function (each time that it was run), or an actor's, was killed because its node ran out of memory."""


class ObjectStoreFullError(ResourceExhausted):
    """There is no room for a value."""


class OutOfDiskError(ResourceExhausted):
    """The disk is full. For ``except`` alone: a value for which there is room nowhere raises ObjectStoreFullError."""


class RayChannelError(Unavailable, Internal):
    """A compiled graph has ended, so its values have no receivers."""


class RayChannelTimeoutError(RayChannelError, DeadlineExceeded):
    """A compiled graph's result did not arrive in time. The program may ask for it again."""

    code = "DeadlineExceeded"


class RayCgraphCapacityExceeded(ResourceExhausted, Internal):
    """More executions of a compiled graph are under way than its ``_max_inflight_executions``."""


class RuntimeEnvSetupError(InvalidArgument):
    """The environment that a function or an actor asked for could not be made."""


class AsyncioActorExit(ShoalError):
    """``exit_actor`` was called in an async actor. User code must not catch it."""

    code = "Cancelled"


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


# Failures that Ray has a name for, by reason.
_REASONS = {
    "ActorDied": ActorDiedError,
    "ActorUnavailable": ActorUnavailableError,
    "ChannelClosed": RayChannelError,
    "ChannelTimeout": RayChannelTimeoutError,
    "ObjectFreed": ObjectFreedError,
    "ObjectLetGo": ObjectFreedError,
    "ObjectLost": ObjectLostError,
    "ObjectStoreFull": ObjectStoreFullError,
    "OutOfMemory": OutOfMemoryError,
    "OwnerDied": OwnerDiedError,
    "TaskCancelled": TaskCancelledError,
    "TaskUnschedulable": TaskUnschedulableError,
    "WorkerCrashed": WorkerCrashedError,
    "NameTaken": ActorAlreadyExistsError,
    "NodeGone": LocalRayletDiedError,
    "NoSuchName": ActorNotFound,
    "NodeLost": NodeDiedError,
    "TokenRefused": AuthenticationError,
    "Unschedulable": ActorUnschedulableError,
}


def from_error(code: int, reason: str, message: str, hint: str, context: list[str], cause_reason: str = "") -> ShoalError:
    """Returns the exception for an Error of the engine."""
    cls = _REASONS.get(reason, RpcError if _CODES[code] is Unavailable else _CODES[code])
    if reason == "GroupRemoved" and cls is Cancelled:
        cls = TaskPlacementGroupRemoved
    return cls(message, reason=reason, hint=hint, context=tuple(context), cause_reason=cause_reason)


_OURS = {"code", "reason", "message", "hint", "context", "cause_reason"}


_causes: dict[str, Callable] = {}  # "pack" and "unpack" of a TaskError's cause


def pickle_causes_by(pack: Callable[[BaseException | None], bytes], unpack: Callable[[bytes], BaseException | None]) -> None:
    """Sets the functions that pickle causes. ``shoal._core.serialize`` calls it, because that module imports this one."""
    _causes.update(pack=pack, unpack=unpack)


class TaskError(ShoalError):
    """User code raised on the other side. ``cause`` is what it raised; the message carries its traceback, and those of
    the calls that it passed through, outermost first.

    The exception that ``get`` raises is an instance of this *and* of the cause's own class. ``cause`` is None if it could not be pickled;
    the message is complete in any case. ``pid`` and ``ip`` belong to the process that ran the code (0 and "" if unknown). Ray's names:
    ``function_name`` is ``where``, ``traceback_str`` is ``traceback_text``, ``proctitle`` is Ray's title of that process.
    """

    def __init__(self, cause: BaseException | None, traceback_text: str, where: str, pid: int = 0, ip: str = ""):
        super().__init__(f"{where} raised\n{traceback_text.rstrip()}", reason="UserCode")
        self.cause, self.traceback_text, self.where, self.pid, self.ip = cause, traceback_text, where, pid, ip
        self.function_name, self.traceback_str, self.proctitle = where, traceback_text, f"ray::{where}"

    def __reduce__(self):
        return _unpack, (_causes["pack"](self.cause), self.traceback_text, self.where, self.pid, self.ip)

    @property
    def _shoal_error(self) -> TaskError:
        """This error without attributes of its cause; an instance of the combined class overrides it."""
        return self

    def as_instanceof_cause(self) -> Exception:
        """Ray's spelling of ``as_instance_of_cause``."""
        return self.as_instance_of_cause()

    def as_instance_of_cause(self) -> Exception:
        """Returns this error as an exception that ``except CauseClass`` catches, too. It has the cause's attributes, except ``cause``.

        Returns self for a cause of SystemExit, KeyboardInterrupt or GeneratorExit: those must not end the caller's process.
        """
        if isinstance(self.cause, TaskError):
            return self.cause
        if self.cause is None or isinstance(self.cause, SystemExit | KeyboardInterrupt | GeneratorExit):
            return self
        cls, outer = type(self.cause), self
        args, attributes = parts(self.cause)

        def text(self) -> str:
            return str(outer)

        def reduced(self):
            return _unpack_as_cause, outer.__reduce__()[1]

        try:
            body = {"__str__": text, "__reduce__": reduced, "_shoal_error": outer}
            if not issubclass(cls, ShoalError):  # TaskError's class attributes would hide the cause's
                body.update((name, vars(base)[name]) for base in reversed(cls.__mro__) for name in _OURS & vars(base).keys())
            both = type(f"TaskError({cls.__name__})", (TaskError, cls), body)
            own = {name: value for name, value in vars(outer).items() if name not in body}
            return bare(both, args, {**own, **attributes, "cause": self.cause})
        except Exception:  # the cause's class cannot be combined
            return self


RayError, RayTaskError, RaySystemError = ShoalError, TaskError, Internal


def _unpack(packed: bytes, *origin) -> TaskError:
    return TaskError(_causes["unpack"](packed), *origin)


def _unpack_as_cause(packed: bytes, *origin) -> Exception:
    return _unpack(packed, *origin).as_instance_of_cause()


def parts(error: BaseException) -> tuple[tuple, dict]:
    """Returns (args, attributes) of an exception, including those of C structs and slots."""
    attributes = {}
    for cls in type(error).__mro__:
        for name, member in vars(cls).items():
            # `obj` of an AttributeError is left out: it may be large (a whole actor).
            if isinstance(member, _MEMBERS) and not name.startswith("__") and name not in ("args", "obj"):
                with contextlib.suppress(AttributeError):
                    value = getattr(error, name)
                    if value is not None or cls.__module__ != "builtins":  # OSError distinguishes None from unset
                        attributes[name] = value
    return _ARGS.__get__(error), {**attributes, **getattr(error, "__dict__", {})}


_ARGS = BaseException.__dict__["args"]  # reads the args even if the class has a property of this name
_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _new(cls: type[BaseException], args: tuple) -> BaseException:
    """Calls ``__new__`` of the built-in base that determines the memory layout, usually the first one in the MRO."""
    builtin = [c for c in cls.__mro__ if c.__module__ == "builtins"]
    while True:
        try:
            return builtin[0].__new__(cls, *args)
        except TypeError:
            if len(builtin) == 2:  # object.__new__ cannot make an exception
                raise
            del builtin[0]


def bare(cls: type[BaseException], args: tuple, attributes: dict) -> BaseException:
    """Makes an exception from its parts, without calling its ``__init__``, which may require other arguments than ``args``."""
    error = _new(cls, args)
    _ARGS.__set__(error, args)
    for name, value in attributes.items():
        if isinstance(getattr(cls, name, None), property):
            continue
        with contextlib.suppress(AttributeError, TypeError):  # read-only members, which __new__ has set
            object.__setattr__(error, name, value)
    return error
