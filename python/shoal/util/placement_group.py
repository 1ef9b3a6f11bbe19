"""Placement groups: resources that are reserved together, bundle by bundle, for actors and tasks to be placed in. Names are Ray's."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from shoal import _serialize
from shoal._client import ObjectRef, get
from shoal._ids import PlacementGroupID
from shoal._placement import check_resource_name, label_matches
from shoal._runtime import session, state
from shoal.exceptions import GetTimeoutError, Unimplemented

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

_READY = _serialize.dumps(True)[0]
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class PlacementGroup:
    """Names a placement group; a value that may be passed on."""

    def __init__(self, id: str, bundles: list[dict[str, float]] | None = None):
        self.id, self._bundles = PlacementGroupID(id), bundles

    @staticmethod
    def empty() -> PlacementGroup:
        return PlacementGroup("", [])

    @property
    def is_empty(self) -> bool:
        return not self.id

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The resources that each bundle reserves."""
        if self._bundles is None:
            self._bundles = session().group(self.id)["bundles"]
        return self._bundles

    @property
    def bundle_count(self) -> int:
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef:
        """A reference that is ready once all bundles are reserved, with this group as its value."""
        return ObjectRef(session().group_ready(self.id, _serialize.dumps(self)[0]), "placement group")

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Whether it is reserved within that time."""
        try:
            get(ObjectRef(session().group_ready(self.id, _READY), "placement group"), timeout=timeout_seconds)
        except GetTimeoutError:
            return False
        return True

    def __reduce__(self):
        return PlacementGroup, (str(self.id), self._bundles)

    def __eq__(self, other) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id or 'empty'})"


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
) -> PlacementGroup:
    """Reserves resources: all of ``bundles`` or none, each on one node. Returns at once; ``ready()`` and ``wait()`` tell when it is there.

    ``strategy``: PACK (on as few nodes as it fits on; the default), SPREAD (on as many as there are), STRICT_PACK (on one), STRICT_SPREAD
    (each on another). ``bundle_label_selector``: of which nodes, for each bundle (``{}``: of all), as ``label_selector`` of an actor. What
    no node can hold now waits for one that can. It ends with its job, or with ``lifetime="detached"`` by ``remove_placement_group`` alone.
    Raises ValueError for what is no bundle, strategy or lifetime, and for a name that is taken; Unimplemented for the two that are left.
    """
    if not isinstance(bundles, list) or not bundles or not all(isinstance(b, dict) and b for b in bundles):
        raise ValueError(f"bundles is a list, not empty, of dicts of amounts by resource, not {bundles!r}")
    for bundle in bundles:
        for resource, amount in bundle.items():
            if not isinstance(resource, str) or isinstance(amount, (bool, str)) or not hasattr(amount, "__float__") or amount < 0:
                raise ValueError(f"a bundle's amounts are numbers that are not negative, not {bundle!r}")
            check_resource_name(resource)
        if not any(bundle.values()):
            raise ValueError(f"a bundle reserves something: {bundle!r}")
    if topology_strategy is not None and strategy is not None:
        raise ValueError("strategy and topology_strategy exclude each other")
    strategy = "PACK" if strategy is None else strategy
    if strategy not in _STRATEGIES:
        raise ValueError(f"a strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    if _soft_target_node_id and strategy != "STRICT_PACK":
        raise ValueError(f"_soft_target_node_id is for STRICT_PACK only, not for {strategy}")
    for what, given in (("_soft_target_node_id", _soft_target_node_id), ("topology_strategy", topology_strategy)):
        if given:
            hint = "bundle_label_selector= says which nodes a bundle may be on"
            raise Unimplemented(f"{what} of placement_group() is not in this release", hint=hint)
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime is 'detached' or None, not {lifetime!r}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a placement group is a str, not {type(name).__name__}")
    selectors = bundle_label_selector or []
    if selectors and len(selectors) != len(bundles):
        raise ValueError(f"bundle_label_selector has one entry for each of the {len(bundles)} bundles, not {len(selectors)}")
    group = session().create_group(
        [{r: float(a) for r, a in b.items()} for b in bundles],
        strategy,
        name,
        state.namespace,
        lifetime == "detached",
        [label_matches(s) for s in selectors],
    )
    return PlacementGroup(group, [dict(b) for b in bundles])


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Gives its resources back; actors and tasks in it are killed. Not waited for; a second time does nothing."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group() takes a PlacementGroup, not {type(placement_group).__name__}")
    session().remove_group(placement_group.id)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """The one of this name in this job's namespace. ValueError when there is none."""
    if not placement_group_name:
        raise ValueError("the name of a placement group is not empty")
    row = session().find_group(placement_group_name, state.namespace)
    return PlacementGroup(row["id"], row["bundles"])


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Describes one group, or all by id: name, bundles by index, the node of each, strategy and state (PENDING, CREATED, RESCHEDULING,
    REMOVED)."""
    if placement_group is not None:
        return _table_row(session().group(placement_group.id))
    return {row["id"]: _table_row(row) for row in session().list("groups")}


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "placement_group_id": row["id"],
        "name": row["name"],
        "bundles": dict(enumerate(row["bundles"])),
        "bundles_to_node_id": dict(enumerate(row["nodes"])),
        "strategy": row["strategy"],
        "state": row["state"],
        "pending_reason": row["pending_reason"],
    }


def get_current_placement_group() -> PlacementGroup | None:
    """The one that this actor or task is placed in."""
    group = os.environ.get("SHOAL_GROUP", "")
    return PlacementGroup(group) if group else None


class _Callable(types.ModuleType):
    """This module has the name of a function beside it: ``util.placement_group(...)`` works whichever of them the name means, as it means
    the module where that was imported last."""

    def __call__(self, *args: Any, **kwargs: Any) -> PlacementGroup:
        return placement_group(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
