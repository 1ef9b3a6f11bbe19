"""The workers that train together, from the view of one of them: its rank, values over all workers, and its parts of each batch.

A loop makes a gang and enters it with its first batch (``_steps.py``). Before each batch it calls ``boundary``, before each part of a batch
``begin_part``, and at last ``end_parts``; after an error in a step it calls ``recover``. Here the workers never change: ``boundary`` does
nothing, and nothing recovers. In an elastic training the gang is an ``ElasticGang`` (``_elastic_gang.py``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shoal._core.telemetry import telemetry, waiting
from shoal._distributed import ranks
from shoal._distributed.communicator import form_communicator
from shoal._distributed.saves import save_controls
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State as UnitState
from shoal.fsdp._parameters.logical import Part, blocks
from shoal.train._data.batches import BatchPart, Shares, mixed
from shoal.train._data.order import other_order
from shoal.train._pads import Pads, gathers
from shoal.train._parts import Parts
from shoal.train._state import State, seed_all, sharded_models
from shoal.train._worker import Worker

_BODY = 1  # distinguishes the seeds of the loop's body from those of the samples


class Gang:
    """``rank`` and ``size``: this worker's rank among those that train together, and their number. ``worker`` is None in a process that
    no Trainer has started. The constructor only builds the gang: ``enter`` joins the training."""

    def __init__(self, state: State, worker: Worker | None):
        self._state, self._worker = state, worker
        self.rank, self.size = rank_and_size()
        self._communicator: Any = None
        self._words = torch.zeros(3, dtype=torch.int64)
        self._weighed: list[UnitState] = []
        self._pads: list[Pads] = []
        self.parts = None if worker is None or not worker.scaling.logical_ranks else Parts(state, worker)  # with deterministic=True
        self.repeats = False  # the loop is a step that can run again

    def enter(self) -> None:
        """Joins the training. Raises what the training cannot do with the objects of the state."""
        if self.parts is not None:
            self.parts.gate_objects()
        self.join_telemetry()

    def join_telemetry(self) -> None:
        """The telemetry's rows have this worker's rank from now on."""
        if (opened := telemetry(opens=True)) is not None:
            generation = 1 if self._worker is None else max(self._worker.generation, 1)
            opened.set_member(self.rank, self.size, generation)

    def boundary(self, opens: bool = False) -> bool:
        """Called before each batch: a step can run again from here. ``opens``: it is the first of its loop. Returns True if the workers
        have changed."""
        return False

    def recover(self, error: Exception) -> None:
        """Called after an error in a step. Raises it, unless the training can go on."""
        for control in save_controls:
            control.print_error(self.rank == 0)
        raise error

    def await_step(self) -> None:
        """Waits until the last step of the optimizer counts on all workers."""

    # ---- the parts of a batch ----

    @property
    def shares(self) -> Shares:
        """The parts of each batch that this worker runs."""
        if self.parts is None:
            return Shares(range(self.rank, self.rank + 1), self.size)
        return Shares(blocks(self.parts.num_parts, self.size)[self.rank], self.parts.num_parts, seeded=True)

    @property
    def mid_batch(self) -> bool:
        """True while a part runs that is not this worker's last one of the batch."""
        return self._worker is not None and self._worker.mid_batch

    def begin_part(self, batch: BatchPart) -> None:
        """Prepares the backward pass of a part, and the random number generators, which do not depend on the worker that runs the part."""
        shares, state = self.shares, self._state
        share = batch.samples * shares.num_parts / batch.global_samples
        if self.parts is None:
            self._weigh(None if self.size == 1 else share, None)
            return
        part = Part(batch.number, shares.num_parts, batch.number == shares.parts[-1])
        self._weigh(share, part)
        for pads in self._pads:
            pads.begin(part, self.rank, self.size)
        self.parts.begin(part, shares.parts[0])
        seed_all(mixed(state.seed, state.epoch, state.batch, part.number, _BODY))

    def end_parts(self) -> None:
        """Called when a loop ends: until the next one begins, gradients are not weighed, and no part of a batch runs."""
        self._weigh(None, None)
        for pads in self._pads:
            pads.leave()
        if self.parts is not None:
            self.parts.running = False
        if self._worker is not None and self._worker.gang in (None, self):  # else a loop that was left ends late, while the next one runs
            self._worker.mid_batch = False

    def end_steps(self) -> None:
        """Called at the end of a loop. From here on, the random number generators do not depend on the last parts."""
        if self.parts is not None:
            seed_all(mixed(self._state.seed, self._state.epoch, self._state.batch, self.parts.num_parts, _BODY))

    def _weigh(self, share: float | None, part: Part | None) -> None:
        """Sets the factor by which this worker's gradients count in the mean over workers, or parts."""
        if not self._weighed:
            inner = (m for model in sharded_models(self._state) for m in model.modules())
            self._weighed = [s for s in map(state_of, inner) if s is not None]
            for pads in self._pads:
                pads.end()
            if self.parts is not None:
                self._pads = [Pads(model, self._weighed) for model in sharded_models(self._state) if gathers(model)]
        for s in self._weighed:
            s.settings.share = share
            if self.parts is not None:
                s.settings.part, s.settings.rules.reduces = part, part is None or part.last
                for p in (p for u in s.units for p in u.parameters if part is None):
                    p.gradient.drop_parts()  # those of a step that was left before its last part

    # ---- values over all workers ----

    def sum(self, values: list[float]) -> list[float]:
        """Returns the sums over all workers."""
        t = torch.tensor(values, dtype=torch.float64)
        self._reduce(t, "float64", "sum")
        return t.tolist()

    def agree(self, own: int) -> int:
        """Returns the maximum of the workers' ``own``. Raises InvalidArgument on all of them if they have drawn different batches so far.

        A training of a fixed size starts no node for this: there the workers compare only once ``sum`` has connected them."""
        if self.size == 1 or self._communicator is None:
            return own
        self._words[:] = torch.tensor([own, self._state.drawn, -self._state.drawn])
        self._reduce(self._words, "int64", "max")
        greatest, drawn, least = self._words.tolist()
        if drawn != -least:
            raise other_order(self._state.loader, f"the workers have drawn different batches before step {self._state.step + 1}")
        return greatest

    @waiting()
    def _reduce(self, t: torch.Tensor, dtype: str, op: str) -> None:
        if self._communicator is None:
            self._connect()
        memory = t.data_ptr(), t.numel() * t.element_size()
        self._communicator.all_reduce(memory, memory, dtype, op, ("the workers' boundary", self._state.step, 0.0, False)).wait()

    def _connect(self) -> None:
        everyone = tuple(range(self.size))
        host, name = ranks.attach(everyone), ranks.gang_name("gang", everyone, self.rank)
        self._communicator = form_communicator(name, everyone, self.rank, host.shared)


def rank_and_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
