"""Where an actor or a task may go: from the options of ``remote`` to what the head is told."""

from __future__ import annotations

import os
import re
from typing import Any

from shoal.exceptions import Unimplemented

PLACEMENT_OPTIONS = frozenset({"scheduling_strategy", "placement_group", "placement_group_bundle_index", "label_selector"})

Match = tuple[str, list[str], bool]  # label, values (none: any), negated


def label_matches(selector: dict[str, str]) -> list[Match]:
    """``{"zone": "a", "disk": "!slow", "kind": "in(x, y)", "rack": "!in(r1)"}``, as Ray writes them."""
    if not isinstance(selector, dict) or not all(isinstance(k, str) and k and isinstance(v, str) and v for k, v in selector.items()):
        raise ValueError(f"a label selector is a dict of str by str, not {selector!r}")
    out = []
    for label, wanted in selector.items():
        negated = wanted.startswith("!")
        text = wanted[negated:]
        several = re.fullmatch(r"in\((.*)\)", text)
        values = [v.strip() for v in several[1].split(",")] if several else [text]
        if not all(values):
            raise ValueError(f"the label selector {label}={wanted!r} names no value")
        out.append((label, values, negated))
    return out


def where(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """(what the head is told, environment of the process) for options of ``remote``."""
    strategy = options.get("scheduling_strategy")
    out: dict[str, Any] = {}
    env: dict[str, str] = {}
    if options.get("label_selector"):
        out["labels"] = label_matches(options["label_selector"])
    group = options.get("placement_group")
    if group not in (None, "default"):
        if strategy is not None:
            raise ValueError("scheduling_strategy and placement_group exclude each other")
        from shoal.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(group, options.get("placement_group_bundle_index", -1))
    if strategy is None and os.environ.get("SHOAL_GROUP_CAPTURES") == "1":
        return {**out, "group": os.environ["SHOAL_GROUP"]}, _group_env(os.environ["SHOAL_GROUP"], True)
    if strategy in (None, "DEFAULT"):
        return out, env
    if strategy == "SPREAD":
        return {**out, "spread": True}, env
    kind = type(strategy).__name__
    if kind == "PlacementGroupSchedulingStrategy":
        group = strategy.placement_group
        if group.is_empty:
            return out, env
        if not isinstance(strategy.placement_group_bundle_index, int):
            raise ValueError(f"a bundle's index is an int, not {strategy.placement_group_bundle_index!r}")
        out.update(group=group.id, bundle=strategy.placement_group_bundle_index)
        return out, _group_env(group.id, bool(strategy.placement_group_capture_child_tasks))
    if kind == "NodeAffinitySchedulingStrategy":
        if not re.fullmatch(r"[0-9a-fA-F]{1,16}", str(strategy.node_id)):
            raise ValueError(f"a node's id is hexadecimal (shoal.nodes() lists them), not {strategy.node_id!r}")
        return {**out, "node": str(strategy.node_id), "soft": bool(strategy.soft)}, env
    if kind == "NodeLabelSchedulingStrategy":
        if strategy.soft:
            raise Unimplemented("soft labels of NodeLabelSchedulingStrategy", hint="use hard ones, or label_selector")
        labels = [(k, list(m.values), m.negated) for k, m in strategy.hard.items()]
        return {**out, "labels": [*out.get("labels", []), *labels]}, env
    raise ValueError(f"scheduling_strategy is 'DEFAULT', 'SPREAD' or of shoal.util.scheduling_strategies, not {strategy!r}")


def _group_env(group: str, captures: bool) -> dict[str, str]:
    return {"SHOAL_GROUP": group, "SHOAL_GROUP_CAPTURES": "1" if captures else "0"}
