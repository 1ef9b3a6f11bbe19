"""The functions that run on the victim's node, and inflict a fault on its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from shoal._tasks.remote_function import RemoteFunction
from shoal.train._chaos import stop
from shoal.train._chaos.identity import Process
from shoal.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def kill_process(process: Process) -> bool:
    """Returns False if the process has ended before."""
    return process.send(signal.SIGKILL)


def stop_process(process: Process, seconds: float) -> bool:
    """Returns False if the process has ended before. Else the process goes on after so many seconds, even if this worker dies."""
    fd = process.open_fd()
    if fd is None:
        return False
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", stop.__file__, str(fd), str(seconds)],
            pass_fds=[fd],
            start_new_session=True,  # else a signal of the node to the process group of this worker would end it
            check=True,
        )
    finally:
        os.close(fd)
    return True


def on_node(function: Any, node: str) -> RemoteFunction:
    """Returns the function, which runs once on that node: a repeated fault would hit another state of the training."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return RemoteFunction(function, {"num_cpus": 0, "max_retries": 0}).options(scheduling_strategy=there)
