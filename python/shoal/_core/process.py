"""This process's place in a cluster: its session, opened by ``init`` or at the start of a worker, and the end of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal import _native
from shoal._core.variables import variable
from shoal._printable import printable
from shoal.exceptions import InvalidArgument, Unavailable, from_error

_native.set_error_factory(from_error)


@dataclass
class _State:
    session: _native.Session | None = None
    cluster: subprocess.Popen | None = None  # an embedded cluster, which ends with this process
    is_worker: bool = False
    join: Callable[[], Any] | None = None  # the function that opens a session on first use: ``init``, set by shoal._driver.init
    import_graphs: Callable[[], Any] | None = None  # imports shoal.dag, for ``bind``; set by shoal/__init__.py
    functions: object = None  # the pool of workers for remote functions (shoal._tasks)
    ending: list = field(default_factory=list)  # called before the session closes
    forked: bool = False  # forked from a process that had a session
    parent: int = 0  # pid of a process whose forked children end with it
    lends: bool = False  # a worker of functions, which lends its CPUs while it waits
    runtime_env: dict | None = None  # default environment of child processes (shoal._runtime_env)
    logging: object = None  # the job's LoggingConfig, if any
    shows_logs: bool = False  # a driver that prints its workers' output
    notified_of_detached: bool = False  # the notice about detached actors' output was printed
    namespace: str = ""  # the scope of actor names in this process
    retry_delay_ms: int | None = None  # the argument of init (_system_config)
    memory_group: str = ""  # the id of a training: the node frees memory of this group with its last worker there
    exiting: bool = False  # the process's exit handlers run: it joins no cluster any more
    failed: bool = False  # the process has to exit with status 1, though no exception reports the failure

    def forget(self) -> None:
        """Resets the fields that belong to a session."""
        self.session, self.cluster, self.functions, self.ending = None, None, None, []
        self.runtime_env, self.logging, self.retry_delay_ms = None, None, None


state = _State()

RETRY_DELAY = "SHOAL_TASK_RETRY_DELAY_MS"


def retry_delay_ms() -> int:
    """The delay before a call is repeated after its process died, the same as in Ray."""
    text = variable(RETRY_DELAY, "1000")
    if state.retry_delay_ms is None and not text.isdecimal():
        raise InvalidArgument(f"{RETRY_DELAY} is a number of milliseconds, not {text!r}")
    return int(text) if state.retry_delay_ms is None else state.retry_delay_ms


def in_group(name: str) -> str:
    """The name of a memory that belongs to this process's group, as the nodes understand it."""
    return f"{state.memory_group}//{name}" if state.memory_group else name


def session() -> _native.Session:
    """Returns the open session. Without one, the process joins a cluster first (``init``)."""
    if state.session is None:
        if state.forked:
            raise Unavailable(
                "this process was forked from one that uses Shoal and is not a member of its cluster",
                reason="Forked",
                hint="make the calls in the parent, or call shoal.init() here to join as a process of its own",
            )
        if state.exiting:
            raise Unavailable("this process is ending and has left its cluster", reason="Closed")
        state.join()
    return state.session


def started_by_node() -> bool:
    return bool(variable("SHOAL_NODE") and variable("SHOAL_WORKER_ID"))


def close(failure: str = "") -> None:
    """Leaves the cluster, and ends an embedded one. ``failure``: the exception that ends this program. Idempotent."""
    if state.session is None:
        return
    session, cluster = state.session, state.cluster
    try:
        for end in reversed([*state.ending]):  # a copy, because some functions remove themselves from the list
            with contextlib.suppress(Exception):
                end()
        state.forget()
        with contextlib.suppress(Exception):
            session.sync_logs()
        if cluster is not None:
            with contextlib.suppress(Exception):
                session.shutdown_cluster()
        session.close(_failure(failure))
        if cluster is not None:
            cluster.wait(3)
    except BaseException as error:  # Ctrl-C or a timeout: end at once
        state.forget()
        session.close(_failure(failure))
        if cluster is not None:
            cluster.kill()
            cluster.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _failure(uncaught: str) -> str:
    return uncaught or ("it ended with status 1" if state.failed else "")


def _after_fork_in_child() -> None:
    """Detaches a child that the user forks (a DataLoader's worker) from the cluster. The child closes its copies of the connections, its
    exit handlers do nothing, and calls into Shoal raise. It may join a cluster by itself (``init``)."""
    if state.session is not None:
        state.session.abandon_after_fork()
        state.forget()
        state.forked, state.is_worker = True, False
    if _forking.by_main and os.getppid() == state.parent:
        _native.die_with(state.parent)


def _before_fork() -> None:
    # The kernel sends the signal at the end of the forking *thread*: only the main one lives as long as its process.
    _forking.by_main = threading.current_thread() is threading.main_thread()


def end_children_with_this() -> None:
    """Makes the kernel kill forked children at this process's end. The node cannot do that if it ends at the same time."""
    state.parent = os.getpid()


class _Forking(threading.local):
    by_main = False


_forking = _Forking()
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
if started_by_node():
    end_children_with_this()


_LONGEST_FAILURE = 200  # characters of an exception's first line


def _uncaught() -> str:
    """Returns the exception that ends this program, or "". Python keeps it for exit handlers, but not a SystemExit."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException) or hasattr(sys, "ps1"):  # an interactive session goes on after exceptions
        return ""
    text = type(error).__name__
    with contextlib.suppress(Exception):  # the exception's own __str__ may raise
        line = str(error).partition("\n")[0][:_LONGEST_FAILURE]
        text += f": {line}" if line else ""
    return printable(text)


@atexit.register
def _at_exit() -> None:
    if state.is_worker:
        return
    state.exiting = True
    close(_uncaught())
    if state.failed:  # os._exit is the only way to set a status here. Exit handlers registered before Shoal's import do not run.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(1)
