"""The state of a call of fully_shard: modules, their units, and the hooks that report the program's progress to the step machine."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.utils import _apply_to_tensors, _to_kwargs
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal._native import AfterForward, View
from shoal._objects.tensors import tensors_in
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.ends import Ends, InputOfShardedUnit
from shoal.fsdp._engine.root import ForwardToken, Root
from shoal.fsdp._engine.settings import Settings
from shoal.fsdp._engine.sharding import check_tied, inner_modules
from shoal.fsdp._engine.unit import Unit
from shoal.fsdp._engine.untraced import only_inlined, untraced
from shoal.fsdp._engine.writes import WriteGuard
from shoal.fsdp._errors import RootRanLater, StaleBackward
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._ranges import Range, around, recorded

_SHARDED, _UNSHARDED, _SMALLER_MESH = View.SHARDED, View.UNSHARDED, View.SMALLER_MESH  # an enum's members are slow to look up


class State:
    """One call of fully_shard: its modules (usually one), the units of their parameters, and the hooks that report their progress.

    For the step machine it is one unit, whose groups are the ``units``.
    """

    def __init__(self, modules: tuple[nn.Module, ...], data: DataMesh, settings: Settings):
        self.modules, self.data, self.settings = modules, data, settings
        self.units: list[Unit] = []
        self.root: Root | None = None
        self.outer: weakref.ref[State] | None = None  # the last state sharded around this one
        self.is_root = False
        self.index = -1
        self.name = type(modules[0]).__name__
        # Plain attributes, because dynamo traces the hooks of inner modules, which read them.
        self.shows = View.SHARDED  # the view that the modules hold
        self.forwarding = False  # a forward of these modules runs
        self.replaced = False  # parameters are temporarily replaced (FSDP1's summon_full_params)
        self.writes = WriteGuard(self)
        self.entered: nn.Module | None = None  # an inner module that the program called directly
        self.ends = Ends(self.inputs_computed)
        self.forward_range: Range | None = None

    @property
    def module(self) -> nn.Module:
        return self.modules[0]

    @property
    def after_forward(self) -> AfterForward:
        """The fate of the lease between forward and backward, for a state with a root."""
        return self.root.step.after_forward(self.index)

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
            module.register_state_dict_pre_hook(lambda *_: self.show_sharded())
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
        Root(states).preliminary = preliminary

    # ---- the views ----

    def show(self, view: View) -> None:
        """Makes the modules hold this view of their parameters. Gathers end before that; memory of the former view is freed after."""
        third = self.shows is not _SHARDED and self.shows is not _UNSHARDED
        if view is _UNSHARDED:
            self._show_unsharded(third)
        elif view is _SHARDED:
            self._show_sharded(third)
        elif view is _SMALLER_MESH:
            for u in self.units:
                if u.gathered is not None:
                    u.gathered.reshard_to(u.post_forward_mesh)
                for p in u.parameters:
                    p.views.show_post_forward(u.post_forward_mesh, None if u.gathered is None else u.gathered.rows_on(p))
        else:  # whole parameters that the unit keeps become views (Whole) that redirect writes
            for u in self.units:
                for p in u.parameters:
                    if u.in_arena(p) and not p.views.unsharded.is_inference():
                        p.views.show_guarded()
        self.shows = view

    def _show_unsharded(self, third: bool) -> None:
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

    def _show_sharded(self, third: bool) -> None:
        for u in self.units:
            for p in u.parameters:
                views = p.views
                if third or not (views.unsharded.requires_grad == views.sharded.requires_grad == views.requires_grad):
                    views.follow_requires_grad()
                views.show(views.sharded)
            if u.gathered is not None:
                u.gathered.reshard()

    def show_sharded(self) -> None:
        """Makes the modules hold sharded parameters, if they hold others. The lease stays."""
        if self.root is not None:
            self.root.step.show_sharded(self.index)

    def open_write_window(self, name: str) -> None:
        """Opens the write window for the operation ``name``. Without a root there is nothing to do: before the first forward the window is
        open."""
        self.show_sharded()
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

    def unshard(self, shows: bool = True) -> None:
        if self.root is None:
            self.lazy_init(preliminary=True)
        self.root.step.unshard(self.index, shows)

    def show_unsharded(self) -> None:
        """Waits for the gathers of an ``unshard`` that has not shown their results."""
        if self.root is not None:
            self.root.step.show_unsharded(self.index)

    def reshard(self) -> None:
        if self.root is not None:
            self.root.step.reshard(self.index)

    # ---- forward ----

    @untraced
    def _pre_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.replaced:
            return None
        if self.root is None:
            self.lazy_init()
        root, settings, training = self.root, self.settings, torch.is_grad_enabled()
        if not root.complete:
            root.complete_models()
        root.preliminary, self.forwarding = False, True
        if self.is_root and settings.post_optim_event is not None:
            root.rows_event, settings.post_optim_event = settings.post_optim_event, None
            if all(u.data.in_arena for u in root.units):
                root.order_rows()
        recomputed = torch._C._current_graph_task_id() != -1
        if not recomputed:
            root.note_left()
        if self.is_root and settings.joining:
            root.step.set_joining(True)
        try:
            with around("unshard", self.name):
                root.step.forward_begin(self.index, training, recomputed, self.is_root and bool(root.forwards))
        finally:
            root.rows_event = None  # the event orders the gathers of this forward only
        if self.is_root:
            if self.data.device.type != "cpu":  # as FSDP2's root
                moved, moved_kwargs = _to_kwargs(args, kwargs, self.data.device, False)
                args, kwargs = moved[0], moved_kwargs[0]
            root.samples = (0 if root.repeats else samples_of(args, kwargs)) if settings.weigh_samples else None
        if not recomputed:
            _unshard_elsewhere(root, settings.forward_prefetch)
        if settings.cast_to is not None:
            args, kwargs = _apply_to_tensors(partial(_cast, settings.cast_to), (args, kwargs))
        # Activation checkpointing may recompute a forward in a separate graph, which needs a node of its own.
        if training and (not recomputed or not self.ends.more_to_come()):
            args, kwargs = self._watch_inputs(args, kwargs)
        if recorded():
            self.forward_range = Range("forward", self.name)
        return args, kwargs

    def _watch_inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Inserts a node whose backward runs when the gradients of the inputs are computed, which ends the unit's backward."""
        flat, spec = tree_flatten((args, kwargs))
        at = [i for i, t in enumerate(flat) if torch.is_tensor(t) and t.requires_grad]
        self.root.step.watched(self.index)
        self.ends.unseen = not at
        if not at:
            return args, kwargs  # no node: the end of the whole backward pass ends the unit's backward
        watched = InputOfShardedUnit.apply(self.ends, *(flat[i] for i in at))
        for i, t in zip(at, watched, strict=True):
            flat[i] = t
        return tree_unflatten(flat, spec)

    @untraced
    def _post_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """Ends the unit's forward. torch calls it after an exception in forward, too, with ``output`` None."""
        if not self.forwarding:  # _pre_forward has not run
            return output
        self.forwarding, root = False, self.root
        if self.forward_range is not None:
            self.forward_range.end()
            self.forward_range = None
        if output is None:
            _explain(self.name, sys.exc_info()[1])
        training, recomputed = torch.is_grad_enabled(), torch._C._current_graph_task_id() != -1
        counts = self.is_root or (not recomputed and root.step.running == self.index)
        in_backward = recomputed and root.step.in_backward(self.index)
        root.step.forward_end(self.index, training, recomputed, output is None)
        if training and not in_backward:
            token = ForwardToken(root.versions())
            if counts:
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
        if self.forwarding or self.replaced or (self.shows is _UNSHARDED and torch._C._current_graph_task_id() != -1):
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
        self.root.note_left()
        try:
            with around("unshard", self.name):
                self.root.step.backward_begin(self.index, token.versions)
        except InvalidArgument as error:
            if error.reason != "StaleBackward":
                raise
            again = "Trying to backward through the graph a second time: " if freed_in not in (-1, task) else ""
            raise StaleBackward(again + error.message, reason=error.reason, hint=error.hint, context=error.context) from None
        _unshard_elsewhere(self.root, self.settings.backward_prefetch)
        if recorded() and self.index not in self.root.backward_ranges:
            self.root.backward_ranges[self.index] = Range("backward", self.name)
        return grad

    def inputs_computed(self, node) -> None:
        """Called when the gradients of a forward's inputs are computed. Ends the unit's backward unless this pass returns to it."""
        self.root.note_left()
        if self.ends.leave(node):
            if (backward := self.root.backward_ranges.pop(self.index, None)) is not None:
                backward.end()
            self.root.step.backward_end(self.index)
        else:
            self.root.step.begin_pass()

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


def _unshard_elsewhere(root: Root, prefetch: list[nn.Module]) -> None:
    """Unshards those units of a prefetch list that another model's root has; the step machine knows only its own."""
    for s in map(state_of, prefetch):
        if s is not None and s.root is not None and s.root is not root:
            s.root.step.unshard(s.index)


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


def samples_of(args: tuple, kwargs: dict) -> int:
    """The number of samples in a batch: dim 0 of its first tensor."""
    return next((t.shape[0] for t in tree_flatten((args, kwargs))[0] if torch.is_tensor(t) and t.dim() > 0), 1)
