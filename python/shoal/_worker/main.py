"""The main loop of a worker: takes calls and runs them on one actor, by default one at a time."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any, NoReturn

from shoal._actors.creation import from_creation_spec
from shoal._core import serialize, stacks
from shoal._core.attach import attach_worker
from shoal._core.context import method_of, running
from shoal._core.process import state
from shoal._core.variables import variable
from shoal._objects.refs import when_gone
from shoal._tasks.functions import FunctionWorker
from shoal._worker.built_ins import BUILT_INS, LAST_METRICS_S
from shoal._worker.ending import ActorExit, has_left, unless_left
from shoal._worker.marks import mark_beginning, mark_function, mark_output
from shoal._worker.serving import LATER, arguments, end, fail_creation, refuse, reply, report_constructed

_CHILDREN_S = 2.0  # seconds for children of multiprocessing to end after terminate()
_DRAIN_S = 5.0  # seconds for callers to take the last answers when a worker ends


def main() -> int:
    """Serves until the process ends itself or is killed, by its node or together with it."""
    state.is_worker = True
    mark_output()  # first, before other code keeps one of the streams, as handlers of logging do
    stacks.offer(os.environ["SHOAL_WORKER_ID"])
    session = attach_worker()
    session.serve()
    early: deque = deque()  # calls that arrive before the creator's, which makes the actor
    creation = None  # stays None for a restarted or detached actor, which makes itself
    try:
        if variable("SHOAL_RESTARTS") or variable("SHOAL_SELF_MADE"):
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
        from shoal._worker.concurrency import serve  # late: loads asyncio, which ordinary actors do not need

        creating = [(creation, args, kwargs)]
        creation = args = kwargs = None
        return serve(session, early, cls, creating)
    running.incoming = creation
    try:
        running.instance = cls(*args, **kwargs)
        if running.ending is not None:
            raise running.ending
    except BaseException as error:
        return fail_creation(session, creation, early, error, f"{cls.__name__}.__init__")
    mark_beginning()
    report_constructed(session, creation)
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
        running.interruptible = False  # one cancellation interrupts once
        raise KeyboardInterrupt


def _serve(session, instance, early: deque) -> int:
    """Serves an ordinary actor, one call at a time."""
    # The functions by their pickles, which end with the function's identity.
    functions = {} if isinstance(instance, FunctionWorker) else None
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY) if functions is not None else -1
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
                    os.fchdir(folder)  # an earlier function may have changed the folder
                    running.function = args[0]
                    running.where = running.function.__name__
                    mark_function()
                    running.interruptible = True
                    if session.cancelled(incoming):  # cancelled while its arguments were loaded
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
            # A large result may wait for room here, and SIGINT may interrupt the wait: so this is inside of the outer try.
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


def _creation(incoming) -> tuple[type, dict[str, Any], tuple, dict]:
    args, kwargs, _ = arguments(incoming)
    return args[0], args[1], args[2:], kwargs


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
    util._run_finalizers(0)  # ends pools and managers first, because a pool cannot end in order after its processes were killed
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
        if running.ending is not None:  # its traceback may refer to the actor, which must not live on
            running.ending.__traceback__ = running.ending.__context__ = running.ending.__cause__ = None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        if state.session is not None:
            state.session.send_last_metrics(LAST_METRICS_S)
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


__all__ = ["main", "run", "run_exit"]
