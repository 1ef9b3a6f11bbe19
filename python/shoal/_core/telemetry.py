"""This process's telemetry: its part of the run's folder, which ``shoal show`` and the dashboard read (docs/runs.md).

A recording must not change the training: no function here raises, waits for other ranks, or reads a value of a device.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import numbers
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal import _native
from shoal._core.masks import masked, masked_arguments
from shoal._core.process import state as process
from shoal._core.variables import switch, variable
from shoal._printable import say
from shoal.exceptions import InvalidArgument

Activity = _native.Activity
_MOST_IN_ROW = 3  # events for a number that stays NaN or infinite; the verdicts on a run need no more


@dataclass
class State:
    telemetry: _native.Telemetry | None = None  # this rank's
    pid: int = 0  # the process that has tried to open it
    drivers: list[_native.Telemetry] = field(default_factory=list)  # those of the ``fit`` calls that run here
    # Those not closed yet, with the process that opened each. A forked child keeps them: their end belongs to the parent.
    owners: dict[_native.Telemetry, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)  # by name: the number in this rank's telemetry of a unit without a step machine
    not_finite: dict[str, int] = field(default_factory=dict)  # numbers of this rank that are not finite now: how often in a row


state = State()


def telemetry(opens: bool = False) -> _native.Telemetry | None:
    """Returns this rank's telemetry, or None if nothing is recorded. ``opens``: this process trains, so the first call opens it, unless it
    records as a driver. A forked child has no part in the run of its parent."""
    pid = os.getpid()
    if opens and not state.pid and not state.owners and (folder := variable("SHOAL_RUN_FOLDER")):
        state.pid = pid
        state.telemetry = open_telemetry(folder, "rank", variable("SHOAL_RUN_FIT"), obeys=True)
        if state.telemetry is not None:
            atexit.register(_close_at_exit)
    return state.telemetry if state.pid == pid else None


def may_record() -> bool:
    """Returns True if this process has a run's folder, and SHOAL_RECORD is not off. ``open_telemetry`` reports a wrong value."""
    with contextlib.suppress(InvalidArgument):
        return bool(variable("SHOAL_RUN_FOLDER")) and switch("SHOAL_RECORD", True)
    return True


def open_telemetry(folder: str, role: str, fit: str = "", obeys: bool = False) -> _native.Telemetry | None:
    """Opens a telemetry in a run's folder. A folder that cannot be written is reported, and the training goes on without a record.
    ``fit``: distinguishes the trainings of one folder. ``obeys``: SHOAL_RECORD may forbid it."""
    try:
        if obeys and not switch("SHOAL_RECORD", True):
            return None
        opened = _native.Telemetry(
            folder,
            role,
            *_rank_and_world(),
            int(variable("LOCAL_RANK", 0)),
            socket.gethostname(),
            _device(),
            [] if process.is_worker else masked_arguments(getattr(sys, "argv", [])),  # a worker's arguments would be those of its zygote
        )
    except Exception as error:
        with contextlib.suppress(Exception):  # such as a closed stderr
            say(f"shoal: this process records nothing: {masked(str(error))}")
        return None
    state.owners[opened] = os.getpid()
    event("begin", opened, **({"fit": fit} if fit else {}))
    return opened


def _rank_and_world() -> tuple[int, int]:
    """Returns this process's rank, and how many there are. Programs that start their ranks themselves may give them no variables."""
    dist = sys.modules.get("torch.distributed")
    if not variable("RANK") and dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(variable("RANK", 0)), int(variable("WORLD_SIZE", 1))


@contextlib.contextmanager
def recording_driver(folder: str, fit: str) -> Iterator[_native.Telemetry | None]:
    """Records the driver's side of a training, for the time of a block."""
    opened = open_telemetry(folder, "driver", fit) if folder else None
    if opened is None:
        yield None
        return
    state.drivers.append(opened)
    try:
        yield opened
    except BaseException as error:
        close(error, opened)
        raise
    else:
        close(opened=opened)
    finally:
        state.drivers = [*filter(_is_own, state.drivers)]


def _is_own(opened: _native.Telemetry) -> bool:
    """Returns True in the process that has opened it, until it is closed. In a forked child its locks may be held for ever."""
    return state.owners.get(opened) == os.getpid()


def _device() -> str:
    # Asking for devices that nothing has used yet would start the driver, and a process that forks later could not use them.
    torch = sys.modules.get("torch")
    return f"cuda:{torch.cuda.current_device()}" if torch is not None and torch.cuda.is_initialized() else "cpu"


def uncaught() -> BaseException | None:
    """Returns the exception that ends this program, for exit handlers. The interpreter has printed it."""
    return None if _is_interactive() else getattr(sys, "last_value", None)


def _close_at_exit() -> None:
    error = uncaught()
    if state.telemetry is not None:
        _close(state.telemetry, None if error is None else 1, error)  # an exit handler does not learn the code of sys.exit(CODE)


def _is_interactive() -> bool:
    """Returns True in a session that goes on after exceptions."""
    with contextlib.suppress(Exception):
        ipython = sys.modules.get("IPython")
        return hasattr(sys, "ps1") or bool(sys.flags.interactive) or (ipython is not None and ipython.get_ipython() is not None)
    return False


def close(error: BaseException | None = None, opened: _native.Telemetry | None = None) -> None:
    """Ends this rank's telemetry, or ``opened``. ``error``: it ended the training."""
    if opened is None:
        opened = state.telemetry
    if opened is not None:
        _close(opened, 0 if error is None else 1, error)


