"""The workers of a training, from the view of one of them: their agreement on a boundary, and this worker's change of place."""

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
from shoal._distributed import ranks
from shoal._distributed.communicator import Exchange, form_communicator
from shoal._distributed.saves import save_controls
from shoal._objects.values import get
from shoal.collective._group import leave_all as leave_collective_groups
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State as UnitState
from shoal.fsdp._parameters.logical import Part, blocks
from shoal.fsdp._plan.plan import root_of
from shoal.fsdp._protect import AdoptedRank
from shoal.fsdp._reshard import Phases, Report, reshard
from shoal.train._changes import Pause, Transition
from shoal.train._context import _Here
from shoal.train._data.batches import Given, Shares, mixed
from shoal.train._data.order import other_order
from shoal.train._errors import WorkerLost
from shoal.train._meeting import Guard, begin_process_group
from shoal.train._parts import Parts, check_deterministic
from shoal.train._ranks import Place, here
from shoal.train._recovery import Record, may_come_of_a_death
from shoal.train._state import State, check_elastic, luggage, optimizers_of, random_states, seed_all, sharded_models, unpack
from shoal.train._unstepped import Unstepped

_MEET = timedelta(days=1)  # a newcomer waits for the others' boundary, which a long step delays
_MEET_NOW = timedelta(minutes=10)  # the others come at once, and the driver reports a death
_BODY = 1  # distinguishes the seeds of the loop's body from those of the samples


class WorkerLeaves(BaseException):
    """Unwinds the loop of a worker that has left the training. It is no Exception, so that the loop's own handlers pass it on."""


class RunAgain(BaseException):
    """Ends a loop that has to run again, because the loop of another worker has to. ``gang``: hands its state on to the next loop."""

    def __init__(self, gang: Gang):
        super().__init__("the loop runs again")
        self.gang = gang


