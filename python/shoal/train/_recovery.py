"""A worker's part in the recovery from a death: its step record, and the point from which a step runs again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from shoal.exceptions import DeadlineExceeded, ShoalError, Unavailable, Unimplemented
from shoal.fsdp._protect import AdoptedRank, Protection, committed_step, protect
from shoal.fsdp._reshard import OldMesh
from shoal.train._state import State, optimizers_of, random_states, set_random_states, sharded_models
from shoal.train._worker import Worker, WorkerLost


def may_come_of_a_death(error: BaseException) -> bool:
    """Returns True if the death of another worker can be the cause. Errors of torch's collectives have no class of their own. A survivor
    that knows of the death gives its step up, which another one may see before the death. The driver decides if one has died."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, (Unavailable, DeadlineExceeded)) or (
            isinstance(cause, (RuntimeError, ConnectionError)) and not isinstance(cause, ShoalError)
        ):
            return True
        if isinstance(cause, ShoalError) and cause.reason == "StartedOver":
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


@dataclass(frozen=True)
class Marked:
    """The part of a mark that other workers may need."""

    num_reports: int
    progress: Any
    position: tuple[int, int]  # (epoch, batch)
    opens: bool  # it is the first one of its loop, so the program may have run code of its own before


@dataclass(frozen=True)
class Words:
    """A survivor's message to the others, from which all decide alike whether the step under way counts."""

    records: list[tuple[int, int, int]] = field(default_factory=list)  # as committed_step takes them
    num_reports: int = 0
    marks: dict[int, Marked] = field(default_factory=dict)  # by optimizer steps before
    present: Any = None  # the survivor's progress where it has stopped


class Mark:
    """The mark: the state of a training loop before a step, from which the step can run again. It lacks the values that the step record
    keeps. ``num_reports``: this worker's before the mark. ``buffers``: copies of the model's, which the next mark may share."""

    def __init__(self, step: int, state: State, num_reports: int, buffers: dict[str, torch.Tensor], opens: bool = False):
        self.step = step  # optimizer steps made before
        self.batches = state.step  # batches given before
        self.marked = Marked(num_reports, progress_of(state), (state.epoch, state.batch), opens)
        self._random = random_states()
        for name, b in _buffers(state):
            if name not in buffers or not _same(buffers[name], b):  # most buffers never change
                buffers[name] = b.detach().clone()
        self._buffers = dict(buffers)

    def restore(self, state: State, progress: Any) -> None:
        """``progress`` is that of this mark, or of another worker's mark for the same step."""
        set_progress(state, progress)
        with torch.no_grad():
            for name, b in _buffers(state):
                value = self._buffers.get(name, b)
                if value.shape == b.shape and not _same(value, b):  # a buffer of another shape is a cache that has grown
                    b.copy_(value)
        set_random_states(self._random)


def progress_of(state: State) -> Any:
    """Returns the progress without buffers and random number generators, which are each worker's own."""
    options = [[{k: v for k, v in group.items() if k != "params"} for group in o.param_groups] for o in _optimizers(state)]
    return copy.deepcopy((state.state_dict(), options))


def set_progress(state: State, progress: Any) -> None:
    saved, options = copy.deepcopy(progress)
    state.load_state_dict(saved)
    for optimizer, groups in zip(_optimizers(state), options, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)


def _optimizers(state: State) -> list[Optimizer]:
    return [o for o in state.objects.values() if isinstance(o, Optimizer)]


