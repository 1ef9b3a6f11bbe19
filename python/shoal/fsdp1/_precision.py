"""The parts of ``MixedPrecision`` that ``fully_shard`` lacks: inputs of the root, buffers, and classes that stay in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from shoal.fsdp1._names import modules_of
from shoal.fsdp1.api import MixedPrecision


def cast(values: Any, dtype: torch.dtype) -> Any:
    """Casts floating-point tensors in any nesting to ``dtype``."""
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)


def input_dtype(policy: MixedPrecision | None, is_root: bool) -> torch.dtype | None:
    """The dtype that a unit casts its inputs to, or None. ``cast_root_forward_inputs`` is for the root, ``cast_forward_inputs`` for all."""
    if policy is None or not (policy.cast_forward_inputs or (is_root and policy.cast_root_forward_inputs)):
        return None
    return policy.param_dtype


def kept_gradient_dtype(policy: MixedPrecision | None) -> torch.dtype | None:
    """Returns the reduce dtype, which gradients keep with ``keep_low_precision_grads``; None without that option."""
    return (policy.reduce_dtype or policy.param_dtype) if policy is not None and policy.keep_low_precision_grads else None


def keep_gradient_in(dtype: torch.dtype, p: nn.Parameter) -> None:
    """Makes every backward leave ``p.grad`` in this dtype."""

    def lower(p: nn.Parameter) -> None:
        p.grad = p.grad.to(dtype)

    p.grad_dtype = None  # permits any dtype, because the reduced gradient arrives in another one
    p.register_post_accumulate_grad_hook(lower)


class Buffers:
    """The buffers of a unit: cast once to ``buffer_dtype``, saved in their original dtype."""

    def __init__(self, unit: nn.Module, ignored: set[nn.Module], policy: MixedPrecision | None):
        self._dtype = policy.buffer_dtype if policy is not None else None
        self._owners = [m for _, m in modules_of(unit) if m not in ignored]
        self._before = {(id(m), name): b.dtype for m in self._owners for name, b in m._buffers.items() if b is not None}

    def cast(self) -> None:
        if self._dtype is None:
            return
        for m in self._owners:
            for name, b in m._buffers.items():
                if b is not None and b.is_floating_point() and b.dtype != self._dtype:
                    m._buffers[name] = b.to(self._dtype)

    def as_saved(self, module: nn.Module, name: str, value: torch.Tensor) -> torch.Tensor:
        """Returns a buffer's value in its original dtype."""
        before = self._before.get((id(module), name), value.dtype)
        return value if self._dtype is None or value.dtype == before else value.to(before)


def keep_in_fp32(module: nn.Module) -> None:
    """Makes a module inside units of lower precision compute in fp32: hooks cast its inputs up and its outputs back."""
    seen: list[torch.dtype] = []  # the dtype of the running forward's first floating-point input

    def up(module: nn.Module, args: tuple) -> tuple:
        seen[:] = [t.dtype for t in args if torch.is_tensor(t) and t.is_floating_point()][:1]
        return cast(args, torch.float32)

    def back(module: nn.Module, args: tuple, output: Any) -> Any:
        return cast(output, seen[0]) if seen else output

    module.register_forward_pre_hook(up)
    module.register_forward_hook(back)
