"""Placement groups: bundles of resources that are reserved together, for actors and tasks. Names are Ray's."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from shoal._actors.placement import check_resource_name, label_matches
from shoal._core import serialize
from shoal._core.ids import PlacementGroupID
from shoal._core.process import session, state
from shoal._objects.refs import ObjectRef
from shoal._objects.values import get
from shoal.exceptions import GetTimeoutError, Unimplemented

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

_READY = serialize.dumps(True)[0]
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class PlacementGroup:
    """Refers to a placement group; a value that may be sent."""

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
        """The resources of each bundle."""
        if self._bundles is None:
            self._bundles = session().group(self.id)["bundles"]
        return self._bundles

    @property
    def bundle_count(self) -> int:
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef:
        """Returns a reference that is ready once all bundles are reserved; its value is this group."""
        return ObjectRef(session().group_ready(self.id, serialize.dumps(self)[0]), "placement group")

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Returns True if the group is reserved within that time."""
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
    """Reserves resources: all of ``bundles`` or none, each on one node. Returns at once; ``ready()`` and ``wait()`` report completion.

    ``strategy``: PACK (the default: as few nodes as possible), SPREAD (as many as possible), STRICT_PACK (one node), STRICT_SPREAD (a
    separate node for each). ``bundle_label_selector``: a selector of nodes for each bundle, as an actor's ``label_selector`` (``{}``: any
    node). ``topology_strategy``: in place of ``strategy``, a strategy by label: ``{"rack": "STRICT_PACK"}`` places all bundles on nodes
    with one value of the label, and the label "ray.io/node-id" stands for single nodes (default: PACK). A group that fits no node now
    waits. It ends with its job, or with ``lifetime="detached"`` only by ``remove_placement_group``. Raises ValueError for an invalid
    bundle, strategy or lifetime, and for a name in use; Unimplemented for ``_soft_target_node_id``.
    """
    if not isinstance(bundles, list) or not bundles or not all(isinstance(b, dict) and b for b in bundles):
        raise ValueError(f"bundles is a list, not empty, of dicts of amounts by resource, not {bundles!r}")
    for bundle in bundles:
        for resource, amount in bundle.items():
            if not isinstance(resource, str) or isinstance(amount, (bool, str)) or not hasattr(amount, "__float__") or amount < 0:
                raise ValueError(f"a bundle's amounts are numbers that are not negative, not {bundle!r}")
            check_resource_name(resource)
        if not any(bundle.values()):
            raise ValueError(f"a bundle must reserve something, not {bundle!r}")
    together = ""
    if topology_strategy is not None:
        strategy, together = _topology(strategy, topology_strategy)
    strategy = "PACK" if strategy is None else strategy
    if strategy not in _STRATEGIES:
        raise ValueError(f"a strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    if _soft_target_node_id and strategy != "STRICT_PACK":
        raise ValueError(f"_soft_target_node_id is for STRICT_PACK only, not for {strategy}")
    if _soft_target_node_id:
        hint = "bundle_label_selector= restricts the nodes of a bundle"
        raise Unimplemented("_soft_target_node_id of placement_group() is not in this release", hint=hint)
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
        together,
    )
    return PlacementGroup(group, [dict(b) for b in bundles])


_NODE = "ray.io/node-id"  # the label that stands for the node itself


def _topology(strategy: str | None, given: Any) -> tuple[str | None, str]:
    """Returns (the strategy for nodes, the label whose value all nodes of the group share, or ""). Messages are Ray's."""
    if strategy is not None:
        raise ValueError(
            f"`strategy` and `topology_strategy` cannot both be specified. Pass node-level packing via `topology_strategy['{_NODE}']`."
        )
    if not isinstance(given, dict):
        raise ValueError(f"`topology_strategy` must be a dict, got {type(given).__name__}.")
    for label, value in given.items():
        if not isinstance(label, str) or not label:
            raise ValueError(f"`topology_strategy` keys must be non-empty strings, got {label!r}.")
        if value not in _STRATEGIES:
            raise ValueError(f"Invalid topology strategy {value!r} for label {label!r}. Supported strategies are: {_STRATEGIES}.")
        if label != _NODE and value != "STRICT_PACK":
            raise ValueError(
                f"Topology strategy {value!r} for label {label!r} is not supported yet; only 'STRICT_PACK' is supported for topology "
                f"labels other than `{_NODE}` for now."
            )
    labels = [label for label in given if label != _NODE]
    if len(labels) > 1:
        raise ValueError(f"`topology_strategy` currently supports at most one topology label other than `{_NODE}`. Got {labels}.")
    return given.get(_NODE), labels[0] if labels else ""


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Releases the resources and kills the actors and tasks in the group. It does not wait, and may be repeated."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group() takes a PlacementGroup, not {type(placement_group).__name__}")
    session().remove_group(placement_group.id)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Returns the group of this name in this job's namespace. ValueError when there is none."""
    if not placement_group_name:
        raise ValueError("the name of a placement group is not empty")
    row = session().find_group(placement_group_name, state.namespace)
    return PlacementGroup(row["id"], row["bundles"])


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Describes one group, or all by id: name, bundles and their nodes by index, strategy and state. States are PENDING, CREATED,
    RESCHEDULING and REMOVED."""
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
    """Returns the group of this actor or task, or None."""
    group = os.environ.get("SHOAL_GROUP", "")
    return PlacementGroup(group) if group else None


class _Callable(types.ModuleType):
    """Makes the module callable. ``util.placement_group`` is both a function and this module, depending on the last import; a call works
    for both."""

    def __call__(self, *args: Any, **kwargs: Any) -> PlacementGroup:
        return placement_group(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
