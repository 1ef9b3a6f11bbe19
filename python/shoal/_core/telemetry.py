"""This process's telemetry: its part of the run's folder, which ``shoal show`` and the dashboard read (docs/runs.md)."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._core.process import state as process
from shoal._core.variables import switch, variable
from shoal._printable import say

Activity = _native.Activity


_KEPT_RUNS = 50  # folders of runs that got none from their launcher
_LONG_AGO_S = 86400


@dataclass
class _State:
    telemetry: _native.Telemetry | None = None
    pid: int = 0  # the process that has tried to open it


_state = _State()


def telemetry() -> _native.Telemetry | None:
    """Returns this rank's telemetry. The first call opens it. It is None if nothing is recorded."""
    if _state.pid != os.getpid():
        _state.telemetry, _state.pid = None, os.getpid()  # a forked child has no part in the run of its parent
        if folder := variable("SHOAL_RUN_FOLDER"):
            _state.telemetry = open_telemetry(folder, "rank")
            if _state.telemetry is not None:
                atexit.register(_close_at_exit)
    return _state.telemetry


def open_telemetry(folder: str, role: str) -> _native.Telemetry | None:
    """Opens a telemetry in a run's folder. A folder that cannot be written is reported, and the training goes on without a record."""
    if not switch("SHOAL_RECORD", True):
        return None
    try:
        opened = _native.Telemetry(
            folder,
            role,
            int(variable("RANK", 0)),
            int(variable("WORLD_SIZE", 1)),
            int(variable("LOCAL_RANK", 0)),
            socket.gethostname(),
            _device(),
            [] if process.is_worker else sys.argv,  # a worker has its zygote's
        )
    except Exception as error:
        say(f"shoal: this process records nothing: {error}")
        return None
    opened.event("begin")
    return opened


def new_run_folder() -> str:
    """Returns the name of a new run's folder below ``$SHOAL_HOME/runs``, and removes the oldest of many there."""
    home = Path(variable("SHOAL_HOME", f"/tmp/shoal-{os.getuid()}"), "runs")
    with contextlib.suppress(OSError):
        earlier = sorted(home.iterdir(), key=lambda f: f.stat().st_mtime)
        for folder in earlier[: max(len(earlier) - _KEPT_RUNS, 0)]:
            if folder.joinpath("processes").is_dir() and time.time() - folder.stat().st_mtime > _LONG_AGO_S:
                shutil.rmtree(folder, ignore_errors=True)
    script = re.sub(r"[^A-Za-z0-9._-]", "_", Path(sys.argv[0]).stem)[:64] or "run"
    return str(home / f"{script}-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}")


def _device() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cuda"


def _close_at_exit() -> None:
    error = getattr(sys, "last_value", None)  # the interpreter has printed it
    if _state.telemetry is not None and _state.pid == os.getpid():
        _close(_state.telemetry, None if error is None else 1, error)  # an exit handler does not learn the code of sys.exit(CODE)


def close(error: BaseException | None = None, opened: _native.Telemetry | None = None) -> None:
    """Ends this rank's telemetry, or ``opened``. ``error``: it ended the training."""
    if opened is None and _state.pid == os.getpid():
        opened = _state.telemetry
    if opened is not None:
        _close(opened, 0 if error is None else 1, error)


def _close(opened: _native.Telemetry, code: int | None, error: BaseException | None) -> None:
    opened.close(code, "" if error is None else f"{type(error).__name__}: {error}"[:2000])


def event(kind: str, opened: _native.Telemetry | None = None, **fields: Any) -> None:
    """Records what happens once, in this rank's telemetry or ``opened``. ``fields``: JSON's types."""
    if (opened := opened or telemetry()) is not None:
        opened.event(kind, json.dumps(fields, default=str))


@contextlib.contextmanager
def at(activity: Activity) -> Iterator[None]:
    """Counts the time of a block of the training thread at ``activity``."""
    if (opened := telemetry()) is None:
        yield
        return
    opened.begin(activity)
    try:
        yield
    finally:
        opened.end(activity)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Counts the time of a block as a wait for other ranks."""
    if (opened := telemetry()) is None:
        yield
        return
    opened.wait_begin(Activity.SYNC)
    try:
        yield
    finally:
        opened.wait_end()


def record_metrics(metrics: dict[str, Any]) -> None:
    """Records the numbers among ``metrics``. Tensors of one element count; those on a device would make the training wait for it, so they
    do not."""
    if (opened := telemetry()) is not None and (values := list(_numbers(metrics))):
        opened.metrics(values)


def _numbers(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if getattr(value, "numel", None) is not None:
            if value.numel() != 1 or value.device.type != "cpu":
                continue
            value = value.item()
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), float(value)


def save_event(kind: str, path: str, begin: float, num_bytes: int | None = None) -> None:
    """Records a save or load that began at ``time.perf_counter()`` ``begin``. ``num_bytes``: this rank's."""
    if (opened := telemetry()) is not None:
        about = {} if num_bytes is None else {"bytes": num_bytes}
        event(kind, path=path, step=opened.step, us=int((time.perf_counter() - begin) * 1e6), **about)
