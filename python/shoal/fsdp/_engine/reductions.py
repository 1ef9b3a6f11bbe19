"""The end of a unit's reduction, and the program's hooks on its gradients."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.fsdp._engine.unit import Unit
    from shoal.fsdp._parameters.parameter import ShardedParameter


class Reductions:
    """Reduced units of a root's models until the step machine finishes them, and parameters whose hooks have to run."""

    def __init__(self, units_of: list[list[Unit]]):
        self._units_of = units_of  # by model
        # By model: the reduced units that are not finished, in the order of their publications; for each parameter
        # True if some rank had a gradient.
        self._reduced: list[deque[tuple[int, list[bool]]]] = [deque() for _ in units_of]
        # parameters with post-accumulate-grad hooks that got a gradient in this pass, in order
        self._hooked: dict[ShardedParameter, None] = {}

    def finish(self, unit: Unit) -> bool:
        """Accumulates the gradients of a unit, the first of its model that is not finished, into ``p.grad``. False if another rank has
        started over, so that they are not there; this pass then ends with InvalidArgument/Diverged."""
        reduced = self._reduced[unit.place]
        reduced.extend(unit.model.take_reduced())
        if not reduced:
            return False
        index, present = reduced.popleft()
        self._units_of[unit.place][index].complete_gradients(present)
        return True

    def accumulated(self, p: ShardedParameter) -> None:
        """Called when a reduced gradient is in ``p.grad``. The parameter's hooks run at the end of the pass."""
        if p.views.sharded._post_accumulate_grad_hooks:
            self._hooked[p] = None

    def run_hooks(self) -> None:
        """Runs post-accumulate-grad hooks after a pass. They may write, so they run after the window has opened."""
        hooked, self._hooked = self._hooked, {}
        for p in hooked:
            for hook in tuple(p.views.sharded._post_accumulate_grad_hooks.values()):
                hook(p.views.sharded)

    def drop(self) -> None:
        """Drops all records of the pass, after an exception."""
        self._hooked.clear()
        for reduced in self._reduced:
            reduced.clear()
