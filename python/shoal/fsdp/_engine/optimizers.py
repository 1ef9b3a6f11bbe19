"""Opens the write window before every optimizer's step, by torch's global step hooks, and for manual writes (``write``)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.root import Root, roots_in


def replace_by_sharded(optimizer: torch.optim.Optimizer) -> None:
    """Makes an optimizer hold the sharded parameters, in place of originals from before fully_shard, of tensors that a parameter adopted,
    and of unsharded parameters."""
    bound = []
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            replaced_by = getattr(p, "_shoal_sharded", None)
            parameter = replaced_by() if replaced_by is not None else None
            if parameter is None or parameter.views.sharded is p:
                continue
            if optimizer.state.get(p):
                raise InvalidArgument(
                    f"this optimizer has a state for the unsharded parameter {parameter.name} of {parameter.state.name or 'the root'}",
                    hint="build the optimizer after fully_shard, and load its state dict",
                )
            group["params"][i] = parameter.views.sharded
            bound.append(parameter.name)
    if bound:
        warnings.warn(
            f"an optimizer had {len(bound)} parameters that were not sharded: it has the sharded ones now; build it after fully_shard",
            stacklevel=4,
        )


def _roots_of(optimizer: torch.optim.Optimizer) -> list[Root]:
    roots = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = getattr(p, "_shoal_state", None)
            if state is not None and state.root is not None:
                roots[id(state.root)] = state.root
    return list(roots.values())


# Called once per model, after its first optimizer step, when all models have ended that step. Packages above this one register here.
# These functions must not raise: the step has been made.
after_first_step: list[Callable[[Root, torch.optim.Optimizer], None]] = []


def _key(optimizer: torch.optim.Optimizer) -> int:
    return id(optimizer) >> 4 & 0x7FFFFFFF


def _before_step(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    replace_by_sharded(optimizer)
    for root in _roots_of(optimizer):
        if root.in_backward_optimizer is not None and root.in_backward_optimizer.updating:
            continue  # this step updates a single unit, in backward, whose rows are writable
        protection = root.states[0].settings.protection
        if protection is not None and not protection.steps(optimizer):
            raise InvalidArgument(
                f"this model is protected, and its steps are those of one optimizer: a second one, {type(optimizer).__name__}, stepped",
                hint="give all parameters to one optimizer, in groups",
            )
        root.optimizer_begin(_key(optimizer))


def _after_step(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    new = []
    for root in _roots_of(optimizer):
        if root.in_backward_optimizer is not None and root.in_backward_optimizer.updating:
            continue
        root.optimizer_end(_key(optimizer))
        if not root.stepped:
            root.stepped = True
            new.append(root)
    for root in new:
        for call in after_first_step:
            call(root, optimizer)


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


@contextmanager
def write(model: nn.Module):
    """Opens the write window of a sharded model: inside, each rank may write its rows by any means. Every rank must enter.

    torch's in-place operators on a parameter, ``p.data``, ``p.to_local()`` and views of them open the window themselves, as an optimizer's
    step does. ``write`` is for other writes: through NumPy arrays (read-only while the window is closed), addresses, custom kernels.
    The window is closed from a forward to the next synchronised backward, and while another forward's output is alive whose backward may
    still run. The writes are visible to all ranks from their next forward on.
    """
    if not any(state_of(m) for m in model.modules()):
        raise InvalidArgument("nothing in this model was sharded by shoal.fsdp.fully_shard")
    for s in map(state_of, model.modules()):
        if s is not None:
            s.show_sharded()
    for root in roots_in(model):
        if root.step.joining:
            raise InvalidArgument(
                "write() cannot be used inside join: ranks without batches would take it for an optimizer's step",
                hint="write before or after the loop",
            )
        root.open_window("write")
    yield model
