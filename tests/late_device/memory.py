"""The bytes of tensors, and which operations used them last. Two uses that no mark orders are a fault, whatever order they ran in.

The caching allocator hands out freed memory again to the stream that allocated it. So at the next allocation of that stream, all uses of
its freed memory have to be before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from late_device.queues import Clock, Operation

POISON = 0xFF  # NaN in each floating-point dtype, -1 in signed ones


class Faults(AssertionError):
    """Uses of memory that no mark orders, in the order in which they were found."""


@dataclass(eq=False, slots=True)
class Use:
    """``what``: its description, which only a report needs."""

    stream: int
    position: int
    what: Callable[[], str]


@dataclass(eq=False, slots=True)
class Memory:
    """One storage. ``owned``: ``keep`` shares its bytes with the program's storage; else it is the program's storage."""

    describe: Callable[[], str]
    keep: torch.UntypedStorage | None
    stream: int
    owned: bool
    host: bool  # the host wrote it; no stream has
    numel: int = 0  # bytes
    freed: bool = False
    writer: Use | None = None
    readers: dict[int, Use] = field(default_factory=dict)  # by stream
    last: Operation | None = None  # the poisoning of the bytes when they were freed

    @property
    def name(self) -> str:
        return self.describe()


class Detector:
    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(self, m: Memory, op: Operation, use: Use) -> None:
        if m.freed:
            self._freed(m, use, "reads")
        writer = m.writer
        if writer is not None and writer.position > op.clock[writer.stream]:
            self._unordered(m, use, "reads", writer, "writes")
        m.readers[use.stream] = use

    def write(self, m: Memory, op: Operation, use: Use) -> None:
        if m.freed:
            self._freed(m, use, "writes")
        for reader in m.readers.values():
            if reader.position > op.clock[reader.stream]:
                self._unordered(m, use, "writes", reader, "reads")
        writer = m.writer
        if writer is not None and writer.position > op.clock[writer.stream]:
            self._unordered(m, use, "writes", writer, "writes")
        m.writer = use
        m.readers.clear()

    def _freed(self, m: Memory, use: Use, verb: str) -> None:
        self.report(f"{use.what()} {verb} {m.name}, which has been freed")

    def _unordered(self, m: Memory, use: Use, verb: str, other: Use, did: str) -> None:
        self.report(f"{use.what()} {verb} {m.name}, and no mark orders it behind {other.what()}, which {did} it")

    def reuse(self, m: Memory, clock: Clock, what: Callable[[], str]) -> None:
        """``what`` may get the freed memory. Its stream has to be behind all uses."""
        for other in (*m.readers.values(), m.writer):
            if other is not None and other.position > clock[other.stream]:
                self.report(f"{what()} may get the freed memory of {m.name}, and no mark orders it behind {other.what()}, which uses it")

    def report(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)


# By the id of code, which is faster than its hash: whether it is the program's, neither torch's nor this package's.
_programs: dict[int, tuple[bool, CodeType]] = {}


def place() -> Callable[[], str]:
    """The innermost line of the program. Its number is computed at a report, because that costs more than all the rest of a use."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        known = _programs.get(id(code))
        if known is None:
            path = code.co_filename
            known = "/torch/" not in path and "/late_device/" not in path and not path.startswith("<"), code
            _programs[id(code)] = known
        if known[0]:
            at = frame.f_lasti
            return lambda: f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{_line(code, at)}"
        frame = frame.f_back
    return lambda: "autograd"


def _line(code: CodeType, at: int) -> int | None:
    return next((line for begin, end, line in code.co_lines() if begin <= at < end), None)
