"""Auto-wrap policies: torch's, and the names that older programs use."""

from __future__ import annotations

import warnings

from torch import nn
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    enable_wrap,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    wrap,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy as _transformer_auto_wrap_policy

__all__ = [
    "CustomPolicy",
    "ModuleWrapPolicy",
    "always_wrap_policy",
    "default_auto_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
]

_DEFAULT_MIN_NUM_PARAMS = 100_000


def transformer_auto_wrap_policy(module=None, recurse=None, nonwrapped_numel=None, transformer_layer_cls=None):
    """Makes every module of ``transformer_layer_cls`` (a set of classes) a unit.

    Pass it as ``functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})``. A call with the classes alone returns
    ``ModuleWrapPolicy`` and warns. Raises TypeError without the classes.
    """
    if module is None and transformer_layer_cls is not None:
        warnings.warn(
            "transformer_auto_wrap_policy(transformer_layer_cls=...) is taken as ModuleWrapPolicy(...): "
            "write that, or functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=...)",
            FutureWarning,
            stacklevel=2,
        )
        return ModuleWrapPolicy(transformer_layer_cls)
    if transformer_layer_cls is None:
        raise TypeError(
            "transformer_auto_wrap_policy needs the classes of the layers: pass functools.partial(transformer_auto_wrap_policy, "
            "transformer_layer_cls={Block})"
        )
    return _transformer_auto_wrap_policy(module, recurse, nonwrapped_numel, transformer_layer_cls)


def default_auto_wrap_policy(module: nn.Module, recurse: bool, nonwrapped_numel: int, **options) -> bool:
    """The former name of ``size_based_auto_wrap_policy``; its threshold is 100,000 parameters."""
    options.setdefault("min_num_params", _DEFAULT_MIN_NUM_PARAMS)
    return size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, **options)
