"""The units of one model: their native models, their step machine, and what its actions do on torch's side.

``fsdp/step/step_machine.h`` decides which actions follow an event, and in which order. A hook reports an event to ``Root.step``, which
carries out the actions among ranks itself and calls a method of ``Root`` for each other one. These methods have the actions' names.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Variable

from shoal import _native
from shoal._core.telemetry import telemetry
from shoal._distributed.debugging import provide
from shoal._objects.tensors import lasting
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._devices.streams import Transfers, transfers
from shoal.fsdp._engine.added import Added
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.in_backward import OptimizerInBackward
from shoal.fsdp._engine.reductions import Reductions
from shoal.fsdp._engine.ties import adopt_ties
from shoal.fsdp._engine.writers import announce
from shoal.fsdp._errors import OnMetaDevice
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._ranges import Range, around

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import StateSeam
    from shoal.fsdp._engine.unit import Unit

_ALL = -1  # kAllUnits of an action
_numbers = itertools.count()


class ForwardToken:
    """A forward pass whose backward may still run. Hooks of its autograd graph hold it, so that it dies with the graph."""

    __slots__ = ("__weakref__", "ended_in", "versions")

    def __init__(self, versions: list[int]):
        self.versions = versions
        self.ended_in = -1  # autograd's id of the last backward pass over the graph, which freed it


class Backward:
    """A running backward pass. Autograd's final callback holds it, so that it dies when an exception ends the pass before that callback."""

    __slots__ = ("__weakref__",)


