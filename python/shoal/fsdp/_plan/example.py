"""Runs a model's step on fake tensors, to find the order of its units and the peak bytes of its tensors."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from shoal._objects.tensors import tensors_in
from shoal.exceptions import InvalidArgument

if TYPE_CHECKING:
    from shoal.fsdp._engine.state import State
    from shoal.fsdp._parameters.parameter import ShardedParameter

# Raised by a forward that needs values, or has an operator without a shape function.
_NOT_FAKED = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)


class _Live(TorchDispatchMode):
    """Counts the bytes of live tensors, each storage once: ``now`` and ``peak``."""

    def __init__(self, not_counted: set[int]):
        super().__init__()
        self._seen = set(not_counted)
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._note, out)
        return out

    def _note(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def run(model: nn.Module, states: list[State], example_inputs: Any) -> tuple[list[tuple[bool, int]], int]:
    """Runs a forward and a backward of ``model`` on fake tensors (shapes and dtypes only), without the engine and the other ranks.

    ``states``: the states of its units. Hooks of modules do not run. ``example_inputs``: a tensor, a tuple of positional or a dict of
    named arguments, with any values.
    Returns (boundaries, peak bytes). A boundary is (begins, the unit's index in the first native model), at a begin or end of a forward.
    The peak excludes parameters and inputs. It includes tensors that autograd saves, temporaries, and unsharded gradients until their unit
    is complete. If some unit does not reduce (set_requires_gradient_sync(False)), it also covers a second backward that adds to kept
    gradients.
    Raises InvalidArgument with the model's error if the forward needs values.
    """
    args, kwargs = example_inputs, {}
    if isinstance(example_inputs, dict):
        args, kwargs = (), example_inputs
    elif not isinstance(example_inputs, (tuple, list)):
        args = (example_inputs,)
    boundaries: list[tuple[bool, int]] = []
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with _fake(model, states, mode, boundaries) as (faked, kept):
        args, kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), kwargs))
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        live = _Live({t.untyped_storage()._cdata for t in (*faked.values(), *inputs)})
        accumulates = not all(s.settings.rules.reduces for s in states)
        try:
            with mode, live, torch.enable_grad():
                for reduces in (False, True) if accumulates else (True,):
                    del boundaries[:]
                    with _reduced(states, faked, kept, reduces):
                        _step(model, args, kwargs)
        except Exception as error:
            if isinstance(error, _NOT_FAKED):
                hint = "leave example_inputs out: after the first step the graph is there, without the bytes of activations"
            else:
                hint = "check the shapes and dtypes of example_inputs: a tensor, a tuple, or a dict of named arguments"
            message = f"a step of {type(model).__name__} does not run on fake tensors: {type(error).__name__}: {error}"
            raise InvalidArgument(message, hint=hint) from error
        kept.clear()
    return boundaries, live.peak


def _step(model: nn.Module, args: tuple, kwargs: dict) -> None:
    outputs = [t for t in tensors_in(model(*args, **kwargs)) if t.requires_grad]
    if not outputs:
        return
    real = [(t, t.grad) for t in _leaves(outputs) if not isinstance(t, FakeTensor)]  # outside of modules: ``grad`` is restored
    try:
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    finally:
        for t, grad in real:
            t.grad = grad


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the leaf tensors in which a backward from these outputs accumulates gradients."""
    found, seen = [], set()
    nodes = [t.grad_fn for t in outputs]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [following for following, _ in node.next_functions]
    return found


@contextmanager
def _reduced(states: list[State], faked: dict[int, torch.Tensor], kept: dict, reduces: bool):
    """Frees a unit's unsharded gradients once all are computed; without ``reduces`` it keeps them instead, in the reduce dtype."""
    handles = []

    def watch(parameters: list[tuple[ShardedParameter, torch.Tensor]]) -> None:
        missing = {id(t) for _, t in parameters}

        def come(t: torch.Tensor) -> None:
            missing.discard(id(t))
            if missing:
                return
            for p, whole in parameters:
                if reduces:
                    whole.grad = None
                    kept.pop(p, None)
                elif p.reduce_dtype != p.compute_dtype:
                    kept[p], whole.grad = whole.grad.to(p.reduce_dtype), None

        handles.extend(t.register_post_accumulate_grad_hook(come) for _, t in parameters)

    for u in (u for s in states for u in s.units):
        views = [
            (p, next((faked[id(view)] for view in (p.views.sharded, p.views.unsharded) if id(view) in faked), None)) for p in u.parameters
        ]
        trained = [(p, whole) for p, whole in views if whole is not None and p.views.sharded.requires_grad]
        if trained:
            watch(trained)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _begins(state: State, boundaries: list[tuple[bool, int]], index: int):
    def hook(module: nn.Module, args: tuple, kwargs: dict):
        boundaries.append((True, index))
        if state.settings.cast_to is None:
            return None
        return tree_map_only(torch.Tensor, lambda t: t.to(state.settings.cast_to) if t.is_floating_point() else t, (args, kwargs))

    return hook


@contextmanager
def _fake(model: nn.Module, states: list[State], mode: FakeTensorMode, boundaries: list[tuple[bool, int]]):
    """Replaces parameters and buffers by fake unsharded ones, and hooks by ones that record boundaries. The end restores all of them."""
    kept = []  # (a module's dict, a copy of its contents)
    handles = []
    faked: dict[int, torch.Tensor] = {}

    def keep(table: dict) -> dict:
        kept.append((table, dict(table)))
        return table

    compute = {
        id(view): p.compute_dtype for s in states for u in s.units for p in u.parameters for view in (p.views.sharded, p.views.unsharded)
    }

    def fake(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in faked:
            with mode:
                blank = torch.empty(t.shape, dtype=compute.get(id(t), t.dtype))
            faked[id(t)] = nn.Parameter(blank, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else blank
        return faked[id(t)]

    try:
        for module in model.modules():
            keep(module.__dict__)  # the end removes fake tensors that the forward caches there
            for table in (module._parameters, module._buffers):
                keep(table).update({name: t if t is None else fake(t) for name, t in table.items()})
            for table in (module._forward_pre_hooks, module._forward_hooks):
                keep(table).clear()
        for state in states:
            for index in (u.index for u in state.units if u.place == 0):
                for module in state.modules:
                    handles.append(module.register_forward_pre_hook(_begins(state, boundaries, index), with_kwargs=True))
                    handles.append(module.register_forward_hook(lambda *_, i=index: boundaries.append((False, i))))
        yield faked, {}
    finally:
        for handle in handles:
            handle.remove()
        for table, before in reversed(kept):
            table.clear()
            table.update(before)
