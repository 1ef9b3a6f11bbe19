"""The bytes of tensors, and which operations used them last. Two uses that no mark orders are a fault, whatever order they ran in.

The caching allocator hands out freed memory again to the stream that allocated it. So at the next allocation of that stream, all uses of
its freed memory have to be before it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from late_device.queues import Clock, Operation

POISON = 0xFF  # NaN in each floating-point dtype, -1 in signed ones


class Faults(AssertionError):
    """Uses of memory that no mark orders, in the order in which they were found."""


@dataclass(eq=False)
class Use:
    stream: str
    position: int
    what: str

    def before(self, clock: Clock) -> bool:
        return self.position <= clock.get(self.stream, 0)


@dataclass(eq=False)
class Memory:
    """One storage. ``owned``: ``keep`` shares its bytes with the program's storage; else it is the program's storage."""

    name: str
    keep: torch.UntypedStorage | None
    stream: str
    owned: bool
    host: bool  # the host wrote it; no stream has
    numel: int = 0  # bytes
    freed: bool = False
    writer: Use | None = None
    readers: dict[str, Use] = field(default_factory=dict)
    last: Operation | None = None  # the poisoning of the bytes when they were freed

    def uses(self) -> list[Use]:
        return [*self.readers.values(), *([self.writer] if self.writer else [])]


class Detector:
    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(self, m: Memory, op: Operation, use: Use) -> None:
        self._after(m, op, use, "reads", [m.writer] if m.writer else [])
        m.readers[use.stream] = use

    def write(self, m: Memory, op: Operation, use: Use) -> None:
        self._after(m, op, use, "writes", m.uses())
        m.writer, m.readers = use, {}

    def _after(self, m: Memory, op: Operation, use: Use, verb: str, earlier: list[Use]) -> None:
        if m.freed:
            self.report(f"{use.what} {verb} {m.name}, which has been freed")
        for other in earlier:
            if not other.before(op.clock):
                did = "writes" if other is m.writer else "reads"
                self.report(f"{use.what} {verb} {m.name}, and no mark orders it behind {other.what}, which {did} it")

    def reuse(self, m: Memory, clock: Clock, what: str) -> None:
        """``what`` may get the freed memory. Its stream has to be behind all uses."""
        for other in m.uses():
            if not other.before(clock):
                self.report(f"{what} may get the freed memory of {m.name}, and no mark orders it behind {other.what}, which uses it")

    def report(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)


def place() -> str:
    """The innermost line of the program: neither torch nor this package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/torch/" not in path and "/late_device/" not in path and not path.startswith("<"):
            return f"{'/'.join(path.rsplit('/', 2)[-2:])}:{frame.f_lineno}"
        frame = frame.f_back
    return "autograd"
