"""Communication of devices beside their computation: gathers that begin before their unit is used, and reductions that end after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from shoal._distributed.devices import Pending
from shoal.exceptions import ShoalError

_REDUCTIONS = 1  # how many may be under way when the next one has begun; each holds a unit's gradients


class Gathered(Protocol):
    """A unit's gather, which may begin before its use."""

    def begin(self) -> bool: ...
    def drop_begun(self) -> None: ...


class Ahead:
    """The order in which units followed each other, and the transfers under way.

    All ranks unshard in the same order, so they begin the same gathers. A gather that begins with the use of the unit before it lies behind
    no kernel of that unit in the device's streams. A wrong guess costs a gather: its result stays valid until the version ends or another
    forward begins.
    """

    def __init__(self, depth: int):
        self.depth = depth  # how many forwards or backwards a unit is unsharded ahead; on the CPU the engine does that
        self._before: Gathered | None = None  # the last two units that were unsharded in this version
        self._last: Gathered | None = None
        # By two successive units, the unit that was unsharded next the last time. Two, because forward and backward differ.
        self._next: dict[tuple[Gathered | None, Gathered], Gathered] = {}
        self._begun: dict[Gathered, None] = {}
        self._reductions: deque[tuple[Pending, Callable[[], None]]] = deque()

    def used(self, gathered: Gathered) -> None:
        """Records that a unit was unsharded, and begins the gathers of the units that followed it the last time."""
        self._begun.pop(gathered, None)
        if self._last is not None:
            self._next[self._before, self._last] = gathered
        self._before, self._last = self._last, gathered
        before, last = self._before, gathered
        for _ in range(self.depth):
            following = self._next.get((before, last))
            if following is None:
                return
            if following not in self._begun and following.begin():
                self._begun[following] = None
            before, last = last, following

    def forward_begins(self) -> None:
        """Drops gathers that no unit used in the model's last forward or backward, because the program may have written to parameters
        since. Where gradients are off, no version ends between two forwards."""
        self.version_ends()

    def version_ends(self) -> None:
        """Drops gathers that no unit used, before the parameters change."""
        for gathered in self._begun:
            gathered.drop_begun()
        self._begun.clear()
        self._before = self._last = None

    def reduces(self, pending: Pending, accumulate: Callable[[], None]) -> None:
        """Records a reduction under way, whose result ``accumulate`` takes, and finishes the earlier reductions in their order."""
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
