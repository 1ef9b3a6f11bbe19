"""A table of a sharded model's parameters: unit, placements, and this rank's part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._names import clean


@dataclass(frozen=True)
class ParameterSharding:
    """One parameter. ``unit``: the module that gathers it ("" is the model itself); None for a parameter that is not sharded."""

    name: str
    unit: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: str
    rank_shape: tuple[int, ...]  # shape of this rank's part
    rank_bytes: int
    whole_bytes: int
    trained: bool


@dataclass(frozen=True)
class ShardingDescription:
    """The result of ``describe_sharding``: ``parameters``. ``print`` shows a table of them."""

    parameters: list[ParameterSharding]

    @property
    def rank_bytes(self) -> int:
        return sum(p.rank_bytes for p in self.parameters)

    @property
    def whole_bytes(self) -> int:
        return sum(p.whole_bytes for p in self.parameters)

    def __str__(self) -> str:
        head = ("parameter", "unit", "shape", "dtype", "placements", "this rank", "bytes")
        rows = [
            (
                p.name,
                "-" if p.unit is None else p.unit or "(root)",
                str(list(p.shape)),
                str(p.dtype).removeprefix("torch.") + ("" if p.trained else ", frozen"),
                p.placements,
                str(list(p.rank_shape)),
                str(p.rank_bytes),
            )
            for p in self.parameters
        ]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]
        return "\n".join([*lines, f"{self.rank_bytes} of {self.whole_bytes} bytes are this rank's"])


def describe_sharding(model: nn.Module) -> ShardingDescription:
    """Describes each parameter of ``model``: the unit that gathers it, its placements, and this rank's part. Changes and sends nothing.

    Tied parameters are listed once, by their first name; unsharded parameters are listed as well.
    """
    sharded, units = {}, {}
    for name, module in model.named_modules():
        state = state_of(module)
        for p in (p for unit in state.units for p in unit.parameters) if state is not None else ():
            for view in (p.views.sharded, p.views.unsharded, p.views.post_forward):
                if view is not None:
                    sharded[id(view)], units[id(view)] = p.views.sharded, clean(name)
    rows = []
    for name, shown in model.named_parameters():
        p = sharded.get(id(shown), shown)
        local = p.to_local() if isinstance(p, DTensor) else p
        placements = ", ".join(map(str, p.placements)) if isinstance(p, DTensor) else "whole"
        rank_bytes, whole_bytes = local.numel() * local.element_size(), p.numel() * p.element_size()
        unit = units.get(id(shown))
        rows.append(
            ParameterSharding(
                clean(name), unit, tuple(p.shape), p.dtype, placements, tuple(local.shape), rank_bytes, whole_bytes, p.requires_grad
            )
        )
    return ShardingDescription(rows)
