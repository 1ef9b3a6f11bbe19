"""One call on the worker's side: its arguments, its answer, and the end of the actor that it may cause."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Generator
from itertools import islice
from typing import Any

from shoal import _native
from shoal._actors.calls import NO_ARGUMENTS, Dep
from shoal._core import serialize
from shoal._core.context import CallInfo, method_of, running
from shoal._objects import streams
from shoal._objects.values import put
from shoal._worker.ending import ActorExit, take_graph_calls, unless_left
from shoal.exceptions import TaskCancelledError

__all__ = ["LATER", "arguments", "end", "exit_code", "fail_creation", "refuse", "reply", "report_constructed"]

LATER = object()  # result of a built-in method whose call another thread answers

CONSTRUCTOR_FAILED = 99  # exit code of a worker whose actor could not be made


def arguments(incoming, functions: dict | None = None) -> tuple[tuple, dict, dict[str, Any] | None]:
    """Returns (args, kwargs, extra) of a call; ``extra`` is None for most. ``functions``: the cache of a worker of functions."""
    head = incoming.plain
    if head == NO_ARGUMENTS:
        return (), {}, None
    loaded = serialize.loads(*incoming.args) if head is None else serialize.loads(head)
    args, kwargs = loaded[0], loaded[1]
    extra = loaded[2] if len(loaded) == 3 else None
    if head is not None:
        return args, kwargs, extra
    deps = incoming.deps
    if not deps:
        return args, kwargs, extra
    if functions is not None:
        args = (_function(deps[0], functions), *args)
        if len(deps) == 1:
            return args, kwargs, extra
    values = [None if functions is not None and k == 0 else serialize.loads(*d) for k, d in enumerate(deps)]
    args = tuple(values[a.k] if type(a) is Dep else a for a in args)
    return args, {k: values[a.k] if type(a) is Dep else a for k, a in kwargs.items()}, extra


_MAX_FUNCTIONS = 1000  # size of a worker's cache
_MAX_LARGE_FUNCTIONS = 16  # number of cached functions with large values, which stay in memory
_NAME_BYTES = serialize.IDENTITY_BYTES + serialize.NUMBER_BYTES


def _function(code, functions: dict):
    """Returns the function object of a remote function, one for all calls, so that its closure and globals persist.

    ``functions`` has those that were called, by their pickles. A pickle ends with the random identity of its ``RemoteFunction``, so the
    keys of two functions of one factory differ. So do those of copies of a function that hold other values.
    """
    head, buffers = code
    if buffers or type(head) is not bytes:
        return _large_function(head, buffers, functions)
    function = functions.get(head)
    if function is None:
        if len(functions) >= _MAX_FUNCTIONS:
            functions.clear()
        function = functions[head] = serialize.loads(head)
    return function


def _large_function(head, buffers, functions: dict):
    """As ``_function``, for a function with large values. Its key includes the caller's number, because the values are not compared."""
    large = functions.setdefault(None, {})
    name = bytes(head[-_NAME_BYTES:]) if serialize.is_large(head, buffers) else bytes(head)
    function = large.pop(name, None)
    if function is None:
        function = serialize.loads(head, buffers)
    large[name] = function  # the last used comes last
    if len(large) > _MAX_LARGE_FUNCTIONS:
        del large[next(iter(large))]
    return function


def reply(session, incoming, result, extra: dict[str, Any] | None, call: CallInfo | None = None) -> None:
    """Answers with the expected number of values: one, several, or none. Raises if the result does not fit. ``call``: marked as over once
    all of its code has run."""
    count = extra.get("num_returns", 1) if extra is not None else 1
    if result is LATER:
        return
    if count == "streaming":
        result = streams.publish(session, incoming, result, extra["stream"])
    elif count == "dynamic":
        result = streams.DynamicObjectRefGenerator([put(v) for v in result])
    elif count == 0:
        result = None
    elif count != 1:
        try:
            values = list(islice(result, count) if isinstance(result, Generator) else result)  # at most the first ``count`` items
        except TypeError as error:
            raise TypeError(f"with num_returns={count} a tuple or list is returned, not {type(result).__name__}") from error
        if len(values) != count:
            raise ValueError(f"Task returned {len(values)} objects, but num_returns={count}.")
        parts = [_native.Part(*serialize.pack(v, what=serialize.RETURNED)) for v in values]
        unless_left()
        if call is not None:
            call.over = True
        session.reply_many(incoming, parts)
        return
    answer = serialize.pack(result, what=serialize.RETURNED)
    unless_left()
    if call is not None:
        call.over = True
    session.reply(incoming, *answer)


def refuse(session, incoming, error: BaseException, where: str) -> None:
    """Answers with the exception of user code, without the worker's own frame in the traceback, or with the cancellation that caused it."""
    if isinstance(error, streams.CallerGone) or (isinstance(error, KeyboardInterrupt) and session.cancelled(incoming)):
        session.refuse_cancelled(incoming, where)
        return
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next or error.__traceback__
    if isinstance(error, KeyboardInterrupt):  # raised by the code itself, or after a signal from elsewhere
        interrupted, error = error, TaskCancelledError(f"{where} was interrupted")
        error.__cause__ = interrupted
    session.reply(incoming, *serialize.dump_exception(error, where, session.host), raised=True)


def end(session, incoming, error: SystemExit, behind: deque | None = None) -> int:
    """Called by the main loop when no call runs; returns the exit code. The actor's death answers the calls that asked for it, and those in
    ``behind``."""
    _last_method(running.instance)
    leaving = [*running.leaving, *take_graph_calls(), *([] if incoming is None else [incoming])]
    running.unanswered += [*leaving, behind]
    for call in leaving if isinstance(error, ActorExit) else ():
        session.refuse(call, "ActorDied", f"actor {running.cls.__name__} died: {error.why}")
    if error.code is not None and error.code == 0:  # other codes count as crashes, for which max_restarts applies
        _leave(session)
    return exit_code(error)


def _last_method(instance) -> None:
    """Calls ``__ray_shutdown__``, if any, of an actor that ends in order. Its exception is printed."""
    try:
        last = method_of(instance, "__ray_shutdown__") if hasattr(type(instance), "__ray_shutdown__") else None
        if callable(last):
            last()
    except BaseException:
        traceback.print_exc()


def exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def report_constructed(session, creation) -> None:
    """Reports that the actor is made, before its first call. ``creation`` is None for an actor that makes itself."""
    session.report_constructed()
    if creation is not None:
        session.reply(creation, *serialize.dumps(None))


def fail_creation(session, creation, early: deque, error: BaseException, where: str) -> int:
    """Reports that an actor could not be made; its node logs the cause. Calls that came early fail. After SystemExit the actor may be
    restarted."""
    if isinstance(error, SystemExit):
        return end(session, creation, error, early)
    for call in early:
        session.refuse(call, "ActorDied", f"actor {where.removesuffix('.__init__')} could not be made: {type(error).__name__}: {error}")
    if creation is not None:
        refuse(session, creation, error, where)
    traceback.print_exception(type(error), error, error.__traceback__)
    _leave(session)
    return CONSTRUCTOR_FAILED


def _leave(session) -> None:
    """Reports an intended end, so that the actor is not restarted."""
    if running.settings.get("restarts", True):
        with contextlib.suppress(Exception):  # an error is ignored: without a head there is no restart
            session.leave()
