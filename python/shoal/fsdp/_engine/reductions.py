"""The reductions of a backward pass: from a unit's publication to the user's hooks on its gradients."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.fsdp._engine.root import Root
    from shoal.fsdp._parameters.parameter import ShardedParameter


class Reductions:
    """The published units of a root's models. To settle a reduced unit is to accumulate its gradients into ``p.grad``, with hooks and the
    optimizer in backward. Units are settled in the order of publications: each publication settles the unit that was published ``slots``
    publications before."""

    def __init__(self, root: Root, slots: int):
        self._root, self._slots = root, slots
        # By model: reduced units that are not settled, and the number of unsettled publications.
        self._reduced: list[deque[tuple[int, list[bool]]]] = [deque() for _ in root.units_of]
        self._unsettled = [0] * len(root.units_of)
        # parameters with post-accumulate-grad hooks that got a gradient in this pass, in order
        self._hooked: dict[ShardedParameter, None] = {}

    def published(self, place: int) -> None:
        """Called after each publication. Settles the unit published ``slots`` publications earlier.

        The new publication uses the slot of that unit, so every rank has reduced it. The moment depends only on the order of publications,
        which is equal on all ranks: user code that communicates then matches across ranks.
        """
        self._unsettled[place] += 1
        self._settle(place, self._slots)

    def settle_all(self) -> None:
        """Settles all units, after a wait for all reductions: every rank has published the same units."""
        for place in range(len(self._reduced)):
            self._settle(place, 0)

    def _settle(self, place: int, kept: int) -> None:
        root, reduced = self._root, self._reduced[place]
        reduced.extend(root.models[place].take_reduced())
        # If another rank has started over, `reduced` may run empty; this pass then ends with InvalidArgument/Diverged.
        while self._unsettled[place] > kept and reduced:
            index, present = reduced.popleft()
            self._unsettled[place] -= 1
            unit = root.units_of[place][index]
            unit.gradients_done(present)
            if root.gives_up(unit.state):
                root.in_backward_optimizer.update(unit)

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
        for place, reduced in enumerate(self._reduced):
            reduced.clear()
            self._unsettled[place] = 0
