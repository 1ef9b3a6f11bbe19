"""Communication of devices beside their computation: gathers that begin before their unit is used, and reductions that end after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal._distributed.devices import Pending
from shoal.exceptions import ShoalError

if TYPE_CHECKING:
    from shoal.fsdp._engine.gathered import Gathered

_REDUCTIONS = 1  # how many may be under way when the next one has begun; each holds a unit's gradients


class Ahead:
    """The order in which the last version's units were unsharded, and what is under way.

    All ranks unshard in the same order, so they begin the same gathers. A gather that begins with the use of the unit before it lies behind
    no kernel of that unit in the device's streams. A wrong guess costs a gather: what was begun stays valid until the version ends.
    """

    def __init__(self, depth: int):
        self.depth = depth  # how many forwards or backwards a unit is unsharded ahead; on the CPU the engine does that
        self._last: list[Gathered] = []
        self._now: list[Gathered] = []
        self._begun: dict[Gathered, None] = {}
        self._reductions: deque[tuple[Pending, Callable[[], None]]] = deque()

    def used(self, gathered: Gathered) -> None:
        """Records that a unit was unsharded, and begins the gathers of those that followed it in the last version."""
        self._begun.pop(gathered, None)
        self._now.append(gathered)
        position = len(self._now)
        if self._last[position - 1 : position] != [gathered]:
            return  # another program than in the last version
        for following in self._last[position : position + self.depth]:
            if following not in self._begun and following.begin():
                self._begun[following] = None

    def version_ends(self) -> None:
        """Drops gathers that no unit used, before the parameters change."""
        for gathered in self._begun:
            gathered.drop_begun()
        self._begun.clear()
        if self._now:
            self._last, self._now = self._now, []

    def reduces(self, pending: Pending, accumulate: Callable[[], None]) -> None:
        """Records a reduction under way, whose result ``accumulate`` takes, and finishes those before it, in their order."""
        self._reductions.append((pending, accumulate))
        while len(self._reductions) > _REDUCTIONS:
            self._finish_first()

    def finish_reductions(self) -> None:
        while self._reductions:
            self._finish_first()

    def _finish_first(self) -> None:
        pending, accumulate = self._reductions.popleft()
        pending.finish()
        accumulate()

    def forget_reductions(self) -> None:
        """Drops the results of the reductions under way, after an exception."""
        while self._reductions:
            with suppress(ShoalError):  # the exception may be this one
                self._reductions.popleft()[0].finish()
