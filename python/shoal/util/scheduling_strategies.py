"""Where actors and tasks are placed: values for the option ``scheduling_strategy``. Names are Ray's."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.exceptions import Unimplemented
from shoal.util.placement_group import PlacementGroup

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
    "PlacementGroupSchedulingStrategy",
]


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """In a placement group, out of its resources: in one bundle of it, or (-1) in any that has room. With
    ``placement_group_capture_child_tasks`` what the actor or task creates is placed there, too."""

    placement_group: PlacementGroup
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """On this node; with ``soft`` on another one when it is gone or could never hold it."""

    node_id: str
    soft: bool
    _spill_on_unavailable: bool = False
    _fail_on_unavailable: bool = False

    def __post_init__(self):
        for name, needs in (("_spill_on_unavailable", True), ("_fail_on_unavailable", False)):
            if getattr(self, name) and bool(self.soft) != needs:
                raise ValueError(f"{name} is for soft={needs}")
            if getattr(self, name):
                raise Unimplemented(f"{name} is not in this release", hint="what is to be on a node that is full waits for it")


class In:
    """A label's value is one of these."""

    negated = False

    def __init__(self, *values: str):
        if not values or not all(isinstance(v, str) for v in values):
            raise ValueError(f"{type(self).__name__}() takes values, each a str, not {values!r}")
        self.values = list(values)


class NotIn(In):
    """A label is not there, or its value is none of these."""

    negated = True


class Exists:
    """A label is there."""

    negated, values = False, ()


class DoesNotExist:
    """A label is not there."""

    negated, values = True, ()


class NodeLabelSchedulingStrategy:
    """On a node whose labels match all of ``hard``, and of these on one that matches all of ``soft``, too, if there is room on one."""

    def __init__(self, hard: dict, *, soft: dict | None = None):
        if not hard and not soft:
            raise ValueError("NodeLabelSchedulingStrategy needs a label")
        self.hard, self.soft = dict(hard or {}), dict(soft or {})
