"""Estimates the memory of training, sharded and replicated, before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.optim._fused import Fused

# Values that an optimizer keeps for each element of a parameter.
_STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per rank, for the rank with the most rows. ``print`` shows a table."""

    world_size: int
    weights: int
    gradients: int
    optimizer: int
    unit_weights: int  # unsharded weights of the largest unit
    unit_gradients: int  # whole gradients of that unit, before their reduction
    replicated: int  # weights, gradients and optimizer state of a rank under DDP

    @property
    def sharded(self) -> int:
        """Bytes that a rank holds permanently: its rows of weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """Peak bytes without activations: the rank's rows, and the largest unit unsharded with its gradients."""
        return self.sharded + self.unit_weights + self.unit_gradients

    def __str__(self) -> str:
        rows = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            (f"a rank of {self.world_size}", self.sharded),
            ("largest unit, whole", self.unit_weights + self.unit_gradients),
            ("peak", self.peak),
            ("replicated (DDP)", self.replicated),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {size / 1e9:10.3f} GB  {size / max(self.replicated, 1):6.1%}" for name, size in rows)


def estimate_memory(
    model: nn.Module | int,
    world_size: int,
    *,
    optimizer: str | int = "adam",
    units: Iterable[nn.Module] | None = None,
    dtype: torch.dtype | None = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> MemoryEstimate:
    """Estimates the memory of training ``model`` on ``world_size`` ranks, in bytes, without activations, buffers and allocator overhead.

    ``model``: a module (sharded or not, also on the meta device), or a number of parameters. ``optimizer``: its name ("sgd", "momentum",
    "adagrad", "rmsprop", "adadelta", "adam", "adamw"), or the number of values that it keeps per element. ``units``: the modules to be
    gathered one at a time; by default the sharded ones, else the module's children. ``dtype``: the parameters' dtype (default: their own,
    or fp32 for a number). ``param_dtype``, ``reduce_dtype``: as in ``MixedPrecisionPolicy``, for unsharded weights and gradients.
    Frozen parameters have no gradients or optimizer states. Raises InvalidArgument for an unknown optimizer or a bad ``world_size``.

    Counting follows Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), section 3.
    """
    if world_size < 1:
        raise InvalidArgument(f"world_size is a number from 1 on, not {world_size}")
    states = _STATES.get(optimizer.lower()) if isinstance(optimizer, str) else optimizer
    if states is None or states < 0:
        raise InvalidArgument(f"estimates have no optimizer {optimizer!r}", hint=f"pass {', '.join(_STATES)}, or the number of its states")
    if isinstance(model, nn.Module):
        parameters = [(p.numel(), p.shape[0] if p.dim() else 1, (dtype or p.dtype).itemsize, p.requires_grad) for p in model.parameters()]
        largest = max((_unit(m, param_dtype, reduce_dtype, dtype) for m in _units(model, units)), default=(0, 0), key=sum)
    else:
        size = (dtype or torch.float32).itemsize
        parameters = [(model, model, size, True)]
        largest = (0, 0)
    own = [(numel // max(rows, 1) * -(-rows // world_size), size, grad) for numel, rows, size, grad in parameters]
    trained = sum(numel * size for numel, size, grad in own if grad)
    whole = sum(numel * size * ((2 + states) if grad else 1) for numel, _, size, grad in parameters)
    return MemoryEstimate(world_size, sum(numel * size for numel, size, _ in own), trained, states * trained, *largest, whole)


def state_bytes_to_come(optimizer: torch.optim.Optimizer, group: dict, p: torch.Tensor) -> int:
    """Bytes that an optimizer keeps per element of a parameter from its first step on. Raises InvalidArgument for unknown classes."""
    if isinstance(optimizer, Fused):
        return optimizer.state_bytes(p, group)
    name = type(optimizer).__name__.lower()
    kept = _STATES.get("momentum" if name == "sgd" and group.get("momentum") else name)
    if kept is None:
        raise InvalidArgument(f"the size of {type(optimizer).__name__}'s states is unknown before its first step", hint="take a step first")
    return (kept + bool(group.get("amsgrad"))) * p.dtype.itemsize


def _units(model: nn.Module, units: Iterable[nn.Module] | None) -> list[list[nn.Parameter]]:
    """The parameters of each unit, without those of inner units."""
    chosen = list(units) if units is not None else [m for m in model.modules() if state_of(m) is not None] or list(model.children())
    chosen = list(dict.fromkeys([*chosen, model]))
    found = []
    for unit in chosen:
        inner = {id(p) for m in chosen if m is not unit and m in set(unit.modules()) for p in m.parameters()}
        found.append([p for p in unit.parameters() if id(p) not in inner])
    return found


def _unit(
    parameters: list[nn.Parameter], param_dtype: torch.dtype | None, reduce_dtype: torch.dtype | None, dtype: torch.dtype | None
) -> tuple[int, int]:
    weights = sum(p.numel() * (param_dtype or dtype or p.dtype).itemsize for p in parameters)
    gradients = sum(p.numel() * (reduce_dtype or param_dtype or dtype or p.dtype).itemsize for p in parameters if p.requires_grad)
    return weights, gradients
