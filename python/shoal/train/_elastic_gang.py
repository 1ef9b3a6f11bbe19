"""The gang of an elastic training: its agreement on a boundary between two batches, and this worker's part in a change of the workers.

``enter`` joins the training: as one of the first workers, as a new one, or with the state of a loop that a death has ended. From then on
the driver has a call of this worker (``entered``). It answers with the worker's ``Transition``: the worker's part in the next change.

- A planned change begins at a ``boundary``, once one worker has its answer.
- A death begins one at any moment: collective calls fail, and ``recover`` drops the step and asks the driver (``interrupted``).

Both end in ``_change``: the workers meet in one process group, move the model, begin new step records, and call ``entered`` again.
README.md has the order in full.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shoal._core.process import session
from shoal._core.telemetry import Activity, at, waiting
from shoal._distributed import ranks
from shoal._distributed.communicator import Exchange
from shoal._distributed.saves import save_controls
from shoal._objects.values import get
from shoal.collective._group import leave_all as leave_collective_groups
from shoal.exceptions import InvalidArgument
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._plan.plan import root_of
from shoal.fsdp._protect import AdoptedRank
from shoal.fsdp._reshard import Phases, Report, reshard
from shoal.train._changes import Change, Pause, Transition
from shoal.train._device_groups import abort, groups_of_devices
from shoal.train._gang import Gang, rank_and_size
from shoal.train._meeting import Guard, begin_process_group
from shoal.train._ranks import Place, own_place
from shoal.train._recovery import Record, may_come_of_a_death
from shoal.train._state import State, check_elastic, device_type_of, luggage, optimizers_of, random_states, sharded_models, unpack
from shoal.train._unstepped import Unstepped
from shoal.train._worker import RunAgain, Worker, WorkerLeaves, WorkerLost

_MEET = timedelta(days=1)  # a newcomer waits for the others' boundary, which a long step delays
_MEET_NOW = timedelta(minutes=10)  # the others come at once, and the driver reports a death


class ElasticGang(Gang):
    """A gang whose rank, size and members change."""

    def __init__(self, state: State, worker: Worker):
        super().__init__(state, worker)
        self._next: Any = None  # the reference to the next Transition, which the driver makes ready
        self._joining = worker.generation == 0
        self._unstepped = Unstepped(state)
        self._record = Record(state, worker)
        self._random: Any = None  # states of the generators for the loop that runs again
        self._num_reports = 0  # reports made before the loop that runs again
        self._backend = _backend() if dist.is_initialized() else None  # kept for the next group, because a loop may end the present one
        self._store = worker.store  # the present process group's
        self._next_store: Any = None  # this worker's own, in which the next generation can meet

    def enter(self) -> None:
        super().enter()
        check_elastic(self._state)
        if self._worker.predecessor is not None:
            self._take_over(self._worker.predecessor)
        elif self._joining:
            transition = get(self._worker.driver.ready.remote(self._worker.role.number, self._place()))
            try:
                self._change(transition)
            except Exception as error:
                self.recover(error)
        else:
            self._record.begin(self._worker.generation, 0)
            if self.size > 1:
                self._connect()  # now: a death later on must not find a worker that waits for another one to connect
            self._follow(Pause())
        self._worker.gang, self._worker.predecessor = self, None

    def _take_over(self, predecessor: ElasticGang) -> None:
        """Takes the place of the gang of a loop that a death has ended, with the values of its state. The workers are the same."""
        old, new = predecessor._state, self._state
        if old.objects.keys() != new.objects.keys():
            raise InvalidArgument(f"this loop's State has {sorted(new.objects)}, and before a worker died it had {sorted(old.objects)}")
        step = predecessor._record.pause()
        for name, o in new.objects.items():
            o.load_state_dict(old.objects[name].state_dict())
        unpack(new, luggage(old) | {"random": predecessor._random})
        self._communicator, predecessor._communicator = predecessor._communicator, None
        self._next, self._store, self._next_store = predecessor._next, predecessor._store, predecessor._next_store
        # The workers meet in the store first: only its waits end when a worker dies before all have these models.
        together = Exchange(f"again-{self._worker.generation}", self.size, self.rank)
        together("models are placed", b"")
        for model in sharded_models(new):
            root_of(model)
        together("models are made", b"")
        self._record.begin(self._worker.generation, step)
        predecessor._record.forget_past()
        self._record.predecessor, predecessor._num_reports = predecessor, self._worker.num_reports

    def print_costs(self) -> None:
        """Prints the costs of the protection that are known only at the end."""
        self._record.print_costs(self.rank)

    def await_step(self) -> None:
        self._record.await_step()

    def spoil_step(self) -> None:
        self._record.spoil_step()

    def end_steps(self) -> None:
        super().end_steps()
        self._record.await_step()

    def agree(self, own: int) -> int:
        if self.size > 1 and self._communicator is None:  # a loop that goes on after an error must not go on alone
            self._connect()
        return super().agree(own)

    def boundary(self, opens: bool = False) -> bool:
        """Sets the mark. Enters the latest generation that one of the workers has received, unless gradients on one of them wait for their
        optimizer's step. Every worker calls it equally often. Raises WorkerLeaves on a worker that leaves."""
        self._record.mark(opens)
        if self._next is None:
            return False
        if self._joining:  # a newcomer's first boundary: the others have passed it already, with the change
            self._joining = False
            return False
        if not self._unstepped.allows_change(bool(self._next._ref.ready), self.agree, prints=self.rank == 0):
            return False
        self._change(get(self._next))
        self._record.mark()  # the new generation's record has no mark yet
        return True

    # ---- a change of the workers ----

    def _follow(self, pause: Pause) -> None:
        """Reports to the driver that this worker is in its generation, and asks for the next one."""
        w = self._worker
        self._next = w.driver.entered.remote(w.role.number, w.generation, self._place(), pause, w.num_reports)

    def _place(self) -> Place:
        """Opens this worker's store. It listens before the training pauses, so that newcomers connect and wait."""
        self._next_store = dist.TCPStore(session().host, 0, is_master=True, wait_for_workers=False, timeout=_MEET)
        return own_place(self._next_store.port)

    def resume(self, error: Exception) -> None:
        """Called after an error that has ended the loop. Recovers, so that the loop can run again; the next loop takes over the state of
        this one. Raises the error if no death caused it."""
        if self.repeats:
            raise error
        self.recover(error)
        self.hand_on()

    def hand_on(self) -> None:
        """Called when this loop ends and runs again: keeps this gang for the next loop, which takes over its state."""
        if self._worker.predecessor is None:
            self._random = random_states()  # the loop that runs again sets seeds
        self._worker.predecessor, self.repeats = self, False

    def recover(self, error: Exception) -> None:
        """Called after an error in a step. If a worker has died, goes on with the others, at the same step or the next one; else raises the
        error. Raises RunAgain if the loop cannot go on, because the loop of another worker runs again."""
        try:
            while self._record.protects and may_come_of_a_death(error):
                phases = Phases()
                with waiting():
                    self._stop()  # outside of ``try``: its errors mean no other death
                phases.end("stop")
                try:
                    return self._recover(error, phases)
                except WorkerLost:
                    raise
                except Exception as again:  # another worker has died
                    if again is error:
                        raise
                    error = again
            raise error
        finally:
            for control in save_controls:
                control.print_error(self.rank == 0)

    def _recover(self, error: Exception, phases: Phases) -> None:
        w, again = self._worker, not (self.repeats or self._joining)
        try:
            with waiting():
                transition = get(w.driver.interrupted.remote(w.role.number, self._record.generation, again, self._place()))
        except InvalidArgument as refused:
            if refused.reason == "NobodyDied":
                raise error from None
            if refused.reason == "Left":
                self._leave()
            raise
        # A recovery has newcomers only if fewer workers than the minimum survive. They would train at once, while the survivors' loops run
        # again from their beginning.
        if transition.newcomers and transition.again:
            raise WorkerLost(
                f"worker {transition.change.died[0]} is lost, and a loop that runs again cannot go on with fewer workers than the minimum",
                hint="write the step as a function for shoal.train.run, or allow fewer workers: num_workers=(minimum, maximum)",
            )
        phases.end("learn of the death")
        self._record.continue_from(transition.base)
        self._change(transition, phases)
        if transition.again and not again:
            raise RunAgain(self)

    def _stop(self) -> None:
        """Leaves all groups, which ends the waits of other workers there, and drops the step under way."""
        self.end_parts()
        self._next = None
        for control in save_controls:
            control.abandon()
        if self._worker.scaling.use_gpu:  # groups that end under way leave half a sum in gradients
            self.spoil_step()
        self._leave_groups()
        self._end_process_group(aborts=self._worker.scaling.use_gpu)
        self._record.abandon_step()

    def _end_process_group(self, aborts: bool = False) -> None:
        """``aborts``: kernels of devices may wait for a dead worker."""
        if dist.is_initialized():
            self._backend = _backend()
            if aborts:
                abort(groups_of_devices())
            dist.destroy_process_group()  # waits for kernels; if a death stops them, the guard still ends this wait
            if self._store.guard is not None:
                self._store.guard.end()

    def _change(self, transition: Transition, phases: Phases | None = None) -> None:
        change = self._enter_next(transition, phases or Phases())
        if self._state.on_change is not None:
            with at(Activity.ELSEWHERE):
                self._state.on_change(change)

    @waiting()
    def _enter_next(self, transition: Transition, phases: Phases) -> Change:
        if not transition.recovers:
            self._record.await_step()
        self._leave_groups()
        mesh = self._meet(transition, phases)
        if self._joining:  # a newcomer has waited for the others' boundary, which is no part of the pause
            phases = Phases()
        adopted = self._settle(transition) if transition.recovers else None
        state, step = self._state, self._record.pause()
        phases.end("settle")
        report = self._move_tensors(transition, mesh, adopted, phases)
        moved = 0 if report is None else report.received_bytes
        self._record.moved(transition.change.generation, None if report is None else report.before)
        if transition.recovers:  # the survivors run from their mark, and the newcomer takes part in the boundary that follows
            self._joining = False
        if transition.newcomers:
            packed = [luggage(state) if dist.get_rank() == transition.old_owners[0] else None, self._worker.num_reports, step]
            dist.broadcast_object_list(packed, src=transition.old_owners[0])
            if transition.old_index is None:
                unpack(state, packed[0])
                _, self._worker.num_reports, step = packed
        phases.end("luggage")
        if transition.final is None:
            dist.barrier()
            get(self._worker.driver.leaves.remote(self._worker.role.number))
            self._leave()
        self._record.prepare(step)
        self._record.enter()
        self._store.guard = Guard(self._worker, transition.change.generation, begun=True)  # from now on workers that leave may end
        phases.end("begin the record")
        if mesh.size() < dist.get_world_size():
            with contextlib.suppress(RuntimeError):  # a worker that leaves has died, and has nothing that the others need
                dist.barrier()
            _keep_process_group(mesh)
            phases.end("leave the union")
        os.environ.update(transition.final)
        self._worker.generation = transition.change.generation
        self.rank, self.size = rank_and_size()
        self.join_telemetry()
        self._weighed = []
        if self.size > 1:
            self._connect()
        phases.end("make the communicator")
        self._follow(Pause(phases.total, moved, phases.seconds, state.step))
        return replace(transition.change, seconds=phases.total, moved_bytes=moved, phases=phases.seconds, step=state.step)

    def _leave(self) -> None:
        """Unwinds the loop of this worker: the new generation has begun without it."""
        self._record.leave()
        self._worker.left = True
        raise WorkerLeaves

    def _meet(self, transition: Transition, phases: Phases) -> DeviceMesh:
        """Makes the process group of all workers that take part in the change, and the mesh of those that train afterwards. Raises
        Unavailable at once if one of them dies."""
        if self._store.guard is not None and transition.union is None:  # the groups stay, and the new guard takes over
            self._store.guard.end()
        guard = Guard(self._worker, transition.change.generation)
        for control in () if transition.recovers else save_controls:
            control.finish(guard.check)
            phases.end("finish the save")
        if transition.union is not None:
            self._end_process_group()
            limit = _MEET if self._joining else _MEET_NOW
            self._store = begin_process_group(self._next_store, transition.union, self._backend, guard, limit)
        self._store.guard = guard
        phases.end("meet")
        size = transition.change.workers  # the first ranks of the group; all ranks make the mesh
        whole, kind = size == dist.get_world_size(), device_type_of(self._state)
        mesh = ranks.default_mesh() if whole and kind == "cpu" else DeviceMesh(kind, torch.arange(size))
        phases.end("make the mesh")
        return mesh

    def _leave_groups(self) -> None:
        """Leaves the groups of the generation that ends, but for the model's arenas, whose tensors still have to move."""
        groups.leave_all()
        if self._communicator is not None:
            self._communicator.leave()
            self._communicator = None
        leave_collective_groups()

    def _settle(self, transition: Transition) -> dict[int, AdoptedRank]:
        """Decides with the other survivors if the step under way counts. Finishes the step, or goes back to its begin."""
        w, former = self._worker, self._record.predecessor
        builds = w.predecessor is self
        if transition.again and any(_gather(builds)) and not builds and former is not None:
            # Loops run again, and one survivor has no new record: all go on from their former records.
            self._state, self._record, self.parts, self._random = former._state, former._record, former.parts, former._random
            w.predecessor, w.num_reports = self, former._num_reports
        return self._record.settle(_gather(self._record.words(transition.adopts)), transition.adopts)

    def _move_tensors(
        self, transition: Transition, mesh: DeviceMesh, adopted: dict[int, AdoptedRank] | None, phases: Phases
    ) -> Report | None:
        """Moves the sharded tensors from their old owners to the new ones. Returns None if there are none."""
        models = sharded_models(self._state)
        if not models:
            return None
        optimizers = optimizers_of(self._state)
        owners, index = transition.old_owners, transition.old_index
        keeps = self._record.protects
        report = reshard(models[0], optimizers, mesh, old_owners=owners, old_index=index, adopted=adopted, keep_old=keeps)
        phases.end_in(report.phases, "reshard")
        return report


def _gather(own: Any) -> list[Any]:
    """Returns the values of all ranks of the process group, which call it together."""
    everyone = [own] * dist.get_world_size()
    if len(everyone) > 1:
        dist.all_gather_object(everyone, own)
    return everyone


def _backend() -> str:
    """The backend of the next default process group, as init_process_group takes it: the backend of the present group, and Shoal's for
    CPUs."""
    config = dist.get_backend_config().replace("gloo", "shoal")
    one = {part.split(":")[1] for part in config.split(",")}
    return one.pop() if len(one) == 1 else config


def _keep_process_group(mesh: DeviceMesh) -> None:
    """Makes the mesh's process group, whose ranks are the first ones, the default one. The other ranks leave."""
    union = dist.group.WORLD
    dist.distributed_c10d._update_default_pg(mesh.get_group())  # torch can only make a new one, which would end the mesh's
    dist.destroy_process_group(union)
    ranks.forget_names()
