"""Autograd functions at the border of a unit that runs on rows of the batch: for its inputs and outputs, and their gradients."""

from __future__ import annotations

from typing import Any

import torch

from shoal.exceptions import Unimplemented
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Tensor, on_device
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding


class _Once(torch.autograd.Function):
    """Returns ``make(gradient)``; a second differentiation raises Unimplemented."""

    @staticmethod
    def forward(ctx, gradient, make):
        return make(gradient.detach())

    @staticmethod
    def backward(ctx, *gradients):
        raise Unimplemented(
            "gradients of a module under SpmdFullyShardedDataParallel cannot be differentiated again by the engine of shoal.fsdp",
            hint="mark one of its parameters before the module is wrapped: then it runs operator by operator",
        )


class Enter(torch.autograd.Function):
    """Returns this process's rows of a device tensor."""

    @staticmethod
    def forward(ctx, t, sharding):
        array = t._box.array
        ctx.shape, ctx.lay, ctx.sharding = array.shape, array.sharding, sharding
        (local,) = array.resharded(sharding).locals.values()
        return local.detach()

    @staticmethod
    def backward(ctx, gradient):
        def make(gradient):
            if ctx.sharding.is_replicated:
                own = gradient.clone(memory_format=torch.contiguous_format)
                return on_device(world().all_reduce(own, "backward of an input"))
            array = _on_device(gradient, ctx.shape, ctx.sharding)._box.array
            return Tensor(Box(array.resharded(ctx.lay, "backward of an input")))

        return _Once.apply(gradient, make), None


class Leave(torch.autograd.Function):
    """Makes a device tensor of all processes' rows. ``leaf`` and the parameters get no gradients from this function. They are
    inputs because ``backward`` can then check which of their gradients the pass computes."""

    @staticmethod
    def forward(ctx, local, shape, sharding, make, leaf, *parameters):
        ctx.sharding = sharding
        return make(_on_device(local.detach(), shape, sharding)._box)

    @staticmethod
    def backward(ctx, gradient):
        _, (leaf, _), *parameters = ctx.next_functions
        if leaf is not None and not _is_wanted(leaf) and any(_is_wanted(p) for p, _ in parameters if p is not None):
            raise Unimplemented(
                "torch.autograd.grad and backward(inputs=) are not supported for parameters in the engine of shoal.fsdp",
                hint="call loss.backward() and read their grad, or mark one of them before the module is wrapped",
            )

        def make(gradient):
            # for an undefined gradient torch passes zeros, in a host tensor
            array = gradient._box.array if isinstance(gradient, Tensor) else Array.whole(gradient, world().num_devices)
            (local,) = array.resharded(ctx.sharding, "backward of an output").locals.values()
            return local.detach()

        return _Once.apply(gradient, make), *(None for _ in range(4 + len(parameters)))


def _is_wanted(node: Any) -> bool:
    """True if the running backward pass computes the gradient of a leaf."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch raises it for leaves that were given to torch.autograd.grad
        return True


def _on_device(local: torch.Tensor, shape: tuple[int, ...], sharding: Sharding) -> Tensor:
    return Tensor(Box(Array(shape, local.dtype, sharding, {sharding.position(world().rank): local})))
