"""Gradients that wait for a step of their optimizer. They do not travel, so the workers do not change meanwhile."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.optimizers import replace_by_sharded
from shoal.fsdp._engine.root import Root
from shoal.train._state import State, sharded_models

_MANY = 1000  # `_used` is searched for gradients that have ended only once it has grown by so many
_LONG_WAIT = 100  # batches for which a change waits, before a worker prints why


class Unstepped:
    """Knows which gradients a step has used: those that nothing has written to since. If the state has no optimizer, perhaps because an
    object of it wraps one, the optimizers are all those that have ever stepped. Without any, the loop writes to parameters by itself: there
    every gradient waits until it is dropped, or zero."""

    def __init__(self, state: State):
        self._state = state
        self._waited = 0  # batches for which a change has waited
        # The gradients that the last step of an optimizer used, with their versions, by their ids. They may outlive their optimizer, which
        # a loop may make for each step.
        self._used: dict[int, tuple[weakref.ref, int]] = {}
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}  # those that have stepped, by their ids: some cannot be hashed
        used, optimizers = self._used, self._optimizers
        most = _MANY

        def record(optimizer: Optimizer, *_) -> None:
            nonlocal most
            optimizers[id(optimizer)] = weakref.ref(optimizer)
            used.update((id(g), (weakref.ref(g), _version(g))) for p in _parameters_of(optimizer) if (g := p.grad) is not None)
            if len(used) > most:
                for ended in [i for i, (ref, _) in used.items() if _alive(ref) is None]:
                    del used[ended]
                most = 2 * len(used) + _MANY

        hook = register_optimizer_step_post_hook(record)  # for all optimizers: wrappers have no hooks
        weakref.finalize(self, hook.remove)
        modules = (m for model in sharded_models(state) for m in model.modules())
        self._sharded = list(dict.fromkeys(s for s in map(state_of, modules) if s is not None))

    def any(self) -> bool:
        """Returns True if this worker has a gradient, not zero, that no step has used, or a graph whose backward will make one."""
        roots: list[Root] = list({id(s.root): s.root for s in self._sharded if s.root is not None}.values())
        used = {i: version for i, (ref, version) in self._used.items() if _alive(ref) is not None}
        return any(_is_incomplete(root) for root in roots) or any(_waits(p, used) for p in self._parameters())

    def allows_change(self, ready: bool, agree: Callable[[int], int], prints: bool) -> bool:
        """Called at each boundary, on every worker. Returns True if a change of the workers begins here: one of them is ``ready``, and no
        gradient waits on any. ``agree`` returns the maximum of the workers' words. One worker ``prints`` why a change waits long."""
        comes = agree(ready)
        waits = comes and agree(self.any())  # only where a change comes: it reads all parameters
        self._waited = self._waited + 1 if ready and waits else 0
        if self._waited == _LONG_WAIT and prints:
            text = f"a change of the workers has waited for optimizer.step() for {_LONG_WAIT} batches: no step has used their gradients"
            print(f"shoal: {text}", file=sys.stderr)
        return bool(comes and not waits)

    def _parameters(self) -> Iterator[torch.Tensor]:
        objects = self._state.objects.values()
        optimizers = [o for o in objects if isinstance(o, Optimizer)] or [
            o for ref in self._optimizers.values() if (o := ref()) is not None
        ]
        for o in optimizers:
            replace_by_sharded(o)
            yield from _parameters_of(o)
        if not optimizers:
            for module in (o for o in objects if isinstance(o, nn.Module)):
                yield from module.parameters()


def _waits(p: torch.Tensor, used: dict[int, int]) -> bool:
    """``used``: versions of gradients that a step has used, by their ids."""
    g = p.grad
    if g is None:
        return False
    root = getattr(getattr(p, "_shoal_state", None), "root", None)
    written = root is not None and root.step.unstepped  # a backward has ended since the last step; the engine changes no version
    if not written and used.get(id(g)) == _version(g):
        return False
    return bool(_local(g).any())


def _alive(ref: weakref.ref) -> torch.Tensor | None:
    """Returns the gradient, or None if it has ended. If only C++ has kept the gradient, repairs its Python object, as torch does."""
    g = ref()
    if hasattr(g, "_fix_weakref"):
        g._fix_weakref()
    return g


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _is_incomplete(root: Root) -> bool:
    """Returns True if gradients wait for a reduction, or a forward for its backward. One before the last step does not count."""
    if root.step.waits_for_finalize or any(p.gradient.kept for u in root.units for p in u.parameters):
        return True
    return not root.window_open and any(f.versions == root.versions() for f in root.forwards)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._local_tensor if isinstance(gradient, DTensor) else gradient


def _version(gradient: torch.Tensor) -> int:
    """A number that grows with each write by torch's operators, to the gradient or, for a DTensor, to its local tensor."""
    return gradient._version if type(gradient) is torch.Tensor else gradient._version + _local(gradient)._version
