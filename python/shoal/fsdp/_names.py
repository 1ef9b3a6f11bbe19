"""Names of modules and parameters without the parts that wrappers add."""

from __future__ import annotations

from torch import nn

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def clean(name: str) -> str:
    """A dotted name without the parts of wrappers (FSDP1's, activation checkpointing's)."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside these wrappers."""
    for name in _WRAPPERS:
        module = module._modules.get(name) or module
    return module


def below(prefix: str, name: str) -> str:
    """The name prefix of a child module, clean if ``prefix`` is."""
    return prefix if name in _WRAPPERS else f"{prefix}{name}."
