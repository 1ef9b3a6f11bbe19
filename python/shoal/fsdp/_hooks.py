"""Hooks of autograd's nodes, and of several gradients at once. A sharded model computes with unsharded parameters, so autograd runs no node
of a sharded one: what hangs there is run here, on the reduced gradient, at the end of a backward pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from shoal.exceptions import Unimplemented

if TYPE_CHECKING:
    from shoal.fsdp._parameters import ShardedParameter


def _code(outer: CodeType, name: str) -> CodeType | None:
    """Of a function that another one makes, at whatever depth."""
    for inner in (c for c in outer.co_consts if isinstance(c, CodeType)):
        found = inner if inner.co_name == name else _code(inner, name)
        if found is not None:
            return found
    return None


_ALL = _code(register_multi_grad_hook.__code__, "inner_hook")  # what register_multi_grad_hook(mode="all") registers with each tensor


class MultiHooks:
    """Hooks of ``register_multi_grad_hook`` that wait for all gradients of a backward pass. torch's own count the nodes that autograd will
    run."""

    def __init__(self):
        self._waiting: dict[int, tuple[Callable, list]] = {}

    def takes(self, p: ShardedParameter, hook: Callable, gradient: torch.Tensor) -> bool:
        """Whether this is such a hook. It is called by ``run``, with the gradients that come until then. Raises NotImplementedError when
        it waits for gradients of other tensors, too."""
        if getattr(hook, "__code__", None) is not _ALL:
            return False
        cells = dict(zip(_ALL.co_freevars, (c.cell_contents for c in hook.__closure__), strict=True))
        if torch._C._current_graph_task_id() != -1 and any(_is_foreign(n) for n in cells["grad_fns"]):
            raise Unimplemented(
                f"register_multi_grad_hook over parameter {p.name} of {p.state.name or 'the root'}, which is sharded, and tensors that are "
                "not",
                hint="register one hook for the sharded parameters and one for the other tensors",
            )
        _, gradients = self._waiting.setdefault(id(cells["buffer"]), (cells["fn"], [None] * cells["len_tensors"]))
        gradients[cells["idx"]] = gradient
        return True

    def run(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for function, gradients in waiting.values():
            function(gradients)

    def forget(self) -> None:
        self._waiting.clear()


def _is_foreign(node: Any) -> bool:
    """Autograd runs this node in this pass, and it is of no sharded parameter."""
    ours = hasattr(getattr(node, "variable", None), "_shoal_sharded") or hasattr(getattr(node, "variable", None), "_shoal_state")
    return not ours and torch._C._will_engine_execute_node(node)


def has_node(leaf: torch.Tensor) -> bool:
    """Whether somebody holds the node that accumulates its gradient: the node holds the tensor."""
    return leaf._use_count() > 1


def run_node(leaf: torch.Tensor, gradient: torch.Tensor, before: torch.Tensor | None, behind: bool = False) -> torch.Tensor | None:
    """Runs that node and its hooks, which may change ``gradient``. Returns ``leaf.grad``: ``before``, to which the node has added. Hooks of
    the tensor itself run elsewhere, but with ``behind`` those behind the accumulation."""
    kept = leaf._backward_hooks, leaf._post_accumulate_grad_hooks
    leaf._backward_hooks, leaf.grad = None, before
    if not behind:
        leaf._post_accumulate_grad_hooks = OrderedDict()  # None would leave autograd those that it has
    try:
        torch.autograd.backward((leaf,), (gradient,))
    finally:
        leaf._backward_hooks = kept[0]
        if not behind:
            leaf._post_accumulate_grad_hooks = kept[1]
    return leaf.grad
