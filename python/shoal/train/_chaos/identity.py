"""The identity of a process for signals: its pid with its start time, because the kernel may give the pid of an ended process to another
one."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_STATE, _START_TIME = 0, 19  # places of the fields of /proc/PID/stat behind the name


def start_time(pid: int) -> int:
    """Returns the start time since boot, in clock ticks; 0 if no such process runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[_STATE] in "ZX" else int(fields[_START_TIME])


@dataclass(frozen=True)
class Process:
    """``started``: its start time, as `start_time` returns it."""

    pid: int
    started: int

    @staticmethod
    def with_pid(pid: int) -> Process:
        return Process(pid, start_time(pid))

    def open_fd(self) -> int | None:
        """Returns a pidfd of this process, on its own host; None if it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.started and start_time(self.pid) == self.started:  # the pidfd and this time belong to one process
            return fd
        os.close(fd)
        return None

    def send(self, number: int) -> bool:
        """Returns False if the process has ended."""
        fd = self.open_fd()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True
