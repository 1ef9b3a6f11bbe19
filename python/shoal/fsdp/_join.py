"""Uneven batches: a rank without batches takes part in the steps of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.root import Root, roots_in
from shoal.fsdp._engine.state import State
from shoal.fsdp._repeats import Repeats


@contextmanager
def join(
    model: nn.Module,
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    weight: str = "world",
    after_backward: Callable[[], Any] | None = None,
    after_step: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Wraps a training loop whose ranks may have different numbers of batches. A rank that leaves its loop joins the others' steps until
    all ranks have left. It contributes zero gradients, and updates its own shards with ``optimizers``.

    A step has one synchronised backward (accumulate with ``set_requires_gradient_sync(False)``) and one optimizer step.
    ``weight``: ``"world"`` divides gradients by the number of all ranks, as DDP's Join does by default. ``"samples"`` weighs each rank by
    its number of samples, which is dim 0 of the first tensor passed to the root's forward.
    ``after_backward``: a function with the collective work between backward and the optimizer's step (clipping); joined ranks call it.
    ``after_step``: a function with the work after the step (a learning rate schedule); joined ranks call it.
    Where collectives gather units (devices, extensions, custom communication), a rank without batches repeats its last one with gradients
    of zeros, and keeps its buffers and generators. The ranks agree before each forward of the root and each backward, for which the host
    waits. Each forward with gradients has one backward there, and each one that reduces is followed by an optimizer's step; otherwise all
    ranks raise InvalidArgument. A GradScaler is no part of ``join``.
    Raises InvalidArgument for another weight, for a model that is not sharded, and on all ranks if one has no batch to repeat. Raises
    NotImplementedError for a model on several meshes.
    """
    if weight not in ("world", "samples"):
        raise InvalidArgument(f"weight={weight!r} of join is unknown", hint="pass 'world' or 'samples'")
    state = state_of(model)
    if state is None:
        raise InvalidArgument(
            "this model was not sharded by shoal.fsdp.fully_shard", hint="pass join the outermost module on which fully_shard was called"
        )
    chosen = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    if any(u.gathered is not None for s in map(state_of, model.modules()) if s is not None for u in s.units):
        yield from _repeating(model, state, weight == "samples", chosen, after_backward, after_step)
        return
    state.settings.weigh_samples, state.settings.joining = weight == "samples", True
    try:
        yield
        if state.root is None:  # this rank had no batch, but must take part in the others' first step
            state.lazy_init()
            state.root.adopt()
            state.root.enter()
        _serve(roots_in(model), chosen, after_backward, after_step)
    finally:
        state.settings.weigh_samples = state.settings.joining = False
        for root in roots_in(model):
            root.step.set_joining(False)


def _repeating(model, state: State, weighs: bool, optimizers: list[torch.optim.Optimizer], after_backward, after_step) -> Iterator[None]:
    """Collectives gather some unit: this rank repeats its last batch when it has no further one."""

    def after_pass() -> None:
        _step(optimizers, after_backward, after_step)

    state.settings.weigh_samples = weighs
    repeats = Repeats(model, state, weighs, optimizers)
    try:
        yield
        roots = roots_in(model)
        if len(roots) > 1 or any(len(r.models) != 1 for r in roots):
            raise _several_meshes()
        repeats.serve(after_pass)
    finally:
        repeats.end()
        state.settings.weigh_samples = False


def _step(optimizers: list[torch.optim.Optimizer], after_backward, after_step) -> None:
    if after_backward is not None:
        after_backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if after_step is not None:
        after_step()


def _serve(roots: list[Root], optimizers: list[torch.optim.Optimizer], after_backward, after_step) -> None:
    if len(roots) != 1 or len(roots[0].models) != 1:
        raise _several_meshes()
    root, model = roots[0], roots[0].models[0]
    if root.window_open:
        root.enter()
    root.samples = 0 if any(s.settings.weigh_samples for s in root.states) else None
    model.join()
    while True:
        what, unit = model.next_service()
        if what == "publish":
            u = root.units_of[0][unit]
            root.step.serve_publication(0, u.state.index, u.state.units.index(u))
        elif what == "window":
            root.step.serve_window()
            _step(optimizers, after_backward, after_step)
            root.enter()
        else:
            return


def _several_meshes() -> Unimplemented:
    return Unimplemented("join of a model on several meshes is not in this release", hint="give every rank the same number of batches")
