"""A flight recorder: the latest operations of this process's groups, which ``torchfrtrace`` compares among ranks.

``TORCH_FR_BUFFER_SIZE=N`` switches it on and keeps N operations, as in torch. A rank whose operation fails writes its dump to the file
``TORCH_FR_DUMP_TEMP_FILE`` with its rank behind it, if that variable is set.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shoal._core.variables import variable
from shoal._printable import say
from shoal.exceptions import InvalidArgument

_FORMAT = "2.10"  # the version of torch's dumps
# The analyzer's names of the operations, by the group's methods.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "ALLGATHER_coalesced",
    "all_gather_single": "_all_gather_base",
    "_allgather_base": "_all_gather_base",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_INPUTS, _OUTPUTS, _BOTH = ("inputs", "input"), ("outputs", "output"), ("tensors",)
_MOST_FRAMES = 16

Sizes = list[list[int]]
Names = list[str]


class Recorded:
    """The facts of a group that entries need. They do not keep the group itself."""

    def __init__(self, group: Any):
        self.name, self.desc, self.ranks = group.getGroupName(), group.getGroupDesc(), _ranks(group)
        self.numbers = [0, 0]  # how many collectives, and how many messages


class Entry:
    """One operation. It has completed if its call has returned, and then, for an asynchronous one, if its Work has."""

    __slots__ = ("created", "dtypes", "frames", "group", "message", "name", "number", "record", "returned", "sizes", "timeout_ms", "work")

    def __init__(self, record: int, group: Recorded, name: str, message: bool, timeout_ms: int, tensors: tuple[Sizes, Sizes, Names, Names]):
        group.numbers[message] += 1
        self.record, self.group, self.name, self.message, self.timeout_ms = record, group, name, message, timeout_ms
        self.number = group.numbers[message]
        self.sizes, self.dtypes = tensors[:2], tensors[2:]
        self.created = time.time_ns()
        self.returned = False
        self.work: weakref.ref | None = None
        self.frames = list(_frames())

    @property
    def completed(self) -> bool:
        work = None if self.work is None else self.work()  # a group keeps Works until they end
        return self.returned and (work is None or work.succeeded())

    def as_torch(self) -> dict[str, Any]:
        """The entry as torch's recorder writes it."""
        inputs, outputs = self.sizes
        return {
            "record_id": self.record,
            "pg_id": 0,
            "process_group": (self.group.name, self.group.desc),
            "collective_seq_id": 0 if self.message else self.number,
            "p2p_seq_id": self.number if self.message else 0,
            "op_id": self.record + 1,
            "profiling_name": f"gloo:{self.name}",  # the analyzer takes names of torch's backends only
            "time_created_ns": self.created,
            "input_sizes": inputs,
            "input_dtypes": self.dtypes[0],
            "output_sizes": outputs,
            "output_dtypes": self.dtypes[1],
            "state": "completed" if self.completed else "started",
            "time_discovered_started_ns": self.created,
            "time_discovered_completed_ns": None,
            "retired": self.completed,
            "timeout_ms": self.timeout_ms,
            "is_p2p": self.message,
            "frames": [{"name": code.co_name, "filename": code.co_filename, "line": line} for code, line in self.frames],
        }


def _frames() -> Iterator[tuple[Any, int]]:
    frame, count = sys._getframe(1), 0
    while frame is not None and count < _MOST_FRAMES:
        if frame.f_code.co_filename != __file__:
            yield frame.f_code, frame.f_lineno
            count += 1
        frame = frame.f_back


