"""A rank's memory by kind after its first step, beside the estimate, as an event of its run folder."""

from __future__ import annotations

import contextlib

import torch

from shoal._core.telemetry import event, telemetry
from shoal.exceptions import InvalidArgument
from shoal.fsdp._engine.optimizers import after_first_step
from shoal.fsdp._engine.root import Root
from shoal.fsdp._memory import estimate_memory
from shoal.fsdp._parameters.slices import local_of


def _record(root: Root, optimizer: torch.optim.Optimizer) -> None:
    if telemetry() is None:
        return
    with contextlib.suppress(Exception):  # an optimizer's state may be anything, and its step must not fail here
        event("memory", kinds=_kinds(root, optimizer), predicted=_predicted(root, optimizer))


def _kinds(root: Root, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Returns the bytes of this model alone: the optimizer may step several."""
    own = [p for group in optimizer.param_groups for p in group["params"] if _root_of(p) is root]
    of_own = [of for p in own if isinstance(of := optimizer.state.get(p), dict)]
    states = [local_of(v) for of in of_own for v in of.values() if torch.is_tensor(v)]
    return {
        "weights": sum(local_of(p).nbytes for p in own),
        "gradients": sum(local_of(p).nbytes for p in own if p.requires_grad),
        "optimizer": sum(t.nbytes for t in states),
    }


def _root_of(p: torch.Tensor) -> Root | None:
    state = getattr(p, "_shoal_state", None)
    return None if state is None else state.root


def _predicted(root: Root, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    name = type(optimizer).__name__.lower()
    if name == "sgd" and any(group.get("momentum") for group in optimizer.param_groups):
        name = "momentum"
    try:
        found = estimate_memory(root.states[0].module, torch.distributed.get_world_size(), optimizer=name)
    except (InvalidArgument, ValueError):  # an optimizer that estimates do not know, or no process group
        return {}
    unit = found.unit_weights + found.unit_gradients
    return {"weights": found.weights, "gradients": found.gradients, "optimizer": found.optimizer, "unit": unit}


after_first_step.append(_record)
