"""Names of parameters without the wrappers' prefixes, and who of a tree is a unit."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

WRAPPED = "_fsdp_wrapped_module"
PREFIX = WRAPPED + "."
_CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."


def clean(name: str) -> str:
    """A parameter's name as it was before anything was wrapped."""
    return name.replace(PREFIX, "").replace(_CHECKPOINT_PREFIX, "")


def is_unit(module: nn.Module) -> bool:
    return WRAPPED in module._modules


def modules_of(unit: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(prefix, module) of all below ``unit`` that belong to no unit inside it, itself first; a module with two names comes twice."""
    yield prefix, unit
    for name, child in unit._modules.items():
        if child is not None and not is_unit(child):
            yield from modules_of(child, f"{prefix}{name}.")
