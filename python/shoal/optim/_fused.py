"""The base of the fused optimizers: kernel arguments, master weights, GradScaler, state dicts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shoal import _native
from shoal._objects.tensors import dtensor, in_memory, is_wrapper, long_lived, with_dtype
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.optim import _kernels
from shoal.optim._local import DTYPES, local
from shoal.optim._threads import num_threads

MASTER = "master_param"
LOW_PRECISION = (torch.bfloat16, torch.float16)


class Fused:
    """A mixin before a class of ``torch.optim``, whose ``step`` it replaces. Constructor, options and state keys are torch's. Where torch
    has no such class, the mixin comes before ``torch.optim.Optimizer``.

    A subclass defines ``_update(group, parameters, grad_scale)`` and ``_keys(group)``, the names of states with the parameter's layout. If
    torch has a fused operator for it, ``has_operator`` is True, and ``_update_by_torch(group, parameters, scaling)`` calls the operator. It
    updates parameters on devices for which this build has no kernels, or whose step a GradScaler may skip: it reads the scaler's tensors on
    the device, so the host does not wait for them.
    ``master_weights`` is an option of a parameter group: None means fp32 master weights for bf16 and fp16 parameters, False none.
    Not thread-safe, like torch's.
    """

    # Makes GradScaler pass `grad_scale` and `found_inf` and accept fp16 gradients, instead of unscaling in a separate pass.
    _step_supports_amp_scaling = True
    # Types of the devices whose parameters the update takes.
    device_types: tuple[str, ...] = ("cpu",)
    has_operator = False
    # False where a step record has the memory of states and gradients.
    reserves = True

    def _set_master_weights(self, master_weights: bool | None) -> None:
        self._shards: dict[int, _Shard] = {}  # by the parameter's id, because hashing a tensor is slow
        self._unprotected()
        self.defaults["master_weights"] = master_weights
        for group in self.param_groups:
            group.setdefault("master_weights", master_weights)
        self._reserve()

    def _reserve(self) -> None:
        """Allocates gradients and states of sharded parameters, so that a lack of memory shows now, and the first step has no page
        faults."""
        self._reserved: dict[int, list[torch.Tensor]] = {}  # by parameter id: zeros that become states at the first step
        if not self.reserves:
            return
        for group in self.param_groups:
            for p in group["params"]:
                unit = getattr(p, "_shoal_state", None)
                if (
                    unit is None
                    or self.state.get(p)
                    or not p.requires_grad
                    or p.is_meta
                    or not local(p).is_cpu
                    or local(p).dtype not in DTYPES
                ):
                    continue
                unit.reserve_gradient(p)
                self._reserved[id(p)] = [self._zeros(p, group, touched=True) for _ in range(self._num_states(p, group))]

    def parameters_moved(self) -> None:
        """Called after parameters and their states have moved to other memory, with other rows. Drops caches of the old memory."""
        self._shards.clear()
        self._reserve()

    def _unprotected(self) -> None:
        self._host_copy: Any = None  # shoal.fsdp's HostCopy of protected parameters on devices, which repeats each step
        self._protection: Any = None  # shoal.fsdp's Protection: states and gradients lie in its record, which also makes the updates
        self._recorded: list[tuple[list[tuple[torch.Tensor, _Shard]], float]] = []  # arguments of _written, until the record is run
        self._uncounted: list[torch.Tensor] = []  # in the recorded step: counters of parameters without rows on this rank

    @staticmethod
    def check_options(options: dict[str, Any]) -> None:
        """Raises Unimplemented for options of a group that the update cannot honour."""
        for name, why in (("capturable", "nothing here runs in a CUDA graph"), ("differentiable", "the fused update has no backward")):
            if options.get(name):
                raise Unimplemented(f"shoal.optim has no {name}=True: {why}", hint=f"leave {name} out, or use torch.optim")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.check_options({**self.defaults, **param_group})
        _without_dynamo(super().add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none and self._host_copy is not None:
            self._host_copy.order_writes()
        _without_dynamo(super().zero_grad)(self, set_to_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._shards, self._reserved = {}, {}
        if not hasattr(self, "_protection"):  # torch's load_state_dict calls this, too
            self._unprotected()
        for group in self.param_groups:
            group.setdefault("master_weights", self.defaults.get("master_weights"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict of this class or torch's. With master weights, states are fp32; narrower values are widened."""
        for group in state_dict["param_groups"]:
            self.check_options(group)
        self._reserved.clear()
        super().load_state_dict(state_dict)
        # torch has cast all states to their parameter's dtype. Where a parameter has a master weight, its states are fp32, so they are
        # copied from ``state_dict`` again.
        for saved_group, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for index, p in zip(saved_group["params"], group["params"], strict=True):
                if not self._has_master(p, group):
                    continue
                for key, value in state_dict["state"].get(index, {}).items():
                    if key != "step" and isinstance(value, torch.Tensor) and value.is_floating_point():
                        self.state[p][key] = value.detach().to(device=p.device, dtype=torch.float32, copy=True)
        if self._protection is not None:
            self._protection.take_states()
        if self._host_copy is not None:
            self._host_copy.loaded()

    @torch.no_grad()
    def step(self, closure=None):
        """Updates all parameters, with at most ``torch.get_num_threads()`` threads. ``closure``: recomputes the loss, which is returned.

        If a GradScaler's ``found_inf`` is not zero, nothing is updated; gradients are divided by its ``grad_scale``. The host does not wait
        for these tensors where they and the parameters lie on a device.
        Tensors of ``shoal.spmd``'s device are updated by torch's fused operator, with torch's states only.
        """
        if any(p.device.type == "xla" for group in self.param_groups for p in group["params"]):
            return self._step_of_torch(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scaling = Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        protection = self._protection
        began = protection is None or protection.begin()
        if began:
            self._recorded, self._uncounted = [], []
        if self._host_copy is not None:
            self._host_copy.before_step()
        for group in self.param_groups if began else []:
            of_torch, of_kernels = self._divided(group, scaling)
            if of_torch:
                self._update_by_torch(group, of_torch, scaling)
            if of_kernels and not scaling.skips:
                self._update(group, of_kernels, scaling.divisor)
            for p in group["params"]:
                if not p.requires_grad:  # a parameter frozen since the constructor needs no state
                    self._reserved.pop(id(p), None)
        if protection is not None:
            protection.run(began, num_threads())
            self._end_recorded()
        if self._host_copy is not None:
            self._host_copy.after_step()
        return loss

    def _step_of_torch(self, closure: Any) -> Any:
        """Updates tensors of shoal.spmd's device by torch's fused operator, one call per group."""
        for group in self.param_groups:
            if any(self._has_master(p, group) for p in group["params"]):
                raise Unimplemented(
                    f"shoal.optim.{type(self).__name__} keeps no master weights of tensors of shoal.spmd's device",
                    hint="pass master_weights=False, or keep the parameters in float32 under autocast",
                )
            if "fused" in group:
                group["fused"] = True
        return _without_dynamo(super().step)(self, closure)

    def _has_master(self, p: torch.Tensor, group: dict[str, Any]) -> bool:
        return p.dtype in LOW_PRECISION and group.get("master_weights") is not False

    def _new_state(self, p: torch.Tensor, group: dict[str, Any], key: str) -> torch.Tensor:
        """Returns zeros with the layout of `p` for the state `key`, reserved ones if there are any."""
        reserved, dtype = self._reserved.get(id(p)), self._state_dtype(p, group)
        if self._protection is not None:
            reserved = [self._protection.new_state(p, key)]
        zeros = reserved.pop() if reserved else self._zeros(p, group)
        # the parameter has changed since they were reserved
        if zeros.dtype != dtype or zeros.stride() != local(p).stride() or zeros.shape != local(p).shape:
            zeros = self._zeros(p, group)
        return dtensor(zeros, with_dtype(p._spec, dtype)) if isinstance(p, DTensor) else zeros

    def _count(self, step: torch.Tensor) -> None:
        """Counts an update of a parameter of which this rank has no rows: under protection when the step is made."""
        if self._protection is None:
            step += 1
        else:
            self._uncounted.append(step)

    def _end_recorded(self) -> None:
        """Called once the recorded step is made: counts and finishes what it has updated."""
        for step in self._uncounted:
            step += 1
        recorded, self._recorded, self._uncounted = self._recorded, [], []
        for shards, scale in recorded:
            self._finish(shards, scale)

    def _record(self) -> dict[str, Any]:
        """The kernels' option under protection: they only add their updates to the record, which makes them later. On the CPU only."""
        return {} if self._protection is None else {"into": self._protection.record}

    def _num_states(self, p: torch.Tensor, group: dict[str, Any]) -> int:
        return len(self._keys(group)) + self._has_master(p, group)

    def state_bytes(self, p: torch.Tensor, group: dict[str, Any]) -> int:
        """Bytes of state per element of a parameter, from its first step on."""
        return self._num_states(p, group) * self._state_dtype(p, group).itemsize

    def _state_dtype(self, p: torch.Tensor, group: dict[str, Any]) -> torch.dtype:
        return torch.float32 if self._has_master(p, group) else p.dtype

    def _zeros(self, p: torch.Tensor, group: dict[str, Any], touched: bool = False) -> torch.Tensor:
        values, dtype = self._values(p), self._state_dtype(p, group)
        if not values.is_cpu:
            return torch.empty_strided(values.shape, values.stride(), dtype=dtype, device=values.device).zero_()
        return long_lived(values.shape, dtype, values.stride(), touched=touched)

    def _divided(self, group: dict[str, Any], scaling: Scaling) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The parameters with gradients: those that torch's operator updates, and those of the kernels."""
        of_torch: list[torch.Tensor] = []
        of_kernels: list[torch.Tensor] = []
        for p in self._with_gradients(group):
            by_torch = self.has_operator and _kernels.updated_by_torch(local(p).device, scaling.given)
            (of_torch if by_torch else of_kernels).append(p)
        return of_torch, of_kernels

    @property
    def updated_by_torch(self) -> bool:
        """True if torch's operator updates parameters, whose bits the kernels of the CPU do not repeat."""
        of_all = (p for group in self.param_groups for p in group["params"])
        return self.has_operator and any(_kernels.updated_by_torch(local(p).device, False) for p in of_all)

    def _update_by_torch(self, group: dict[str, Any], parameters: list[torch.Tensor], scaling: Scaling) -> None:
        raise NotImplementedError

    def _shards_for_torch(
        self, group: dict[str, Any], parameters: list[torch.Tensor], keys: tuple[str, ...], unscales: bool
    ) -> Iterator[tuple[list[_Shard], list[torch.Tensor]]]:
        """Yields shards whose tensors lie on one device in one dtype, with their gradients in that dtype. Afterwards the parameters get the
        values of their master copies, and with ``unscales`` the program's gradients get those of copies in another dtype or layout."""
        alike: dict[tuple, list[tuple[torch.Tensor, _Shard]]] = {}
        for p in parameters:
            state = self.state[p] if keys or self._has_master(p, group) else self.state.get(p, {})
            for key in keys:
                if state.get(key) is None:
                    state[key] = self._new_state(p, group, key)
            if (shard := self._shard(p, state, group, keys)) is not None:
                alike.setdefault((shard.values.device, shard.dtypes()), []).append((p, shard))
        for found in alike.values():
            shards = [shard for _, shard in found]
            taken = [shard.gradient for shard in shards]
            gradients = [g.to(shard.updated.dtype) for g, shard in zip(taken, shards, strict=True)]
            yield shards, gradients
            if unscales and gradients[0] is not taken[0]:
                torch._foreach_copy_(taken, gradients)
            if (low := [shard for shard in shards if shard.copy is not None]) != []:
                torch._foreach_copy_([shard.copy for shard in low], [shard.updated for shard in low])
            for shard in shards if unscales else ():
                if shard.gradient_from is not None:
                    shard.gradient_from.copy_(shard.gradient)
            self._written(found, 1.0)

    def _with_gradients(self, group: dict[str, Any]) -> Iterator[torch.Tensor]:
        for p in group["params"]:
            g = p.grad
            if g is not None:
                if g.layout != torch.strided:
                    raise InvalidArgument(f"{type(self).__name__} does not support sparse gradients", hint="use torch.optim.SparseAdam")
                yield p

    def _values(self, p: torch.Tensor) -> torch.Tensor:
        """Returns this rank's part of a parameter. Raises Unimplemented or InvalidArgument for a tensor that the kernels do not accept."""
        values = local(p)
        if values.device.type not in self.device_types or values.dtype not in DTYPES:
            places = " and ".join({"cpu": "the CPU", "cuda": "CUDA devices"}[kind] for kind in self.device_types)
            raise Unimplemented(
                f"shoal.optim.{type(self).__name__} updates float32, float64, bfloat16 and float16 on {places}, "
                f"not {str(values.dtype)[6:]} on {values.device}",
                hint=f"use torch.optim.{type(self).__name__}",
            )
        if is_wrapper(values):
            raise Unimplemented(
                f"shoal.optim.{type(self).__name__} updates plain memory, not the inner tensors of a {type(values).__name__}",
                hint=f"use torch.optim.{type(self).__name__}",
            )
        if not _dense(values):
            raise InvalidArgument(
                f"a parameter of shape {list(values.shape)} has gaps or overlaps: strides {values.stride()}", hint="make it contiguous"
            )
        return values

    def _shard(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any], keys: tuple[str, ...]) -> _Shard | None:
        """Returns the tensors of an update of `p` with its states `keys`, cached if possible; None if this rank has no rows of `p`."""
        values = local(p)
        has_master = self._has_master(p, group)
        if values.numel() == 0:
            if has_master:
                self._master(p, values)  # a rank without rows has the same states as the others
            return None
        shard = self._shards.get(id(p))
        if shard is None or has_master is not (shard.copy is not None) or shard.stale(values, state, keys):
            shard = self._shards[id(p)] = self._new_shard(p, has_master, keys)
        elif has_master:
            self._master(p, values)
        gradient = gradient_of(p)
        shard.gradient_from = None
        if gradient.stride() != values.stride():
            shard.gradient_from = gradient
            gradient = torch.empty_like(values, dtype=gradient.dtype).copy_(gradient)
        if self._protection is not None and (recorded := self._protection.gradient(p, gradient)) is not gradient:
            if recorded.data_ptr() != gradient.data_ptr():
                shard.gradient_from = gradient if shard.gradient_from is None else shard.gradient_from
            gradient = recorded
        shard.gradient = gradient
        return shard

    def _new_shard(self, p: torch.Tensor, has_master: bool, keys: tuple[str, ...]) -> _Shard:
        values, state = self._values(p), self.state[p]
        updated = self._master(p, values) if has_master else values
        states = [state_of(state, key, values) for key in keys]
        return _Shard(values, updated, states, [state[key] for key in keys], values if has_master else None)

    def _master(self, p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns the master copy in fp32. Elements of the parameter that were written since the last step replace those of the copy."""
        state = self.state[p]
        if MASTER not in state:
            state[MASTER] = self._new_state(p, {"master_weights": True}, MASTER)
            local(state[MASTER]).copy_(values)
            return local(state[MASTER])
        master = state_of(state, MASTER, values)
        lower = master.to(values.dtype)  # compares values, because p.data.mul_() changes no version counter
        if not values.is_cpu or not torch.equal(lower, values):  # on a device, equal() would wait for it
            torch.where(lower == values, master, values.float(), out=master)
        return master

    def _written(self, shards: list[tuple[torch.Tensor, _Shard]], grad_scale: float) -> None:
        """Called when the updates of these shards are made, or recorded under protection."""
        if self._protection is None:
            self._finish(shards, grad_scale)
        else:
            self._recorded.append((shards, grad_scale))

    def _finish(self, shards: list[tuple[torch.Tensor, _Shard]], grad_scale: float) -> None:
        """Bumps the parameters' version counters for autograd, writes back unscaled gradients, and drops references to gradients."""
        torch.autograd.graph.increment_version([shard.values for _, shard in shards])
        for _, shard in shards:
            if shard.gradient_from is not None and grad_scale != 1:
                shard.gradient_from.copy_(shard.gradient)
            shard.gradient = shard.gradient_from = None  # a reference would keep the gradients' memory


class Scaling:
    """The tensors that a GradScaler sets on an optimizer before its step."""

    def __init__(self, grad_scale: torch.Tensor | float | None, found_inf: torch.Tensor | None):
        self.grad_scale, self.found_inf = grad_scale, found_inf
        self._options: dict[tuple[int, torch.device], torch.Tensor] = {}  # by the id of the option's tensor, which the group keeps

    @property
    def given(self) -> bool:
        return self.grad_scale is not None or self.found_inf is not None

    @cached_property
    def skips(self) -> bool:
        """True if the step is not made. Waits for the device of ``found_inf``."""
        return self.found_inf is not None and bool(self.found_inf.item())

    @cached_property
    def divisor(self) -> float:
        return 1.0 if self.grad_scale is None else float(self.grad_scale)

    def on(self, device: torch.device) -> dict[str, torch.Tensor | None]:
        """The arguments of torch's fused operators."""
        return {"grad_scale": _on(self.grad_scale, device), "found_inf": _on(self.found_inf, device)}

    def option_on(self, value: torch.Tensor | float, device: torch.device) -> torch.Tensor | float:
        """An option of a group, as torch's fused operators read it on the device. One copy serves all groups of this step."""
        if not isinstance(value, torch.Tensor):
            return value
        if (known := self._options.get((id(value), device))) is None:
            # Waits for a copy to the host, which may be read at once, and from pinned memory, to which a scheduler may write meanwhile.
            waits = device.type == "cpu" or value.is_pinned()
            known = self._options[id(value), device] = value.to(device, non_blocking=not waits)
        return known


def _on(value: torch.Tensor | float | None, device: torch.device) -> torch.Tensor | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return value.to(device, torch.float32, non_blocking=True)
    return torch.full((), value, dtype=torch.float32, device=device)


def _without_dynamo(method: Any) -> Any:
    """Unwraps torch._disable_dynamo from an optimizer's method, because that wrapper imports torch._dynamo (half a second, 24 MiB)."""
    return getattr(method.__func__, "__wrapped__", method.__func__)


class _Shard:
    """This rank's tensors of one parameter's update, cached from step to step while none of them is replaced."""

    __slots__ = ("_addresses", "_dtypes", "_row", "_views", "copy", "gradient", "gradient_from", "states", "updated", "values")

    def __init__(
        self,
        values: torch.Tensor,
        updated: torch.Tensor,  # the master copy if the parameter has one, else `values`
        states: list[torch.Tensor],
        views: list[torch.Tensor],  # `states` as they are in the optimizer's state, perhaps DTensors
        copy: torch.Tensor | None,  # `values` if the parameter has a master copy, else None
    ):
        self.values, self.updated, self.states, self.copy = values, updated, states, copy
        self.gradient: torch.Tensor | None = None
        self.gradient_from: torch.Tensor | None = None  # p.grad, if `gradient` is a copy with the parameter's strides
        self._views = views
        self._addresses = [t.data_ptr() for t in self._kept()]
        address, updated_address, *state_addresses = self._addresses
        self._row = _native.UpdateRow(
            numel=values.numel(), parameter=updated_address, states=state_addresses, copy=0 if copy is None else address
        )
        self._dtypes: dict[torch.dtype, tuple[str, ...]] = {}

    def _kept(self) -> list[torch.Tensor]:
        return [self.values, self.updated, *self.states]

    def stale(self, values: torch.Tensor, state: dict[str, Any], keys: tuple[str, ...]) -> bool:
        """Returns True if one of the tensors, or its memory, was replaced."""
        if values is not self.values or len(keys) != len(self._views):
            return True
        for key, view in zip(keys, self._views, strict=True):
            if state[key] is not view:
                return True
        if self.copy is not None and (MASTER not in state or local(state[MASTER]) is not self.updated):
            return True
        return [t.data_ptr() for t in self._kept()] != self._addresses

    def dtypes(self) -> tuple[str, ...]:
        """Dtype names of a row's arrays: parameter or master copy, gradient, three states, low-precision parameter; "" if absent."""
        known = self._dtypes.get(self.gradient.dtype)
        if known is None:
            names = [DTYPES[t.dtype] for t in (self.updated, self.gradient, *self.states)]
            known = (*names, *[""] * (5 - len(names)), "" if self.copy is None else DTYPES[self.copy.dtype])
            self._dtypes[self.gradient.dtype] = known
        return known

    def row(self) -> _native.UpdateRow:
        """Returns the kernel's arguments, with the present gradient's address. The object is the same in every step."""
        self._row.gradient = self.gradient.data_ptr()
        return self._row


def gradient_of(p: torch.Tensor) -> torch.Tensor:
    g = p.grad
    if isinstance(p, DTensor):
        if not isinstance(g, DTensor):
            raise InvalidArgument("a sharded parameter's gradient is a plain tensor", hint="give p.grad as a DTensor of p's placements")
        if g.placements != p.placements or g.device_mesh != p.device_mesh:
            g = g.redistribute(p.device_mesh, p.placements)
    g = local(g)
    if is_wrapper(g):
        g = in_memory(g)
    if g.dtype not in DTYPES or g.device != local(p).device:
        raise Unimplemented(f"shoal.optim has no gradients of {str(g.dtype)[6:]} on {g.device}", hint="use torch.optim")
    return g


def state_of(state: dict[str, Any], key: str, values: torch.Tensor) -> torch.Tensor:
    """Returns the local tensor of a state. If a loaded state has other strides than the parameter, it is copied to the parameter's. Raises
    InvalidArgument for another shape."""
    t = local(state[key])
    if t.shape != values.shape or t.dtype not in DTYPES:
        raise InvalidArgument(
            f"{key} in the optimizer's state is {str(t.dtype)[6:]}{list(t.shape)}, "
            f"the parameter {str(values.dtype)[6:]}{list(values.shape)}",
            hint="load a state dict of the same model, sharded as it is now",
        )
    if t.stride() != values.stride():
        moved = torch.empty_like(values, dtype=t.dtype).copy_(t)
        if isinstance(state[key], DTensor):
            state[key]._local_tensor = moved
        else:
            state[key] = moved
        t = moved
    return t


def _dense(t: torch.Tensor) -> bool:
    if t.is_contiguous():
        return True
    order = sorted(range(t.dim()), key=lambda i: (-t.stride(i), -t.size(i)))
    return t.permute(order).is_contiguous()
