"""One parameter's gradient: from autograd's whole tensor over a reduction to this rank's rows of the mean."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from shoal import _native
from shoal._objects.tensors import address_of, in_memory, long_lived
from shoal.fsdp._parameters.logical import Part, PartialSums
from shoal.fsdp._parameters.precision import engine_dtype
from shoal.fsdp._parameters.slices import Slices
from shoal.fsdp._parameters.views import Views

_NO_GRADIENT = _native.Gradient()


class ParameterGradient:
    """One parameter's gradient on this rank. Before a reduction the whole gradient is ``unsharded.grad`` plus what earlier backwards left:
    ``_parts`` where a batch has parts, else ``_accumulated``. ``work()`` gives it to the engine, which has copied it when ``published()``
    is called. ``complete()`` has the reduced rows in ``sharded.grad``. Reductions end in the order in which they began."""

    def __init__(self, parameter: Slices, views: Views):
        self._parameter, self._views = parameter, views
        self._accumulated: torch.Tensor | None = None  # unreduced whole gradients, in the reduce dtype
        self._parts = PartialSums()  # whole gradients of this batch's earlier parts, in the reduce dtype
        self._partial: torch.Tensor | None = None  # the sum of reductions within this replica that no full reduction has included yet
        self._has_partial = False
        self._buffer: torch.Tensor | None = None  # memory of gradients, reused when nothing else holds it
        self._buffer_uses = 0
        self.pool: Any = None  # a BufferPool, from which several parameters take memory in turn
        self._pending: deque[list] = deque()  # per pending reduction: [target, whole gradient, everywhere]
        self.follow_dtype()

    def follow_dtype(self) -> None:
        """Adapts to the parameter's dtypes, after these were set."""
        self._number = _native.dtype_number(engine_dtype(self._parameter.compute_dtype))
        self._buffer = None

    @property
    def kept(self) -> bool:
        """True if there are gradients that no full reduction has included yet."""
        return self.exists() or self.reducing or self._has_partial

    def move(self) -> None:
        """Drops the reduced gradient and the memory for it, because this rank gets other rows."""
        self._views.sharded.grad = None
        self._partial, self._buffer = None, None

    # ---- the whole gradient ----

    def exists(self) -> bool:
        whole = self._views.unsharded
        return whole is not None and (whole.grad is not None or self._accumulated is not None or bool(self._parts))

    def drop(self) -> None:
        if self._views.unsharded is not None:
            self._views.unsharded.grad = None
        self._accumulated = None
        self._parts.clear()

    def drop_parts(self) -> None:
        self._parts.clear()

    def weigh(self, by: float) -> None:
        """Multiplies the whole gradient of the last backward by a weight. With 0 it is dropped, even if it is not finite. fp16 would
        overflow by a weight above 1, so the product is fp32."""
        whole = self._views.unsharded
        if whole is None or whole.grad is None or by == 1:
            return
        if by == 0:
            whole.grad = None
        elif whole.grad.dtype == torch.float16 and by > 1:
            grad = self._of_backward(torch.float32).mul_(by)
            if (part := self._parameter.state.settings.part) is not None:
                self._parts.add(part.number, grad.to(self._parameter.reduce_dtype))
            else:
                self._accumulated = grad if self._accumulated is None else self._accumulated + grad
        else:
            whole.grad.mul_(by)

    def zero(self) -> None:
        """Sets the whole gradient of the last backward to zeros, if there is one."""
        whole = self._views.unsharded
        if whole is not None and whole.grad is not None:
            whole.grad.zero_()

    def keep(self, weight: float | None, part: Part | None = None) -> None:
        """Accumulates the gradient of a backward without reduction, in the reduce dtype, multiplied by ``weight`` if given. The gradient of
        a ``part`` is added along the tree over logical ranks."""
        p, whole = self._parameter, self._views.unsharded
        if part is not None:
            if weight is not None:
                self.weigh(weight)
            if (grad := self._of_backward(p.reduce_dtype)) is not None:
                self._parts.add(part.number, grad)
        elif weight is not None:
            self.weigh(weight)
            self._accumulated = self.take(p.reduce_dtype)
        elif p.reduce_dtype != p.compute_dtype and whole is not None and whole.grad is not None:
            self._accumulated = self.take(p.reduce_dtype)

    def take(self, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        """Removes and returns this rank's whole gradient: the last backward's (as ``dtype``, if given) plus accumulated ones."""
        if self._parts:
            if (grad := self._of_backward(self._parameter.reduce_dtype)) is not None:
                self._parts.add(self._parameter.state.settings.part.number, grad)
            return self._parts.take()
        grad = self._of_backward(dtype)
        if self._accumulated is not None:
            if grad is not None:
                self._accumulated += grad
            grad, self._accumulated = self._accumulated, None
        return grad

    def _of_backward(self, dtype: torch.dtype | None) -> torch.Tensor | None:
        """Removes and returns the last backward's whole gradient, as ``dtype`` if given."""
        views = self._views
        grad = None if views.unsharded is None else views.unsharded.grad
        if grad is not None:
            views.unsharded.grad = None
            if views.whole_spec is not None:
                grad = self._redistributed(grad)
            grad = in_memory(grad)
            if dtype is not None:
                grad = grad.to(dtype)
        return grad

    def zeros(self) -> torch.Tensor:
        """A whole gradient of zeros, for a parameter that no backward used."""
        p = self._parameter
        return torch.zeros(p.shape, dtype=p.compute_dtype, device=p.data.device)

    def _redistributed(self, grad: torch.Tensor) -> torch.Tensor:
        """Redistributes a gradient on the model parallel mesh to the parameter's placements. Returns its local tensor."""
        spec, dims = self._views.whole_spec, self._parameter.data.dims
        if isinstance(grad, AsyncCollectiveTensor):
            grad = grad.wait()
        if not isinstance(grad, DTensor):
            raise AssertionError(f"Expected DTensor, got {type(grad)}: the gradient of parameter {self._parameter.name}")
        wanted = list(spec.placements)
        if dims is not None:  # the reduction sums Partial placements on data parallel dims
            names = spec.mesh.mesh_dim_names
            for name in (*dims.shard_names, *dims.replicate_names):
                wanted[names.index(name)] = grad.placements[names.index(name)]
        if tuple(grad.placements) != tuple(wanted):
            grad = grad.redistribute(placements=wanted)
        return grad._local_tensor

    # ---- its reduction ----

    def work(self, everywhere: bool, unused: bool, fresh: bool = False) -> _native.Gradient:
        """Prepares a reduction and returns its addresses for the engine.

        The whole gradient stays alive until ``published``, the reduction's result until ``complete``. No other reduction of this parameter
        may be pending, because this one may accumulate into its result. ``unused``: zeros stand for a missing gradient. ``fresh``: the
        result goes to new memory, because the caller accumulates it after hooks.
        """
        p, views = self._parameter, self._views
        views.follow_requires_grad()
        if not (views.requires_grad or self.exists() or self._has_partial):  # a frozen parameter may have kept a gradient from before
            self._buffer = None
            self._pending.append([None, None, everywhere])
            return _NO_GRADIENT
        grad = self.take()
        if grad is None and unused:
            grad = self.zeros()
        number = self._number if grad is None or grad.dtype == p.compute_dtype else _native.dtype_number(engine_dtype(grad.dtype))
        sharded = views.sharded
        target = None if fresh or sharded._backward_hooks else sharded.grad
        if target is not None and not self._can_add_to(target._local_tensor):  # the user has set a gradient to which the engine cannot add
            target = p.dtensor(in_memory(target._local_tensor).to(p.dtype))
            sharded.grad = target
        accumulate = target is not None
        if not accumulate and everywhere:
            target = self._fresh()
        self._pending.append([target, grad, everywhere])
        own = 0 if p.empty or target is None else address_of(target._local_tensor)
        partial = 0
        if not everywhere and self._partial is None:
            self._partial = torch.zeros(p.own_shape, dtype=torch.promote_types(p.reduce_dtype, torch.float32), device="cpu")
        if self._partial is not None:
            partial = self._partial.data_ptr()
        return _native.Gradient(0 if grad is None else address_of(grad), number, own, accumulate, partial, self._has_partial)

    def _can_add_to(self, local: torch.Tensor) -> bool:
        return type(local) is torch.Tensor and local.dtype == self._parameter.dtype and local.is_contiguous()

    @property
    def reducing(self) -> bool:
        return bool(self._pending)

    def published(self) -> None:
        """Drops the reference to the whole gradient, which the engine has copied."""
        if self._pending:
            self._pending[-1][1] = None

    def complete(self, present: bool) -> torch.Tensor | None:
        """Completes the oldest pending reduction. ``present``: some rank had a gradient. Returns this rank's rows of it, or None if it was
        reduced within a replica only."""
        target, _, everywhere = self._pending.popleft()
        if not everywhere:
            self._has_partial |= present
            return None
        self._partial, self._has_partial = None, False
        return target if present else None

    # ---- reductions by collectives within a replica ----

    @property
    def has_partial(self) -> bool:
        return self._has_partial

    def add_partial(self, rows: torch.Tensor) -> None:
        """Keeps the sum over a replica's gradients, this rank's rows, for a later reduction over all replicas."""
        if self._partial is None:
            self._partial, self._has_partial = rows.clone(), True
        else:
            self._partial += rows

    def take_partial(self) -> torch.Tensor | None:
        partial = self._partial
        self._partial, self._has_partial = None, False
        return partial

    def forget_reductions(self) -> None:
        """Drops pending reductions, after the engine has dropped them."""
        self._pending.clear()
        self._partial, self._has_partial = None, False

    # ---- the reduced gradient ----

    def add(self, gradient: DTensor) -> None:
        """Adds the reduced gradient of one synchronised backward to ``sharded.grad``, after hooks."""
        sharded = self._views.sharded
        if sharded._backward_hooks:
            gradient = self._hooked(gradient)
        if sharded.grad is None:
            sharded.grad = gradient
        elif sharded.grad is not gradient:
            sharded.grad._local_tensor.add_(gradient._local_tensor)

    def _hooked(self, gradient: DTensor) -> DTensor:
        """Runs the hooks of Tensor.register_hook on a reduced gradient. It is a DTensor, so its norm is the norm over all ranks."""
        with torch.no_grad():
            for hook in tuple(self._views.sharded._backward_hooks.values()):
                changed = hook(gradient)
                if changed is None:
                    continue
                if not isinstance(changed, DTensor) or changed.shape != gradient.shape:
                    raise TypeError(
                        f"a hook on the gradient of parameter {self._parameter.name} should return None or a DTensor of "
                        f"{tuple(gradient.shape)}, not {type(changed).__name__} of shape {tuple(getattr(changed, 'shape', ()))}"
                    )
                if changed.placements != gradient.placements:
                    changed = changed.redistribute(placements=gradient.placements)
                gradient = changed.to(gradient.dtype)
        return gradient

    def free(self) -> None:
        """Drops a gradient that an optimizer has used, and returns its memory to the pool if nothing else holds it."""
        self._views.sharded.grad = None
        buffer, self._buffer = self._buffer, None
        if buffer is not None and self.pool is not None and uses(buffer) == self._buffer_uses:
            self.pool.put(buffer)

    def use_pool(self, pool: Any) -> None:
        """Takes memory for gradients from a pool that other parameters share."""
        self.pool, self._buffer = pool, None

    def reserve(self) -> None:
        """Allocates the memory of the gradient before there is one."""
        p = self._parameter
        if self._buffer is None and self.pool is None and not p.external and not p.empty:
            self._buffer = long_lived(p.own_shape, p.dtype, touched=True)
            self._buffer_uses = uses(self._buffer)

    def _fresh(self) -> DTensor:
        """Returns a gradient to write to. It reuses the previous step's memory if nothing else holds that, which saves an allocation."""
        if self._buffer is None or uses(self._buffer) != self._buffer_uses:
            take = long_lived if self.pool is None else self.pool.take
            self._buffer = take(self._parameter.own_shape, self._parameter.dtype)
            self._buffer_uses = uses(self._buffer)
        return self._parameter.dtensor(self._buffer.detach())


def uses(t: torch.Tensor) -> int:
    """The number of references to the tensor's storage: tensors, views and others, in Python or C++."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)
