"""A model's forward without its numbers: the order of its units, and the bytes that autograd would save."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from shoal.exceptions import InvalidArgument

if TYPE_CHECKING:
    from shoal.fsdp._state import State


def run(model: nn.Module, states: list[State], example_inputs: Any) -> tuple[list[tuple[bool, int]], int]:
    """Runs ``model`` on fake tensors (shapes and dtypes only; the engine and other ranks are not involved).

    ``states``: of its units. Hooks of modules are left out. ``example_inputs``: a tensor, a tuple of positional or a dict of named
    arguments, of any values. Returns the boundaries of units' forwards, (begins, index of the unit in the first native model), and the
    bytes of the tensors that autograd saves for one backward, each storage once, parameters not counted
    (torch.autograd.graph.saved_tensors_hooks). Raises InvalidArgument with what the model raised, if its forward cannot do without values.
    """
    args, kwargs = example_inputs, {}
    if isinstance(example_inputs, dict):
        args, kwargs = (), example_inputs
    elif not isinstance(example_inputs, (tuple, list)):
        args = (example_inputs,)
    boundaries: list[tuple[bool, int]] = []
    saved: dict[int, torch.UntypedStorage] = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        saved[storage._cdata] = storage
        return t

    with _fake(model, states, mode, boundaries) as own:
        args, kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), kwargs))
        try:
            with mode, torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                output = model(*args, **kwargs)
        except Exception as error:
            raise InvalidArgument(
                f"the forward of {type(model).__name__} does not run on fake tensors: {type(error).__name__}: {error}",
                hint="leave example_inputs out: after the first step the graph is there, without the bytes of activations",
            ) from error
        del output
    return boundaries, sum(storage.nbytes() for key, storage in saved.items() if key not in own)


def _begins(state: State, boundaries: list[tuple[bool, int]], index: int):
    def hook(module: nn.Module, args: tuple, kwargs: dict):
        boundaries.append((True, index))
        if state.cast_to is None:
            return None
        return tree_map_only(torch.Tensor, lambda t: t.to(state.cast_to) if t.is_floating_point() else t, (args, kwargs))

    return hook


@contextmanager
def _fake(model: nn.Module, states: list[State], mode: FakeTensorMode, boundaries: list[tuple[bool, int]]):
    """Fake whole parameters and buffers in the model's modules, and hooks of units that only take note; what was there comes back."""
    kept = []  # (a module's dict, what was in it)
    handles = []
    faked: dict[int, torch.Tensor] = {}

    def keep(table: dict) -> dict:
        kept.append((table, dict(table)))
        return table

    compute = {id(p.sharded): p.compute_dtype for s in states for u in s.units for p in u.parameters}

    def fake(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in faked:
            with mode:
                made = torch.empty(t.shape, dtype=compute.get(id(t), t.dtype))
            faked[id(t)] = nn.Parameter(made, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else made
        return faked[id(t)]

    try:
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                keep(table).update({name: t if t is None else fake(t) for name, t in table.items()})
            for table in (module._forward_pre_hooks, module._forward_hooks):
                keep(table).clear()
        for state in states:
            for index in (u.index for u in state.units if u.place == 0):
                for module in state.modules:
                    handles.append(module.register_forward_pre_hook(_begins(state, boundaries, index), with_kwargs=True))
                    handles.append(module.register_forward_hook(lambda *_, i=index: boundaries.append((False, i))))
        yield {t.untyped_storage()._cdata for t in faked.values()}
    finally:
        for handle in handles:
            handle.remove()
        for table, before in reversed(kept):
            table.clear()
            table.update(before)
