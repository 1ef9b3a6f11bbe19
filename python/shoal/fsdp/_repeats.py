"""Uneven batches where collectives gather units, as on devices: a rank without batches repeats its last one, so that all ranks run the
same collectives. The gradients of such a pass are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State, samples_of


class Pass:
    """The passes that the ranks run now: the sum of each rank's description."""

    def __init__(self, ranks: float, keeping: float, evaluating: float, samples: float, unable: float):
        self.ranks = round(ranks)  # those that have a batch
        self.keeps = keeping > 0  # its gradients are not reduced
        self.evaluates = evaluating > 0  # it has no backward
        self.samples = samples
        self.unable = round(unable)  # ranks without a batch that they could repeat


class Repeats:
    """A rank's part in the passes of one ``join``."""

    def __init__(self, model: nn.Module, state: State, weighs: bool):
        self._model, self._state, self._weighs = model, state, weighs
        self._batch: tuple[tuple, dict] | None = None
        self._hook = model.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)

    def end(self) -> None:
        self._hook.remove()
        self._state.settings.repeats, self._state.settings.total_samples = False, None

    def serve(self, after_pass: Callable[[], None]) -> None:
        """Repeats the last batch until no rank has another one. ``after_pass``: called behind each pass that reduces gradients."""
        self._hook.remove()
        states = [s for s in map(state_of, self._model.modules()) if s is not None]
        rules = [s.settings.rules for s in states]
        reduce = [r.reduces for r in rules]
        for p in (p for s in states for u in s.units for p in u.parameters):
            p.gradient.keep(1.0)  # gradients that no pass has reduced are not those of the repeated batch
        while (found := self._agree(None)).ranks > 0:
            args, kwargs = self._batch  # type: ignore[misc]  # else _agree has raised
            self._state.settings.repeats = True
            for r in rules:
                r.reduces = not found.keeps
            with _without_traces(self._model, self._state.data.device), torch.set_grad_enabled(not found.evaluates):
                out = [t for t in tree_flatten(self._model(*args, **kwargs))[0] if torch.is_tensor(t) and t.requires_grad]
                if not found.evaluates:
                    torch.autograd.backward(out, [torch.zeros_like(t) for t in out])
            if not found.evaluates and not found.keeps:
                after_pass()
        for r, before in zip(rules, reduce, strict=True):
            r.reduces = before

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if torch._C._current_graph_task_id() == -1:  # a checkpoint's forward repeats one that all ranks have run
            self._batch = args, kwargs
            self._agree(samples_of(args, kwargs))

    def _agree(self, samples: int | None) -> Pass:
        """Returns what all ranks run next. ``samples``: those of this rank's batch; None: it has none. Raises InvalidArgument on all ranks
        if one has no batch to repeat."""
        has, settings, mesh = samples is not None, self._state.settings, self._state.data.mesh
        keeps, evaluates = has and not settings.rules.reduces, has and not torch.is_grad_enabled()
        own = [has, keeps, evaluates, samples or 0, not has and self._batch is None]
        total = torch.tensor(own, dtype=torch.float64).to(self._state.data.device)
        for dim in range(mesh.ndim):
            dist.all_reduce(total, group=mesh.get_group(dim))
        found = Pass(*total.tolist())
        if found.unable and found.ranks:
            raise InvalidArgument(
                f"join: {found.unable} of {math.prod(mesh.shape)} ranks have no batch at all, and a rank without further batches repeats "
                "its last one, because collectives gather this model",
                hint="give each rank at least one batch",
            )
        settings.total_samples = found.samples if self._weighs else None
        return found


@contextmanager
def _without_traces(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restores buffers and random number generators, which a repeated batch must not change."""
    buffers: list[tuple[torch.Tensor, Any]] = [(b, b.detach().clone()) for b in model.buffers()]
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        yield
    with torch.no_grad():
        for b, before in buffers:
            b.copy_(before)
