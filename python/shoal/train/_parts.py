"""Parts of a batch in a training with ``deterministic=True``: effects that wait for a step's last part, and means over all parts."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import ismethod
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._engine.bootstrap import add_over
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State as UnitState
from shoal.fsdp._parameters.logical import Part
from shoal.fsdp._parameters.parameter import Kind
from shoal.optim import SGD, Adam
from shoal.train._pads import gathers
from shoal.train._scaling_config import ScalingConfig
from shoal.train._state import State
from shoal.train._worker import Worker


def begin_deterministic(scaling: ScalingConfig) -> None:
    """Prepares a worker's process, before its loop: sums over logical ranks, and the same arithmetic for any number of workers."""
    add_over(scaling.logical_ranks)
    torch.set_num_threads(scaling.threads)  # the bits of a matrix product depend on it
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS adds in an order that differs from call to call
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


class Parts:
    """A batch has ``num_parts`` parts, one for each logical rank."""

    def __init__(self, state: State, worker: Worker):
        self._state, self._worker = state, worker
        self.num_parts: int = worker.scaling.logical_ranks
        self._part = Part(0, self.num_parts, True)
        self._values: list[list[float]] = []  # by call of ``mean`` in this step: the weighted values of the parts so far
        self._calls = 0  # calls of ``mean`` in this part
        self._first = 0  # this worker's first logical rank
        self.running = False  # inside of a part

    def gate_objects(self) -> None:
        """From now on optimizers and schedulers of the state step in last parts only. Raises as ``check_deterministic``."""
        check_deterministic(self._state, self._worker.scaling)
        for o in self._state.objects.values():
            if isinstance(o, Optimizer):
                _gate_optimizer(o, self._worker)
            elif isinstance(o, LRScheduler) and not isinstance(o, _GatedScheduler):
                own = {"__module__": type(o).__module__, "_shoal_worker": self._worker}
                o.__class__ = type(type(o).__name__, (_GatedScheduler, type(o)), own)

    def begin(self, part: Part, first: int) -> None:
        """``first``: this worker's first logical rank, whose part begins a step."""
        if part.number == first:
            self._values.clear()
        self._part, self._first, self._calls, self.running = part, first, 0, True
        self._worker.mid_batch = not part.last

    def mean(self, value: float) -> float:
        """Returns the mean over all parts in the last part, and the value itself before. The n-th calls of all parts belong together."""
        state, num_before = self._state, self._part.number - self._first
        if self._calls == len(self._values) and num_before == 0:
            self._values.append([])
        if self._calls >= len(self._values) or len(self._values[self._calls]) != num_before:
            raise InvalidArgument(
                "with deterministic=True each part of a batch calls state.mean equally often",
                hint="call it outside of `if state.last_part:`",
            )
        parts = self._values[self._calls]
        self._calls += 1
        parts.append(value * state.samples if state.samples else 0.0)
        if not self._part.last:
            return value
        everyone = [0.0] * self.num_parts
        everyone[self._first : self._first + len(parts)] = parts
        if state.gang.size > 1:
            everyone = state.gang.sum(everyone)  # exact: all but one worker add 0
        total = 0.0
        for weighted in everyone:  # in one order
            total += weighted
        return total / state.global_samples


class _GatedScheduler:
    """A mixin before the class of a scheduler, which then steps in the last part of a batch only."""

    _shoal_worker: Worker  # the class has it, because a scheduler's state has all values of the object

    def step(self, *args: Any, **kwargs: Any) -> None:
        if not self._shoal_worker.mid_batch:
            super().step(*args, **kwargs)  # type: ignore[misc]


