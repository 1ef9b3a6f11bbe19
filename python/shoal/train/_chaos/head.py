"""The cluster's head as the victim of a fault: a function on its host finds its process, and checks that another one is started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from shoal._objects.values import get
from shoal._tasks.remote_function import RemoteFunction
from shoal.exceptions import DeadlineExceeded, InvalidArgument
from shoal.train._chaos.identity import Process, start_time

_BESIDE = {"node:__internal_head__": 0.001}  # the resource of the head's node
_POLL_S = 0.01
_LONGEST_S = 60.0  # until another head runs
_ANSWER_S = 30.0


def living_heads(folder: Path) -> list[Process]:
    """Returns the processes that the files pids/head.PID name. Their content is the start time, as in ``SessionFolder::processes``: after a
    kill the file remains, and another process may get the pid."""
    found = []
    for path in folder.glob("head.*"):
        pid = path.name.rpartition(".")[2]
        with contextlib.suppress(OSError, ValueError):  # a file that goes, or that is half-written
            process = Process(int(pid), int(path.read_text()))
            if process.started and start_time(process.pid) == process.started:
                found.append(process)
    return sorted(found, key=lambda p: p.started)


def latest_head() -> Process | None:
    """Runs on the head's host. Returns None for a cluster inside a program, whose head is no process of its own."""
    heads = living_heads(Path(os.environ["SHOAL_SESSION"], "pids"))
    return heads[-1] if heads else None


def replace_head() -> float:
    """Runs on the head's host. Kills the head, and returns the seconds until another one runs; -1 if none does."""
    began, head = time.monotonic(), latest_head()
    if head is not None:
        head.send(signal.SIGKILL)
    while time.monotonic() < began + _LONGEST_S:
        if latest_head() not in (None, head):
            return time.monotonic() - began
        threading.Event().wait(_POLL_S)
    return -1.0


def _beside_head(function: Any) -> RemoteFunction:
    return RemoteFunction(function, {"num_cpus": 0, "max_retries": 0, "resources": _BESIDE})


def check_head() -> None:
    """Raises InvalidArgument for a head that no node would start again."""
    if get(_beside_head(latest_head).remote(), timeout=_ANSWER_S) is None:
        raise InvalidArgument(
            "the head of this cluster runs inside a program, and nothing would start it again",
            hint="leave head out of --faults, or train on a cluster of `shoal start --head`",
        )


def kill_head() -> None:
    """Returns once another head runs. Raises DeadlineExceeded if none does."""
    if get(_beside_head(replace_head).remote(), timeout=_LONGEST_S + _ANSWER_S) < 0:
        raise DeadlineExceeded(f"no other head has started within {_LONGEST_S:g} s")