class Gang:
    """``rank`` and ``size``: this worker's rank among those that train together. In an elastic training they change at a boundary."""

    def __init__(self, state: State):
        self._state = state
        self.rank, self.size = _numbers()
        self._communicator: Any = None
        self._words = torch.zeros(3, dtype=torch.int64)
        self._next: Any = None  # the reference to the next Transition, which the driver makes ready
        self._weighed: list[UnitState] = []
        self._joining = _Here.newcomer
        self._unstepped = Unstepped(state) if _Here.elastic else None  # else its hook would cost every step of an optimizer
        self._record = Record(state)
        self.parts: Parts | None = None  # with deterministic=True
        if _Here.logical_ranks:
            check_deterministic(state)
            self.parts = Parts(state, _Here.logical_ranks)
        self.repeats = False  # the loop is a step that can run again
        self._random: Any = None  # states of the generators for the loop that runs again, and the number of reports before it
        self._reported = 0
        self._backend = _backend() if _Here.elastic and dist.is_initialized() else None  # the next group has it; a loop may end this one
        self._met = _Here.store  # the store of the present process group
        if not _Here.elastic:
            return
        check_elastic(state)
        if _Here.before is not None:
            self._take_over(_Here.before)
        elif _Here.newcomer:
            self._join()
        else:
            self._record.begin(_Here.generation, 0)
            if self.size > 1:
                self._connect()  # now: a death later on must not find a worker that waits for another one to connect
            self._follow(Pause())
        _Here.gang, _Here.before = self, None

    def _join(self) -> None:
        transition = get(_Here.driver.ready.remote(_Here.worker, self._place()))
        try:
            self._change(transition)
        except Exception as error:
            self.recover(error)

    def _take_over(self, before: Gang) -> None:
        """Takes the place of the gang of a loop that a death has ended, with the values of its state. The workers are the same."""
        old, new = before._state, self._state
        if old.objects.keys() != new.objects.keys():
            raise InvalidArgument(f"this loop's State has {sorted(new.objects)}, and before a worker died it had {sorted(old.objects)}")
        step = before._record.pause()
        for name, o in new.objects.items():
            o.load_state_dict(old.objects[name].state_dict())
        unpack(new, luggage(old) | {"random": before._random})
        self._communicator, before._communicator = before._communicator, None
        self._next, self._store, self._met = before._next, before._store, before._met
        # Only the store learns of a death before all workers have these models.
        together = Exchange(f"again-{_Here.generation}", self.size, self.rank)
        together("models are placed", b"")
        for model in sharded_models(new):
            root_of(model)
        together("models are made", b"")
        self._record.begin(_Here.generation, step)
        before._record.forget_past()
        self._record.replaces, before._reported = before, _Here.reports

    def print_costs(self) -> None:
        """Prints the costs of the protection that are known only at the end."""
        self._record.print_costs(self.rank)

    def mark(self) -> None:
        """Called between two batches: the next step can run again from here."""
        self._record.mark()

    def boundary(self) -> bool:
        """Called between two batches. Enters the latest generation that one of the workers has received, unless gradients wait for their
        optimizer's step on one of them. Returns True if that changed the workers. Every worker calls it equally often. Raises WorkerLeaves
        on a worker that leaves."""
        if self._next is None:
            return False
        if self._joining:  # the others are behind this boundary already
            self._joining = False
            return False
        ready = bool(self._next._ref.ready)
        comes = self.agree(ready)
        waits = comes and self.agree(self._unstepped.any())  # only where a change comes: it looks at all parameters
        self._unstepped.count_wait(bool(ready and waits), prints=self.rank == 0)
        if not comes or waits:
            return False
        self._change(get(self._next))
        return True

    @property
    def shares(self) -> Shares:
        """The parts of each batch that this worker runs."""
        if self.parts is None:
            return Shares(range(self.rank, self.rank + 1), self.size)
        return Shares(blocks(self.parts.of, self.size)[self.rank], self.parts.of, seeded=True)

    def begin_part(self, given: Given) -> None:
        """Prepares the backward pass of a part, and the random number generators, which do not depend on the worker that runs the part."""
        shares, state = self.shares, self._state
        share = given.samples * shares.of / given.global_samples
        if self.parts is None:
            self._weigh(None if self.size == 1 else share, None)
            return
        part = Part(given.part, shares.of, given.part == shares.mine[-1])
        self._weigh(share, part)
        self.parts.begin(part, shares.mine[0])
        seed_all(mixed(state.seed, state.epoch, state.batch, part.number, _BODY))

    def end_parts(self) -> None:
        """Between two loops."""
        self._weigh(None, None)
        if self.parts is not None:
            self.parts.running = False
        if _Here.gang in (None, self):  # else a loop that was left ends late, while the next one runs
            _Here.holds = False

    def end_steps(self) -> None:
        """Called at the end of a loop. From here on, the random number generators do not depend on the last parts."""
        if self.parts is not None:
            seed_all(mixed(self._state.seed, self._state.epoch, self._state.batch, self.parts.of, _BODY))

    def _weigh(self, share: float | None, part: Part | None) -> None:
        """Sets the factor by which this worker's gradients count in the mean over workers, or parts."""
        if not self._weighed:
            inner = (m for model in sharded_models(self._state) for m in model.modules())
            self._weighed = [s for s in map(state_of, inner) if s is not None]
        for s in self._weighed:
            s.settings.share = share
            if self.parts is not None:
                s.settings.part, s.settings.rules.reduces = part, part is None or part.last
                for p in (p for u in s.units for p in u.parameters if part is None):
                    p.gradient.drop_parts()  # those of a step that was left before its last part

    def sum(self, values: list[float]) -> list[float]:
        """Returns the sums over all workers."""
        t = torch.tensor(values, dtype=torch.float64)
        self._reduce(t, "float64", "sum")
        return t.tolist()

    def agree(self, own: int) -> int:
        """Returns the maximum of the workers' words. Raises InvalidArgument on all of them if they have drawn different batches so far.

        A training of a fixed size starts no node for this: there the workers compare only once ``sum`` has connected them."""
        if self.size == 1 or (self._communicator is None and not _Here.elastic):
            return own
        self._words[:] = torch.tensor([own, self._state.drawn, -self._state.drawn])
        self._reduce(self._words, "int64", "max")
        greatest, drawn, least = self._words.tolist()
        if drawn != -least:
            raise other_order(self._state.loader, f"the workers have drawn different batches before step {self._state.step + 1}")
        return greatest

    def _reduce(self, t: torch.Tensor, dtype: str, op: str) -> None:
        if self._communicator is None:
            self._connect()
        memory = t.data_ptr(), t.numel() * t.element_size()
        self._communicator.all_reduce(memory, memory, dtype, op, ("the workers' boundary", self._state.step, 0.0, False)).wait()

    def _connect(self) -> None:
        everyone = tuple(range(self.size))
        host, name = ranks.attach(everyone), ranks.gang_name("gang", everyone, self.rank)
        self._communicator = form_communicator(name, everyone, self.rank, host.shared)

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.leave()
            self._communicator = None

    # ---- a change of the workers ----

    def _follow(self, pause: Pause) -> None:
        """Reports to the driver that this worker is in its generation, and asks for the next one."""
        self._next = _Here.driver.entered.remote(_Here.worker, _Here.generation, self._place(), pause, _Here.reports)

    def _place(self) -> Place:
        self._store = _open_store()
        return here(self._store.port)

    def resume(self, error: Exception) -> bool:
        """Called after an error that has ended the loop. Recovers, and returns True if the loop has to run again; the next loop takes over
        the state of this one. Returns False if no death caused the error."""
        if self.repeats:
            return False
        try:
            self.recover(error)
        except Exception as other:
            if other is error:
                return False
            raise
        self.hand_on()
        return True

    def hand_on(self) -> None:
        """The loop that runs again takes over the state of this one."""
        if _Here.before is None:
            self._random = random_states()  # the loop that runs again sets seeds
        _Here.before, self.repeats = self, False

    def recover(self, error: Exception) -> None:
        """Called after an error in a step. If a worker has died, goes on with the others, at the same step or the next one; else raises the
        error. Raises RunAgain if the loop cannot go on, because the loop of another worker runs again."""
        try:
            while self._record.protects and may_come_of_a_death(error):
                phases = Phases()
                self._stop()  # an error of it is no death
                phases.end("stop")
                try:
                    return self._recover(error, phases)
                except WorkerLost:
                    raise
                except Exception as again:  # another one has died
                    if again is error:
                        raise
                    error = again
            raise error
        finally:
            for control in save_controls:
                control.print_error(self.rank == 0)

    def _recover(self, error: Exception, phases: Phases) -> None:
        again = not (self.repeats or self._joining)
        try:
            transition = get(_Here.driver.interrupted.remote(_Here.worker, self._record.generation, again, self._place()))
        except InvalidArgument as refused:
            if refused.reason == "NobodyDied":
                raise error from None
            if refused.reason == "Left":
                self._leave()
            raise
        if transition.newcomers and transition.again:  # they would train while the others' loops build their models anew
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
        self._leave_groups()
        self._end_process_group()
        self._record.abandon_step()

    def _end_process_group(self) -> None:
        if dist.is_initialized():
            self._backend = _backend()
            dist.destroy_process_group()

    def _change(self, transition: Transition, phases: Phases | None = None) -> None:
        phases = phases or Phases()
        leaves = transition.final is None
        self._leave_groups()
        mesh = self._meet(transition, phases)
        if self._joining:  # it has waited for the others' boundary
            phases = Phases()
        adopted = self._settle(transition) if transition.recovers else None
        state, step = self._state, self._record.pause()
        phases.end("settle")
        report = self._move_tensors(transition, mesh, adopted, phases)
        moved = 0 if report is None else report.received_bytes
        self._record.moved(transition.change.generation, None if report is None else report.before)
        if transition.recovers:  # the survivors begin before a boundary
            self._joining = False
        if transition.newcomers:
            packed = [luggage(state) if dist.get_rank() == transition.old_owners[0] else None, _Here.reports, step]
            dist.broadcast_object_list(packed, src=transition.old_owners[0])
            if transition.old_index is None:
                unpack(state, packed[0])
                _, _Here.reports, step = packed
        phases.end("luggage")
        if leaves:
            dist.barrier()
            get(_Here.driver.leaves.remote(_Here.worker))
            self._leave()
        self._record.prepare(step)
        self._record.enter()
        self._met.guard = Guard(transition.change.generation, begun=True)  # from now on workers that leave may end
        phases.end("begin the record")
        if mesh.size() < dist.get_world_size():
            with contextlib.suppress(RuntimeError):  # a worker that leaves has died, and has nothing that the others need
                dist.barrier()
            _keep_process_group(mesh)
            phases.end("leave the union")
        os.environ.update(transition.final)
        _Here.generation, _Here.newcomer = transition.change.generation, False
        self.rank, self.size = _numbers()
        self._weighed = []
        if self.size > 1:
            self._connect()
        phases.end("make the communicator")
        self._follow(Pause(phases.total, moved, phases.seconds, state.step))
        if state.on_change is not None:
            change = replace(transition.change, seconds=phases.total, moved_bytes=moved, phases=phases.seconds, step=state.step)
            state.on_change(change)

    def _leave(self) -> None:
        """The new generation has begun, and this worker is not in it."""
        self._record.leave()
        _Here.left = True
        raise WorkerLeaves

    def _meet(self, transition: Transition, phases: Phases) -> DeviceMesh:
        """Makes the process group of all workers that take part in the change, and the mesh of those that train afterwards. Raises
        Unavailable at once if one of them dies."""
        guard = Guard(transition.change.generation)
        for control in () if transition.recovers else save_controls:
            control.finish(guard.check)
            phases.end("finish the save")
        if transition.union is not None:
            self._end_process_group()
            self._met = begin_process_group(self._store, transition.union, self._backend, guard, _MEET if self._joining else _MEET_NOW)
        self._met.guard = guard
        phases.end("meet")
        mesh = _mesh(transition.change.workers)
        phases.end("make the mesh")
        return mesh

    def _leave_groups(self) -> None:
        """Leaves the groups of the generation that ends, but for the model's, whose tensors still have to move."""
        self.close()
        leave_collective_groups()

    def _settle(self, transition: Transition) -> dict[int, AdoptedRank]:
        """Decides with the other survivors if the step under way counts. Finishes the step, or goes back to its begin."""
        builds, before = _Here.before is self, self._record.replaces
        if transition.again and _any_worker(builds) and not builds and before is not None:
            # Loops run again, and one survivor has no new record: all go on from their former records.
            self._state, self._record, self.parts, self._random = before._state, before._record, before.parts, before._random
            _Here.before, _Here.reports = self, before._reported
        words = self._record.words(transition.adopts)
        everyone: list[Any] = [words]
        if dist.get_world_size() > 1:
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, words)
        return self._record.settle(everyone, transition.adopts)

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


