"""torch's policies, for the argument ``auto_wrap_policy``."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.distributed.fsdp.wrap import (
    _recursive_wrap,
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Collection[nn.Module] = (),
    ignored_params: Collection[nn.Parameter] = (),
    only_wrap_children: bool = False,
    **options: Any,
) -> tuple[nn.Module, int]:
    """Applies ``wrapper_cls(m, **options)`` to the modules that the policy selects. Returns the module and the number of wrapped
    elements."""
    return _recursive_wrap(module, auto_wrap_policy, wrapper_cls, set(ignored_modules), set(ignored_params), only_wrap_children, **options)


__all__ = ["always_wrap_policy", "lambda_auto_wrap_policy", "recursive_wrap", "size_based_auto_wrap_policy", "transformer_auto_wrap_policy"]
