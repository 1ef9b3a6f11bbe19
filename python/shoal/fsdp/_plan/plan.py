"""Planning of a sharded model's steps: prefetching, the optimizer in backward, and the memory budget."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import nn

from shoal._core.budget import bytes_of
from shoal._native import AfterForward
from shoal.exceptions import InvalidArgument, ResourceExhausted, Unimplemented
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.in_backward import OptimizerInBackward
from shoal.fsdp._graph import Memory
from shoal.fsdp._memory import state_bytes_to_come
from shoal.fsdp._parameters.slices import local_of

if TYPE_CHECKING:
    from shoal.fsdp._engine.root import Root


def root_of(model: nn.Module) -> Root:
    """Returns the Root of a model. Before the first forward it creates a preliminary one, because another module may become the root.
    Raises InvalidArgument for an inner unit and for an unsharded module."""
    state = state_of(model)
    if state is None:
        raise InvalidArgument(f"{type(model).__name__} was not sharded", hint="call fully_shard on it, and pass the outermost module")
    if (outermost := state.outermost()) is not state:
        message = f"{type(model).__name__} is a unit inside of {type(outermost.module).__name__}, which was sharded, too"
        raise InvalidArgument(message, hint="pass the outermost module on which fully_shard was called")
    if state.root is None:
        state.lazy_init()
        state.root.preliminary = True
    return state.root


def memory_of(root: Root, activations: int | None = None, optimizer: torch.optim.Optimizer | None = None) -> Memory:
    """Returns the memory that the engine holds for a model, with the state of ``optimizer`` if its size is known. Default: the optimizer in
    backward.

    With the optimizer in backward, gradients of at most three units exist: two being reduced, one being computed.
    """
    kinds = [m.memory for m in root.models]
    held = {kind: sum(m[kind] for m in kinds) for kind in kinds[0]}
    held["optimizer"] = None if optimizer is None else _state_bytes(root, optimizer)
    if root.in_backward_optimizer is not None:
        held["gradients"] = _gradients_in_backward(root)
        if optimizer is None:
            with suppress(InvalidArgument):  # the state size of an unknown optimizer class stays out
                held["optimizer"] = _state_bytes(root, root.in_backward_optimizer.optimizer)
    return Memory(**held, outside=_outside_arenas(root), activations=activations, ranks=len(root.units[0].data.ranks))


def _outside_arenas(root: Root) -> int:
    """Bytes outside the arenas: this rank's slices, and gathered parameters of units that keep them and of the largest other unit."""
    slices = sum(p.own.nbytes for u in root.units for p in u.parameters if p.external)
    kept, others = 0, [0]
    for u in root.units:
        size = 0 if u.gathered is None else u.gathered.whole_bytes
        if u.state.after_forward is AfterForward.KEEP:
            kept += size
        else:
            others.append(size)
    return slices + kept + max(others)


def _state_bytes(root: Root, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all ranks' optimizer states for the model's parameters, except scalar states."""
    parameters = {id(p.views.sharded): p for u in root.units for p in u.parameters}
    total = 0
    for group in optimizer.param_groups:
        for view in group["params"]:
            p = parameters.get(id(view))
            if p is None or not view.requires_grad:
                continue
            kept = [local_of(t) for t in optimizer.state.get(view, {}).values() if isinstance(t, torch.Tensor)]
            kept = sum(t.dtype.itemsize for t in kept if t.shape == p.own_shape) if kept else state_bytes_to_come(optimizer, group, view)
            total += p.shape.numel() * p.data.replicas * kept
    return total


def _gradients_in_backward(root: Root) -> int:
    return sum(sorted((u.native.gradient_bytes for u in root.units), reverse=True)[:3])


def plan(
    model: nn.Module,
    *,
    prefetch: int | None = None,
    memory_budget: int | str | None = None,
    optimizer_in_backward: torch.optim.Optimizer | None = None,
    bucket_bytes: int | None = None,
) -> Memory:
    """Plans the steps of a sharded model from the next one on. Returns the memory that the engine then holds.

    Call it on the root, identically on every rank, after building the optimizer and between two steps. A later call replaces an earlier
    one.
    ``prefetch``: how many forwards or backwards ahead a unit is unsharded (default 1; 0: on demand). Units with their own list
    (``set_modules_to_forward_prefetch``) use that list.
    ``optimizer_in_backward``: an optimizer whose ``step`` can update some parameters without the others. It updates each unit as soon as
    the unit's gradients are reduced, and then frees them. ``p.grad`` is None afterwards, and the loop's own ``optimizer.step()`` has no
    effect. Clipping by the global norm and a GradScaler do not work with it, because they need all gradients first. Before a backward that
    is not the step's last, call ``set_is_last_backward(False)`` or ``set_requires_gradient_sync(False)``. Reading a unit again after its
    update raises InvalidArgument. An exception in backward leaves a partial step.
    ``memory_budget``: bytes, or text such as "4GiB", on this host over all ranks, for parameters, gradients being reduced and own
    gradients. It excludes activations and optimizer state. On one host leases take no memory, so that it causes no resharding.

    Raises ResourceExhausted with the smallest sufficient budget, InvalidArgument for an optimizer of other parameters, and Unimplemented
    for ``bucket_bytes``.
    """
    if bucket_bytes is not None:
        raise Unimplemented(
            "bucket_bytes under fully_shard is not in this release: a unit's gradients are published when its own backward ends",
            hint="put small modules into one unit, or write the step by hand (shoal.fsdp.graph, Step.passes(bucket_bytes=))",
        )
    if prefetch is not None and (not isinstance(prefetch, int) or prefetch < 0):
        raise InvalidArgument(f"prefetch={prefetch!r}: it is a number of forwards or backwards, from 0 on")
    budget = None if memory_budget is None else bytes_of(memory_budget)
    optimizer = optimizer_in_backward
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer_in_backward is an optimizer, built after fully_shard, not a {type(optimizer).__name__}")
    root = root_of(model)
    if optimizer is not None and root.states[0].settings.protection is not None:
        raise Unimplemented("a protected model cannot have its optimizer in backward", hint="call end() of its Protection first")
    if optimizer is not None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p.views.sharded) in held for u in root.units for p in u.parameters):
            raise InvalidArgument("this optimizer has no parameter of the model", hint="build it after fully_shard, of model.parameters()")
    before, root.in_backward_optimizer = root.in_backward_optimizer, None if optimizer is None else OptimizerInBackward(optimizer)
    memory = memory_of(root)
    counted = memory.total - (memory.optimizer or 0)
    if budget is not None and counted > budget:
        root.in_backward_optimizer = before
        smallest = counted - memory.gradients + min(memory.gradients, _gradients_in_backward(root))
        instead = "" if smallest == counted else " with optimizer_in_backward=optimizer"
        raise ResourceExhausted(
            f"the engine holds {counted} bytes for this model, the memory budget is {budget}",
            hint=f"the smallest sufficient budget is {smallest} bytes{instead}",
            reason="MemoryBudget",
        )
    if before is not None:
        before.detach(root.units)
    if root.in_backward_optimizer is not None:
        root.in_backward_optimizer.attach(root.units)
    root.prefetch_depth = 1 if prefetch is None else prefetch
    root.replan()
    return memory
