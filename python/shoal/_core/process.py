"""The session of this process, opened by ``init`` or at the start of a worker."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from shoal import _native
from shoal.exceptions import DeadlineExceeded, InvalidArgument, Unavailable, from_error

_native.set_error_factory(from_error)


@dataclass
class _State:
    session: _native.Session | None = None
    cluster: subprocess.Popen | None = None  # an embedded cluster, which ends with this process
    is_worker: bool = False
    functions: object = None  # the pool of workers for remote functions (_remote)
    ending: list = field(default_factory=list)  # called before the session closes
    forked: bool = False  # forked from a process that had a session
    parent: int = 0  # pid of a process whose forked children end with it
    lends: bool = False  # a worker of functions, which lends its CPUs while it waits
    runtime_env: dict | None = None  # default environment of child processes (_environment)
    logging: object = None  # the job's LoggingConfig, if any
    shows_logs: bool = False  # a driver that prints its workers' output
    notified_of_detached: bool = False  # the notice about detached actors' output was printed
    namespace: str = ""  # the scope of actor names in this process
    retry_delay_ms: int | None = None  # the argument of init (_system_config)
    failed: bool = False  # exit with status 1, though no exception reports the failure

    def forget(self) -> None:
        """Resets the fields that belong to a session."""
        self.session, self.cluster, self.functions, self.ending = None, None, None, []
        self.runtime_env, self.logging, self.retry_delay_ms = None, None, None


state = _State()

RETRY_DELAY = "SHOAL_TASK_RETRY_DELAY_MS"


def retry_delay_ms() -> int:
    """The delay before a call is repeated after its process died, the same as in Ray."""
    text = os.environ.get(RETRY_DELAY, "1000")
    if state.retry_delay_ms is None and not text.isdecimal():
        raise InvalidArgument(f"{RETRY_DELAY} is a number of milliseconds, not {text!r}")
    return int(text) if state.retry_delay_ms is None else state.retry_delay_ms


def binary() -> str:
    """The path of the ``shoal`` command of this package: in the wheel, or in the build tree next to the extension."""
    package = Path(__file__).resolve().parents[1]
    built = Path(_native.__file__).parent.parent.parent
    for candidate in (package / "bin" / "shoal", built / "scheduler" / "cli" / "shoal"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise Unavailable("the shoal command is missing from this installation", hint="build it: ./dev build")


def session() -> _native.Session:
    """Returns the open session; calls ``init`` if there is none."""
    if state.session is None:
        if state.forked:
            raise Unavailable(
                "this process was forked from one that uses Shoal and has no place in its cluster",
                reason="Forked",
                hint="make the calls in the parent, or shoal.init() here for a place of its own",
            )
        from shoal._driver.client import init

        init()
    return state.session


def start_local(
    resources: dict[str, float],
    *,
    labels: dict[str, str] | None = None,
    spill_folder: str | None = None,
    python: str = sys.executable,
    remove_folder: bool = False,
    home: str = "",
    http_port: int | None = None,
    timeout: float = 20,
):
    """Starts head and node in one process that ends with this one. ``home``: the parent folder of its session, "" for the user's.
    ``http_port`` is None for no HTTP interface, 0 for 8265 or any free one. Returns (process, its report when ready)."""
    _native.open_standard_streams()  # a pipe at 0, 1 or 2 would be replaced in the child
    reading, writing = os.pipe()
    command = [binary(), "role", "local", "--owner", str(os.getpid()), "--python", python, "--ready-fd", str(writing)]
    command += [f"--resource={name}={amount}" for name, amount in resources.items()]
    command += [f"--label={name}={value}" for name, value in (labels or {}).items()]
    command += ["--spill-folder", spill_folder] if spill_folder else []
    command += ["--remove-folder"] if remove_folder else []
    if http_port is not None:
        command += ["--http-port", str(http_port or 8265), *([] if http_port else ["--http-or-any"])]
    # In a session of its own: Ctrl-C reaches only the driver, which then ends the cluster in order.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing,),
        start_new_session=True,
        env={
            **os.environ,
            **({"SHOAL_HOME": home} if home else {}),
            RETRY_DELAY: str(retry_delay_ms()),
            "PYTHONPATH": os.pathsep.join(filter(None, [_package_path(), os.environ.get("PYTHONPATH")])),
        },
    )
    os.close(writing)
    try:
        said = b""
        end = time.monotonic() + timeout
        while not said.endswith(b"\n"):
            if not select.select([reading], [], [], max(0, end - time.monotonic()))[0]:
                raise DeadlineExceeded(f"the local cluster was not ready within {timeout:g} s")
            piece = os.read(reading, 4096)
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                how = "closed its pipe" if process.returncode is None else f"exit code {process.returncode}"
                raise Unavailable(f"the local cluster ended before it was ready ({how})")
            said += piece
        said = json.loads(said)
        if "error" in said:
            e = said["error"]
            codes = [_native.code_name(c) for c in range(9)]
            raise from_error(codes.index(e["code"]), e["reason"], e["message"], e["hint"], [])
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(reading)
    return process, said


def _package_path() -> str:
    """The import path of this very package and its extension, for child processes."""
    import shoal

    return os.pathsep.join(dict.fromkeys(str(Path(p).parent) for p in shoal.__path__))


def attach_worker() -> _native.Session:
    """Opens the session of a process that a node started, from the environment that the node set."""
    if state.session is not None:
        return state.session
    env = os.environ
    state.session = _native.Session.open(
        folder=env["SHOAL_SESSION"],
        node=env["SHOAL_NODE"],
        worker=env["SHOAL_WORKER_ID"],
        job=env["SHOAL_JOB_ID"],
        role=f"rank {env['RANK']}" if "RANK" in env else "worker",
        print_logs=not state.is_worker and env.get("RANK", "0") == "0",  # the job's own process prints the head's warnings
        retry_delay_s=retry_delay_ms() / 1000,
    )
    state.namespace = env.get("SHOAL_NAMESPACE", state.session.job)
    if "SHOAL_LOGGING" in env:
        from shoal._core.logging import apply, from_environment  # only with a LoggingConfig

        state.logging = from_environment()
        apply(state.logging)
    return state.session


def started_by_node() -> bool:
    return "SHOAL_NODE" in os.environ and "SHOAL_WORKER_ID" in os.environ


def close() -> None:
    """Leaves the cluster, and ends an embedded one. Idempotent."""
    if state.session is None:
        return
    session, cluster = state.session, state.cluster
    try:
        for end in reversed(state.ending):
            with contextlib.suppress(Exception):
                end()
        state.forget()
        with contextlib.suppress(Exception):
            session.sync_logs()
        if cluster is not None:
            with contextlib.suppress(Exception):
                session.shutdown_cluster()
        session.close()
        if cluster is not None:
            cluster.wait(3)
    except BaseException as error:  # Ctrl-C or a timeout: end at once
        state.forget()
        session.close()
        if cluster is not None:
            cluster.kill()
            cluster.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


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


@atexit.register
def _at_exit() -> None:
    if state.is_worker:
        return
    close()
    if state.failed:  # os._exit is the only way to set a status here. Exit handlers registered before Shoal's import do not run.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(1)


def require(condition: bool, message: str, hint: str = "") -> None:
    if not condition:
        raise InvalidArgument(message, hint=hint)
