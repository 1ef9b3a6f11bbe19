"""The official seam for tests of deaths: a test's action at a chosen moment of a protected step."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any


class Moment(Enum):
    """Moments within ``optimizer.step()``, in their order. A death at one of them leaves the step in the state that is described here."""

    UNSENT = "unsent"  # this rank has recorded the step; the rank that holds its replica has not
    RECORDED = "recorded"  # the holder of the replica has recorded it, too; other ranks may not have
    COMMITTED = "committed"  # every rank has recorded it; this rank has updated no row


Action = Callable[[Any], None]  # takes the Protection

_actions: dict[Moment, Action] = {}


def at_next(moment: Moment, action: Action) -> None:
    """Calls ``action`` once, when this process next reaches the moment: it may kill the process, or delay it."""
    _actions[moment] = action


def reached(moment: Moment, protection: Any) -> None:
    if _actions and (action := _actions.pop(moment, None)) is not None:
        action(protection)
