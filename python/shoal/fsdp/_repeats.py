"""Uneven batches where collectives gather units, as on devices: a rank without batches repeats its last one, so that all ranks run the
same collectives. The gradients of such a pass are zeros.

Before each forward of the root and before each backward, the ranks agree on what those with batches do next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.utils import _apply_to_tensors

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State, samples_of

_RULES = ("reduces", "everywhere", "reshard_after_backward", "unshard_in_backward")  # a unit's requests that decide its collectives


class _Phase(IntEnum):
    NONE = 0  # no batch
    FORWARD = 1
    EVALUATION = 2
    BACKWARD = 3


class Repeats:
    """A rank's part in the passes of one ``join``."""

    def __init__(self, model: nn.Module, state: State, weighs: bool, optimizers: list[torch.optim.Optimizer]):
        self._model, self._state, self._weighs = model, state, weighs
        self._rules = [s.settings.rules for s in map(state_of, model.modules()) if s is not None]
        self._batch: tuple[tuple, dict] | None = None
        self._pending = False  # a forward waits for its backward
        self._unstepped = False  # no optimizer has used the gradients of the last pass that reduced
        self._hooks = [model.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)]
        self._hooks += [o.register_step_post_hook(self.stepped) for o in optimizers]
        state.settings.before_pass = self._before_pass

    def end(self) -> None:
        self._leave_program()
        self._state.settings.repeats, self._state.settings.total_samples = False, None

    def _leave_program(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._state.settings.before_pass = None

    def serve(self, after_pass: Callable[[], None]) -> None:
        """Repeats the last batch until no rank has another one. ``after_pass``: called after each pass that reduces gradients."""
        self._leave_program()
        for p in (p for s in map(state_of, self._model.modules()) if s is not None for u in s.units for p in u.parameters):
            p.gradient.keep(1.0)  # a repeat sets ``grad`` to zeros, which must not reach gradients that no pass has reduced
        before = [[getattr(r, name) for name in _RULES] for r in self._rules]
        out: list[torch.Tensor] = []
        device = self._state.data.device
        buffers = Buffers(self._model)
        try:
            while (phase := self._agree(_Phase.NONE)) is not _Phase.NONE:
                self._state.settings.repeats = True
                with torch.random.fork_rng([] if device.type == "cpu" else [device]):
                    if phase is _Phase.BACKWARD:
                        torch.autograd.backward(out, [torch.zeros_like(t) for t in out])
                    else:
                        with torch.set_grad_enabled(phase is _Phase.FORWARD):
                            out = self._repeated()
                if phase is not _Phase.FORWARD:  # its backward may need the buffers as they are
                    buffers.restore()
                if phase is _Phase.BACKWARD and any(r.reduces for r in self._rules):
                    after_pass()
        finally:
            buffers.restore()
            for r, values in zip(self._rules, before, strict=True):
                _set_rules(r, values)

    def _repeated(self) -> list[torch.Tensor]:
        """Runs the forward on the last batch. Returns its outputs with gradients."""
        args, kwargs = self._batch  # type: ignore[misc]  # else _agree has raised
        out: list[torch.Tensor] = []

        def take(t: torch.Tensor) -> torch.Tensor:
            if t.requires_grad:
                out.append(t)
            return t

        _apply_to_tensors(take, self._model(*args, **kwargs))
        return out

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # activation checkpointing repeats a forward on which the ranks have agreed already
        self._batch = _apply_to_tensors(detached, args), _apply_to_tensors(detached, kwargs)
        trains = torch.is_grad_enabled()
        wrong = trains and (self._pending or self._unstepped)
        self._agree(_Phase.FORWARD if trains else _Phase.EVALUATION, samples_of(args, kwargs), wrong)
        self._pending |= trains

    def _before_pass(self) -> None:
        self._agree(_Phase.BACKWARD, wrong=not self._pending)
        self._pending = False
        self._unstepped |= any(r.reduces for r in self._rules)

    def stepped(self, *_: Any) -> None:
        """Called when an optimizer has used the gradients, or a GradScaler has skipped its step."""
        self._unstepped = False

    def _agree(self, phase: _Phase, samples: int = 0, wrong: bool = False) -> _Phase:
        """Returns the phase of the ranks with batches. This rank adopts their rules. Raises InvalidArgument on all ranks if they
        differ, or if a rank has no batch to repeat."""
        settings, mesh, has = self._state.settings, self._state.data.mesh, phase is not _Phase.NONE
        rules = [has and bool(getattr(r, name)) for r in self._rules for name in _RULES]
        unable = not has and self._batch is None
        own = [*(phase is p for p in (_Phase.FORWARD, _Phase.EVALUATION, _Phase.BACKWARD)), samples, unable, wrong, *rules]
        total = torch.tensor(own, dtype=torch.float64).to(self._state.data.device)
        for dim in range(mesh.ndim):
            dist.all_reduce(total, group=mesh.get_group(dim))
        *phases, of_all, unable_ranks, wrong_ranks = total[:6].tolist()
        found, ranks = total[6:].tolist(), sum(phases)
        if ranks == 0:
            return _Phase.NONE
        if unable_ranks:
            raise InvalidArgument(
                f"join: {round(unable_ranks)} of {math.prod(mesh.shape)} ranks have no batch at all, and a rank without further batches "
                "repeats its last one, because collectives gather this model",
                hint="give each rank at least one batch",
            )
        if wrong_ranks or max(phases) != ranks or any(n not in (0, ranks) for n in found):
            raise InvalidArgument(
                "join of a model that collectives gather takes one backward after each forward with gradients, one optimizer step after "
                "each backward that reduces them, and the same calls on all ranks with batches",
                hint="add losses up before backward, and accumulate with set_requires_gradient_sync(False)",
            )
        if not has:
            for i, r in enumerate(self._rules):
                _set_rules(r, [n > 0 for n in found[i * len(_RULES) : (i + 1) * len(_RULES)]])
        agreed = _Phase(1 + phases.index(ranks))
        if agreed is _Phase.FORWARD:
            settings.total_samples = of_all if self._weighs else None
        return agreed


def detached(t: torch.Tensor) -> torch.Tensor:
    """A batch that may carry the graph of another module, without it."""
    return t.detach().requires_grad_(t.requires_grad)


def _set_rules(rules: Any, values: list[bool]) -> None:
    for name, value in zip(_RULES, values, strict=True):
        setattr(rules, name, value)


class Buffers:
    """The buffers of a model as they are now, which a repeated batch must not change."""

    def __init__(self, model: nn.Module):
        all_modules = model.modules()
        self._all = [(m._buffers, name, b, b.detach().clone()) for m in all_modules for name, b in m._buffers.items() if b is not None]

    @torch.no_grad()
    def restore(self) -> None:
        for of_module, name, b, value in self._all:
            of_module[name] = b.copy_(value)
