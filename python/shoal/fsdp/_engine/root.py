"""The state that the units of one model share: the native models, versions, and the current forward and backward pass."""

from __future__ import annotations

import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.autograd import Variable

from shoal import _native
from shoal._objects.tensors import lasting
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._devices.ahead import Ahead
from shoal.fsdp._engine.added import Added
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.in_backward import OptimizerInBackward
from shoal.fsdp._engine.phases import Phase
from shoal.fsdp._engine.reductions import Reductions
from shoal.fsdp._engine.ties import adopt_ties
from shoal.fsdp._engine.writers import announce
from shoal.fsdp._errors import OnMetaDevice
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.parameter import ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._engine.state import State
    from shoal.fsdp._engine.unit import Unit


class ForwardToken:
    """A forward pass whose backward may still run. Hooks of its autograd graph hold it, so that it dies with the graph."""

    __slots__ = ("__weakref__", "ended_in", "versions")

    def __init__(self, versions: list[int]):
        self.versions = versions
        self.ended_in = -1  # autograd's id of the last backward pass over the graph, which freed it


class Backward:
    """A running backward pass. Autograd's final callback holds it, so that it dies when an exception ends the pass before that callback."""

    __slots__ = ("__weakref__",)


_LEFT = weakref.ref(Backward())  # a pass that an exception has left


class Ending:
    """The end of a step's backward passes, which reduces: that of a pass, or a call of ``finalize_backward`` (``by_hand``)."""

    def __init__(self):
        self.is_last_backward = True
        self.by_hand = False
        self.waiting: Backward | None = None  # a pass that has run, and waits for finalize_backward

    def refuse_waiting(self, event: str) -> None:
        if self.waiting is not None:
            raise InvalidArgument(
                f"{event}, but the last backward pass is not finalized: its gradients are not complete",
                hint="call finalize_backward() first, or set_requires_gradient_sync(False) before all but the last backward",
            )


