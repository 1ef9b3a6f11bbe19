"""How units run at present (on rows of the batch or operator by operator), and the buffers that their modules have then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.processes import loading

if TYPE_CHECKING:
    from shoal.fsdp._engine.state import State


# How the outermost running unit runs: "rows", "operators", "looking" (a test, operator by operator), "trying" (a test on rows); None
# outside of units.
now: str | None = None


def on_rows() -> bool:
    """True while a unit runs on this process's rows, with ordinary tensors."""
    return now in ("rows", "trying")


@contextlib.contextmanager
def going(way: str | None) -> Iterator[None]:
    global now
    before, now = now, way
    try:
        yield
    finally:
        now = before


_PATIENCE_S = 5.0  # the longest wait for a loader's thread, which may itself wait for the program


@contextlib.contextmanager
def loaders_waiting() -> Iterator[None]:
    """Within the ``with`` block, loaders' threads load no batch, and so draw no random numbers."""
    alone = loading.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if alone:
            loading.release()


_paused: list[State] = []


@contextlib.contextmanager
def paused(states: list[State]) -> Iterator[None]:
    """Within the ``with`` block, the states' modules run without the engine, on the program's parameters."""
    global _paused
    before, _paused = _paused, [*_paused, *states]
    for s in states:
        s.replaced = True
    try:
        yield
    finally:
        _paused = before
        for s in states:
            s.replaced = s in before


def is_again(args: tuple, kwargs: dict) -> bool:
    """True if the backward pass recomputes a forward that ran on rows: torch.utils.checkpoint then passes ordinary tensors."""
    if now not in (None, "rows") or torch._C._current_graph_task_id() == -1:
        return False
    return any(isinstance(a, torch.Tensor) and not isinstance(a, Tensor) for a in tree_flatten((args, kwargs))[0])


def as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``function`` so that later calls run as a call would now, on rows or operator by operator. It is the forward of a checkpointed
    module, which the backward pass recomputes."""
    way, states = now, _paused

    def run(*args: Any, **kwargs: Any) -> Any:
        with going(way), paused(states):
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def local_buffers(modules: list[nn.Module]) -> Iterator[None]:
    """Within the ``with`` block, these modules have ordinary tensors as buffers, in the same memory."""
    held = [(m, name, b) for m in modules if m._buffers for name, b in m._buffers.items() if isinstance(b, Tensor)]
    for m, name, b in held:
        (m._buffers[name],) = b._box.array.locals.values()
    try:
        yield
    finally:
        for m, name, b in held:
            m._buffers[name] = b


_swapped: list[tuple[nn.Module, dict]] = []


def begin_again(m: nn.Module, args: tuple, kwargs: dict) -> None:
    """Gives a module ordinary tensors as buffers while torch.utils.checkpoint recomputes a forward on rows."""
    if is_again(args, kwargs):
        _swapped.append((m, dict(m._buffers)))
        for name, b in m._buffers.items():
            if isinstance(b, Tensor):
                (m._buffers[name],) = b._box.array.locals.values()


def end_again(m: nn.Module, args: tuple, output: Any) -> None:
    if _swapped and _swapped[-1][0] is m:
        m._buffers.update(_swapped.pop()[1])