class Recorder:
    """The operations of all groups of this process, in the order in which they began."""

    def __init__(self, size: int):
        self._entries: deque[Entry] = deque(maxlen=size)
        self._records = itertools.count()
        self._groups: weakref.WeakKeyDictionary[Any, Recorded] = weakref.WeakKeyDictionary()
        self._inside = threading.local()
        self._classes: dict[type, type] = {}  # by the class without recording
        self._lock = threading.Lock()
        self._has_written = False

    def recorded(self, cls: type) -> type:
        """Returns a subclass of the process group's class whose operations are recorded."""
        if cls not in self._classes:
            methods = {name: self._recording(getattr(cls, name), operation) for name, operation in OPERATIONS.items()}
            self._classes[cls] = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **methods})
        return self._classes[cls]

    def _recording(self, function: Callable[..., Any], operation: str) -> Callable[..., Any]:
        parameters = signature(function)

        @wraps(function)
        def call(group: Any, *args: object, **kwargs: object) -> Any:
            if getattr(self._inside, "value", False):  # an operation that is made of others
                return function(group, *args, **kwargs)
            self._inside.value = True
            try:
                entry = self._begin(group, operation, parameters.bind(group, *args, **kwargs).arguments)
                work = function(group, *args, **kwargs)
                if hasattr(work, "succeeded"):
                    entry.work = weakref.ref(work)
                entry.returned = True
                return work
            except Exception as error:
                self.failed(error)
                raise
            finally:
                self._inside.value = False

        return call

    def _begin(self, group: Any, operation: str, arguments: dict[str, Any]) -> Entry:
        name, message = operation, operation in ("send", "recv")
        both = list(_tensors(arguments.get("tensors")))
        inputs, outputs = (both or list(_tensors([arguments.get(k) for k in keys])) for keys in (_INPUTS, _OUTPUTS))
        if message:
            peer = arguments["to" if operation == "send" else "source"]
            name = f"{operation} {group.rank()}{'->' if operation == 'send' else '<-'}{peer}"
            inputs, outputs = (inputs, []) if operation == "send" else ([], outputs)
        sizes = [list(t.shape) for t in inputs], [list(t.shape) for t in outputs]
        dtypes = [_dtype(t) for t in inputs], [_dtype(t) for t in outputs]
        if operation == "all_gather":
            name, sizes = _flat(name, *sizes, of_outputs=True)
        elif operation == "reduce_scatter":
            name, sizes = _flat(name, *sizes, of_outputs=False)
        dtypes = dtypes[0][: len(sizes[0])], dtypes[1][: len(sizes[1])]
        with self._lock:
            known = self._groups.get(group)
            if known is None:
                known = self._groups[group] = Recorded(group)
            entry = Entry(next(self._records), known, name, message, int(group._timeout.total_seconds() * 1000), (*sizes, *dtypes))
            self._entries.append(entry)
        return entry

    def failed(self, error: BaseException) -> None:
        """Writes the dump at this process's first failed operation, if the program has named a file."""
        prefix = variable("TORCH_FR_DUMP_TEMP_FILE")
        with self._lock:
            first, self._has_written = not self._has_written, True
        if not first or not prefix:
            return
        try:
            path = self.write(f"{prefix}{_rank()}")
        except Exception as why:  # the program gets the operation's error, not this one
            say(f"shoal: the flight recorder's dump cannot be written: {why}")
        else:
            say(f"shoal: an operation has failed; {path} has the latest ones of this rank, for torchfrtrace")

    def dump(self) -> dict[str, Any]:
        """The recorded operations in the form of torch's recorder."""
        with self._lock:
            entries = list(self._entries)
        groups = {entry.group.name: entry.group for entry in entries}
        config = {g.name: {"name": g.name, "desc": g.desc, "ranks": str(g.ranks)} for g in groups.values()}
        return {"version": _FORMAT, "pg_config": config, "pg_status": {}, "entries": [entry.as_torch() for entry in entries]}

    def write(self, path: str | os.PathLike[str]) -> Path:
        written, unfinished = Path(path), Path(f"{os.fspath(path)}.{os.getpid()}.tmp")
        unfinished.write_bytes(pickle.dumps(self.dump()))
        unfinished.replace(written)
        return written

    def waiting(self) -> list[str]:
        """The operations that have begun and not completed."""
        with self._lock:
            entries = [entry for entry in self._entries if not entry.completed]
        return [f"{e.name} number {e.number} of group {e.group.name}" for e in entries]


def _flat(name: str, inputs: Sizes, outputs: Sizes, of_outputs: bool) -> tuple[str, tuple[Sizes, Sizes]]:
    """Returns name and sizes of an operation on a list of tensors, as NCCL's recorder has them. Equal tensors count as one. If sizes
    differ, the list stands for inputs and outputs: it is the same on all ranks, and a rank's own tensor is not."""
    each = outputs if of_outputs else inputs
    if any(size != each[0] for size in each):
        return f"{name}_v", (each, each)
    whole = [[len(each), *each[0]]]
    return name, (inputs, whole) if of_outputs else (whole, outputs)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(variable("RANK", "0"))


def _ranks(group: Any) -> list[int]:
    with suppress(Exception):  # a group that torch does not know has no other ranks' numbers
        return dist.get_process_group_ranks(group)
    return list(range(group.size()))


def _from_variables() -> Recorder | None:
    text = variable("TORCH_FR_BUFFER_SIZE", "0")
    return Recorder(int(text)) if text.isdecimal() and int(text) > 0 else None


recorder = _from_variables()


def dump_flight_recorder(path: str | os.PathLike[str]) -> None:
    """Writes the latest operations of this rank's groups of backend ``shoal``, for ``torchfrtrace``.

    ``path``: a prefix that all ranks share, such as "traces/rank_"; the rank's number follows it. Any thread may call it. Raises
    InvalidArgument unless ``TORCH_FR_BUFFER_SIZE`` has been set before ``import shoal.torch``.
    """
    if recorder is None:
        raise InvalidArgument("nothing is recorded in this process", hint="start the ranks with TORCH_FR_BUFFER_SIZE=2000")
    recorder.write(f"{os.fspath(path)}{_rank()}")
