"""Names of modules and parameters without the parts that wrappers add."""

from __future__ import annotations

from torch import nn

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def clean(name: str) -> str:
    """Removes the parts that wrappers add (FSDP1's, activation checkpointing's) from a dotted name, which is then called clean."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside these wrappers."""
    for name in _WRAPPERS:
        module = module._modules.get(name) or module
    return module


def below(prefix: str, name: str) -> str:
    """Returns the prefix of the names below a child module. It is without wrappers' parts if ``prefix`` is."""
    return prefix if name in _WRAPPERS else f"{prefix}{name}."
