"""Gradients that wait for a step of their optimizer. They do not travel, so the workers do not change meanwhile."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.optimizers import replace_by_sharded
from shoal.fsdp._engine.root import Root
from shoal.train._state import State, sharded_models

_LONG_WAIT = 100  # batches for which a change waits, before a worker prints why


class Unstepped:
    """Knows which optimizers have used their gradients. A state without an optimizer has a loop that writes to parameters by itself: there
    every gradient waits until it is dropped, or zero."""

    def __init__(self, state: State):
        self._state = state
        self._waited = 0  # batches for which a change has waited
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # since the present batch began
        stepped = self._stepped
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: stepped.add(optimizer))  # for all optimizers: wrappers have no hooks
        weakref.finalize(self, hook.remove)
        modules = (m for model in sharded_models(state) for m in model.modules())
        self._sharded = list(dict.fromkeys(s for s in map(state_of, modules) if s is not None))

    def begin_batch(self) -> None:
        self._stepped.clear()

    def any(self) -> bool:
        """Returns True if this worker has a gradient that is not zero, and that no step has used, or the graph of one that will come."""
        optimizers = [o for o in self._state.objects.values() if isinstance(o, Optimizer)]
        roots: list[Root] = list({id(s.root): s.root for s in self._sharded if s.root is not None}.values())
        fresh = any(root.unstepped for root in roots)  # a backward pass has ended behind the last step
        if optimizers and not fresh and all(o in self._stepped for o in optimizers):
            return False
        if any(root.forwards or any(p.gradient.kept for u in root.units for p in u.parameters) for root in roots):
            return True
        used = set() if fresh else {id(p) for o in self._stepped for p in _parameters_of(o)}
        return any(_has_gradient(p) for p in self._parameters(optimizers) if id(p) not in used)

    def count_wait(self, waits: bool, prints: bool) -> None:
        """Called at each boundary without a change. ``waits``: a change is ready."""
        self._waited = self._waited + 1 if waits else 0
        if self._waited == _LONG_WAIT and prints:
            text = f"a change of the workers has waited for optimizer.step() for {_LONG_WAIT} batches: no step has used their gradients"
            print(f"shoal: {text}", file=sys.stderr)

    def _parameters(self, optimizers: list[Optimizer]) -> Iterator[torch.Tensor]:
        for o in optimizers:
            replace_by_sharded(o)
            yield from _parameters_of(o)
        if not optimizers:
            for module in (o for o in self._state.objects.values() if isinstance(o, nn.Module)):
                yield from module.parameters()


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _has_gradient(p: torch.Tensor) -> bool:
    gradient = p.grad._local_tensor if isinstance(p.grad, DTensor) else p.grad
    return gradient is not None and bool(gradient.any())
