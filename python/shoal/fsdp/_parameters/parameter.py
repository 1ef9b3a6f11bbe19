"""One parameter of a unit: its slices on this rank in the engine, on another mesh, and after replacements by the user."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shoal import _native
from shoal._objects.tensors import dtensor_parameter, with_dtype
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._parameters.gradient import ParameterGradient
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.precision import engine_dtype
from shoal.fsdp._parameters.rows import Rows
from shoal.fsdp._parameters.slices import Kind, Slices, local_of
from shoal.fsdp._parameters.views import Views

_POISON = {4: 0x7FC0DEAD, 2: 0x7FDE, 8: 0x7FF80000DEADDEAD, 1: 0x7F}  # by element size, NaNs that no computation yields
_META = torch.device("meta")
_PLAIN = (torch.Tensor, nn.Parameter, Rows)
_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class ShardedParameter(Slices):
    """This rank's slices of one parameter, in the unit's arena or, if ``external``, in other memory.

    ``bind`` makes ``own``, which holds this rank's values from then on. If the user puts another tensor in the parameter's place, ``adopt``
    copies that tensor's values into ``own``.
    """

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
        super().__init__(name, original, owners, data, dim, policy, home, pinned)
        self.emptied = False  # to_empty was called, and perhaps no initialisation since
        self.views = Views(self, original)
        self.gradient = ParameterGradient(self, self.views)

    @property
    def on_other_mesh(self) -> bool:
        """True if the original was a DTensor already."""
        return self.views.whole_spec is not None

    # ---- in the engine ----

    def engine_spec(self) -> _native.ParameterSpec:
        return _native.ParameterSpec(
            name=self.name,
            shape=list(self.shape),
            dtype=engine_dtype(self.dtype),
            requires_grad=self.views.requires_grad,
            dim=self.dim,
            compute_dtype=engine_dtype(self.compute_dtype),
            reduce_dtype=engine_dtype(self.reduce_dtype),
            external=self.external,
        )

    def bind(self, unit: _native.ShardedUnit, index: int, values: torch.Tensor | None) -> None:
        """Copies this rank's slices into the arena and creates the views. ``values``: the whole parameter; None: take the values of
        ``sharded``, which stays the same object."""
        source = self.views.sharded._local_tensor if values is None else self.slice(local_of(values.detach()))
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
        # A parameter on the meta device gets its values later: to_empty and an initialisation set them, and adopt copies them.
        local = torch.empty_like(self.own, device="meta") if meta and not self.own.is_meta else self.views.of_rows()
        if values is None:
            self.views.sharded._local_tensor = local
        else:
            self.views.sharded = dtensor_parameter(local, self.spec, self.views.requires_grad)
        self._show_whole(unit, index)

    def _show_whole(self, unit: _native.ShardedUnit, index: int) -> None:
        if not self.external:
            numel = self.shape.numel()
            empty = torch.empty(self.shape, dtype=self.compute_dtype, device="cpu")
            whole = _typed(_native.whole(unit, index), self.compute_dtype) if numel else empty
            self.views.set_whole(whole)
        self.views.mark()

    # ---- on another mesh ----

    def rows_in(self, unit: _native.ShardedUnit, index: int) -> torch.Tensor:
        """This rank's slices in a unit of any mesh, as a plain tensor."""
        return _typed(_native.own(unit, index), self.dtype)

    def move(self, data: DataMesh, unit: _native.ShardedUnit, index: int, own: torch.Tensor) -> None:
        """Continues on another mesh. ``own``: this rank's slices there, with their values. ``sharded`` stays the same object."""
        views = self.views
        self.gradient.move()
        self.data, self.spec, self.own, self.emptied = data, data.sharded_spec(self.dim, self.spec.tensor_meta), own, False
        self._set_own_shape()
        if views.sharded.device == own.device:
            views.sharded._spec, views.sharded._local_tensor = self.spec, views.of_rows()
        else:  # ``sharded`` is on the meta device
            torch.utils.swap_tensors(views.sharded, dtensor_parameter(views.of_rows(), self.spec, views.requires_grad))
        self._show_whole(unit, index)

    def _keep_local(self, source: torch.Tensor, copied: bool) -> None:
        """Stores this rank's slices as a tensor of the user's class. ``copied``: a copy; else the same object, because extensions may be
        set on it."""
        with torch.no_grad():
            if copied or source.device not in (self.home, _META):
                self.own = source.new_zeros(self.own_shape, device=_META if source.is_meta else self.home)
                if not self.empty and not source.is_meta:
                    self.own.copy_(source)
                return
            if isinstance(source, Rows):  # the Rows' memory in the arena will be freed
                memory = source.plain().clone()
                with torch._C._DisableTorchDispatch():
                    source.set_(memory)
            self.own = source

    # ---- replacements by the user ----

    def adopt(self) -> bool:
        """Copies the values of a tensor that the user put in the parameter's place into the arena; ``sharded`` stays the same object.

        Returns True if the unit must be rebuilt, because dtype or kind changed. Raises Unimplemented for an unsuitable tensor.
        """
        views, found = self.views, False
        for module, attribute in self.owners:  # the last replacement wins, as if they were loaded one by one
            current = module._parameters.get(attribute)
            if current is views.front and current is not None:
                current = views.sharded
            if current is views.unsharded or (current is views.sharded and self._in_arena(current._local_tensor)):
                continue
            self._take(current)
            found = True
        if found:
            views.register(views.sharded)
            views.mark()
        return views.sharded.dtype != self.dtype or Kind.of_tensor(views.sharded._local_tensor) is not self.kind

    def adopt_early(self) -> None:
        """Calls ``adopt`` if every replacement has values and this dtype, shape and kind. The next forward adopts others."""
        for module, attribute in self.owners:
            current = module._parameters.get(attribute)
            if not isinstance(current, torch.Tensor) or current.is_meta:
                return
            if current.dtype != self.dtype or current.shape != self.global_shape or Kind.of_tensor(local_of(current)) is not self.kind:
                return
        self.adopt()

    def _in_arena(self, local: torch.Tensor) -> bool:
        if Kind.of_tensor(local) is not self.kind:
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
        elif self.views.whole_spec is None:
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
        if current is not self.views.sharded:
            current._shoal_sharded = weakref.ref(self)  # for an optimizer that holds the replacement
        if local.dtype != self.dtype or Kind.of_tensor(local) is not self.kind:  # the unit is rebuilt from these values
            self.spec = with_dtype(self.spec, local.dtype)
            set_on_it = isinstance(current, DTensor) and Kind.of_tensor(local) is Kind.EXTENDED
            replaced = dtensor_parameter(local if set_on_it else local.clone(), self.spec, requires_grad)
            if current is not self.views.sharded:
                torch.utils.swap_tensors(self.views.sharded, replaced)
            return
        with torch.no_grad():
            if self.kind is not Kind.MEMORY:
                self._keep_local(local, not isinstance(current, DTensor))
            else:
                self.own.copy_(local)
        if self.views.sharded.device == self.own.device:
            self.views.sharded._local_tensor = self.views.of_rows()
            self.views.sharded.requires_grad_(requires_grad)
        else:  # ``sharded`` was on the meta device, and keeps that device unless it is swapped
            torch.utils.swap_tensors(self.views.sharded, dtensor_parameter(self.views.of_rows(), self.spec, requires_grad))

    def follow_sharded(self) -> None:
        """Takes dtype, kind and spec from ``sharded``, for a rebuild of the unit."""
        self._set_kind(self.views.sharded._local_tensor)
        self.dtype = self.views.sharded.dtype
        self.spec = self.views.sharded._spec
        self._set_dtypes()
        self.gradient.follow_dtype()

    def poison(self) -> None:
        """Fills the values with NaNs of a special pattern after to_empty, so that a missing initialisation is detected."""
        local = local_of(self.views.sharded)
        if local.device.type != "meta" and local.dtype.is_floating_point and type(local) in _PLAIN:
            self.emptied = True
            local.view(_INTEGER[local.element_size()]).fill_(_POISON[local.element_size()])


def _typed(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t if t.dtype == dtype else t.view(dtype)


def _is_poison(local: torch.Tensor) -> bool:
    words, poison = local.contiguous().view(-1).view(_INTEGER[local.element_size()]), _POISON[local.element_size()]
    return words[0].item() == poison and words[-1].item() == poison and bool((words == poison).all())
