"""The end of a unit's backward: when the gradients of its inputs are computed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Ends:
    """The autograd nodes that run when a unit's backward has ended: one per forward with an input that requires a gradient."""

    def __init__(self, on_computed: Callable[[Any], None]):
        """``on_computed(node)`` is called when the gradients of a forward's inputs are computed."""
        self.on_computed = on_computed
        self.unseen = False  # no input of the running forward requires a gradient
        self._nodes: weakref.WeakSet = weakref.WeakSet()
        self._endless: weakref.WeakSet = weakref.WeakSet()  # tokens of forwards without a node in ``_nodes``

    def add(self, node) -> None:
        self._nodes.add(node)

    def add_forward(self, token: object) -> None:
        if self.unseen:
            self._endless.add(token)

    def more_to_come(self) -> bool:
        """Returns True if the running backward pass will leave the unit again, because its forward ran more than once."""
        task = torch._C._current_graph_task_id()
        return any(node.left_in != task and torch._C._will_engine_execute_node(node) for node in self._nodes)

    def leave(self, node) -> bool:
        """Records that the backward pass has left the unit at ``node``. Returns True if the pass will not return to the unit."""
        node.left_in = torch._C._current_graph_task_id()
        return not self.more_to_come() and not self._endless


class InputOfShardedUnit(torch.autograd.Function):
    """The identity on a unit's inputs. Its backward runs after the unit's own backward."""

    @staticmethod
    def forward(ctx, ends: Ends, *inputs: torch.Tensor):
        ctx.ends, ctx.left_in = ends, -1
        ends.add(ctx)
        return inputs

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):
        ctx.ends.on_computed(ctx)
        return (None, *grads)
