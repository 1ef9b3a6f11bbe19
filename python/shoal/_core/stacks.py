"""The stacks of a worker's threads, for `shoal stack`. The signal handler takes no lock, so that a hanging process reports its stacks."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

__all__ = ["offer"]

_SIGNAL = signal.SIGRTMIN + 5  # same as kStackSignal in scheduler/cli/verbs/stack.cc; programs use SIGUSR1


def offer(worker: str) -> None:
    """Creates the memory that the command finds by name and reads after the signal. It is kept until the process ends."""
    if hasattr(signal, "SIGRTMIN") and (file := os.memfd_create(f"shoal:stacks:{worker}")) >= 0:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # appends, because the command truncates the file before each signal
        faulthandler.register(_SIGNAL, file=file, all_threads=True)