def _buffers(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for name, o in state.objects.items():
        if isinstance(o, nn.Module):
            yield from o.named_buffers(prefix=name)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compares values: ``F.batch_norm`` does not count its writes to running statistics in ``_version``. On a device a comparison would
    wait for it, so it is False there."""
    return one.is_cpu and one.dtype == other.dtype and torch.equal(one, other)


@dataclass
class _Prepared:
    """This worker's part of a generation that begins once every worker has its part. Until then the worker can go back."""

    generation: int
    before: OldMesh | None  # the mesh before, which the model has left
    protection: Protection | None = None  # a worker that leaves has none


@dataclass
class _Past:
    """The former generation, in memory until a step of the present one counts: another worker may not know yet that the present one has
    begun."""

    before: OldMesh | None
    protection: Protection | None
    adopted: list[AdoptedRank]
    left_over: list[str]  # keys of records in the node's memory that nothing frees if their workers die


class Record:
    """This worker's step record, and the records that it has adopted."""

    def __init__(self, state: State, worker: Worker):
        self._state, self._worker = state, worker
        self.protection: Protection | None = None
        self.generation = 0  # the latest of which every worker has a record, as this worker knows; 0: none
        self._prepared: _Prepared | None = None
        self._past: _Past | None = None
        self._begun = 0  # optimizer steps made before the present generation
        self._adopted: dict[int, AdoptedRank] = {}  # by rank, while the next generation may still go back to these
        self._left_over: list[str] = []  # the ``left_over`` of a _Past that is forgotten
        self._held: list[AdoptedRank] = []  # replicas that dead ranks of this host have held
        self._marks: list[Mark] = []  # the last one, and on devices that of the step before, which may not count yet
        self._buffers: dict[str, torch.Tensor] = {}
        # The gang of the loop before, on the same mesh, until a step counts: another worker may have kept only that gang.
        self.predecessor: Any = None

    @property
    def protects(self) -> bool:
        """The training survives deaths, as soon as there are records."""
        return self._worker.scaling.protected and bool(sharded_models(self._state))

    def begin(self, generation: int, step: int) -> None:
        """Makes the record on the present mesh. Every worker calls it. ``step``: optimizer steps made before."""
        self.moved(generation, None)
        self.prepare(step)
        self.enter()
        self.forget_past()

    def moved(self, generation: int, before: OldMesh | None) -> None:
        """Called when the model has moved to the mesh of this generation."""
        if self.protects:
            self._prepared = _Prepared(generation, before)

    def prepare(self, step: int) -> None:
        """Makes the record of the generation to whose mesh the model has moved."""
        models = sharded_models(self._state)
        if self._prepared is None:
            return
        optimizers, hint = optimizers_of(self._state), "or turn protection off: ScalingConfig(..., protect=False)"
        if len(optimizers) != 1:
            raise Unimplemented(
                f"an elastic training cannot be protected with {len(optimizers)} optimizers of the sharded model",
                hint=f"give all parameters to one optimizer, in groups, {hint}",
            )
        if any(o not in optimizers for o in _optimizers(self._state)):
            raise Unimplemented(
                "an elastic training cannot be protected with an optimizer of parameters that are not sharded: a step that runs "
                "again would apply it twice",
                hint=f"make their module a part of the sharded model, {hint}",
            )
        try:
            scales = any(isinstance(o, torch.amp.GradScaler) for o in self._state.objects.values())
            replicated = self._worker.scaling.replicated
            protection = protect(models[0], optimizers[0], step=step, replicas=replicated, wait=False, copies=scales)
        except Unimplemented as error:
            error.hint = f"{error.hint}, {hint}" if error.hint else hint
            raise
        self._prepared.protection = protection
        if self._prepared.generation != 1 or dist.get_rank() != 0:
            return
        sizes = f"{protection.bytes / 1e6:.1f} MB per worker"
        if (replicas := protection.replicas) is not None:
            sizes += f", and {replicas.costs['memory_bytes'] / 1e6:.1f} MB of replicas for workers of other hosts"
        if protection.host_copy is not None:
            arriving = "gradients" if protection.host_copy.copies is None else "rows and states"
            sizes += f", a copy of {protection.host_copy.bytes / 1e6:.1f} MB of rows on devices, and "
            sizes += f"{protection.host_copy.step_bytes / 1e6:.1f} MB where each step's {arriving} arrive"
        print(f"shoal: step records protect this training from the deaths of workers: {sizes}", file=sys.stderr)

    def print_costs(self, rank: int) -> None:
        """Prints on rank 0 what the copies on hosts and the replicas of this generation have cost."""
        if self.protection is None or rank != 0:
            return
        if (host_copy := self.protection.host_copy) is not None and host_copy.num_steps > 0:
            repeated, waited = (1e3 * s / host_copy.num_steps for s in (host_copy.repeated_s, host_copy.waited_s))
            sent, verb = ("gradients", "repeated") if host_copy.copies is None else ("rows and states", "copied")
            print(
                f"shoal: host copy of rank 0: {host_copy.num_steps} steps, {host_copy.step_bytes / 1e6:.3f} MB of {sent} per step, updates "
                f"{verb} in {repeated:.2f} ms, {waited:.2f} ms of them waited for; {host_copy.num_written} parameters written otherwise",
                file=sys.stderr,
            )
        if self.protection.replicas is None:
            return
        costs = self.protection.replicas.costs
        if (steps := costs["steps"]) > 0:
            sent, waited = costs["step_bytes"] / 1e6, 1e3 * costs["waited_s"] / steps
            print(f"shoal: replica of rank 0: {steps} steps, {sent:.3f} MB and {waited:.2f} ms of waiting per step", file=sys.stderr)

    def enter(self) -> None:
        """Waits until every worker has its record, and begins the generation."""
        if self._prepared is not None:
            self._prepared.protection.await_all()
            self._enter()

    def _enter(self) -> None:
        prepared, self._prepared = self._prepared, None
        self.forget_past()
        self.predecessor = None
        left_over = [] if self.protection is None else self.protection.keys_of_others
        self._past = _Past(prepared.before, self.protection, [*self._adopted.values(), *self._held], left_over)
        self.protection, self.generation, self._marks, self._adopted, self._held = prepared.protection, prepared.generation, [], {}, []
        self._begun = self.protection.step

    def leave(self) -> None:
        """Called when this worker leaves. Drops what an undone change would need, since the others have everything that this worker had."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.before is not None:
            prepared.before.forget()

    def continue_from(self, base: int) -> None:
        """Called after a death. Begins the generation ``base`` if this worker is prepared for it, or goes back to it."""
        if self._prepared is not None:
            if self._prepared.generation == base:
                self._enter()
            else:
                self._go_back()
        self.forget_past()

    def _go_back(self) -> None:
        prepared, self._prepared = self._prepared, None
        if (protection := prepared.protection) is not None:
            protection.end()
            protection.actor.free_unheld(protection.keys_of_others)  # the records that dead workers have left
        if prepared.before is not None:
            prepared.before.restore()

    def forget_past(self) -> None:
        past, self._past = self._past, None
        if past is None:
            return
        for adopted in past.adopted:
            adopted.release()
        self._left_over = past.left_over
        past.protection = None
        if past.before is not None:
            past.before.forget()

    def spoil_step(self) -> None:
        """Called before the groups of devices are aborted: gradients that come from them do not count."""
        if self.protection is not None and self.protection.host_copy is not None:
            self.protection.host_copy.spoil()

    def pause(self) -> int:
        """Called before the model moves to another mesh. Returns the number of optimizer steps so far."""
        if self.protection is None:
            return 0
        self.protection.wait()
        self.protection.end()
        return self.protection.step

    def await_step(self) -> None:
        """Waits until the last step of the optimizer counts. On CPUs it does, once ``optimizer.step()`` has returned."""
        if self.protection is not None:
            self.protection.wait()

    def mark(self, opens: bool = False) -> None:
        """Sets the mark, unless batches without an optimizer step were yielded since the last mark: their gradients add up, and the step
        runs again from the first of these batches."""
        if self.protection is None:
            return
        if self.protection.step > self._begun:
            self.forget_past()
            self.predecessor = None
        self.protection.follow_writes()
        latest_step, marks = self.protection.latest_step, self._marks
        if marks and latest_step - marks[-1].step > 1:  # there is no mark between these steps, so all but the last one have to count
            self.protection.wait()
        if not marks or marks[-1].step != latest_step or marks[-1].batches == self._state.step:
            before = [m for m in marks if m.step == latest_step - 1]
            self._marks = [*before[-1:], Mark(latest_step, self._state, self._worker.num_reports, self._buffers, opens)]

    def abandon_step(self) -> None:
        """Drops the step under way, and a change in which this worker has no record yet, so that the others stop waiting for that record.
        Needs no other worker."""
        prepared = self._prepared
        if prepared is not None and prepared.protection is None and not (prepared.before is not None and prepared.before.leaves):
            self._go_back()
        if self._prepared is not None and self._prepared.protection is not None:
            self._prepared.protection.stop_replicas()
        if self.protection is not None:
            self.protection.abandon_step()

    def words(self, adopts: tuple[int, ...]) -> Words:
        """Adopts dead ranks, and returns the words of all records that this worker can read, with this worker's progress."""
        if self.protection is None:  # a new worker
            return Words()
        self.protection.join_step()
        if adopts:
            self.protection.actor.free_unheld(self._left_over)
        for rank in adopts:
            if rank not in self._adopted:
                self._adopted[rank] = self.protection.adopt(rank)
                self._held += self.protection.held_by(rank)
        records = [self.protection.words, *(self._adopted[rank].words for rank in adopts)]
        marks = {m.step: m.marked for m in self._marks}
        return Words(records, self._worker.num_reports, marks, progress_of(self._state))

    def settle(self, everyone: list[Words], adopts: tuple[int, ...]) -> dict[int, AdoptedRank]:
        """Brings this worker, and the dead ranks that it adopts, to the last step that counts. The words of all workers decide which one
        that is."""
        if self.protection is None:
            return {}
        # On several hosts no survivor may know if all have recorded a step. Then all were cut off inside of that step, and it runs again.
        one_host = not self.protection.actor.hosts
        committed = committed_step([record for worker in everyone for record in worker.records], one_host)
        self.protection.settle(committed)
        for rank in adopts:
            self._adopted[rank].settle(committed)
        known = [w.marks[committed] for w in everyone if committed in w.marks]
        if len({m.position for m in known}) > 1 and any(m.opens for m in known):
            raise WorkerLost(
                "a worker is lost, and the others are at both ends of the program's code between two loops over an epoch each",
                hint="pass epochs= or max_steps= to one loop, and do the work between epochs inside of it",
            )
        # One worker's mark for all: between two epochs of a loop, marks of one step may name the end of one or the begin of the other.
        chosen = known[0] if known else None
        mark = next((m for m in self._marks if m.step == committed), None)
        if mark is not None:
            mark.restore(self._state, chosen.progress)
            self._worker.num_reports = mark.marked.num_reports
        else:  # this worker was cut off after ``optimizer.step()``; others may have completed and reported the step
            furthest = max(everyone, key=lambda w: w.num_reports)
            if chosen is not None:  # another worker goes back to its mark
                set_progress(self._state, chosen.progress)
            elif self._worker.num_reports < furthest.num_reports:
                set_progress(self._state, furthest.present)
            self._worker.num_reports = furthest.num_reports if chosen is None else chosen.num_reports
        return {rank: self._adopted[rank] for rank in adopts}
