"""Placement of actors and tasks: values for the option ``scheduling_strategy``. Names are Ray's."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Places an actor or task in a bundle of a placement group, with the group's resources; -1: in any bundle that has room.
    ``placement_group_capture_child_tasks`` also places the actors and tasks that it creates."""

    placement_group: PlacementGroup
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Places an actor or task on this node; with ``soft``, on another one if the node is gone or can never hold it.

    If the node has no room now, the actor or task waits for it. With ``_spill_on_unavailable`` (and ``soft``) it goes to another node; with
    ``_fail_on_unavailable`` (without ``soft``) it fails as ActorUnschedulableError or TaskUnschedulableError.
    """

    node_id: str
    soft: bool
    _spill_on_unavailable: bool = False
    _fail_on_unavailable: bool = False

    def __post_init__(self):
        for name, needs in (("_spill_on_unavailable", True), ("_fail_on_unavailable", False)):
            if getattr(self, name) and bool(self.soft) != needs:
                raise ValueError(f"{name} cannot be set when soft is {not needs}. Please set soft to {needs} to use {name}.")


class In:
    """The label's value is one of these."""

    negated = False

    def __init__(self, *values: str):
        if not values or not all(isinstance(v, str) for v in values):
            raise ValueError(f"{type(self).__name__}() takes values, each a str, not {values!r}")
        self.values = list(values)


class NotIn(In):
    """The label is missing, or its value is none of these."""

    negated = True


class Exists:
    """The label exists."""

    negated, values = False, ()


class DoesNotExist:
    """The label does not exist."""

    negated, values = True, ()


class NodeLabelSchedulingStrategy:
    """Places an actor or task on a node whose labels match all of ``hard``. Among these, nodes with room that match all of ``soft`` are
    preferred."""

    def __init__(self, hard: dict, *, soft: dict | None = None):
        if not hard and not soft:
            raise ValueError("NodeLabelSchedulingStrategy needs a label")
        self.hard, self.soft = dict(hard or {}), dict(soft or {})
