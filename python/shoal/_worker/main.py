"""The main loop of a worker: takes calls and runs them on one actor, by default one at a time."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator
from itertools import islice
from typing import Any, NoReturn

from shoal._actors.creation import from_creation_spec
from shoal._actors.handle import GRAPH, HAND_OVER, NO_ARGUMENTS, RELEASE, _Dep, actor_ownership
from shoal._core import serialize, stacks
from shoal._core.context import CallInfo, method_of, parent_call, running
from shoal._core.process import attach_worker, state
from shoal._driver.client import put
from shoal._objects import streams
from shoal._objects.refs import when_gone
from shoal._tasks.pool import FunctionWorker
from shoal._worker.ending import ActorExit, has_left, take_graph_calls, unless_left
from shoal._worker.marks import mark_beginning, mark_function, mark_output
from shoal.actor import exit_actor
from shoal.exceptions import TaskCancelledError

_CHILDREN_S = 2.0  # for children of multiprocessing to end after terminate()
_DRAIN_S = 5.0  # for callers to take the last answers when a worker ends
_AGAIN_S = 1.0  # pause before another attempt to reach the head
_LAST_METRICS_S = 9.0  # for the node's loop to take the last metrics

LATER = object()  # result of a built-in method whose call another thread answers

CONSTRUCTOR_FAILED = 99  # exit code of a worker whose actor could not be made


def main() -> int:
    """Serves until the process ends itself or is killed, by its node or together with it."""
    state.is_worker = True
    mark_output()  # before other code keeps a stream, as handlers of logging do
    stacks.offer(os.environ["SHOAL_WORKER_ID"])
    session = attach_worker()
    session.serve()
    early: deque = deque()  # calls that arrive before the creator's, which makes the actor
    creation = None  # stays None for a restarted or detached actor, which makes itself
    try:
        if "SHOAL_RESTARTS" in os.environ or "SHOAL_SELF_MADE" in os.environ:
            actor, creation_spec = session.creation_spec()
            cls, settings, args, kwargs = from_creation_spec(creation_spec)
        else:
            while (creation := session.next_call()).method != "__init__":
                early.append(creation)
            actor = creation.actor
            cls, settings, args, kwargs = _creation(creation)
    except BaseException as error:
        return fail_creation(session, creation, early, error, "an actor")
    running.settings, running.cls = settings, cls
    running.actor_id = actor if cls is not FunctionWorker else ""
    if cls is FunctionWorker:
        _end_with(*settings["creator"])
        signal.signal(signal.SIGINT, _interrupted)
        session.interrupt_calls()
        state.lends = settings["resources"].get("CPU", 0) > 0
    if settings.get("concurrency"):
        from shoal._worker.concurrency import serve  # imports asyncio, which ordinary actors do not need

        made_from = [(creation, args, kwargs)]
        creation = args = kwargs = None
        return serve(session, early, cls, made_from)
    running.incoming = creation
    try:
        running.instance = cls(*args, **kwargs)
        if running.ending is not None:
            raise running.ending
    except BaseException as error:
        return fail_creation(session, creation, early, error, f"{cls.__name__}.__init__")
    mark_beginning()
    made(session, creation)
    args = kwargs = creation = running.incoming = None  # freed, unless the actor keeps them
    return _serve(session, running.instance, early)


def _end_with(worker: str, node: str) -> None:
    """Ends this process with its creator, the only caller of a worker of functions. If the creator is on another node, the head does
    that."""
    if node == state.session.node:
        when_gone(worker, lambda: os._exit(1))


def _interrupted(number, frame) -> None:
    """Handles SIGINT. A cancellation interrupts the running call; otherwise Python's own handler runs."""
    if state.session is None or not state.session.take_interrupt():
        signal.default_int_handler(number, frame)
    if running.interruptible and state.session.cancelled(running.incoming):
        running.interruptible = False  # once
        raise KeyboardInterrupt


