"""The placement of an actor or a task: from the options of ``remote`` to the request that the head gets."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from shoal._core.process import session

PLACEMENT_OPTIONS = frozenset({
    "scheduling_strategy", "placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks",
    "label_selector", "fallback_strategy",
})  # fmt: skip

NO_GROUP = "none"  # placement_group=None: in no group, even if the creator is in one


def check_resource_name(name: str) -> None:
    if name == "bundle":
        raise ValueError("The resource should not include `bundle`, which is reserved: placement groups count their bundles by it")


class LabelMatch(NamedTuple):
    """A condition on a node's label: the label has one of ``values`` (empty: any value), or none of them if ``negated``."""

    label: str
    values: list[str]
    negated: bool


def label_matches(selector: dict[str, str]) -> list[LabelMatch]:
    """Parses ``{"zone": "a", "disk": "!slow", "kind": "in(x, y)", "rack": "!in(r1)"}``, in Ray's syntax."""
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
        out.append(LabelMatch(label, values, negated))
    return out


def check_fallback(strategy: Any) -> None:
    """Checks ``[{"label_selector": {...}}, ...]``."""
    if not isinstance(strategy, list) or not all(isinstance(s, dict) for s in strategy):
        raise TypeError(f"fallback_strategy is a list of dicts with a label_selector each, not {strategy!r}")
    for one in strategy:
        if one.keys() != {"label_selector"}:
            raise ValueError(f"each entry of fallback_strategy has a label_selector and nothing else, not {one!r}")
        label_matches(one["label_selector"])


def fits(labels: dict[str, str], wanted: list[LabelMatch]) -> bool:
    return all((m.label in labels and (not m.values or labels[m.label] in m.values)) != m.negated for m in wanted)


def _labels(options: dict[str, Any]) -> list[LabelMatch]:
    """Returns the first selector, of ``label_selector`` and ``fallback_strategy``, that a living node matches; else ``label_selector``."""
    wanted = label_matches(options.get("label_selector") or {})
    if not options.get("fallback_strategy"):
        return wanted
    there = [n["labels"] for n in session().list("nodes") if n["state"] == "ALIVE"]
    choices = [wanted, *(label_matches(one["label_selector"]) for one in options["fallback_strategy"])]
    return next((c for c in choices if any(fits(labels, c) for labels in there)), wanted)


def _check_bundle(group: Any, index: int, options: dict[str, Any], actor: str) -> None:
    """Raises Ray's errors for a missing bundle. It also raises for an actor (``actor``: its class) without num_cpus in a group without
    CPUs: the actor would run outside of the reservation."""
    if not -1 <= index < group.bundle_count:
        raise ValueError(
            f"placement group bundle index {index} is invalid. Valid placement group indexes: 0-{group.bundle_count - 1}, or -1 for any"
        )
    if actor and "num_cpus" not in options and not any(bundle.get("CPU", 0) >= 1 for bundle in group.bundle_specs):
        raise ValueError(
            f"Cannot schedule {actor} with the placement group because the actor requires 1 CPU for creation, but it cannot fit into any "
            f"bundles for the placement group, {group.bundle_specs}. Say num_cpus=0, or reserve a CPU."
        )


def _in_group(
    out: dict[str, Any], group: Any, index: Any, captures: bool | None, options: dict[str, Any], actor: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns request and environment, as ``where``, for a bundle of a placement group. ``out``: the request without the group."""
    if not hasattr(group, "bundle_specs"):
        raise TypeError(f"a placement group is what placement_group([..]) returns, not {group!r}; pass 'DEFAULT' for none")
    if group.is_empty:
        if index != -1:
            raise ValueError("If placement group is not set, the value of bundle index must be -1.")
        return out, {}
    if not hasattr(index, "__index__"):
        raise ValueError(f"a bundle's index is an int, not {index!r}")
    _check_bundle(group, int(index), options, actor)
    return {**out, "group": group.id, "bundle": int(index)}, _group_env(group.id, bool(captures))


def where(options: dict[str, Any], actor: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (the request to the head, environment of the process) for options of ``remote``. ``actor``: an actor's class name, else
    ""."""
    strategy = options.get("scheduling_strategy")
    out: dict[str, Any] = {}
    env: dict[str, str] = {}
    if labels := _labels(options):
        out["labels"] = labels
    group, index = options.get("placement_group"), options.get("placement_group_bundle_index", -1)
    if group not in (None, "default") and strategy is not None:
        raise ValueError("scheduling_strategy and placement_group exclude each other")
    captured = strategy is None and group in (None, "default") and os.environ.get("SHOAL_GROUP_CAPTURES") == "1"
    if strategy is None and index != -1 and group in (None, "default", NO_GROUP) and not captured:
        raise ValueError("If placement group is not set, the value of bundle index must be -1.")
    if group == NO_GROUP:
        return out, env
    if group not in (None, "default"):
        return _in_group(out, group, index, options.get("placement_group_capture_child_tasks"), options, actor)
    if captured:
        bundle = {} if index == -1 else {"bundle": int(index)}
        return {**out, "group": os.environ["SHOAL_GROUP"], **bundle}, _group_env(os.environ["SHOAL_GROUP"], True)
    if strategy in (None, "DEFAULT"):
        return out, env
    if strategy == "SPREAD":
        return {**out, "spread": True}, env
    kind = type(strategy).__name__
    if kind == "PlacementGroupSchedulingStrategy":
        captures = strategy.placement_group_capture_child_tasks
        return _in_group(out, strategy.placement_group, strategy.placement_group_bundle_index, captures, options, actor)
    if kind == "NodeAffinitySchedulingStrategy":
        if not re.fullmatch(r"[0-9a-fA-F]+", str(strategy.node_id)):
            raise ValueError(f"a node's id is hexadecimal (shoal.nodes() lists them), not {strategy.node_id!r}")
        at_once = bool(strategy._spill_on_unavailable or strategy._fail_on_unavailable)
        return {**out, "node": _node_id(str(strategy.node_id)), "soft": bool(strategy.soft), "at_once": at_once}, env
    if kind == "NodeLabelSchedulingStrategy":
        hard, soft = ([LabelMatch(k, list(m.values), m.negated) for k, m in given.items()] for given in (strategy.hard, strategy.soft))
        return {**out, "labels": [*out.get("labels", []), *hard], "prefers": soft}, env
    raise ValueError(f"scheduling_strategy is 'DEFAULT', 'SPREAD' or of shoal.util.scheduling_strategies, not {strategy!r}")


def _node_id(text: str) -> str:
    """Returns the id for the head. An id that no Shoal node can have (Ray's are longer; 0 means any) becomes one that matches none."""
    return text if len(text) <= 16 and int(text, 16) else "f" * 16


def _group_env(group: str, captures: bool) -> dict[str, str]:
    return {"SHOAL_GROUP": group, "SHOAL_GROUP_CAPTURES": "1" if captures else "0"}
