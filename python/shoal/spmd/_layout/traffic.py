"""Counts the bytes sent between devices, for resharding and for sums over parts.

Bytes are those that all devices receive, as if each had separate memory, whichever processes simulate them. A device receives each missing
range once. The transfer counts as an all_gather if the ranges complete what the device holds, otherwise as an all_to_all. A sum over n
devices is an all_reduce, which gives each of them 2 (n - 1) / n of the bytes of its result.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout import processes
from shoal.spmd._layout.sharding import Sharding

# By communication: (collective, bytes that all devices receive).
Moves = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Move:
    """The communication of a reshard: elements that all devices receive in total, and the most that one device receives."""

    collective: str
    total: int
    most: int


@functools.lru_cache(maxsize=65536)
def move_of(shape: tuple[int, ...], source: Sharding, target: Sharding) -> Move | None:
    """Returns the communication of this reshard; None if every device has the elements that it needs."""
    if source.is_replicated:
        return None
    received = []
    for d in range(len(source.devices)):
        has, needs = source.ranges(d, shape), target.ranges(d, shape)
        common = math.prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in zip(has, needs, strict=True))
        received.append(math.prod(b.stop - b.start for b in needs) - common)
    if not any(received):
        return None
    completes = all(
        t == 1 or (t, b) == (s, a) for s, a, t, b in zip(source.parts, source.columns, target.parts, target.columns, strict=True)
    )
    return Move("all_gather" if completes else "all_to_all", sum(received), max(received))


def summed(elements: int, parts: int) -> float:
    """Returns the elements that each of ``parts`` devices receives when their results of this size are summed."""
    return 2 * (parts - 1) / parts * elements


# The operator that made a sharding: its name, the program's call (a stack, or code and instruction), and the communication.
Origin = tuple[str, Any, Moves]

_bytes: Counter[tuple[str, str]] = Counter()  # by operator and collective: bytes that all devices have received


def count(operator: str, collective: str, num_bytes: int) -> Moves:
    _bytes[operator, collective] += num_bytes
    return ((collective, num_bytes),)


def communicated(by: str = "collective", *, reset: bool = False) -> dict[str, int]:
    """Returns the bytes that all devices received from others since the program's start or the last ``reset``, ``by`` "collective" or
    "operator". If one process simulates all devices, they are the bytes that real ones would receive. Units of SpmdFullyShardedDataParallel
    on the engine of shoal.fsdp are not counted; shoal.fsdp.step_graph shows their communication."""
    if by not in ("collective", "operator"):
        raise InvalidArgument(f"communicated(by={by!r})", hint='by is "collective" or "operator"')
    if processes.controller is not None:
        return processes.controller.query(("communicated", by, reset))
    found: Counter[str] = Counter()
    for (operator, collective), n in sorted(_bytes.items()):
        found[operator if by == "operator" else collective] += n
    if reset:
        _bytes.clear()
    return dict(found)


_ROOTS = tuple(os.path.dirname(f) + os.sep for f in (torch.__file__, os.path.dirname(os.path.dirname(os.path.dirname(__file__)))))


def origin(operator: str, moves: Moves) -> Origin:
    """Returns the Origin of an operator that the program calls now. This takes less than a microsecond: ``source`` finds the line."""
    return operator, gather_traceback(True, False, False), moves


def source(origin: Origin) -> tuple[str, int] | None:
    """File and line of the innermost frame outside of torch and this package."""
    if origin[1] is None or isinstance(origin[1], tuple):
        return origin[1] and line_of(*origin[1])
    for frame in symbolize_tracebacks([origin[1]])[0]:
        file = frame["filename"]
        if not file.startswith(_ROOTS) and (not file.startswith("<") or file in ("<stdin>", "<string>")):
            return file, frame["line"]
    return None


def line_of(code: CodeType, instruction: int) -> tuple[str, int]:
    """Returns file and line of an instruction."""
    lines = (line for start, stop, line in code.co_lines() if start <= instruction < stop and line)
    return code.co_filename, next(lines, code.co_firstlineno)