class Root:
    """The units of one model. ``states`` are in the order of modules. The units of each set of ranks form one native model."""

    def __init__(self, states: list[State]):
        self.states = states
        self.forwards: weakref.WeakSet[ForwardToken] = weakref.WeakSet()
        self.backward: weakref.ref[Backward] | None = None  # the weak reference is dead after an exception
        self.ending = Ending()
        self.copies: dict[ShardedParameter, torch.Tensor] = {}  # private copies, for writes to whole parameters after an evaluation
        self.casts = 1  # how often autocast's cache was cleared, plus 1
        self.preliminary = False  # created before the first forward, which may replace it by another root
        self.running: State | None = None  # the unit whose forward the program called, perhaps an inner one
        self.samples: int | None = None  # number of samples in this rank's batch if they weigh gradients, else None
        self.samples_kept = 0  # samples of batches whose gradients are not reduced yet
        self.joining = self.unstepped = False  # inside ``join``; a window is open that no optimizer step has used yet
        self.skipped: list[State] = []  # in this backward pass: unpublished units that no forward of this rank ran
        self.in_backward_optimizer: OptimizerInBackward | None = None
        self.added = Added(self)
        self.ahead = Ahead(depth=1)
        for index, s in enumerate(states):
            s.root, s.index = self, index
        self._make_models()

    @property
    def units(self) -> list[Unit]:
        return [u for s in self.states for u in s.units]

    @property
    def slots(self) -> int:
        """The number of units whose whole gradients a rank may have in flight."""
        return max((s.settings.max_input_buffers for s in self.states), default=2)

    def _make_models(self, made: list[_native.ShardedModel] | None = None) -> None:
        """``made``: the models, if they exist already."""
        self.models: list[_native.ShardedModel] = []
        by_actor: dict[int, list[Unit]] = {}
        for u in self.units:
            by_actor.setdefault(id(u.actor), []).append(u)
        for s in self.states:
            s.writes.forget()
        self.rows_plain = False  # True while an optimizer steps: sharded parameters then have plain local tensors
        slots = self.slots
        self.units_of: list[list[Unit]] = list(by_actor.values())
        self.reductions = Reductions(self, slots)  # made first, because reset_iter_state() needs it after a first forward that failed, too
        for place, units in enumerate(self.units_of):
            names = [u.state.name for u in units]
            model = made[place] if made else units[0].actor.make_model([u.native for u in units], names, slots=slots)
            self.models.append(model)
            for index, u in enumerate(units):
                u.model, u.place, u.index = model, place, index
        self.replan()

    def replan(self) -> None:
        """Passes the prefetch depth and the units' own prefetch lists to the engine, for the next steps."""
        for place, (model, units) in enumerate(zip(self.models, self.units_of, strict=True)):
            lists = []
            for u in units:
                for backward, ahead in ((False, u.state.settings.forward_prefetch), (True, u.state.settings.backward_prefetch)):
                    indices = [a.index for s in ahead if s.root is self for a in s.units if a.place == place]
                    if indices:
                        lists.append(_native.PrefetchList(unit=u.index, backward=backward, ahead=indices))
            model.plan(self.ahead.depth, lists)

    def move(self, model: _native.ShardedModel) -> None:
        """Continues with the model of another mesh, to which all units have moved. Between two steps."""
        self.backward = self.running = self.ending.waiting = None
        self.copies.clear()
        self._make_models([model])
        self.forwards.clear()
        self.record_window(self.states, None)
        self.added.settle()
        self.forget_casts()

    def dissolve(self) -> None:
        self.ahead.version_ends()
        for s in self.states:
            s.to_sharded()
            for u in s.units:
                u.reshard()
            s.root = None

    # ---- versions ----

    def versions(self) -> list[int]:
        return [m.version for m in self.models]

    @property
    def window_open(self) -> bool:
        return all(m.window_open for m in self.models)

    def enter(self, training: bool) -> None:
        if self.copies:
            self.copies.clear()
        if not self.forwards:
            for s in self.states:
                s.seen = False
        self.added.look()
        for m in self.models:
            m.enter(training)

    def open_window(self, caller: str) -> None:
        announce()
        self.ending.refuse_waiting(f"{caller} opens the write window")
        self.recover()
        self.running = None
        self.ahead.version_ends()
        for s in self.states:
            s.to_sharded()
            s.writes.closed_window = None
        for m in self.models:
            m.open_window(caller)
        self.forget_casts()

    def forget_casts(self) -> None:
        """Clears autocast's cache of parameter casts, which lasts as long as its region.

        Casts of an earlier forward may have old values. Their autograd nodes are older than this forward's, so that gradients would arrive
        after the end of their unit's backward.
        """
        torch.clear_autocast_cache()
        self.casts += 1

    def show_rows(self, plain: bool) -> None:
        """Makes the sharded parameters' local tensors plain ones (``plain``), while an optimizer steps, or Rows, which intercept writes."""
        self.rows_plain = plain
        for u in self.units:
            u.show_rows(plain)

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

    # ---- a backward pass ----

    def reduce_kept(self) -> None:
        """Reduces the gradients that earlier backward passes kept, in a synchronised pass in which no unit runs."""
        self.recover()
        for u in self.units:
            u.published = False
        self.skipped = []
        self.finish_backward()

    def queue_callback(self) -> None:
        self.ending.refuse_waiting("another backward pass began")
        if self.backward is not None and self.backward() is not None:
            return
        self.recover()
        if self.joining and self.unstepped and any(s.settings.sync for s in self.states):
            raise InvalidArgument(
                "inside join, a second synchronised backward ran without an optimizer's step after the first",
                hint="accumulate with set_requires_gradient_sync(False) on all but the last backward of a step",
            )
        part = self.states[0].settings.part
        if part is not None and part.backward_ran:
            raise Unimplemented(
                "a second backward pass ran in one part of a batch: with deterministic=True its gradients have no place among the sums",
                hint="add the losses up, and call backward once",
            )
        if part is not None:
            part.backward_ran = True
        backward = Backward()
        self.backward = weakref.ref(backward)
        for u in self.units:
            u.published = False
        self.skipped = [s for s in self.states if not (s.seen or s.phase is Phase.BACKWARD)]
        Variable._execution_engine.queue_callback(partial(self._end_backward, backward))

    def _end_backward(self, backward: Backward) -> None:
        if self.ending.by_hand and any(s.settings.sync for s in self.states):
            self.ending.waiting = backward
        else:
            self.finish_backward()

    def finalize_backward(self) -> None:
        """Ends the backward pass that waits for it, or reduces the gradients that earlier passes kept. Collective."""
        if any(not u.everywhere for u in self.units):
            raise RuntimeError(
                "finalize_backward does not support partial gradient reduction: enable all-reduce with set_requires_all_reduce(True)"
            )
        waiting, self.ending.waiting = self.ending.waiting, None
        if waiting is not None:
            self.finish_backward()
        elif not self.window_open and any(s.settings.sync for s in self.states):
            self.reduce_kept()

    def publish_skipped(self, before: State) -> None:
        """Publishes units that precede ``before`` in backward order and that no forward of this rank ran. Other ranks may have run them,
        and all ranks publish in the same order."""
        while self.skipped and self.skipped[-1].index > before.index:
            s = self.skipped.pop()
            if s.phase is Phase.IDLE:
                s.publish()

    def finish_backward(self) -> None:
        """Ends a backward pass: publishes the remaining units, waits for reductions, opens the write window, runs hooks."""
        try:
            synced = self._end_reductions()
        except BaseException:
            self.backward = _LEFT  # the pass may live on: a traceback that the program keeps holds it
            raise
        if synced:
            self.added.reduce()
        self._refuse_late()
        self.reductions.run_hooks()

    def _end_reductions(self) -> bool:
        """Ends the pass up to its hooks. Returns True if it was synchronised."""
        synced = False
        for s in reversed(self.states):
            if s.phase is Phase.IDLE:
                s.publish()
            else:
                s.post_backward()
            synced |= s.settings.sync
        # The window stays closed while the backward of another forward may follow, because that backward reads this version.
        last = synced and (self.ending.is_last_backward or self.ending.by_hand)
        leave = last and not self.forwards
        self.ahead.finish_reductions()
        if leave:  # leases end before the window opens
            self.ahead.version_ends()
            for s in self.states:
                s.to_sharded()
        for m in self.models:
            m.finish_backward(leave)
        why = "the output of another forward is kept, whose backward may follow" if last else "a backward has run that is not the last"
        why = None if leave else why
        self.record_window(self.states, why)
        self.unstepped = leave and self.in_backward_optimizer is None
        if self.samples is not None:
            self.samples_kept = 0 if synced else self.samples_kept + self.samples
        self.reductions.settle_all()
        if self.in_backward_optimizer is not None:  # marks again: the optimizer's own writes are no errors in check_closed_window
            self.record_window(self.states, why)
        self.backward = self.running = None
        return synced

    def _refuse_late(self) -> None:
        """Raises InvalidArgument for gradients that arrived after their unit's publication, which would count for the next step."""
        late = [p for s in self.states if s.settings.sync for u in s.units for p in u.parameters if p.gradient.exists()]
        if late:
            for p in late:
                p.gradient.drop()
            names = ", ".join(f"{p.name} of {p.state.name or 'the root'}" for p in late)
            raise InvalidArgument(
                f"gradients arrived after the backward of their unit, and are not reduced: {names}. An operator used the parameter before "
                "the forward of that unit began",
                hint="compute what depends on a parameter inside the forward of its unit",
            )

    def gives_up(self, state: State) -> bool:
        """Returns True if a unit published now is updated as soon as it is reduced, and not read again in this step."""
        return (
            self.in_backward_optimizer is not None
            and self.ending.is_last_backward
            and state.settings.sync
            and all(u.everywhere for u in state.units)
        )

    # ---- detection of writes while the window is closed ----

    def record_window(self, states: list[State], why: str | None) -> None:
        """Records for check_closed_window why these units' write window is closed; with ``why`` None, that it is open."""
        if why is None:
            for s in states:
                s.writes.closed_window = None
        elif error := next(filter(None, [s.writes.close(why, again=True) for s in states]), None):
            raise error

    def check_closed_window(self, states: list[State]) -> None:
        """Called when a forward begins. Raises InvalidArgument if rows were written since ``record_window`` recorded a closed window."""
        for s in states:
            if not (written := s.writes.written()):
                continue
            unit = f"unit {s.name}" if s.index else "the root"
            why = s.writes.closed_window[0]
            raise InvalidArgument(
                f"parameters of {unit} were written while the write window was closed ({', '.join(written)}): {why}",
                hint="write inside `with shoal.fsdp.write(model)`, on every rank; a kept output without its backward also keeps it closed",
            )

    # ---- after exceptions ----

    def recover(self) -> None:
        """Resets after a backward pass that ended with an exception; does nothing otherwise."""
        if self.backward is None or self.backward() is not None:
            return
        states = [s for s in self.states if s.settings.sync]
        if any(p.gradient.reducing or p.gradient.exists() for s in states for u in s.units for p in u.parameters):
            warnings.warn("gradients of a backward pass that an exception left are dropped, as by reset_iter_state()", stacklevel=2)
        self.reset(states)

    def abandon_step(self) -> None:
        """Drops the present step with its gradients, in whatever state an exception has left it. It needs no other rank."""
        self.reset(self.states)
        if self.rows_plain:
            self.show_rows(plain=False)
        for s in self.states:
            s.writes.closed_window = None
        self.copies.clear()
        self.forwards.clear()

    def reset(self, states: list[State]) -> None:
        self.backward = self.running = self.ending.waiting = None
        self.reductions.drop()
        self.ahead.forget_reductions()
        self.ahead.version_ends()
        for m in self.models:
            m.reset()
            if self.in_backward_optimizer is not None:  # ends this version, whose rows may be partly updated
                m.open_window("reset_iter_state")
        for s in self.states:
            s.phase = Phase.IDLE
            s.to_sharded()
            if self.in_backward_optimizer is not None:
                s.writes.closed_window = None
            for u in s.units:
                for p in u.parameters:
                    p.gradient.forget_reductions()
        for s in states:
            for u in s.units:
                for p in u.parameters:
                    p.gradient.drop()


def roots_in(model: nn.Module) -> list[Root]:
    roots = {id(s.root): s.root for s in map(state_of, model.modules()) if s is not None and s.root is not None}
    return list(roots.values())