class Root:
    """The units of one model. ``states`` are in the order of modules. The units of each set of ranks form one native model."""

    def __init__(self, states: list[StateSeam]):
        self.states = states
        self.number = next(_numbers)  # in this process
        self.forwards: weakref.WeakSet[ForwardToken] = weakref.WeakSet()
        self._backward: weakref.ref[Backward] | None = None  # the weak reference is dead after an exception
        self.backward_ranges: dict[int, Range] = {}  # by the state's index: the profiler's ranges of running backwards
        self.copies: dict[ShardedParameter, torch.Tensor] = {}  # private copies that receive writes to whole parameters after an evaluation
        self.preliminary = False  # created before the first forward, which may replace it by another root
        self.samples: int | None = None  # number of samples in this rank's batch if they weigh gradients, else None
        self.total_kept = 0.0  # samples of all ranks in passes whose gradients are not reduced yet
        self._first_total: float | None = None  # samples of all ranks in the first of the passes in ``total_kept``
        self.rows_event: Any = None  # the program's event after which rows have their values; None: the present stream writes them
        self.samples_kept = 0  # samples of batches whose gradients are not reduced yet
        self.stepped = False  # an optimizer has stepped
        self._overtaken = False  # another rank has started this pass over, which the end of the pass reports
        self._found: InvalidArgument | None = None  # a write to a whole parameter, until ``raise_found``
        self._in_backward_optimizer: OptimizerInBackward | None = None
        self.added = Added(self)
        self.prefetch_depth = 1  # how many forwards or backwards a unit is unsharded ahead
        for index, s in enumerate(states):
            s.root, s.index = self, index
        _roots.add(self)
        self.step = _native.Step(self, [_native.StepUnit(s.name, s.is_root, s.settings.rules) for s in states], telemetry(opens=True))
        try:
            self._make_models()
        except BaseException:
            for s in states:  # the next forward makes another root
                s.root = None
            raise

    @property
    def units(self) -> list[Unit]:
        return [u for s in self.states for u in s.units]

    @property
    def slots(self) -> int:
        """The number of units whose whole gradients a rank may have in flight."""
        return max((min(s.settings.max_input_buffers or 2, 4) for s in self.states), default=2)

    @property
    def inputs(self) -> int:
        """The number of units whose packed gradients may be under way in collectives. FSDP2's default is 1."""
        return max((s.settings.max_input_buffers or 1 for s in self.states), default=1)

    @property
    def repeats(self) -> bool:
        """This pass repeats a batch, whose gradients do not count."""
        return self.states[0].settings.repeats

    def weight(self, by_collectives: bool) -> float | None:
        """The factor of this pass's gradients; None: 1. Where the engine reduces, it is the number of samples, by whose total the engine
        divides. For collectives it is the share of all ranks' samples, which are known before, so that fp16 sums do not overflow. Then
        ``scale`` corrects the sum to the mean over all passes."""
        total = self.states[0].settings.total_samples if by_collectives else None
        return self.samples if self.samples is None or total is None else self.samples / max(self._first_total or total, 1.0)

    @property
    def scale(self) -> float | None:
        """The factor of a collective's sum, if the gradients in it were multiplied by ``weight``; else None."""
        total = self.states[0].settings.total_samples
        return None if total is None else (self._first_total or total) / max(self.total_kept + total, 1.0)

    @property
    def window_open(self) -> bool:
        return self.step.window_open

    @property
    def in_backward_optimizer(self) -> OptimizerInBackward | None:
        return self._in_backward_optimizer

    @in_backward_optimizer.setter
    def in_backward_optimizer(self, optimizer: OptimizerInBackward | None) -> None:
        self._in_backward_optimizer = optimizer
        self.step.set_optimizer_in_backward(optimizer is not None)

    def _make_models(self, models: list[_native.ShardedModel] | None = None) -> None:
        """``models``: the models, if they exist already."""
        self.step.drop_models()
        self.complete = False  # True while there are models
        self.models: list[_native.ShardedModel] = []
        by_actor: dict[int, list[Unit]] = {}
        for u in self.units:
            by_actor.setdefault(id(u.actor), []).append(u)
        for s in self.states:
            s.writes.forget()
        self.rows_plain = False  # True while an optimizer steps: sharded parameters then have plain local tensors
        self.units_of: list[list[Unit]] = list(by_actor.values())
        self.reductions = Reductions(self.units_of)
        for place, units in enumerate(self.units_of):
            names = [u.state.name for u in units]
            model = models[place] if models else units[0].actor.make_model([u.native for u in units], names, slots=self.slots)
            self.models.append(model)
            for index, u in enumerate(units):
                u.model, u.place, u.index = model, place, index
                if u.gathered is not None:
                    u.gathered.collectives.label, u.gathered.collectives.model = u.state.name or "root", self.number
        self.step.set_models(self.models, [[u.group() for u in s.units] for s in self.states], self.slots, self.inputs)
        self.transfers: list[Transfers] = [transfers.of(device) for device in {u.data.device for u in self.units}]
        self.complete = True
        self.replan()

    def complete_models(self) -> None:
        """Makes the models, after an earlier call could not make them."""
        self._make_models()
        self.forwards.clear()

    def replan(self) -> None:
        """Passes the prefetch depth and the units' own prefetch lists to the engine, for the next steps."""
        for s in self.states:
            s.settings.rules.forward_prefetch = [a.index for a in self._own(s.settings.forward_prefetch)]
            s.settings.rules.backward_prefetch = [a.index for a in self._own(s.settings.backward_prefetch)]
        for place, (model, units) in enumerate(zip(self.models, self.units_of, strict=True)):
            lists = []
            for u in units:
                for backward, ahead in ((False, u.state.settings.forward_prefetch), (True, u.state.settings.backward_prefetch)):
                    indices = [a.index for s in self._own(ahead) for a in s.units if a.place == place]
                    if indices:
                        lists.append(_native.PrefetchList(unit=u.index, backward=backward, ahead=indices))
            # Collectives need one order on all ranks: the plans of models with gathers have to be alike.
            alike = any(u.gathered is not None and u.gathered.gathers for u in units)
            model.plan(self.prefetch_depth, lists, alike)

    def _own(self, modules: list[nn.Module]) -> list[StateSeam]:
        return [s for s in map(state_of, modules) if s is not None and s.root is self]

    def move(self, model: _native.ShardedModel) -> None:
        """Continues with the model of another mesh, to which all units have moved. Between two steps."""
        self.copies.clear()
        self._make_models([model])
        self.forwards.clear()
        self._backward = None
        self.step.start_over()
        self.added.settle()

    def dissolve(self) -> None:
        for s in self.states:
            self.step.reshard(s.index)
            s.root = None

    def versions(self) -> list[int]:
        return [m.version for m in self.models]

    def _states(self, unit: int) -> list[StateSeam]:
        """The states that an action names: one, or all."""
        return self.states if unit == _ALL else [self.states[unit]]

    # ---- events that no hook of a unit reports ----

    def note_left(self) -> None:
        """Reports that an exception has left the running backward pass, if that is so."""
        if self._backward is not None and self._backward() is None:
            self._backward = None
            self._end_ranges()
            self.step.raised()

    def open_window(self, caller: str) -> None:
        announce()
        self.note_left()
        self.step.open_window(caller)
        self._wait_for_reads()

    def _wait_for_reads(self) -> None:
        """Waits on the host until devices have copied the rows in its memory, so that the program may write to them."""
        if any(u.reads_host_rows for u in self.units):
            for t in self.transfers:
                t.wait_for_reads()

    def optimizer_begin(self, key: int = 0) -> None:
        announce()
        self.note_left()
        with around("open_window"):
            self.step.optimizer_begin(key)
            self._wait_for_reads()
        self.show_rows(plain=True)

    def optimizer_end(self, key: int = 0) -> None:
        self.step.optimizer_end(key)
        if self.rows_plain:
            self.show_rows(plain=False)

    def reduce_kept(self) -> None:
        """Reduces the gradients that earlier backward passes kept, in a synchronised pass in which no unit runs."""
        self.note_left()
        self.step.reduce_kept(bool(self.forwards))

    def finalize_backward(self) -> None:
        """Ends the backward pass that waits for this call, or reduces the gradients that earlier passes kept. Collective."""
        if not all(self.step.everywhere(s.index) for s in self.states):
            raise RuntimeError(
                "finalize_backward does not support partial gradient reduction: enable all-reduce with set_requires_all_reduce(True)"
            )
        self.note_left()
        self.step.finalize(bool(self.forwards))

    def enter(self) -> None:
        """Takes part in a step of the other ranks. Called on a rank without a batch."""
        self.step.enter(True, bool(self.forwards))

    def reset(self) -> None:
        """Drops the present step with all gradients."""
        self._backward = None
        self.step.reset()

    def abandon_step(self) -> None:
        """Drops the present step with its gradients, in whatever state an exception has left it. It needs no other rank."""
        self.reset()
        if self.rows_plain:
            self.show_rows(plain=False)
        self.free_rows()
        self.copies.clear()
        self.forwards.clear()

    # ---- actions on parameters ----

    def forget_casts(self) -> None:
        torch.clear_autocast_cache()

    def show(self, unit: int, view: _native.View) -> None:
        self.states[unit].show(view)

    def adopt(self) -> None:
        """Adopts tensors that the user put in the place of parameters; rebuilds units whose dtypes or parameters changed."""
        if self.rows_plain:  # an optimizer's step ended with an exception
            self.show_rows(plain=False)
        with lasting():
            self._adopt()

    def _adopt(self) -> None:
        changed = adopt_ties(self.states)
        for s in self.states:
            for u in s.units:
                if u.adopt():
                    changed[u] = None
        if not changed:
            return
        for u in changed:
            u.build_again()
        self._make_models()
        self.forwards.clear()

    def find_added(self) -> None:
        self.copies.clear()
        self.added.find()

    def order_rows(self) -> None:
        event, self.rows_event = self.rows_event, None
        for t in self.transfers:
            t.order_rows(event)

    def begin_gather(self, unit: int, group: int, ahead: bool) -> None:
        with around("gather", self.states[unit].name):
            self.states[unit].units[group].gathered.begin(ahead)

    def drop_gather(self, unit: int, group: int) -> None:
        self.states[unit].units[group].gathered.drop_begun()

    def end_forward(self) -> None:
        for t in self.transfers:
            t.end_forward()

    def show_rows(self, plain: bool) -> None:
        """Chooses the local tensors of sharded parameters: plain ones while an optimizer steps, else Rows, which intercept writes."""
        self.rows_plain = plain
        for u in self.units:
            u.show_rows(plain)

    # ---- actions that detect writes while the window is closed ----

    def check_rows(self, unit: int) -> None:
        """Raises InvalidArgument if rows were written since ``close_rows``. ``unit``: the one whose forward begins."""
        for s in self.states if self.states[unit].is_root else [self.states[unit]]:
            if not (written := s.writes.written()):
                continue
            name = f"unit {s.name}" if s.index else "the root"
            why = s.writes.closed_window[0]
            raise InvalidArgument(
                f"parameters of {name} were written while the write window was closed ({', '.join(written)}): {why}",
                hint="write inside `with shoal.fsdp.write(model)`, on every rank; a kept output without its backward also keeps it closed",
            )

    def watch_whole(self, unit: int) -> None:
        for s in self._states(unit):
            s.writes.forward_begins()

    def compare_whole(self, unit: int) -> None:
        self._found = None  # a failed forward may have left an error
        self._find([s.writes.forward_ends() for s in self._states(unit)])

    def close_rows(self, unit: int, why: str, again: bool) -> None:
        if again:  # at the end of a pass
            self._found = None
        self._find([s.writes.close(why, again) for s in self._states(unit)])

    def free_rows(self) -> None:
        for s in self.states:
            s.writes.closed_window = None

    def _find(self, errors: list[InvalidArgument | None]) -> None:
        self._found = self._found or next(filter(None, errors), None)

    def raise_found(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            raise found

    # ---- actions on gradients ----

    def queue_pass_end(self) -> None:
        settings = self.states[0].settings
        if settings.before_pass is not None:
            settings.before_pass()
        part = settings.part
        if part is not None and part.backward_ran:
            raise Unimplemented(
                "a second backward pass ran in one part of a batch: with deterministic=True its gradients have no place among the sums",
                hint="add the losses up, and call backward once",
            )
        if part is not None:
            part.backward_ran = True
        backward = Backward()
        self._backward = weakref.ref(backward)
        Variable._execution_engine.queue_callback(partial(self._pass_ends, backward))

    def _pass_ends(self, backward: Backward) -> None:
        self._end_ranges()
        with around("end_backward"):
            self.step.pass_ends(bool(self.forwards))

    def _end_ranges(self) -> None:
        ranges, self.backward_ranges = self.backward_ranges, {}
        for r in ranges.values():
            r.end()

    def begin_reduce(self, unit: int, group: int, reshard: bool, everywhere: bool) -> None:
        with around("reduce", self.states[unit].name):
            self.states[unit].units[group].begin_reduce(reshard, everywhere)

    def finish_reduce(self, unit: int, group: int) -> None:
        u = self.states[unit].units[group]
        with around("finish_reduce", u.state.name):
            if u.reduces_by_collectives:
                u.gathered.finish_reduce()
            elif not self.reductions.finish(u):
                self._overtaken = True

    def reduce_replicas(self, unit: int, group: int) -> None:
        self.states[unit].units[group].gathered.reduce_replicas()

    def keep(self, unit: int, group: int, reshard: bool) -> None:
        s = self.states[unit]
        s.units[group].model.backward_end(s.units[group].index, [], 1.0, True, reshard)
        weight = s.settings.share if self.samples is None else self.weight(s.units[group].reduces_by_collectives)
        for p in s.units[group].parameters:
            if self.repeats:
                p.gradient.zero()
            p.gradient.keep(weight, s.settings.part)

    def update(self, unit: int, group: int) -> None:
        if self._overtaken:  # the gradients of this unit are those of an earlier pass
            return
        self.finish_transfers()
        u = self.states[unit].units[group]
        with around("optimizer", u.state.name):
            self.in_backward_optimizer.update(u)
        for t in self.transfers:
            t.used(u.all_reduce_hook_stream)

    def finish_transfers(self) -> None:
        for t in self.transfers:
            t.finish()

    def samples_used(self, kept: bool) -> None:
        if self.samples is not None:
            self.samples_kept = self.samples_kept + self.samples if kept else 0
        if (total := self.states[0].settings.total_samples) is not None:
            self._first_total = (self._first_total or total) if kept else None
            self.total_kept = self.total_kept + total if kept else 0.0

    def reduce_added(self) -> None:
        self.added.reduce()

    def refuse_late(self) -> None:
        """Raises InvalidArgument for gradients that arrived after their unit's publication, which would count for the next step."""
        late = [p for s in self.states if s.settings.rules.reduces for u in s.units for p in u.parameters if p.gradient.exists()]
        if late:
            for p in late:
                p.gradient.drop()
            names = ", ".join(f"{p.name} of {p.state.name or 'the root'}" for p in late)
            raise InvalidArgument(
                f"gradients arrived after the backward of their unit, and are not reduced: {names}. An operator used the parameter before "
                "the forward of that unit began",
                hint="compute what depends on a parameter inside the forward of its unit",
            )

    def run_hooks(self) -> None:
        self.reductions.run_hooks()

    # ---- actions after exceptions ----

    def drop_reductions(self, warns: bool) -> None:
        if warns:
            gradients = [p.gradient for s in self.states if s.settings.rules.reduces for u in s.units for p in u.parameters]
            if any(g.reducing or g.exists() for g in gradients):
                message = "gradients of a backward pass that an exception left are dropped, as by reset_iter_state()"
                warnings.warn(message, stacklevel=2)
        self._found, self._overtaken = None, False
        self.reductions.drop()
        for u in self.units:
            if u.gathered is not None:
                u.gathered.drop_reductions()
        self.finish_transfers()

    def forget_pending(self) -> None:
        for u in self.units:
            for p in u.parameters:
                p.gradient.forget_reductions()

    def drop_gradients(self, unit: int) -> None:
        for u in self.states[unit].units:
            for p in u.parameters:
                p.gradient.drop()

    def still_on_meta(self) -> OnMetaDevice:
        """Returns the error that names all parameters still on the meta device, those of the first call of fully_shard first, as torch."""
        names = {id(m): clean(n) for n, m in next((s for s in self.states if s.is_root), self.states[0]).module.named_modules()}
        found = []
        for s in self.states:
            owners = [p.owners[0] for u in s.units for p in u.parameters]
            on_meta = [(m, name) for m, name in owners if (current := m._parameters.get(name)) is not None and current.is_meta]
            if on_meta:
                found.append([f"{names[id(m)]}.{name}" if names.get(id(m)) else name for m, name in on_meta])
        others = [name for group in found[1:] for name in group]
        return OnMetaDevice(
            "FSDP parameters should be materialized from meta device before training, but the following were still on meta device: "
            f"{found[0]}\nFor example, call module.to_empty(device) to materialize to device and call module.reset_parameters() on each "
            "module to initialize values." + (f"\nParameters of other units on meta device: {others}" if others else "")
        )


def _describe_roots() -> list[dict[str, Any]]:
    """Describes the models of this rank and their passes, for debuggers."""
    found = []
    for root in tuple(_roots):
        if not root.preliminary and root.complete:
            forward = [s.name or "root" for s in root.states if s.forwarding]
            model = next(type(s.module).__name__ for s in root.states if s.is_root)
            running = root._backward
            backward = running is not None and running() is not None
            found.append({"model": model, "version": max(root.versions()), "forward": forward, "backward": backward})
    return found


_roots: weakref.WeakSet[Root] = weakref.WeakSet()
provide("models", _describe_roots)


def roots_in(model: nn.Module) -> list[Root]:
    roots = {id(s.root): s.root for s in map(state_of, model.modules()) if s is not None and s.root is not None}
    return list(roots.values())
