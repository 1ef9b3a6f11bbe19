"""The optimizer in backward: each unit is updated as soon as its gradients are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal._objects.tensors import long_lived

if TYPE_CHECKING:
    from shoal.fsdp._engine.unit import Unit


class BufferPool:
    """Keeps the memory of freed gradients for later ones of equal shape and dtype. With the optimizer in backward, it holds the memory of a
    few units."""

    def __init__(self):
        self._free: dict[tuple, list[torch.Tensor]] = {}

    def take(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        free = self._free.get((tuple(shape), dtype))
        return free.pop() if free else long_lived(shape, dtype)

    def put(self, buffer: torch.Tensor) -> None:
        self._free.setdefault((tuple(buffer.shape), buffer.dtype), []).append(buffer)


class OptimizerInBackward:
    """Updates each unit as soon as its gradients are reduced, and frees them. By then every rank has published its gradients, and no
    longer reads the unit (``ShardedModel::give_up``)."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.updating = optimizer, False
        self._pool = BufferPool()

    def attach(self, units: list[Unit]) -> None:
        for p in (p for u in units for p in u.parameters):
            p.gradient.use_pool(self._pool)

    def detach(self, units: list[Unit]) -> None:
        for p in (p for u in units for p in u.parameters):
            p.gradient.pool = None

    def update(self, unit: Unit) -> None:
        """Steps the optimizer on the parameters of one unit, whose gradients are complete."""
        mine = {p.views.sharded for p in unit.parameters if p.views.sharded.grad is not None}
        groups = self.optimizer.param_groups
        parts = [{**group, "params": [p for p in group["params"] if p in mine]} for group in groups]
        updated = {p for part in parts for p in part["params"]}
        if not updated:
            return
        unit.model.optimizer_begin()
        unit.show_rows(plain=True)
        self.optimizer.param_groups, self.updating = [part for part in parts if part["params"]], True
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups, self.updating = groups, False
            for group, part in zip(groups, parts, strict=True):  # copies back options that the step has changed in its groups
                group.update({key: value for key, value in part.items() if key != "params"})
            unit.show_rows(plain=False)
        unit.model.optimizer_end(unit.index)
        for p in unit.parameters:
            if p.views.sharded in updated:
                p.gradient.free()