def _close(opened: _native.Telemetry, code: int | None, error: BaseException | None) -> None:
    if not _is_own(opened):
        return
    cause = ""
    if error is not None:
        cause = type(error).__name__
        with contextlib.suppress(Exception):  # the exception's own __str__ may raise
            cause = masked(f"{cause}: {error}")[:2000]
    with contextlib.suppress(Exception):
        opened.close(code, cause)
    state.owners.pop(opened, None)


def event(kind: str, opened: _native.Telemetry | None = None, **fields: Any) -> None:
    """Records what happens once, in ``opened``, this rank's telemetry, or the driver's. ``fields``: JSON's types."""
    with contextlib.suppress(Exception):
        opened = opened or telemetry() or next(filter(_is_own, reversed(state.drivers)), None)
        if opened is not None and _is_own(opened):
            shown = {name: masked(value) if isinstance(value, str) else value for name, value in fields.items()}
            opened.event(kind, json.dumps(shown, default=str))


def unit_number(opened: _native.Telemetry, name: str) -> int:
    """Returns the number of a unit that no step machine reports."""
    if name not in state.units:
        state.units[name] = opened.add_units([name])
    return state.units[name]


@contextlib.contextmanager
def at(activity: Activity, unit: str = "") -> Iterator[None]:
    """Counts the time of a block of the training thread at ``activity``, of ``unit`` if that has a name."""
    if (opened := telemetry()) is None:
        yield
        return
    key = unit_number(opened, unit) if unit else -1
    opened.begin(activity, key)
    try:
        yield
    finally:
        opened.end(activity, key)


@contextlib.contextmanager
def waiting(activity: Activity = Activity.SYNC) -> Iterator[None]:
    """Counts the time of a block as a wait for other ranks."""
    if (opened := telemetry()) is None:
        yield
        return
    opened.wait_begin(activity)
    try:
        yield
    finally:
        if telemetry() is opened:
            opened.wait_end()


def begin_batch() -> None:
    """Called when a loop over batches draws its next batch: the step of the batch before ends."""
    if (opened := telemetry()) is not None:
        opened.begin_batch()


def number_step(number: int) -> None:
    """Gives the step under way the number that it has in the State."""
    with contextlib.suppress(Exception):  # the program may set the State's to anything
        if (opened := telemetry()) is not None:
            opened.step = number - 1


def record_metrics(metrics: dict[str, Any], first: bool = True) -> None:
    """Notes losses that are not finite. ``first``: this is rank 0, which also records the numbers among ``metrics``: Python's and NumPy's,
    and plain CPU tensors of one element. Reading a tensor of a device would make the training wait for it, and reading one of several
    ranks may need all of them."""
    with contextlib.suppress(Exception):
        if (opened := telemetry()) is not None and (values := list(_numbers(metrics))):
            if first:
                opened.metrics(values)
            for name, value in values:
                if name.lower().endswith("loss"):
                    note_finite(name, value, opened.step)


def note_finite(what: str, value: float, step: int) -> None:
    """Records that a number of this rank has become NaN or infinite, or finite again. So a number that stays NaN costs few events.
    ``step``: the step's number."""
    bad = not math.isfinite(value)
    if not bad and not state.not_finite:
        return
    in_row = state.not_finite.get(what, 0)
    if bad:
        state.not_finite[what] = in_row + 1
        if in_row < _MOST_IN_ROW:
            event("not_finite", what=what, step=step, value="nan" if math.isnan(value) else "inf")
    elif state.not_finite.pop(what, 0):
        event("finite", what=what, step=step)


def note_norm(norm: float) -> None:
    """Records whether the norm of the gradients is finite, before the optimizer's step."""
    if (state.not_finite or not math.isfinite(norm)) and (opened := telemetry()) is not None:
        note_finite("grad_norm", norm, opened.step + 1)


def _numbers(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        with contextlib.suppress(Exception):  # a value may raise whatever is done with it
            if (number := _number(value)) is not None:
                yield _encodable(str(name)), number


def _number(value: Any) -> float | None:
    """Looks only at the type of a value that it does not know, because attributes of objects may run any code."""
    torch, numpy, kind = sys.modules.get("torch"), sys.modules.get("numpy"), type(value)
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        if value.is_nested or value.layout is not torch.strided or value.device.type != "cpu" or value.numel() != 1:
            return None
        if value.data_ptr() == 0:  # its memory is freed, such as that of a parameter between two passes
            return None
        value = value.item()
        kind = type(value)
    elif numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return float(value) if value.ndim == 0 and value.dtype.kind in "iuf" else None
    return float(value) if issubclass(kind, numbers.Real) and kind is not bool else None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def save_event(kind: str, path: str, begin: float, num_bytes: int | None = None, own_s: float | None = None) -> None:
    """Records a save or load that began at ``time.perf_counter()`` ``begin``. ``num_bytes``: this rank's. ``own_s``: seconds of it in which
    this rank did not wait for others."""
    with contextlib.suppress(Exception):
        about = {} if num_bytes is None else {"bytes": num_bytes}
        if own_s is not None:
            about["own_us"] = int(own_s * 1e6)
        if (opened := telemetry()) is not None:
            about["step"] = opened.step
        event(kind, path=path, us=int((time.perf_counter() - begin) * 1e6), **about)
