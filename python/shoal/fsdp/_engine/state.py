"""The state of a call of fully_shard: modules, their units, and the hooks that report the program's progress to the engine."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.utils import _apply_to_tensors
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal._objects.tensors import tensors_in
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.ends import Ends, InputOfShardedUnit
from shoal.fsdp._engine.phases import Phase, Shown
from shoal.fsdp._engine.root import ForwardToken, Root
from shoal.fsdp._engine.settings import Settings
from shoal.fsdp._engine.sharding import check_tied, inner_modules
from shoal.fsdp._engine.unit import Unit
from shoal.fsdp._engine.untraced import only_inlined, untraced
from shoal.fsdp._engine.writes import WriteGuard
from shoal.fsdp._errors import RootRanLater, StaleBackward
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.mesh import DataMesh


class State:
    """One call of fully_shard: its modules (usually one), the units of their parameters, and the hooks that report their progress.

    ``phase`` and ``shows`` change in hooks only, and in ``Root`` when a pass ends or an exception has left it.
    """

    def __init__(self, modules: tuple[nn.Module, ...], data: DataMesh, settings: Settings):
        self.modules, self.data, self.settings = modules, data, settings
        self.reshard_after_forward = settings.reshard_after_forward  # lazy_init replaces None by True or False
        self.units: list[Unit] = []
        self.root: Root | None = None
        self.outer: weakref.ref[State] | None = None  # the last state sharded around this one
        self.is_root = False
        self.index = -1
        self.name = type(modules[0]).__name__
        self.shows = Shown.SHARDED
        self.replaced = False  # parameters are temporarily replaced (FSDP1's summon_full_params)
        self.writes = WriteGuard(self)
        self.phase = Phase.IDLE
        self.seen = False  # a forward ran this unit, with gradients or in a checkpoint, and its backward is pending
        self.forwarding = False  # a forward of this unit is running
        self.entered: nn.Module | None = None  # an inner module that the program called directly
        self.casts = 0  # Root.casts at this unit's last forward
        self.ends = Ends()

    @property
    def module(self) -> nn.Module:
        return self.modules[0]

    def covered(self) -> set[int]:
        """The ids of this state's modules and of all modules below them."""
        return {id(m) for top in self.modules for m in top.modules()}

    def unit_like(self, other: Unit) -> Unit:
        """Returns this state's unit on the same ranks as ``other``; creates it if necessary."""
        for u in self.units:
            if u.data.key == other.data.key:
                return u
        self.units.append(Unit(self, other.data))
        return self.units[-1]

    def outermost(self) -> State:
        """Returns the root's state; before the first forward determines the root, the outermost known state around this one."""
        if self.root is not None and not self.root.preliminary:
            return next(s for s in self.root.states if s.is_root)
        outer = None if self.outer is None else self.outer()
        return self if outer is None or id(self.module) not in outer.covered() else outer

    def hook(self) -> None:
        for s in map(state_of, (m for top in self.modules for m in top.modules())):
            if s not in (None, self):
                s.outer = weakref.ref(self)
        for module in self.modules:
            module.register_forward_pre_hook(self._pre_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._post_forward, prepend=False, always_call=True)
            module.register_state_dict_pre_hook(lambda *_: self.to_sharded())
            module.register_load_state_dict_pre_hook(lambda *_: self.open_write_window("load_state_dict"))
            module.register_load_state_dict_post_hook(lambda *_: self.adopt_loaded())
        for module in inner_modules(self):
            _hook_alike(module, self._enter_inside, self._leave_inside)

    def lazy_init(self, preliminary: bool = False) -> None:
        """Makes this state the root of all units inside, at its first forward. ``preliminary``: before the first forward."""
        if len(self.modules) > 1 and not preliminary:
            raise RuntimeError(f"FSDP requires a single root module but got {self.modules}")
        states: list[State] = []
        for module in (m for top in self.modules for m in top.modules()):
            s = state_of(module)
            if s is not None and s not in states:
                states.append(s)
        taken = [s for s in states if s.root is not None]
        if all(s.root.preliminary for s in taken):
            for root in {id(s.root): s.root for s in taken}.values():
                root.dissolve()
        else:
            first = next((clean(n) for n, m in self.module.named_modules() if state_of(m) is taken[0]), "")
            raise RootRanLater(
                f"FSDP state has already been lazily initialized for {first}\nFSDP requires running forward through the root module first: "
                f"{type(taken[0].module).__name__} ran a forward of its own before the model that contains it",
                hint="run the whole model's forward first, or call fully_shard on the outer module before",
            )
        check_tied(self, states)
        names = {id(m): clean(n) for top in self.modules for n, m in top.named_modules()}
        for s in states:
            s.is_root = s is self
            s.name = ", ".join(names[id(m)] for m in s.modules if id(m) in names)
            asked = s.settings.reshard_after_forward
            s.reshard_after_forward = not s.is_root if asked is None else asked
        Root(states).preliminary = preliminary

    # ---- the views ----

    def to_unsharded(self) -> None:
        third = self.shows is Shown.POST_FORWARD
        for u in self.units:
            if u.gathered is not None:
                u.gathered.unshard()
            for p in u.parameters:
                views = p.views
                if third or not (views.unsharded.requires_grad == views.sharded.requires_grad == views.requires_grad):
                    views.follow_requires_grad()
                if not views.show(views.unsharded):
                    views.refuse_substitutes()
                    raise InvalidArgument(
                        f"parameter {p.name} of {self.name or 'the root'} was replaced while the write window was closed",
                        hint="replace it inside `with shoal.fsdp.write(model)`, or by load_state_dict(assign=True)",
                    )
        self.shows = Shown.UNSHARDED

    def to_sharded(self) -> None:
        if self.shows is Shown.SHARDED:
            return
        third, self.shows = self.shows is Shown.POST_FORWARD, Shown.SHARDED
        for u in self.units:
            for p in u.parameters:
                views = p.views
                if third or not (views.unsharded.requires_grad == views.sharded.requires_grad == views.requires_grad):
                    views.follow_requires_grad()
                views.show(views.sharded)
            if u.gathered is not None:
                u.gathered.reshard()

    def to_post_forward(self) -> None:
        self.shows = Shown.POST_FORWARD
        for u in self.units:
            for p in u.parameters:
                p.views.show_post_forward(u.post_forward_mesh)

    def to_guarded(self) -> None:
        """After an evaluation, replaces whole parameters that the unit keeps by views (Whole) that redirect writes."""
        if self.shows is not Shown.UNSHARDED:
            return
        self.shows = Shown.POST_FORWARD
        for u in self.units:
            for p in u.parameters:
                if u.in_arena(p) and not p.views.unsharded.is_inference():
                    p.views.show_guarded()

    def open_write_window(self, name: str) -> None:
        """Opens the write window for the operation ``name``. Without a root there is nothing to do: before the first forward the window is
        open."""
        self.to_sharded()
        if self.root is not None:
            self.root.open_window(name)

    def adopt_loaded(self) -> None:
        """Adopts tensors of load_state_dict(assign=True) at once, so that an optimizer built next holds the sharded parameters."""
        for u in self.units:
            for p in u.parameters:
                p.adopt_early()

    def reserve_gradient(self, view: torch.Tensor) -> None:
        """Allocates the memory of one parameter's gradient, for an optimizer's constructor."""
        for p in (p for u in self.units for p in u.parameters if p.views.sharded is view):
            p.gradient.reserve()

    def unshard(self) -> None:
        if self.root is None:
            self.lazy_init(preliminary=True)
        if self.root.window_open:
            self.root.adopt()
        for u in self.units:
            u.unshard()
        self.to_unsharded()

    def reshard(self) -> None:
        self.to_sharded()
        for u in self.units:
            u.reshard()

    # ---- forward ----

    @untraced
    def _pre_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.replaced:
            return None
        if self.root is None:
            self.lazy_init()
        root, training = self.root, torch.is_grad_enabled()
        root.preliminary, self.forwarding = False, True
        if self.casts == root.casts:  # autocast's cache was not cleared since this unit's last forward
            root.forget_casts()
        self.casts = root.casts
        settings = self.settings
        if settings.post_optim_event is not None:
            event, settings.post_optim_event = settings.post_optim_event, None
            (event.synchronize if hasattr(event, "synchronize") else event.wait)()
        in_graph = torch._C._current_graph_task_id() != -1
        if not in_graph:
            root.recover()
            if self.is_root or root.running is None:
                if not root.window_open:
                    root.check_closed_window(root.states if self.is_root else [self])
                root.running = self
                root.ahead.forward_begins()
        if root.window_open:
            root.adopt()
        if self.is_root:
            root.samples = _samples(args, kwargs) if self.settings.weigh_samples else None
            root.joining |= self.settings.joining
            root.enter(training)
        self.seen = True
        for u in self.units:
            u.model.forward_begin(u.index, training and not in_graph)
        self.to_unsharded()
        if root.running is self and not in_graph:
            for s in root.states if self.is_root else [self]:
                s.writes.forward_begins()
        if not in_graph:
            for s in self.settings.forward_prefetch:
                for u in s.units:
                    u.unshard()
        if self.settings.cast_to is not None:
            args, kwargs = _apply_to_tensors(partial(_cast, self.settings.cast_to), (args, kwargs))
        if training and (not in_graph or not self.ends.more_to_come()):  # a checkpoint may recompute the forward in a separate graph
            args, kwargs = self._watch_inputs(args, kwargs)
        return args, kwargs

    def _watch_inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Inserts a node whose backward runs when the gradients of the inputs are computed, which ends the unit's backward."""
        flat, spec = tree_flatten((args, kwargs))
        at = [i for i, t in enumerate(flat) if torch.is_tensor(t) and t.requires_grad]
        if self.phase is Phase.IDLE:
            self.phase = Phase.RAN
        self.ends.unseen = not at
        if not at:
            return args, kwargs  # no node: the end of the whole backward pass ends the unit's backward
        watched = InputOfShardedUnit.apply(self, *(flat[i] for i in at))
        for i, t in zip(at, watched, strict=True):
            flat[i] = t
        return tree_unflatten(flat, spec)

    @untraced
    def _post_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """Ends the unit's forward. torch calls it after an exception in forward, too, with ``output`` None."""
        if not self.forwarding:  # _pre_forward has not run
            return output
        if output is None:
            _explain(self.name, sys.exc_info()[1])
        self.forwarding = False
        root, training = self.root, torch.is_grad_enabled()
        recomputed = torch._C._current_graph_task_id() != -1
        outermost = root.running is self and not recomputed
        if outermost:
            root.running = None
            ran = root.states if self.is_root else [self]
            written = [s.writes.forward_ends() for s in ran]
            if not root.window_open:  # the window is still open if the forward failed at its begin
                written += [s.writes.close("a forward has run, and no synchronised backward after it") for s in ran]
        in_backward = self.phase is Phase.BACKWARD
        resharded = self.reshard_after_forward is True and not in_backward
        for u in self.units:
            u.model.forward_end(u.index, training and not recomputed, resharded)
        if resharded:
            self.to_sharded()
        elif not isinstance(self.reshard_after_forward, bool) and not in_backward:
            self.to_post_forward()
        if outermost and not training:
            for s in root.states if self.is_root else [self]:
                s.to_guarded()
        if outermost and output is not None and (error := next(filter(None, written), None)):
            raise error
        if training and not (recomputed and in_backward):
            token = ForwardToken(root.versions())
            if self.is_root or outermost:
                root.forwards.add(token)
            self.ends.add_forward(token)
            for t in tensors_in(output):
                if t.requires_grad:
                    t.register_hook(partial(self._pre_backward, token))
        if self.settings.policy.output_dtype is not None:
            output = _apply_to_tensors(partial(_cast, self.settings.policy.output_dtype), output)
        return output

    @only_inlined
    def _enter_inside(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Pre-hook of an inner module. If the program calls the module outside a forward of this unit, the call counts as the unit's
        forward."""
        if self.forwarding or self.replaced or (self.shows is Shown.UNSHARDED and torch._C._current_graph_task_id() != -1):
            return None
        self.entered = module
        return self._pre_forward(module, args, kwargs)

    @only_inlined
    def _leave_inside(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self.entered is not module:
            return None
        self.entered = None
        return self._post_forward(module, args, output)

    def run(self, module: nn.Module, method: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a method of the module as the unit's forward."""
        if self.replaced:
            return method(*args, **kwargs)
        args, kwargs = self._pre_forward(module, args, kwargs)
        try:
            output = method(*args, **kwargs)
        except BaseException:
            self._post_forward(module, args, None)
            raise
        return self._post_forward(module, args, output)

    # ---- backward ----

    @untraced
    def _pre_backward(self, token: ForwardToken, grad: torch.Tensor) -> torch.Tensor:
        task, freed_in = torch._C._current_graph_task_id(), token.ended_in
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # the graph is freed: no further backward
            self.root.forwards.discard(token)
            token.ended_in = task
        self.root.queue_callback()
        try:
            self._begin_backward(token)
        except InvalidArgument as error:
            if error.reason != "StaleBackward":
                raise
            again = "Trying to backward through the graph a second time: " if freed_in not in (-1, task) else ""
            raise StaleBackward(again + error.message, reason=error.reason, hint=error.hint, context=error.context) from None
        return grad

    def _begin_backward(self, token: ForwardToken) -> None:
        if self.phase is Phase.BACKWARD:  # the running backward may be that of another forward, which read another version
            for u in self.units:
                u.model.check_version(u.index, token.versions[u.place])
        else:
            self.phase = Phase.BACKWARD
            for u in self.units:
                u.model.backward_begin(u.index, token.versions[u.place])
            if self.settings.unshard_in_backward:
                self.to_unsharded()
            for s in self.settings.backward_prefetch:
                for u in s.units:
                    u.unshard()

    def inputs_done(self, node) -> None:
        """Called when the gradients of a forward's inputs are computed. Ends the unit's backward unless this pass returns to it."""
        self.root.queue_callback()
        if self.ends.leave(node):
            self.post_backward()

    def post_backward(self) -> None:
        self.root.publish_skipped(self)
        self.phase = Phase.IDLE
        for u in self.units:
            if self.settings.sync and u.parameters and u.parameters[0].gradient.reducing:
                # An earlier autograd graph of this pass has published the unit: its reduction must end before the next publication.
                # The wait cannot deadlock, since all ranks publish in one order.
                u.model.await_reductions()
                self.root.reductions.settle_all()
            self._publish(u, self.settings.reshard_after_backward)
        if self.settings.reshard_after_backward or self.root.gives_up(self):
            self.to_sharded()

    def publish(self) -> None:
        """Publishes a unit that did not run in this pass, with its kept gradients."""
        for u in self.units:
            if self.settings.sync and not u.published:
                self._publish(u, False)

    def _publish(self, u: Unit, reshard: bool) -> None:
        if self.settings.sync:
            gives_up = self.root.gives_up(self)
            u.publish(reshard or gives_up)
            if gives_up:
                u.model.give_up(u.index)
                if u.gathered is not None and u.gathered.reduces:  # reduced by collectives: every rank has contributed
                    self.root.in_backward_optimizer.update(u)
            if len(self.root.models) > 1:  # a wait in one model serves no reductions of another, so at most one has pending ones
                u.model.await_reductions()
            return
        u.model.backward_end(u.index, [], 1.0, True, reshard)
        weight = self.settings.share if self.root.samples is None else self.root.samples
        for p in u.parameters:
            p.gradient.keep(weight, self.settings.part)

    # ---- attributes that torch.distributed.pipelining uses after the microbatches of a step ----

    _fsdp_param_groups: tuple = ()  # empty, or pipelining would end the backward of each group itself

    @property
    def _state_ctx(self) -> SimpleNamespace:
        return SimpleNamespace(all_states=self.root.states if self.root is not None else [])

    def _root_post_backward_final_callback(self) -> None:
        """Reduces the gradients kept by backward passes without synchronisation."""
        if self.root is not None:
            self.root.reduce_kept()


_INSIDE = "shoal.fsdp"


def _hook_alike(module: nn.Module, before: Callable, after: Callable) -> None:
    """Registers ``before`` and ``after`` as register_forward_pre_hook and register_forward_hook do, but under one name in all modules.

    The guards of dynamo include hook ids: with unique ids, dynamo would compile identical blocks separately.
    """
    module._forward_pre_hooks[_INSIDE] = before
    module._forward_pre_hooks.move_to_end(_INSIDE, last=False)
    module._forward_pre_hooks_with_kwargs[_INSIDE] = True
    module._forward_hooks[_INSIDE] = after
    module._forward_hooks_always_called[_INSIDE] = True


def _explain(name: str, error: BaseException | None) -> None:
    """Adds the unit's name to autograd's error about an in-place change, which names only an internal function or a view."""
    if "modified inplace" in (text := str(error)) and "custom Function" in text and not hasattr(error, "_unit"):
        error._unit = name
        error.args = (
            f"{text}\n  an input of {name or 'the root'}, a unit of fully_shard, was changed in place in its forward or "
            "afterwards as its output\n  hint: change a copy (x = x.clone()); its backward ends with its inputs' gradients",
        )


def _cast(dtype: torch.dtype, t: torch.Tensor) -> torch.Tensor:
    return t.to(dtype) if t.is_floating_point() else t


def _samples(args: tuple, kwargs: dict) -> int:
    """The number of samples in a batch: dim 0 of its first tensor."""
    return next((t.shape[0] for t in tree_flatten((args, kwargs))[0] if torch.is_tensor(t) and t.dim() > 0), 1)
