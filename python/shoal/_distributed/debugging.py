"""Answers for ``torch.distributed.debug``: each part of the package provides what it knows about this rank."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from shoal._core.variables import variable

_MOST_FRAMES = 8
_providers: dict[str, Callable[[], Any]] = {}


def provide(name: str, describe: Callable[[], Any]) -> None:
    """Adds a part of the answer. ``describe`` runs in a thread of torch's server, while the program's threads run or wait."""
    if not _providers:
        register_handler("shoal", lambda: json.dumps(state()))
    _providers[name] = describe


def register_handler(name: str, answer: Callable[[], str]) -> None:
    """Makes torch's server of this process answer ``POST /handler/NAME`` with JSON, where this torch has one."""
    import torch  # late: this module is imported where torch may not be needed

    register = getattr(getattr(torch._C, "_distributed_c10d", None), "_register_handler", None)
    if register is None:
        return

    def handle(_: Any, response: Any) -> None:
        try:
            content, status = answer(), 200
        except Exception as error:  # the server would end the process
            content, status = json.dumps({"error": f"{type(error).__name__}: {error}"}), 500
        response.set_content(content, "application/json")
        response.set_status(status)

    # torch drops its reference after the interpreter's end, where freeing the function would crash. So it gets one that stays.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    register(name, handle)


def state() -> dict[str, Any]:
    """The state of this rank. ``threads``: where each Python thread is, the innermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = {}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            calls = reversed(traceback.extract_stack(frame)[-_MOST_FRAMES:])
            threads[names.get(ident, str(ident))] = [f"{call.filename}:{call.lineno} {call.name}" for call in calls]
    rank, world_size = int(variable("RANK", "0")), int(variable("WORLD_SIZE", "1"))
    found: dict[str, Any] = {"schema": "shoal.rank_state/1", "rank": rank, "world_size": world_size}
    found |= {"host": socket.gethostname(), "pid": os.getpid(), "threads": threads}
    return found | {name: describe() for name, describe in _providers.items()}
