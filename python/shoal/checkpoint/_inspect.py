"""Verifies the bytes of a checkpoint, and finds the differences of two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.checkpoint import _boxes
from shoal.checkpoint._manifest import DTYPES, FORMAT, Manifest, Tensor
from shoal.checkpoint._other.arrange import arrange
from shoal.checkpoint._other.formats import open_checkpoint
from shoal.checkpoint._read import Reader
from shoal.exceptions import DataLoss

_THREADS = 3
_SLAB = 64 << 20  # bytes of each checkpoint that a comparison holds


@dataclass(frozen=True)
class Verified:
    """The result of ``verify``: problems, and the numbers of tensors and bytes that were read. ``hashed``: the format has hashes."""

    problems: list[str]
    num_tensors: int
    num_bytes: int
    hashed: bool


def verify(path: str | Path) -> Verified:
    """Reads every byte of a checkpoint and compares it with its hash. Raises NotFound, InvalidArgument or DataLoss if there is no manifest
    to verify by. Errors of a read that are no damage are raised as they are. In formats without hashes it finds only missing bytes."""
    store, manifest = open_checkpoint(path)
    problems: list[str] = []
    with Reader(store, manifest) as reader:

        def check(name: str, t: Tensor, piece) -> None:
            try:
                reader.verify_piece(name, t, piece)
            except DataLoss as error:
                problems.append(error.message)

        for file in sorted(manifest.files):
            try:
                reader.open(file)
            except DataLoss as error:
                problems.append(error.message)
        if not problems:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-checkpoint-verify") as pool:
                checks = [pool.submit(check, name, t, piece) for name, t in manifest.all_tensors() for piece in t.pieces]
            for check in checks:
                check.result()  # raises what is no damage, such as an error of the disk: those bytes were not read
    tensors = list(manifest.all_tensors())
    return Verified(sorted(set(problems)), len(tensors), sum(t.num_bytes for _, t in tensors), manifest.format == FORMAT)


@dataclass(frozen=True)
class Difference:
    """A tensor or value that differs. ``what``: "missing" (only the second has it), "extra" (only the first), "shape", "dtype", "value".
    ``largest``: the largest absolute difference of elements that differ."""

    name: str
    what: str
    first: Any
    second: Any
    largest: float | None = None


def diff(first: str | Path, second: str | Path) -> list[Difference]:
    """Compares two checkpoints of any format, however they were sharded. Holds 128 MiB. Pieces with equal hashes are not read."""
    one_store, one = open_checkpoint(first)
    two_store, two = open_checkpoint(second)
    if two.format != FORMAT:
        two = arrange(two, one.tensors, one.tied, [list(g.parameters) for g in one.groups])
    elif one.format != FORMAT:
        one = arrange(one, two.tensors, two.tied, [list(g.parameters) for g in two.groups])
    with Reader(one_store, one) as a, Reader(two_store, two) as b:
        found = list(_tensors(dict(one.all_tensors()), dict(two.all_tensors()), a, b))
    return found + list(_values(_plain_values(one), _plain_values(two)))


def _tensors(one: dict[str, Tensor], two: dict[str, Tensor], a: Reader, b: Reader) -> Iterator[Difference]:
    for name in sorted(one.keys() | two.keys()):
        t, u = one.get(name), two.get(name)
        if t is None or u is None:
            yield Difference(name, "missing" if t is None else "extra", t and list(t.shape), u and list(u.shape))
        elif t.shape != u.shape:
            yield Difference(name, "shape", list(t.shape), list(u.shape))
        elif t.dtype != u.dtype:
            yield Difference(name, "dtype", t.dtype, u.dtype)
        elif not _same_hashes(t, u):
            largest = _compare(name, t, u, a, b)
            if largest is not None:
                yield Difference(name, "value", None, None, largest)


def _same_hashes(t: Tensor, u: Tensor) -> bool:
    return all(p.hashes for p in t.pieces) and [(p.box, p.hashes) for p in t.pieces] == [(p.box, p.hashes) for p in u.pieces]


def _compare(name: str, t: Tensor, u: Tensor, a: Reader, b: Reader) -> float | None:
    """Returns the largest difference of two tensors; None if all elements are equal."""
    largest = None
    for box in slabs(t):
        x, y = a.fetch(name, t, box), b.fetch(name, u, box)
        if torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8)):
            continue
        wide = torch.complex128 if x.is_complex() else torch.float64
        difference = (x.to(wide) - y.to(wide)).abs()
        value = math.nan if difference.isnan().any() else difference.max().item()
        largest = value if largest is None or not value <= largest else largest
    return largest


def slabs(t: Tensor) -> Iterator[_boxes.Box]:
    """Divides a tensor into boxes of few bytes, along its first dim."""
    if not math.prod(t.shape):
        return
    if not t.shape:
        yield (), ()
        return
    rows = max(1, _SLAB // (math.prod(t.shape[1:]) * DTYPES[t.dtype][1]))
    for begin in range(0, t.shape[0], rows):
        yield (begin, *[0] * (len(t.shape) - 1)), (min(rows, t.shape[0] - begin), *t.shape[1:])


def _plain_values(manifest: Manifest) -> dict[str, Any]:
    """Everything that is no tensor, by name."""
    found = {f"state.{k}": v for k, v in manifest.state.items()}
    for group in manifest.groups:
        for name in group.parameters[:1]:
            found |= {f"groups.{name}.{k}": v for k, v in group.options.items()}
    for name, of in manifest.optimizer_state.items():
        found |= {f"{name}/{k}": v for k, v in of.items() if not isinstance(v, Tensor)}
    return found


def _values(one: dict[str, Any], two: dict[str, Any]) -> Iterator[Difference]:
    for name in sorted(one.keys() | two.keys()):
        if name not in two or name not in one:
            yield Difference(name, "missing" if name not in one else "extra", one.get(name), two.get(name))
        elif one[name] != two[name] and list_of(one[name]) != list_of(two[name]):
            yield Difference(name, "value", one[name], two[name])


def list_of(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [list_of(v) for v in value] if isinstance(value, (list, tuple)) else value