def _serve(session, instance, early: deque) -> int:
    """Serves an ordinary actor, one call at a time."""
    functions = {} if isinstance(instance, FunctionWorker) else None  # by pickle and identity
    while True:
        was_early = bool(early)
        if early and running.ending is None:
            incoming = early.popleft()
        else:
            try:
                incoming = session.next_call() if running.turn is None else _next_in_turn(session)
            except SystemExit as error:  # raised by a signal handler
                return end(session, None, running.ending or error, early)
        if incoming is None:  # a thread asked for the end
            return end(session, None, running.ending, early)
        running.incoming, running.info, method = incoming, None, incoming.method
        running.where = incoming.function if functions is not None else ""
        try:
            try:
                if was_early and session.cancelled(incoming):  # cancelled while it waited
                    raise KeyboardInterrupt
                args, kwargs, extra = arguments(incoming, functions)
                running.extra = extra
                if functions is not None and args:
                    running.function = args[0]
                    running.where = running.function.__name__
                    mark_function()
                    running.interruptible = True
                    if session.cancelled(incoming):  # cancelled since
                        raise KeyboardInterrupt
                built_in = BUILT_INS.get(method)
                result = built_in(instance, *args, **kwargs) if built_in else method_of(instance, method)(*args, **kwargs)
                if extra is not None or result is LATER:
                    reply(session, incoming, result, extra)
                else:
                    answer = serialize.pack(result, what=serialize.RETURNED)
                    if running.ending is not None:
                        unless_left()
            finally:
                running.interruptible = False
            # A large result may wait for room here, and be interrupted.
            if extra is not None or result is LATER:
                pass
            elif early or running.turn is not None:
                session.reply(incoming, *answer)
            else:
                session.reply_with_next(incoming, *answer)
        except SystemExit as error:
            return end(session, incoming, running.ending or error, early)
        except BaseException as error:  # also CancelledError and trio.Cancelled: it ends this call only
            if has_left():
                return end(session, incoming, ActorExit(0), early)
            refuse(session, incoming, error, running.where or f"{type(instance).__name__}.{method}")
        # Frees a call's values now, not when the next call arrives.
        args = kwargs = extra = result = answer = incoming = running.incoming = running.info = running.extra = running.function = None


def _next_in_turn(session):
    """Waits for the next call without holding the turn, so that graph calls run in between."""
    running.turn.__exit__()
    try:
        return session.next_call()
    finally:
        running.turn.__enter__()


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
    args = tuple(values[a.k] if type(a) is _Dep else a for a in args)
    return args, {k: values[a.k] if type(a) is _Dep else a for k, a in kwargs.items()}, extra


_MAX_FUNCTIONS = 1000  # size of a worker's cache
_MAX_LARGE_FUNCTIONS = 16  # number of cached functions with large values, which stay in memory
_NAME_BYTES = serialize.IDENTITY_BYTES + serialize.NUMBER_BYTES


def _function(code, functions: dict):
    """Returns one function object for all calls of a function, so that its closure and globals persist. The key is its pickle with the
    caller's identity suffix. It differs for functions of one factory, and for copies that hold other values."""
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
    """The same for a function with large values. Its key includes the caller's number, because the values are not compared."""
    large = functions.setdefault(None, {})
    name = bytes(head[-_NAME_BYTES:]) if serialize.is_large(head, buffers) else bytes(head)
    function = large.pop(name, None)
    if function is None:
        function = serialize.loads(head, buffers)
    large[name] = function  # the last used comes last
    if len(large) > _MAX_LARGE_FUNCTIONS:
        del large[next(iter(large))]
    return function


