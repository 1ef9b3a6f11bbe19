"""Methods of ``FSDPModule`` that torch has since 2.15, and the refusal of those of a torch to come."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed import fsdp as torch_fsdp  # `torch.distributed` lacks this attribute while the import hook runs

from shoal.exceptions import Unimplemented

if TYPE_CHECKING:
    from shoal.fsdp._engine.state import State


class Sharded(Protocol):
    """``FSDPModule``, as these methods use it."""

    def _get_fsdp_state(self) -> State: ...
    def _states(self, recurse: bool) -> list[State]: ...


class GradientReductionHandle(getattr(torch_fsdp, "GradientReductionHandle", object)):
    """The handle that ``finalize_backward(async_op=True)`` returns. The gradients are reduced by then."""

    def wait(self) -> None:
        return None


def set_keep_unsharded_storage(self: Sharded, keep: bool, *, recurse: bool = True) -> None:
    """True: unsharded parameters keep their memory while they are sharded, so that their addresses stay. In shared memory they always do;
    this is for parameters that collectives gather."""
    for unit in (u for s in self._states(recurse) for u in s.units):
        unit.keeps_storage = keep


def set_manual_backward_finalization(self: Sharded, enabled: bool) -> None:
    """True: a backward pass that reduces ends with ``finalize_backward``. Raises RuntimeError on a module that is not the root, inside a
    backward pass, and while a pass still has to be finalized."""
    state = self._get_fsdp_state()
    if state.root is None:
        state.lazy_init(preliminary=True)
    if not (state.is_root or state.root.preliminary):
        raise RuntimeError("set_manual_backward_finalization must be called on the root FSDP module")
    step = state.root.step
    if enabled != step.finalized_by_hand and torch._C._current_graph_task_id() != -1:
        raise RuntimeError("set_manual_backward_finalization cannot change mode during backward")
    if enabled != step.finalized_by_hand and step.waits_for_finalize:
        raise RuntimeError("set_manual_backward_finalization cannot change mode after backward starts")
    step.set_finalized_by_hand(bool(enabled))


def finalize_backward(self: Sharded, *, async_op: bool = False) -> GradientReductionHandle | None:
    """Ends the step's backward passes: every gradient is reduced when it returns, also with ``async_op``. Collective.

    Call it on the root, after ``set_manual_backward_finalization(True)`` and all backward passes, before the optimizer. If there are
    several passes, all of them or all but the last run with ``set_requires_gradient_sync(False)``, which is True again before this call.
    Does nothing before the first forward. Raises RuntimeError for a module that is not the root, without manual finalization, inside a
    backward pass, and with ``set_requires_all_reduce(False)``.
    """
    state = self._get_fsdp_state()
    if state.root is not None and not state.root.preliminary:
        if not state.is_root:
            raise RuntimeError("finalize_backward must be called on the root FSDP module")
        if not state.root.step.finalized_by_hand:
            raise RuntimeError(
                "finalize_backward requires manual backward finalization. Call set_manual_backward_finalization(True) before forward"
            )
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError("finalize_backward must be called after backward completes")
        state.root.finalize_backward()
    return GradientReductionHandle() if async_op else None


def refuse_unknown(cls: type) -> None:
    """Refuses by name the methods of torch's ``FSDPModule`` that ``cls`` does not define: torch's would not find its state."""
    for name, value in vars(torch_fsdp.FSDPModule).items():
        if isinstance(value, FunctionType) and name not in vars(cls) and not name.startswith("_"):
            setattr(cls, name, _refusing(name))


def _refusing(name: str) -> Callable[..., None]:
    def method(self: Sharded, *_: Any, **__: Any) -> None:
        raise Unimplemented(f"FSDPModule.{name} of torch {torch.__version__} is not in this release", hint="leave the call out")

    return method
