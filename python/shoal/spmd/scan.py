"""Loops that torch_xla compiles once (``torch_xla.experimental``'s ``scan`` and others), run step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from shoal.exceptions import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])


def scan(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, partition_fn: Any = None, is_fn_pure: bool = False) -> tuple:
    """Calls ``fn(carry, x) -> (carry, y)`` for each entry of the first dimension of ``xs``, a tensor or a structure of them. Returns the
    last carry and all ``y``, stacked. Raises InvalidArgument (a ValueError) for tensors of unequal or zero length."""
    lengths = {len(x) for x in tree_flatten(xs)[0]}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidArgument(
            f"scan takes tensors of one length, not of lengths {sorted(lengths)}", hint="pass tensors of one length, 1 or more"
        )
    carry, ys = tree_map(torch.clone, init), []
    for i in range(*lengths):
        carry, y = fn(carry, tree_map(lambda x, at=i: x[at], xs))
        ys.append(tree_map(torch.clone, y))  # a copy, because fn may change its carry in place
    return carry, tree_map(lambda *of: torch.stack(of), *ys)


def scan_layers(layers: Iterable[nn.Module], input_data: Any, partition_fn: Any = None, is_layer_pure: bool = False) -> Any:
    """Calls each layer on the result of the previous one."""
    for layer in layers:
        input_data = layer(input_data)
    return input_data


def gradient_accumulation(train_step: Callable[..., Any], iterable_tensors: Sequence[torch.Tensor], model: nn.Module, *carried: Any) -> Any:
    """Calls ``train_step(*entries, *carried)`` for each entry of the tensors' first dimension. The step returns a loss, or a tuple of a
    loss and the next carried values. Parameters get the gradients of the mean loss. Returns that loss, or a tuple of it and the carried
    values. Raises InvalidArgument (a ValueError) for no tensors, and for tensors of unequal or zero length."""
    lengths = {len(t) for t in iterable_tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidArgument(
            f"gradient_accumulation takes tensors of one length, not of lengths {sorted(lengths)}", hint="pass tensors of one length"
        )
    steps, total, last = len(iterable_tensors[0]), 0.0, carried
    for i in range(steps):
        out = train_step(*(t[i] for t in iterable_tensors), *last)
        loss, *last = out if isinstance(out, (tuple, list)) else (out,)
        loss = loss / steps
        loss.backward()
        total = total + loss.detach()
    return (total, *last) if last else total


def assume_pure(fn: F) -> F:
    """Returns the function itself, because there are no traces to cache."""
    return fn
