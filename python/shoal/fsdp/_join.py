"""Uneven batches: ranks that have none left serve those that have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._collect import state_of
from shoal.fsdp._root import Root, roots_in


@contextmanager
def join(
    model: nn.Module,
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    weight: str = "world",
    after_backward: Callable[[], Any] | None = None,
    after_step: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Around a training loop whose ranks may have different numbers of batches: a rank that leaves its loop serves the others until all
    have left theirs. It contributes zeros to their gradients, and updates its own shards with ``optimizers``, as they do.

    A step has one synchronised backward (accumulate with ``set_requires_gradient_sync(False)``) and one optimizer step.
    ``weight``: how gradients are averaged: ``"world"`` divides by the number of all ranks, as DDP's Join does by default; ``"samples"``
    weighs each rank's by its number of samples (dim 0 of the first tensor that the root's forward gets): each sample counts alike.
    ``after_backward``: what the loop does between backward and the optimizer's step that is collective (clipping); on serving ranks, too.
    ``after_step``: what it does behind the step (a learning rate schedule).
    Raises InvalidArgument for another weight, and for a model that is not sharded as one; NotImplementedError for one that is sharded on
    several meshes, or has units that collectives bring (on devices, extensions, communication of the user's), and where ranks share no
    memory.
    """
    if weight not in ("world", "samples"):
        raise InvalidArgument(f"weight = {weight!r}", hint="'world' or 'samples'")
    state = state_of(model)
    if state is None:
        raise InvalidArgument("this model was not sharded by shoal.fsdp.fully_shard", hint="join takes the module that it got last")
    brought = next((s for s in map(state_of, model.modules()) if s is not None and any(u.gathered is not None for u in s.units)), None)
    if brought is not None:
        raise Unimplemented(
            f"join of {brought.name or 'a root'}, a unit that collectives bring, is not in this release: ranks that serve run none",
            hint="give every rank the same number of batches",
        )
    chosen = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    state.weigh_samples, state.joining = weight == "samples", True
    try:
        yield
        if state.root is None:  # not a single batch: the others will run the whole model
            state.lazy_init()
            state.root.adopt()
            state.root.enter(True)
        _serve(roots_in(model), chosen, after_backward, after_step)
    finally:
        state.weigh_samples = state.joining = False
        for root in roots_in(model):
            root.joining = False


def _serve(roots: list[Root], optimizers: list[torch.optim.Optimizer], after_backward, after_step) -> None:
    if len(roots) != 1 or len(roots[0].models) != 1:
        raise Unimplemented("join of a model on several meshes is not in this release", hint="give every rank the same number of batches")
    root, model = roots[0], roots[0].models[0]
    if root.window_open:
        root.enter(True)
    root.samples = 0 if any(s.weigh_samples for s in root.states) else None
    model.join()
    while True:
        what, unit = model.asked()
        if what == "publish":
            u = root.units_of[0][unit]
            if u.parameters and u.parameters[0].reducing:
                model.await_reductions()
                root.settle_all()
            u.publish(True)
        elif what == "window":
            for s in root.states:
                s.to_sharded()
            model.finish_backward(True)
            root.settle_all()
            if after_backward is not None:
                after_backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if after_step is not None:
                after_step()
            root.enter(True)
        else:
            return
