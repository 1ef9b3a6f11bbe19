"""The stacks of a worker's threads, for `shoal stack`: written by a signal handler that needs no lock, so that one that hangs tells it."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

__all__ = ["offer"]

_SIGNAL = signal.SIGRTMIN + 5  # kStackSignal of scheduler/cli/stack.cc; programs have uses for SIGUSR1


def offer(worker: str) -> None:
    """The command finds this memory by its name, sends the signal and reads. It is kept until the process ends."""
    if hasattr(signal, "SIGRTMIN") and (file := os.memfd_create(f"shoal:stacks:{worker}")) >= 0:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # the command empties it
        faulthandler.register(_SIGNAL, file=file, all_threads=True)
