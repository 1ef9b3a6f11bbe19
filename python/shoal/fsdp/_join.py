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
    scaler: torch.amp.GradScaler | None = None,
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
    ranks raise InvalidArgument.
    ``scaler``: the GradScaler of the loop. Joined ranks call its ``step`` and ``update``, too, so that all ranks agree on infinite
    gradients; a rank without batches contributes none. ``after_backward`` unscales if the loop does.
    Raises InvalidArgument for another weight, for a model that is not sharded, at the first step of a GradScaler that is not ``scaler``,
    and on all ranks if one has no batch to repeat. Raises NotImplementedError at once for a model on several meshes.
    """
    if weight not in ("world", "samples"):
        raise InvalidArgument(f"weight={weight!r} of join is unknown", hint="pass 'world' or 'samples'")
    state = state_of(model)
    if state is None:
        raise InvalidArgument(
            "this model was not sharded by shoal.fsdp.fully_shard", hint="pass join the outermost module on which fully_shard was called"
        )
    _refuse_several_meshes(model)
    chosen = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    steps = _Steps(chosen, scaler, state.data.device, after_backward, after_step)
    with _no_scaler(chosen) if scaler is None else _skipping(scaler, model, steps):
        if any(u.gathered is not None for s in map(state_of, model.modules()) if s is not None for u in s.units):
            yield from _repeating(model, state, weight == "samples", steps)
            return
        state.settings.weigh_samples, state.settings.joining = weight == "samples", True
        try:
            yield
            if state.root is None:  # this rank had no batch, but must take part in the others' first step
                state.lazy_init()
                state.root.adopt()
                state.root.enter()
            _serve(roots_in(model), steps)
        finally:
            state.settings.weigh_samples = state.settings.joining = False
            for root in roots_in(model):
                root.step.set_joining(False)


class _Steps:
    """The program's optimizer steps, as a rank without batches repeats them."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], scaler, device: torch.device, after_backward, after_step):
        self.optimizers, self.scaler = optimizers, scaler
        self.skipped: Callable[[], None] | None = None  # called when the scaler has skipped a step of the program
        self._device, self._after_backward, self._after_step = device, after_backward, after_step

    def __call__(self) -> None:
        if self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self._device))  # makes its tensors, if this rank has had no batch
        if self._after_backward is not None:
            self._after_backward()
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
            optimizer.zero_grad()
        if self.scaler is not None:
            self.scaler.update()
        if self._after_step is not None:
            self._after_step()


@contextmanager
def _skipping(scaler: torch.amp.GradScaler, model: nn.Module, steps: _Steps) -> Iterator[None]:
    """A step that the scaler skips counts as one that writes nothing."""
    step, before = scaler.step, vars(scaler).get("step")

    def stepping(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if all(optimizer is not o for o in steps.optimizers):
            raise InvalidArgument(
                f"the scaler of join steps {type(optimizer).__name__}, which join does not know, so its infinite gradients would change "
                "the scale on ranks with batches only",
                hint="pass all optimizers of the scaler: join(.., optimizers=[..], scaler=scaler)",
            )
        stepped: list[Any] = []
        hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        try:
            result = step(optimizer, *args, **kwargs)
        finally:
            hook.remove()
        if not stepped:
            for root in roots_in(model):
                root.optimizer_begin()
                root.optimizer_end()
            if steps.skipped is not None:
                steps.skipped()
        return result

    scaler.step = stepping  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del scaler.step
        else:
            scaler.step = before  # type: ignore[method-assign]  # of a join around this one, or the program's own


@contextmanager
def _no_scaler(optimizers: list[torch.optim.Optimizer]) -> Iterator[None]:
    """Refuses the first step of a GradScaler: a rank without batches would not agree on infinite gradients with the others."""

    def refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if getattr(optimizer, "found_inf", None) is not None:
            raise InvalidArgument(
                "a GradScaler steps an optimizer inside join, and ranks without batches know no scaler",
                hint="pass it to join: scaler=scaler",
            )

    name = "_step_supports_amp_scaling"  # with it, a scaler calls the optimizer also for infinite gradients
    before = [vars(o).get(name) for o in optimizers]
    hooks = [o.register_step_pre_hook(refuse) for o in optimizers]
    for o in optimizers:
        setattr(o, name, True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for o, value in zip(optimizers, before, strict=True):
            if value is None:
                delattr(o, name)
            else:
                setattr(o, name, value)
            for left in ("found_inf", "grad_scale"):  # by a step that was refused
                vars(o).pop(left, None)


def _repeating(model, state: State, weighs: bool, steps: _Steps) -> Iterator[None]:
    """The body of ``join`` for a model with a unit that collectives gather. A rank without further batches repeats its last one."""
    state.settings.weigh_samples = weighs
    repeats = Repeats(model, state, weighs, steps.optimizers)
    steps.skipped = repeats.stepped
    try:
        yield
        repeats.serve(steps)
    finally:
        repeats.end()
        state.settings.weigh_samples = False


def _serve(roots: list[Root], steps: _Steps) -> None:
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
            steps()
            root.enter()
        else:
            return


def _refuse_several_meshes(model: nn.Module) -> None:
    by_ranks: dict[tuple[tuple[int, ...], int], str] = {}
    for name, s in ((name, state_of(m)) for name, m in model.named_modules()):
        for u in () if s is None else s.units:
            by_ranks.setdefault(u.data.key, name)
    if len(by_ranks) > 1:
        places = [f"{name or 'the root'} has {replicas} x {ranks}" for (ranks, replicas), name in by_ranks.items()]
        raise Unimplemented(
            f"join of a model on several meshes (replicas x ranks) is not in this release: {', '.join(places)}",
            hint="give every rank the same number of batches",
        )