def _gate_optimizer(optimizer: Optimizer, worker: Worker) -> None:
    """Replaces ``step`` and ``zero_grad`` of one optimizer by functions that take effect in last parts only."""
    if hasattr(optimizer.step, "_shoal_gate"):
        return
    ref = weakref.ref(optimizer)  # the optimizer holds its gates, and has to end without the garbage collector
    step, zero_grad = optimizer.step, optimizer.zero_grad
    inner_step, inner_zero_grad = _function_of(step), _function_of(zero_grad)

    @wraps(inner_step)
    def gated_step(closure: Any = None) -> Any:
        if closure is not None:
            raise Unimplemented("with deterministic=True optimizer.step takes no closure", hint="compute the loss before the step")
        ref()._opt_called = True  # a scheduler's check that the optimizer stepped before it
        return None if worker.mid_batch else inner_step(ref())

    @wraps(inner_zero_grad)
    def gated_zero_grad(set_to_none: bool = True) -> None:
        if not worker.mid_batch:
            inner_zero_grad(ref(), set_to_none)

    gated_step._shoal_gate = gated_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step, optimizer.zero_grad = gated_step, gated_zero_grad  # type: ignore[method-assign]


def _function_of(method: Any) -> Callable:
    """Returns the function of a method, which takes the object as its first argument. A scheduler's wrapper of ``step`` takes no object,
    because it has a weak reference to it."""
    return method.__func__ if ismethod(method) else lambda _, *args: method(*args)


# ---- objects with the same bits for any number of workers ----


def check_deterministic(state: State, scaling: ScalingConfig) -> None:
    """Raises Unimplemented, or InvalidArgument for what the loop can change, if some object of the state would depend on the workers."""
    collected = [name for name, o in state.objects.items() if isinstance(o, nn.Module) and gathers(o)]
    workers = scaling.num_workers
    if len(collected) > 1 and (not isinstance(workers, int) or workers & (workers - 1)):
        raise Unimplemented(
            f"deterministic=True: all workers gather the parameters of {' and '.join(collected)} together, so several models need workers "
            "that play equally many logical ranks",
            hint="fix 1, 2, 4 or another power of two as num_workers",
        )
    for name, o in state.objects.items():
        if isinstance(o, nn.Module):
            _check_model(name, o)
        elif isinstance(o, Optimizer) and not isinstance(o, (Adam, SGD)):
            raise Unimplemented(
                f"deterministic=True does not know if an element's update by {type(o).__module__}.{type(o).__name__} depends on the shards",
                hint="use Adam, AdamW or SGD of shoal.optim",
            )
        elif isinstance(o, torch.amp.GradScaler):
            raise Unimplemented("deterministic=True with a GradScaler is not in this release", hint="train in bfloat16, which needs none")


def _check_model(name: str, model: nn.Module) -> None:
    for where, m in model.named_modules():
        if isinstance(m, _NormBase) and m.track_running_stats and m.training:
            raise Unimplemented(
                f"deterministic=True: the running statistics of {type(m).__name__} {where!r} in {name} would be one worker's",
                hint="use GroupNorm or LayerNorm, or freeze the statistics with eval()",
            )
        if (unit_state := state_of(m)) is not None:
            _check_units(unit_state)
    for where, p in model.named_parameters():
        if p.requires_grad and not isinstance(p, DTensor):
            raise InvalidArgument(
                f"deterministic=True: parameter {where} of {name} is trained and not sharded, so Shoal does not add up its gradients",
                hint="call fully_shard on the whole model, or freeze the parameter",
            )


def _check_units(state: UnitState) -> None:
    if state.data.replicas > 1:
        raise Unimplemented("deterministic=True takes a mesh of shards, not one with replicas", hint="call fully_shard without a 2-D mesh")
    custom = any(u.gathered is not None and u.gathered.reduce_scatter is not None for u in state.units)
    for p in (p for u in state.units for p in u.parameters if p.views.sharded.requires_grad):
        if custom or p.extended or p.kind is not Kind.MEMORY:
            raise Unimplemented(
                f"deterministic=True: parameter {p.name} of {state.name or 'the root'} has a tensor subclass, an all-gather extension or a "
                "custom reduce_scatter, whose results depend on the shards",
                hint="train plain tensors, without a custom reduce_scatter",
            )
        if p.reduce_dtype not in (torch.float32, torch.float64):
            raise InvalidArgument(
                f"deterministic=True: gradients of {p.name} travel in {str(p.reduce_dtype)[6:]}, which rounds each worker's sum",
                hint="MixedPrecisionPolicy(..., reduce_dtype=torch.float32)",
            )
