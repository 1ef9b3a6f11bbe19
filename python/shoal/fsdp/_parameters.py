"""One parameter of a unit: its views, which are the tensors that modules hold for it, and its gradient.

``sharded`` is a ``DTensor`` over this rank's slices. ``unsharded`` is a plain tensor over the whole parameter, or a ``DTensor`` on the
model parallel mesh if it was one before. Both lie in the unit's arena, as separate imports. Slices of one tensor would share a version
counter, be saved with all of it, and look tied.
"""

from __future__ import annotations

import enum
import sys
import weakref
from collections import deque
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import stateless

from shoal import _native
from shoal._objects.tensors import address_of, dtensor, dtensor_parameter, in_memory, is_wrapper, lasting, long_lived, with_dtype
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._mesh import DataMesh
from shoal.fsdp._rows import Rows, rows_of, whole_of

# Dtypes that the engine treats as uint8, because it only moves their bytes.
_AS_BYTES = {getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")}
_POISON = {4: 0x7FC0DEAD, 2: 0x7FDE, 8: 0x7FF80000DEADDEAD, 1: 0x7F}  # by element size, NaNs that no computation yields
_META = torch.device("meta")
_PLAIN = (torch.Tensor, nn.Parameter, Rows)
_NO_GRADIENT = _native.Gradient()
_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def engine_dtype(dtype: torch.dtype) -> str:
    return str(_AS_BYTES.get(dtype, dtype)).removeprefix("torch.")


def local_of(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, DTensor) else t


class Kind(enum.Enum):
    """The kind of a parameter's local tensor, which decides how it is unsharded."""

    MEMORY = enum.auto()  # plain memory, in the arena on a CPU mesh
    WRAPPER = enum.auto()  # a wrapper subclass, whose elements lie in other tensors
    EXTENDED = enum.auto()  # with FSDP2's all-gather extensions, of its class or set on the object

    @staticmethod
    def of(local: torch.Tensor) -> Kind:
        if hasattr(local, "fsdp_pre_all_gather"):
            return Kind.EXTENDED
        return Kind.WRAPPER if is_wrapper(local) else Kind.MEMORY


class ShardedParameter:
    def __init__(
        self,
        name: str,
        original: nn.Parameter,
        owners: list[tuple[nn.Module, str]],
        data: DataMesh,
        dim: int,
        policy: Any,
        home: torch.device,
        pinned: bool = False,
    ):
        self.name = name
        self.owners = owners  # (module, attribute), several for a tied parameter
        self.data, self.dim = data, dim
        self.home, self.pinned = home, pinned  # device and pinning of its slices
        self.state: Any = None
        local = local_of(original)
        self.shape, self.dtype = local.shape, local.dtype
        self.requires_grad = original.requires_grad
        self._set_kind(local)
        self.spec = data.spec_of(name, original, dim)
        self._whole_spec = original._spec if isinstance(original, DTensor) else None
        self._policy = policy
        self._set_dtypes()
        begin, end = data.own_bounds(self.shape[dim])
        self.own_shape = torch.Size((*self.shape[:dim], end - begin, *self.shape[dim + 1 :]))
        self._begin = begin
        self.empty = self.own_shape.numel() == 0
        self.own: torch.Tensor | None = None  # this rank's slices, in the arena
        self.rows: torch.Tensor | None = None  # the same memory as Rows, for the user
        self.sharded: nn.Parameter | None = None
        self.front: nn.Parameter | None = None  # if set by another package, stands for `sharded` in modules
        self.unsharded: nn.Parameter | None = None
        self.whole_version = 0  # torch's version of `unsharded`, which must not change
        self.post_forward: nn.Parameter | None = None  # on the mesh of reshard_after_forward=n, or a Whole
        self.emptied = False  # by to_empty, and perhaps not written since
        self._accumulated: torch.Tensor | None = None  # unreduced whole gradients, in the reduce dtype
        self._partial: torch.Tensor | None = None  # the sum reduced within this replica only
        self._has_partial = False
        self._buffer: torch.Tensor | None = None  # memory of gradients, reused when nothing else holds it
        self._buffer_uses = 0
        self.pool: Any = None  # BufferPool that several parameters use in turn
        self._pending: deque[list] = deque()  # per pending reduction: [target, whole gradient, everywhere]

    @property
    def on_other_mesh(self) -> bool:
        """The original was a DTensor already."""
        return self._whole_spec is not None

    @property
    def extended(self) -> bool:
        return self.kind is Kind.EXTENDED

    @property
    def external(self) -> bool:
        """The parameter has no memory in the arena."""
        return self.kind is not Kind.MEMORY or not self.data.in_arena

    def _set_kind(self, local: torch.Tensor) -> None:
        self.kind = Kind.of(local)
        if self.extended != hasattr(local, "fsdp_post_all_gather"):
            raise AssertionError(
                "Both fsdp_pre_all_gather and fsdp_post_all_gather should be defined if using all-gather extensions: parameter "
                f"{self.name}, a {type(local).__name__}"
            )
        if self.extended and self.dim != 0 and self.shape[self.dim] % self.data.shards != 0:
            raise NotImplementedError(
                f"FSDP does not support uneven sharding on dim {self.dim}: {self.shape} (world size: {self.data.shards}) of a parameter "
                f"with all-gather extensions: shard {self.name} on dim 0"
            )

    def _set_dtypes(self) -> None:
        floating = self.dtype.is_floating_point and self.dtype not in _AS_BYTES
        self.compute_dtype = self._policy.param_dtype or self.dtype if floating else self.dtype
        self.reduce_dtype = self._policy.reduce_dtype or self.compute_dtype if floating else self.dtype
        self._number = _native.dtype_number(engine_dtype(self.compute_dtype))

    # ---- in the engine ----

    def engine_spec(self) -> _native.ParameterSpec:
        return _native.ParameterSpec(
            name=self.name,
            shape=list(self.shape),
            dtype=engine_dtype(self.dtype),
            requires_grad=self.requires_grad,
            dim=self.dim,
            compute_dtype=engine_dtype(self.compute_dtype),
            reduce_dtype=engine_dtype(self.reduce_dtype),
            external=self.external,
        )

    def bind(self, unit: _native.ShardedUnit, index: int, values: torch.Tensor | None) -> None:
        """Copies this rank's slices into the arena and creates the views. ``values``: the whole parameter; None: take the values of
        ``sharded``, which stays the same object."""
        source = self.sharded._local_tensor if values is None else self.slice(local_of(values.detach()))
        meta = source.device.type == "meta"
        if self.kind is not Kind.MEMORY:
            self._keep_local(source, values is not None)
        else:
            if self.empty or self.external:
                self.own = torch.empty(self.own_shape, dtype=self.dtype, device=self.home, pin_memory=self.pinned)
            else:
                self.own = _typed(_native.own(unit, index), self.dtype)
            if not meta:
                self.own.copy_(source)
        # A parameter on the meta device gets its values later, from to_empty and an initialisation (adopt).
        local = torch.empty_like(self.own, device="meta") if meta and not self.own.is_meta else self._rows()
        if values is None:
            self.sharded._local_tensor = local
        else:
            self.sharded = dtensor_parameter(local, self.spec, self.requires_grad)
        if not self.external:
            numel = self.shape.numel()
            empty = torch.empty(self.shape, dtype=self.compute_dtype, device="cpu")
            whole = _typed(_native.whole(unit, index), self.compute_dtype) if numel else empty
            self.set_whole(whole)
        self.mark()

    def _keep_local(self, source: torch.Tensor, copied: bool) -> None:
        """Stores this rank's slices as a tensor of the user's class. ``copied``: a copy; else the same object, because extensions may be
        set on it."""
        with torch.no_grad():
            if copied or source.device not in (self.home, _META):
                self.own = source.new_zeros(self.own_shape, device=_META if source.is_meta else self.home)
                if not self.empty and not source.is_meta:
                    self.own.copy_(source)
                return
            if isinstance(source, Rows):  # its memory in the arena will go
                memory = source.plain().clone()
                with torch._C._DisableTorchDispatch():
                    source.set_(memory)
            self.own = source

    @property
    def padded_shape(self) -> torch.Size:
        """The shape of the first rank's slices, the largest of all ranks."""
        return torch.Size((*self.shape[: self.dim], -(-self.shape[self.dim] // self.data.shards), *self.shape[self.dim + 1 :]))

    def _rows(self) -> torch.Tensor:
        """This rank's slices for the user: a Rows, which intercepts writes, if other ranks read them in place."""
        self.rows = self.own if self.external else rows_of(self.own, self)
        return self.rows

    def show_rows(self, plain: bool) -> None:
        """``plain``: plain local tensors for an optimizer's step, which has opened the window, so that operators cost no interception."""
        if self.sharded._local_tensor is (self.rows if plain else self.own):
            self.sharded._local_tensor = self.own if plain else self.rows

    def set_whole(self, whole: torch.Tensor) -> None:
        if self._whole_spec is not None:
            whole = dtensor(whole, with_dtype(self._whole_spec, whole.dtype))
        self.unsharded = nn.Parameter(whole, requires_grad=self.sharded.requires_grad)
        self._hooks_go_to_sharded(self.unsharded)
        self.whole_version = version_of(self.unsharded)
        self.post_forward = None
        self.mark()

    def mark(self) -> None:
        """Sets the attributes by which optimizers find the views' unit."""
        for view in (self.sharded, self.unsharded):
            if view is not None:
                view._shoal_state = self.state
        if self.unsharded is not None:
            self.unsharded._shoal_sharded = weakref.ref(self)

    def take_hooks(self, original: torch.Tensor) -> None:
        """Moves the original's gradient hooks to ``sharded``, and redirects later registrations on the original."""
        if original._backward_hooks:
            self.sharded._backward_hooks = original._backward_hooks  # the same dict, for the handles' remove()
        if original._post_accumulate_grad_hooks:
            self.sharded._post_accumulate_grad_hooks = original._post_accumulate_grad_hooks
        self._hooks_go_to_sharded(original)

    def _hooks_go_to_sharded(self, view: torch.Tensor) -> None:
        """Registers later hooks of ``view`` on ``sharded`` instead: all hooks get the reduced gradient."""
        view.register_hook = self.sharded.register_hook
        view.register_post_accumulate_grad_hook = self.sharded.register_post_accumulate_grad_hook

    def slice(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.narrow(self.dim, self._begin, self.own_shape[self.dim])

    def dtensor(self, local: torch.Tensor) -> DTensor:
        return dtensor(local, self.spec, local.requires_grad)

    # ---- the views ----

    def follow_requires_grad(self) -> None:
        """Propagates ``requires_grad`` to all views after the user changed it on one of them."""
        known, whole, row = self.requires_grad, self.unsharded, self.post_forward
        if (
            self.sharded.requires_grad != known
            or (whole is not None and whole.requires_grad != known)
            or (row is not None and row.requires_grad != known)
        ):
            self.requires_grad = not known
            for view in (self.sharded, whole, row):
                if view is not None:
                    view.requires_grad_(not known)

    def register(self, view: nn.Parameter) -> None:
        """Sets one of the views in all modules that have the parameter."""
        if view is self.sharded and self.front is not None:
            view = self.front
        for module, attribute in self.owners:
            module._parameters[attribute] = view

    def show(self, view: nn.Parameter) -> bool:
        """As ``register``, but keeps a tensor that the user put in the parameter's place. Returns True if there is none."""
        ours = True
        if view is self.sharded and self.front is not None:
            view = self.front
        for module, attribute in self.owners:
            current = module._parameters.get(attribute)
            if current is view:
                continue
            if current is not None and any(current is f for f in (self.sharded, self.unsharded, self.post_forward, self.front)):
                module._parameters[attribute] = view
            else:
                ours = False
        return ours

    def refuse_substitutes(self) -> None:
        for module, attribute in self.owners:
            current = module._parameters.get(attribute)
            if current is not None and not any(current is f for f in (self.sharded, self.unsharded, self.post_forward, self.front)):
                refuse_substitute(self.name, current)

    def show_post_forward(self, mesh: Any) -> None:
        """Shows this rank's rows on the smaller mesh, a view of the whole parameter."""
        if self.post_forward is None:
            from torch.distributed.tensor import Replicate, Shard
            from torch.distributed.tensor._dtensor_spec import DTensorSpec

            whole = self.unsharded.detach()
            piece = -(-self.shape[0] // mesh.size(1))
            begin = min(mesh.get_local_rank(1) * piece, self.shape[0])
            local = whole_of(whole[begin : min(begin + piece, self.shape[0])], self)
            spec = with_dtype(DTensorSpec(mesh, (Replicate(), Shard(0)), tensor_meta=self.spec.tensor_meta), local.dtype)
            self.post_forward = dtensor_parameter(local, spec, self.sharded.requires_grad)
            self.post_forward._shoal_state = self.state
            self._hooks_go_to_sharded(self.post_forward)
        self.show(self.post_forward)

    @property
    def whole_offset(self) -> int:
        return local_of(self.unsharded).storage_offset()

    def show_guarded(self) -> None:
        """Shows the whole parameter as a Whole, which redirects writes by operators."""
        if self.post_forward is None:
            with lasting():
                view = whole_of(local_of(self.unsharded).data, self)  # .data: a version counter of its own
                if self._whole_spec is not None:
                    view = dtensor(view, self.unsharded._spec)
                view.requires_grad_(self.requires_grad)
                view._is_param = True
                view._shoal_state, view._shoal_sharded = self.state, weakref.ref(self)
                self._hooks_go_to_sharded(view)
            self.post_forward = view
        self.show(self.post_forward)

    # ---- replacements by the user ----

    def adopt(self) -> bool:
        """Copies the values of a tensor that the user put in the parameter's place into the arena; ``sharded`` stays the same object.

        Returns True if the unit must be rebuilt, because dtype or kind changed. Raises Unimplemented for an unsuitable tensor.
        """
        found = False
        for module, attribute in self.owners:  # the last replacement wins, as in loading one by one
            current = module._parameters.get(attribute)
            if current is self.front and current is not None:
                current = self.sharded
            if current is self.unsharded or (current is self.sharded and self._in_arena(current._local_tensor)):
                continue
            self._take(current)
            found = True
        if found:
            self.register(self.sharded)
            self.mark()
        return self.sharded.dtype != self.dtype or Kind.of(self.sharded._local_tensor) is not self.kind

    def adopt_early(self) -> None:
        """As adopt, if the replacement has values and this dtype, shape and kind. Others are adopted at the next forward."""
        for module, attribute in self.owners:
            current = module._parameters.get(attribute)
            if not isinstance(current, torch.Tensor) or current.is_meta:
                return
            if current.dtype != self.dtype or current.shape != self.global_shape or Kind.of(local_of(current)) is not self.kind:
                return
        self.adopt()

    @property
    def global_shape(self) -> torch.Size:
        return self.spec.tensor_meta.shape

    def _in_arena(self, local: torch.Tensor) -> bool:
        if Kind.of(local) is not self.kind:
            return False
        if self.kind is not Kind.MEMORY:
            return local is self.own
        return local.dtype == self.dtype and local.data_ptr() == self.own.data_ptr()

    def _take(self, current: nn.Parameter | None) -> None:
        if current is None or current.shape != self.global_shape:
            by = "nothing" if current is None else f"a {type(current.data).__name__} of shape {tuple(current.shape)}"
            raise Unimplemented(
                f"parameter {self.name} was replaced by {by}",
                hint="replace it by a tensor of the same shape, or copy into it; register parametrizations before fully_shard",
            )
        if isinstance(current, DTensor):
            if tuple(current.placements) != tuple(self.spec.placements) or current.device_mesh != self.spec.mesh:
                raise Unimplemented(
                    f"parameter {self.name} was replaced by a DTensor with {current.placements} instead of {self.spec.placements}",
                    hint="distribute it as the parameter is, or copy into it",
                )
            local = current._local_tensor
        elif self._whole_spec is None:
            local = self.slice(current.detach())
        else:
            raise Unimplemented(f"parameter {self.name} was replaced by a plain tensor", hint="replace it by a DTensor placed alike")
        if local.device.type == "meta":
            raise self.state.root.still_on_meta()
        if self.emptied and not self.empty and _is_poison(local):
            raise InvalidArgument(
                f"parameter {self.name} was never initialised after to_empty",
                hint="write to it: reset_parameters(), torch.nn.init, or load a state dict",
            )
        self.emptied = False
        requires_grad = current.requires_grad
        if current is not self.sharded:
            current._shoal_sharded = weakref.ref(self)  # for an optimizer that holds it
        if local.dtype != self.dtype or Kind.of(local) is not self.kind:  # the unit is rebuilt from these values
            self.spec = with_dtype(self.spec, local.dtype)
            set_on_it = isinstance(current, DTensor) and Kind.of(local) is Kind.EXTENDED
            replaced = dtensor_parameter(local if set_on_it else local.clone(), self.spec, requires_grad)
            if current is not self.sharded:
                torch.utils.swap_tensors(self.sharded, replaced)
            return
        with torch.no_grad():
            if self.kind is not Kind.MEMORY:
                self._keep_local(local, not isinstance(current, DTensor))
            else:
                self.own.copy_(local)
        if self.sharded.device == self.own.device:
            self.sharded._local_tensor = self._rows()
            self.sharded.requires_grad_(requires_grad)
        else:  # a tensor from the meta device keeps that device until swapped
            torch.utils.swap_tensors(self.sharded, dtensor_parameter(self._rows(), self.spec, requires_grad))

    def follow_sharded(self) -> None:
        """Takes dtype, kind and spec from ``sharded``, for a rebuild of the unit."""
        self._set_kind(self.sharded._local_tensor)
        self.dtype = self.sharded.dtype
        self.spec = self.sharded._spec
        self._buffer = None
        self._set_dtypes()

    def poison(self) -> None:
        """Fills the values with NaNs of a special pattern after to_empty, so that a missing initialisation is detected."""
        local = local_of(self.sharded)
        if local.device.type != "meta" and local.dtype.is_floating_point and type(local) in _PLAIN:
            self.emptied = True
            local.view(_INTEGER[local.element_size()]).fill_(_POISON[local.element_size()])

    # ---- gradients ----

    def gradient_work(self, everywhere: bool, unused: bool, fresh: bool = False) -> _native.Gradient:
        """Prepares a reduction and returns its addresses for the engine.

        The whole gradient stays alive until ``published``, the others until ``gradient_done``. No other reduction of this parameter may be
        pending, because this one may accumulate into its result. ``unused``: zeros stand for a missing gradient. ``fresh``: the result goes
        to new memory, because the caller accumulates it after hooks.
        """
        self.follow_requires_grad()
        if not (self.requires_grad or self.has_gradient() or self._has_partial):  # gradients from before a freeze count
            self._buffer = None
            self._pending.append([None, None, everywhere])
            return _NO_GRADIENT
        grad = self.take_gradient()
        if grad is None and unused:
            grad = self.zero_gradient()
        number = self._number if grad is None or grad.dtype == self.compute_dtype else _native.dtype_number(engine_dtype(grad.dtype))
        target = None if fresh or self.sharded._backward_hooks else self.sharded.grad
        if target is not None and not self._can_add_to(target._local_tensor):  # unsuitable memory, set by the user
            target = self.dtensor(in_memory(target._local_tensor).to(self.dtype))
            self.sharded.grad = target
        accumulate = target is not None
        if not accumulate and everywhere:
            target = self._fresh_grad()
        self._pending.append([target, grad, everywhere])
        own = 0 if self.empty or target is None else address_of(target._local_tensor)
        partial = 0
        if not everywhere and self._partial is None:
            self._partial = torch.zeros(self.own_shape, dtype=torch.promote_types(self.reduce_dtype, torch.float32), device="cpu")
        if self._partial is not None:
            partial = self._partial.data_ptr()
        return _native.Gradient(0 if grad is None else address_of(grad), number, own, accumulate, partial, self._has_partial)

    def _can_add_to(self, local: torch.Tensor) -> bool:
        return type(local) is torch.Tensor and local.dtype == self.dtype and local.is_contiguous()

    def weigh(self, by: float) -> None:
        """Multiplies the whole gradient of the last backward by a weight."""
        if self.unsharded is not None and self.unsharded.grad is not None:
            self.unsharded.grad.mul_(by)

    def has_gradient(self) -> bool:
        return self.unsharded is not None and (self.unsharded.grad is not None or self._accumulated is not None)

    def drop_gradient(self) -> None:
        if self.unsharded is not None:
            self.unsharded.grad = None
        self._accumulated = None

    def keep_gradient(self, weight: float | None) -> None:
        """Accumulates the gradient of a backward without reduction, in the reduce dtype, multiplied by ``weight`` if given."""
        if weight is not None:
            self.weigh(weight)
            self._accumulated = self.take_gradient(self.reduce_dtype)
        elif self.reduce_dtype != self.compute_dtype and self.unsharded is not None and self.unsharded.grad is not None:
            self._accumulated = self.take_gradient(self.reduce_dtype)

    def take_gradient(self, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        """Removes and returns this rank's whole gradient: the last backward's (as ``dtype``, if given) plus accumulated ones."""
        grad = None if self.unsharded is None else self.unsharded.grad
        if grad is not None:
            self.unsharded.grad = None
            if self._whole_spec is not None:
                grad = self._redistributed(grad)
            grad = in_memory(grad)
            if dtype is not None:
                grad = grad.to(dtype)
        if self._accumulated is not None:
            if grad is not None:
                self._accumulated += grad
            grad, self._accumulated = self._accumulated, None
        return grad

    def zero_gradient(self) -> torch.Tensor:
        """A whole gradient of zeros, for a parameter that no backward used."""
        return torch.zeros(self.shape, dtype=self.compute_dtype, device=self.data.device)

    def _redistributed(self, grad: torch.Tensor) -> torch.Tensor:
        """Redistributes a gradient on the model parallel mesh to the parameter's placements. Returns its local tensor."""
        if isinstance(grad, AsyncCollectiveTensor):
            grad = grad.wait()
        if not isinstance(grad, DTensor):
            raise AssertionError(f"Expected DTensor, got {type(grad)}: the gradient of parameter {self.name}")
        wanted = list(self._whole_spec.placements)
        if self.data.dims is not None:  # the reduction sums Partial placements on data parallel dims
            names = self._whole_spec.mesh.mesh_dim_names
            for name in (*self.data.dims.shard_names, *self.data.dims.replicate_names):
                wanted[names.index(name)] = grad.placements[names.index(name)]
        if tuple(grad.placements) != tuple(wanted):
            grad = grad.redistribute(placements=wanted)
        return grad._local_tensor

    @property
    def reducing(self) -> bool:
        return bool(self._pending)

    def published(self) -> None:
        """Drops the reference to the whole gradient, which the engine has copied."""
        if self._pending:
            self._pending[-1][1] = None

    def gradient_done(self, present: bool) -> torch.Tensor | None:
        """Completes the oldest pending reduction. ``present``: some rank had a gradient. Returns the gradient if reduced over all ranks."""
        target, _, everywhere = self._pending.popleft()
        if not everywhere:
            self._has_partial |= present
            return None
        self._partial, self._has_partial = None, False
        return target if present else None

    def set_gradient(self, gradient: DTensor) -> None:
        """Accumulates the reduced gradient of one synchronised backward into ``sharded.grad``, after hooks."""
        if self.sharded._backward_hooks:
            gradient = self._hooked(gradient)
        if self.sharded.grad is None:
            self.sharded.grad = gradient
        elif self.sharded.grad is not gradient:
            self.sharded.grad._local_tensor.add_(gradient._local_tensor)

    def _hooked(self, gradient: DTensor) -> DTensor:
        """Runs the hooks of Tensor.register_hook on a reduced gradient, a DTensor, whose norm is that over all ranks."""
        with torch.no_grad():
            for hook in tuple(self.sharded._backward_hooks.values()):
                changed = hook(gradient)
                if changed is None:
                    continue
                if not isinstance(changed, DTensor) or changed.shape != gradient.shape:
                    raise TypeError(
                        f"a hook on the gradient of parameter {self.name} should return None or a DTensor of {tuple(gradient.shape)}, "
                        f"not {type(changed).__name__} of shape {tuple(getattr(changed, 'shape', ()))}"
                    )
                if changed.placements != gradient.placements:
                    changed = changed.redistribute(placements=gradient.placements)
                gradient = changed.to(gradient.dtype)
        return gradient

    def forget_gradient(self) -> None:
        """Drops a gradient after its use, and returns its memory to the pool if nothing else holds it."""
        self.sharded.grad = None
        buffer, self._buffer = self._buffer, None
        if buffer is not None and self.pool is not None and _uses(buffer) == self._buffer_uses:
            self.pool.put(buffer)

    def forget(self) -> None:
        """Drops pending reductions, after the engine has dropped them."""
        self._pending.clear()
        self._partial, self._has_partial = None, False

    def use_pool(self, pool: Any) -> None:
        """Takes memory for gradients from a pool that other parameters share."""
        self.pool, self._buffer = pool, None

    def reserve_gradient(self) -> None:
        """Allocates the memory of gradients before the first one."""
        if self._buffer is None and self.pool is None and not self.external and not self.empty:
            self._buffer = long_lived(self.own_shape, self.dtype, touched=True)
            self._buffer_uses = _uses(self._buffer)

    def _fresh_grad(self) -> DTensor:
        """A gradient to write to. It reuses the previous step's memory if nothing else holds that, which avoids an allocation."""
        if self._buffer is None or _uses(self._buffer) != self._buffer_uses:
            take = long_lived if self.pool is None else self.pool.take
            self._buffer = take(self.own_shape, self.dtype)
            self._buffer_uses = _uses(self._buffer)
        return self.dtensor(self._buffer.detach())


def refuse_substitute(name: str, current: torch.Tensor) -> None:
    """Raises Unimplemented for a tensor that torch.func.functional_call put in a parameter's place for one forward."""
    frame = sys._getframe(1) if isinstance(current, nn.Parameter) else None  # a module accepts no other type permanently
    while frame is not None and frame.f_code is not stateless._functional_call.__code__:
        frame = frame.f_back
    if frame is not None or not isinstance(current, nn.Parameter):
        raise Unimplemented(
            f"parameter {name} of a sharded module was replaced by a tensor for one forward (torch.func.functional_call)",
            hint="copy the values into the parameter (p.copy_ under no_grad), or call a module that is not sharded",
        )


def version_of(t: torch.Tensor | None) -> int:
    """The number of torch's in-place writes to ``t``; 0 for None and for inference tensors."""
    return 0 if t is None or t.is_inference() else t._version


def _typed(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t if t.dtype == dtype else t.view(dtype)


def _is_poison(local: torch.Tensor) -> bool:
    words, poison = local.contiguous().view(-1).view(_INTEGER[local.element_size()]), _POISON[local.element_size()]
    return words[0].item() == poison and words[-1].item() == poison and bool((words == poison).all())


def _uses(t: torch.Tensor) -> int:
    """The number of references to its storage: tensors, views and others, in Python or C++."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)
