"""Explains a tensor's sharding: the operator that made it, and the communication for it."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass

import torch

from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout import traffic
from shoal.spmd._layout.errors import MarkError
from shoal.spmd._layout.sharding import parts_of


@dataclass(frozen=True)
class Explanation:
    """A tensor's sharding and its cause. ``parts``: per nonempty part its devices and ranges. ``operator``: the operator that made the
    sharding. It is None for a tensor from a host value, from operators on whole tensors, from a loader, or for a parameter of an FSDP unit.
    ``source``: file and line of the program's call. ``communicated``: (collective, bytes received by all devices) for this call, to reshard
    arguments and to sum results. ``is_view``: the tensor is a view of the operator's result."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sharding: str
    parts: tuple[tuple[tuple[int, ...], tuple[slice, ...]], ...]
    operator: str | None
    source: tuple[str, int] | None
    communicated: tuple[tuple[str, int], ...]
    is_view: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(n for _, n in self.communicated)

    def __str__(self) -> str:
        lines = [f"tensor of shape {self.shape}, {str(self.dtype).removeprefix('torch.')}: {self.sharding}"]
        for devices, ranges in self.parts:
            names = f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
            lines.append(f"  {names}: [{', '.join(f'{r.start}:{r.stop}' for r in ranges)}]")
        if self.operator is None:
            origin = "whole" if self.sharding == "{replicated}" else "so, by a loader or as the parameter of a unit"
            lines.append(f"no operator on split tensors made it: it was created {origin}")
            return "\n".join(lines)
        where = ""
        if self.source is not None:
            file, line = self.source
            where = f" at {os.path.relpath(file)}:{line}: {linecache.getline(file, line).strip()}"
        lines.append(f"{'a view of what was ' if self.is_view else ''}laid out by {self.operator}{where}")
        lines += [f"  {collective}: {n} bytes" for collective, n in self.communicated]
        so_far = traffic.communicated("operator").get(self.operator, 0)
        lines.append(f"all devices received {self.num_bytes} bytes for it, and {so_far} for all calls of {self.operator}")
        return "\n".join(lines)


def explain(t: torch.Tensor) -> Explanation:
    """Explains a tensor of the device, for ``print``. Raises MarkError for a host tensor."""
    if not isinstance(t, Tensor):
        raise MarkError(
            f"explain takes a tensor of the device, not a {type(t).__name__} of the host", hint="move it with .to(xm.xla_device())"
        )
    array = t._box.array
    sharding, (origin, views) = array.sharding, t._box.laid
    cuts = parts_of(array.shape, sharding)
    parts = tuple((sharding.holders(i), cut) for i, cut in enumerate(cuts) if all(c.stop > c.start for c in cut))
    source = origin and traffic.source(origin)
    operator, _, moves = origin or (None, None, ())
    by_collective: dict[str, int] = {}
    for collective, n in moves:
        by_collective[collective] = by_collective.get(collective, 0) + n
    return Explanation(tuple(t.shape), t.dtype, str(sharding), parts, operator, source, tuple(by_collective.items()), views > 0)


__all__ = ["Explanation", "explain"]
