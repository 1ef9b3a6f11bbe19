"""The options of ``remote`` that name resources, and the amounts that they request."""

from __future__ import annotations

from typing import Any

from shoal._actors.options import ACTOR_OPTIONS, FUNCTION_OPTIONS, meant

__all__ = ["RESOURCE_OPTIONS", "check_options", "resources_of"]

RESOURCE_OPTIONS = frozenset({"num_cpus", "num_gpus", "memory", "resources", "accelerator_type"})
_KNOWN = RESOURCE_OPTIONS | ACTOR_OPTIONS | FUNCTION_OPTIONS


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _KNOWN:
            raise ValueError(f"unknown option {name}; {meant(name, _KNOWN)}")
    if not isinstance(options.get("resources") or {}, dict):
        raise TypeError(f"resources is a dict of amounts by name, not {type(options['resources']).__name__}")
    for name in ("CPU", "GPU", "memory", "object_store_memory"):
        if name in (options.get("resources") or {}):
            own = {"CPU": "num_cpus=", "GPU": "num_gpus=", "memory": "memory="}.get(name)
            raise ValueError(f"resources has no {name!r}: " + (f"pass {own}" if own else "calls cannot reserve the node's object store"))
    gpus, accelerator = options.get("num_gpus") or 0, options.get("accelerator_type")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"num_gpus is a whole number or below 1 (a share of one device), not {gpus}")
    if accelerator is not None and (not isinstance(accelerator, str) or not accelerator):
        raise TypeError(f"accelerator_type is a str that is not empty, not {accelerator!r}")
    return options


_ACCELERATOR_SHARE = 0.001  # the share of a node's single unit that an actor takes, so small that any number of actors fits


def resources_of(options: dict[str, Any], default_cpus: float) -> dict[str, float]:
    out = {"CPU": float(options.get("num_cpus", default_cpus) or 0), "GPU": float(options.get("num_gpus") or 0)}
    out["memory"] = float(options.get("memory") or 0)
    out.update({k: float(v) for k, v in (options.get("resources") or {}).items()})
    if options.get("accelerator_type"):
        out[f"accelerator_type:{options['accelerator_type']}"] = _ACCELERATOR_SHARE
    return {k: v for k, v in out.items() if v != 0 or k == "CPU"}
