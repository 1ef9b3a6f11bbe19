"""``python stop.py PIDFD SECONDS``: stops a process for this time. It is a process of its own, so that it lets the victim continue even if
the worker that started it dies."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading


def stop(fd: int, seconds: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # an end of its own would leave the victim stopped
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        try:
            signal.pidfd_send_signal(fd, signal.SIGSTOP)
            threading.Event().wait(seconds)
        finally:
            signal.pidfd_send_signal(fd, signal.SIGCONT)


if __name__ == "__main__":
    stop(int(sys.argv[1]), float(sys.argv[2]))
