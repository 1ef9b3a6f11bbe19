"""The cluster's head as the victim of a fault: a function beside it finds its process, and sees that another one is started."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from shoal._objects.values import get
from shoal._tasks.remote_function import RemoteFunction
from shoal.exceptions import DeadlineExceeded, InvalidArgument

_BESIDE = {"node:__internal_head__": 0.001}  # the resource of the head's node
_LOOK_S = 0.01
_LONGEST_S = 60.0  # until another head runs
_ANSWER_S = 30.0


def head_pid() -> int:
    """Runs beside the head. Returns 0 for a cluster inside a program, whose head is no process of its own."""
    found = [p.name.rpartition(".")[2] for p in Path(os.environ["SHOAL_SESSION"], "pids").glob("head.*")]
    return max((int(pid) for pid in found if pid.isdigit()), default=0)


def replace_head(pid: int) -> float:
    """Runs beside the head. Kills it, and returns the seconds until another one runs; -1 if none does."""
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while time.monotonic() < began + _LONGEST_S:
        if head_pid() not in (0, pid):
            return time.monotonic() - began
        threading.Event().wait(_LOOK_S)
    return -1.0


def _beside_head(function: Any) -> RemoteFunction:
    return RemoteFunction(function, {"num_cpus": 0, "resources": _BESIDE})


def check_head() -> None:
    """Raises InvalidArgument for a head that nothing would start again."""
    if not get(_beside_head(head_pid).remote(), timeout=_ANSWER_S):
        raise InvalidArgument(
            "the head of this cluster runs inside a program, and nothing would start it again",
            hint="leave head out of --faults, or train on a cluster of `shoal start --head`",
        )


def kill_head() -> None:
    """Returns once another head runs. Raises DeadlineExceeded if none does."""
    pid = get(_beside_head(head_pid).remote(), timeout=_ANSWER_S)
    if get(_beside_head(replace_head).remote(pid), timeout=_LONGEST_S + _ANSWER_S) < 0:
        raise DeadlineExceeded(f"no other head has started within {_LONGEST_S:g} s")