def _creation(incoming) -> tuple[type, dict[str, Any], tuple, dict]:
    args, kwargs, _ = arguments(incoming)
    return args[0], args[1], args[2:], kwargs


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
        parts = [serialize.pack(v, what=serialize.RETURNED) for v in values]
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
    """Answers with the exception of user code, without this frame, or with the cancellation that caused it."""
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
    """Returns the exit code; for the main loop when no call runs. The actor's death answers the calls that asked for it, and those in
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


def made(session, creation) -> None:
    """Reports that the actor is made, before its first call. ``creation`` is None for an actor that makes itself."""
    session.made()
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
        with contextlib.suppress(Exception):  # without a head there is no restart
            session.leave()


def _call(instance, function, /, *args, **kwargs):
    return function(instance, *args, **kwargs)


def _graph(instance, /, *args):
    from shoal.dag._loop import graph_call  # not needed by most actors

    return graph_call(instance, *args)


class _Released(ActorExit):
    why = "nothing referred to it any more"


def _release(instance) -> object:
    """Ends this actor: no process has a handle, except perhaps those to which the actor gave one of itself."""
    if actor_ownership.may_end(running.actor_id, running.settings["class_name"]):
        raise _Released(0)
    if not running.settings["restarts"]:
        return None
    threading.Thread(target=_stay, args=(parent_call(),), daemon=True, name="shoal-leaving").start()
    return LATER


def _stay(incoming) -> None:
    """Answers the request to end, for an actor that still waits for handles that it gave away. It first rules out a restart: a restarted
    actor would not be asked to end. If it dies earlier, the request fails, and the creator asks the restarted actor."""
    while True:
        try:
            state.session.leave()
            break
        except Exception:
            time.sleep(_AGAIN_S)  # the head is away
    state.session.reply(incoming, *serialize.dumps(None))


def _hand_over(_, within: float) -> tuple | None:
    """Reports the actors that a worker made to the process that retires it. Returns None if calls that it made, or workers of its own, are
    still open after ``within`` seconds: they would be lost. It is asked again then, and lends its CPUs meanwhile."""
    session, functions, until = state.session, state.functions, time.monotonic() + within
    if state.lends and not (session.wait_calls(0.0) and (functions is None or functions.idle())):
        state.lends = False  # for good: it runs no more tasks
        session.set_blocked(True)
    if not session.wait_calls(max(0.0, until - time.monotonic())):
        return None
    if functions is not None and not functions.hand_over(until):
        return None
    session.send_last_metrics(_LAST_METRICS_S)  # values that it has put stay with its node
    return actor_ownership.hand_over() if session.wait_calls(0.0) else None  # threads may have made calls meanwhile


# Methods that every actor has. A creator's call to `__init__` may find an actor that was restarted before.
BUILT_INS = {
    "__init__": lambda *_, **__: None,
    "__ray_terminate__": lambda _: exit_actor(),
    "__ray_ready__": lambda _: True,
    HAND_OVER: _hand_over,
    "__ray_call__": _call,
    RELEASE: _release,
    GRAPH: _graph,
}


def _run_exit_handlers() -> None:
    """Runs the exit handlers, those of multiprocessing last and with a time limit: they would wait for running children and queue
    readers."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or not state.is_worker:
        atexit._run_exitfuncs()
        return
    atexit.unregister(util._exit_function)
    try:
        atexit._run_exitfuncs()
    finally:
        ending = threading.Thread(target=_end_children, args=(util,), daemon=True, name="shoal-children")
        ending.start()
        ending.join(2 * _CHILDREN_S)


def _end_children(util) -> None:
    util._run_finalizers(0)  # pools and managers first: a pool cannot end in order after its processes were killed
    children = sys.modules["multiprocessing.process"].active_children()
    for child in children:
        child.terminate()
    end = time.monotonic() + _CHILDREN_S
    for child in children:
        child.join(max(0.0, end - time.monotonic()))
        child.kill()
    util._exit_function()


def run_exit(code: int) -> NoReturn:
    """Ends a worker: runs its exit handlers and sends the remaining output and answers. User threads do not delay it."""
    try:
        try:
            _run_exit_handlers()
        except BaseException:
            traceback.print_exc()
        running.instance = None  # runs the actor's __del__
        if running.ending is not None:  # its traceback may refer to the actor
            running.ending.__traceback__ = running.ending.__context__ = running.ending.__cause__ = None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if state.session is not None:
            state.session.send_last_metrics(_LAST_METRICS_S)
            state.session.drain(_DRAIN_S)
    finally:  # also after an exception in a signal handler
        os._exit(code)


def run() -> NoReturn:
    """Runs a worker's process from start to end."""
    try:
        code = main()
    except SystemExit as error:  # raised by a signal handler between two calls
        code = end(state.session, None, running.ending or error)
    except BaseException:
        traceback.print_exc()
        code = 1
    run_exit(code)


__all__ = ["LATER", "main", "run", "run_exit"]
