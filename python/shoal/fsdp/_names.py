"""Names of modules and parameters as they were before anything was wrapped."""

from __future__ import annotations

from torch import nn

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def clean(name: str) -> str:
    """A dotted name without what wrappers (FSDP1's, activation checkpointing's) put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside such wrappers."""
    for name in _WRAPPERS:
        module = module._modules.get(name) or module
    return module


def below(prefix: str, name: str) -> str:
    """The prefix of names in a child, clean if ``prefix`` is."""
    return prefix if name in _WRAPPERS else f"{prefix}{name}."