def _any_worker(own: bool) -> bool:
    """Returns True if ``own`` is True on one of the process group's ranks, all of which call it."""
    everyone = [own] * dist.get_world_size()
    if len(everyone) > 1:
        dist.all_gather_object(everyone, own)
    return any(everyone)


def _numbers() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _open_store() -> dist.TCPStore:
    """Returns a store in which the next generation can meet. The store listens before the training pauses, so that newcomers connect and
    wait."""
    return dist.TCPStore(session().host, 0, is_master=True, wait_for_workers=False, timeout=_MEET)


def _backend() -> str:
    """The backend of the next default process group, as init_process_group takes it: the backend of the present group, and Shoal's for
    CPUs."""
    config = dist.get_backend_config().replace("gloo", "shoal")
    one = {part.split(":")[1] for part in config.split(",")}
    return one.pop() if len(one) == 1 else config


def _mesh(size: int) -> DeviceMesh:
    """Returns the mesh of the first ``size`` ranks of the default process group, all of whose ranks call it."""
    return ranks.default_mesh() if size == dist.get_world_size() else DeviceMesh("cpu", torch.arange(size))


def _keep_process_group(mesh: DeviceMesh) -> None:
    """Makes the mesh's process group, whose ranks are the first ones, the default one. The other ranks leave."""
    union = dist.group.WORLD
    dist.distributed_c10d._update_default_pg(mesh.get_group())  # torch can only make a new one, which would end the mesh's
    dist.destroy_process_group(union)
    ranks.forget_names()
