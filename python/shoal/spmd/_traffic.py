"""What travels between devices, counted where it does: where tensors are laid out anew, and where results are sums over parts.

Bytes are those that all devices receive together, if each had its memory to itself, whichever processes play them. A device that needs
ranges which it does not hold receives them once: an all_gather when they complete what it holds, otherwise an all_to_all. Sums over n
devices are an all_reduce, which gives each of them 2 (n - 1) / n of the bytes of its result.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from types import CodeType

import torch

from shoal.exceptions import InvalidArgument
from shoal.spmd import _world
from shoal.spmd._sharding import Sharding

# (collective, bytes received by all devices)
Moves = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Move:
    """A change of layout: elements that all devices receive together, and that the one receives which gets most."""

    collective: str
    total: int
    most: int


@functools.lru_cache(maxsize=65536)
def move_of(shape: tuple[int, ...], source: Sharding, target: Sharding) -> Move | None:
    """None when every device has what it needs."""
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
    """Elements that each of ``parts`` devices receives when their results of this size are added up."""
    return 2 * (parts - 1) / parts * elements


# Which operator laid an array out: its name, code and instruction of the program that called it, and what moved for it.
Origin = tuple[str, CodeType | None, int, Moves]

_bytes: Counter[tuple[str, str]] = Counter()  # by operator and collective


def count(operator: str, collective: str, num_bytes: int) -> Moves:
    _bytes[operator, collective] += num_bytes
    return ((collective, num_bytes),)


def communicated(by: str = "collective", *, reset: bool = False) -> dict[str, int]:
    """Bytes that all devices received from others since the program's start or the last ``reset``, ``by`` "collective" or "operator". In
    one process that plays all devices they are those that the devices would receive."""
    if by not in ("collective", "operator"):
        raise InvalidArgument(f"communicated(by={by!r})", hint='by is "collective" or "operator"')
    if _world.controller is not None:
        return _world.controller.ask(("communicated", by, reset))
    found: Counter[str] = Counter()
    for (operator, collective), n in sorted(_bytes.items()):
        found[operator if by == "operator" else collective] += n
    if reset:
        _bytes.clear()
    return dict(found)


_ROOTS = tuple(os.path.dirname(f) + os.sep for f in (torch.__file__, os.path.dirname(os.path.dirname(__file__))))


class _Inside(dict):
    """By file: whether its code is torch's or this package's."""

    def __missing__(self, file: str) -> bool:
        self[file] = file.startswith(_ROOTS) or (file.startswith("<") and file not in ("<stdin>", "<string>"))
        return self[file]


_inside = _Inside()


def origin(operator: str, moves: Moves, skipped: int) -> Origin:
    """``skipped``: frames from this one on that are this package's for sure. For every operator on split tensors: it has to be cheap."""
    frame = sys._getframe(skipped)
    try:
        while _inside[frame.f_code.co_filename]:
            frame = frame.f_back
    except AttributeError:  # above the first frame
        return operator, None, 0, moves
    return operator, frame.f_code, frame.f_lasti, moves
