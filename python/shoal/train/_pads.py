"""Passes of a worker that plays fewer logical ranks than another one, where all workers gather parameters together, as on devices.

Each part of a batch is a forward and a backward, with collectives of all workers. So before its last part, a worker with fewer parts runs
that part's forward again and again, each time with a backward of zeros. Their gradients are dropped, and generators and buffers stay.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.utils import _apply_to_tensors

from shoal.exceptions import Unimplemented
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State as UnitState
from shoal.fsdp._parameters.logical import Part, blocks
from shoal.fsdp._repeats import Buffers, detached
from shoal.train._state import random_states, set_random_states


def gathers(model: nn.Module) -> bool:
    """True if collectives bring parameters of the model."""
    return any(u.gathered is not None and u.gathered.gathers for s in map(state_of, model.modules()) if s is not None for u in s.units)


class Pads:
    """The additional passes of one model. ``begin`` opens each part."""

    def __init__(self, model: nn.Module, states: list[UnitState]):
        self._model, self._states = model, states
        self._left = 0  # passes to run before the last part's forward
        self._unequal = False
        self._part: Part | None = None
        self._forwards = 0  # in this part
        self._runs = False
        self._hook = model.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)

    def begin(self, part: Part, rank: int, workers: int) -> None:
        """Raises Unimplemented if the part before, of the same batch, had passes that another worker cannot run."""
        before, num_forwards = self._part, self._forwards
        self.leave()
        own = blocks(part.total, workers)[rank]
        if self._unequal and part.number != own[0] and before is not None and not (num_forwards == 1 and before.backward_ran):
            raise _other_passes()
        sizes = [len(block) for block in blocks(part.total, workers)]
        self._unequal = min(sizes) != max(sizes)
        self._part = part
        self._left = max(sizes) - len(own) if part.last else 0

    def leave(self) -> None:
        """Called when no part of a batch runs any more."""
        self._part, self._left, self._forwards = None, 0, 0

    def end(self) -> None:
        """Called when a new generation of workers makes new ``Pads`` for the model."""
        self.leave()
        self._hook.remove()

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._part is None or self._runs or torch._C._current_graph_task_id() != -1:
            return
        self._forwards += 1
        if self._unequal and not self._part.last and self._forwards > 1:
            raise _other_passes()
        while self._left:
            self._left -= 1
            self._run(_apply_to_tensors(detached, args), _apply_to_tensors(detached, kwargs))

    def _run(self, args: tuple, kwargs: dict) -> None:
        buffers, generators = Buffers(self._model), random_states()
        before = [(s, s.settings.share, s.settings.part, s.settings.rules.reduces) for s in self._states]
        out: list[torch.Tensor] = []

        def take(t: torch.Tensor) -> torch.Tensor:
            if t.requires_grad:
                out.append(t)
            return t

        self._runs = True
        try:
            for s, _, part, _ in before:
                # A share of 0 drops the gradients, so that the sums have the bits of those without this pass.
                s.settings.share, s.settings.part, s.settings.rules.reduces = 0.0, Part(part.number, part.total, last=False), False
            with torch.enable_grad():
                _apply_to_tensors(take, self._model(*args, **kwargs))
                torch.autograd.backward(out, [torch.zeros_like(t) for t in out])
        finally:
            self._runs = False
            for s, share, part, reduces in before:
                s.settings.share, s.settings.part, s.settings.rules.reduces = share, part, reduces
            buffers.restore()
            set_random_states(generators)


def _other_passes() -> Unimplemented:
    return Unimplemented(
        "deterministic=True: workers that play different numbers of logical ranks gather parameters together, so each part of a batch but "
        "the last has one forward of the model, and one backward",
        hint="run other forwards under `if state.last_part:`, or fix a number of workers that divides logical_ranks",
    )
