"""The decisions of automatic sharding: parameters and inputs that share a spec, and the candidates of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from shoal.spmd._auto.trace import Trace
from shoal.spmd._layout.mesh import Mesh
from shoal.spmd._layout.sharding import Sharding

Axes = tuple[int, ...]


@dataclass
class Decision:
    """One decision: parameters that share a spec, or inputs that share the split of their batch. ``candidates``: per candidate the mesh
    axes of each dimension (for inputs, of the first dimension)."""

    name: str
    members: list[str]
    values: list[int]
    shape: tuple[int, ...]
    candidates: list[tuple[Axes, ...]]
    is_input: bool = False

    def sharding(self, mesh: Mesh, candidate: int, rank: int) -> Sharding:
        axes = self.candidates[candidate]
        return mesh.get_op_sharding([*axes, *[()] * (rank - len(axes))])


def decisions_of(trace: Trace, mesh: Mesh, module: nn.Module) -> list[Decision]:
    """Returns the decisions in the order of first use. Names omit the indices of blocks (modules in a list that have children). Parameters
    of one name and shape share a decision, and so do inputs of one batch size."""
    used: dict[int, int] = {}
    for i, op in enumerate(trace.ops):
        for v in op.inputs:
            used.setdefault(v, i)
    blocks = {name for name, m in module.named_modules() if name.rpartition(".")[2].isdecimal() and next(m.children(), None) is not None}
    axes = [i for i, n in enumerate(mesh.mesh_shape) if n > 1]
    found: dict[Any, Decision] = {}
    seen: set[int] = set()
    for name, v in trace.parameters.items():
        value = trace.values[v]
        if value.sharding is not None:  # the program has marked it
            continue
        path = name.split(".")
        pattern = ".".join("*" if ".".join(path[: i + 1]) in blocks else part for i, part in enumerate(path))
        key = (pattern, value.shape, value.dtype, v in trace.trainable)
        d = found.setdefault(key, Decision(pattern, [], [], value.shape, _candidates(value.shape, mesh, axes)))
        d.members.append(name)
        if v not in seen:
            d.values.append(v)
            seen.add(v)
    for name, v in trace.inputs.items():
        value = trace.values[v]
        if value.sharding is not None or not value.shape:
            continue
        key = ("input", value.shape[0])
        whole = [((),), *((s,) for s in sets_of(axes) if num_parts(mesh, s) <= value.shape[0])]
        d = found.setdefault(key, Decision("", [], [], value.shape, whole, is_input=True))
        d.members.append(name)
        d.values.append(v)
        d.name = f"input {', '.join(d.members)}"
    decisions = [d for d in found.values() if d.values]
    return sorted(decisions, key=lambda d: (min(used.get(v, len(trace.ops)) for v in d.values), d.name))


def sets_of(axes: Sequence[int]) -> list[Axes]:
    return [s for r in range(1, len(axes) + 1) for s in itertools.combinations(axes, r)]


def num_parts(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.mesh_shape[a] for a in axes)


def _candidates(shape: tuple[int, ...], mesh: Mesh, axes: Sequence[int]) -> list[tuple[Axes, ...]]:
    """Returns the candidates of a tensor: whole first, then one dimension split over each set of axes, then two dimensions over separate
    axes."""
    rank = len(shape)
    found: list[tuple[Axes, ...]] = [((),) * rank]
    for chosen in sets_of(axes):
        found += [tuple(chosen if i == d else () for i in range(rank)) for d in range(rank) if num_parts(mesh, chosen) <= shape[d]]
    for a, b in itertools.permutations(sets_of(axes), 2):
        if set(a) & set(b):
            continue
        found += [
            tuple(a if i == d else b if i == e else () for i in range(rank))
            for d, e in itertools.combinations(range(rank), 2)
            if num_parts(mesh, a) <= shape[d] and num_parts(mesh, b) <= shape[e]
        ]
    return found
