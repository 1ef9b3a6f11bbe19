"""Units in a tree of modules, and the modules of each unit."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

WRAPPED = "_fsdp_wrapped_module"
PREFIX = WRAPPED + "."


def is_unit(module: nn.Module) -> bool:
    return WRAPPED in module._modules


def modules_of(unit: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields (prefix, module) for ``unit`` and all modules below it outside inner units; a module with two names comes twice."""
    yield prefix, unit
    for name, child in unit._modules.items():
        if child is not None and not is_unit(child):
            yield from modules_of(child, f"{prefix}{name}.")
