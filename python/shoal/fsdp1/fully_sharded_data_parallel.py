"""``FullyShardedDataParallel``: FSDP1's wrapper on top of ``shoal.fsdp``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shoal.exceptions import InvalidArgument
from shoal.fsdp._errors import HookRefused, HookUnsupported, NotTheRoot, OtherType
from shoal.fsdp._fully_shard import fully_shard
from shoal.fsdp._module import FSDPModule
from shoal.fsdp._names import clean
from shoal.fsdp1 import (
    _arguments,
    _auto_wrap,
    _full_parameters,
    _meshes,
    _optimizer_methods,
    _optimizer_state,
    _precision,
    _state_dict,
    _values,
)
from shoal.fsdp1._comm_hook import HookedReduceScatter
from shoal.fsdp1._flat_parameter import FlatParameter
from shoal.fsdp1._names import WRAPPED, modules_of
from shoal.fsdp1.api import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from shoal.optim import clip_grad_norm_

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "OptimStateDictConfig",
    "OptimStateKeyType",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
]


@dataclass(frozen=True)
class _Managed:
    """A parameter of a unit, under one of its names."""

    name: str  # without the wrappers' parts, relative to the wrapped module
    module: nn.Module
    attribute: str
    parameter: nn.Parameter


class _Elsewhere:
    """A class attribute that raises AttributeError; the message names the place of the wanted name."""

    def __init__(self, hint: str):
        self._hint = hint

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(self._hint)


class FullyShardedDataParallel(FSDPModule, nn.Module):
    """Wraps a module as a unit of fully sharded training, with the interface of FSDP1 (torch.distributed.fsdp, torch 2.13).

    Parameters are ``DTensor``s over ``torch.chunk(dim=0)`` rows, in their original dtype, gathered while forward and backward run. They
    are never flattened, as with FSDP1's ``use_orig_params=True``. Gradients are the mean over ranks. Build the optimizer after
    wrapping, and train as before. Every rank wraps the same modules in the same order.

    ``process_group``: the ranks (default: all); for a hybrid strategy a pair (shard, replicate).
    ``device_mesh``: an alternative to ``process_group``; 2-D (replicate, shard) for a hybrid strategy.
    ``sharding_strategy``: FULL_SHARD by default. SHARD_GRAD_OP keeps parameters unsharded between forward and backward. NO_SHARD
    replicates. HYBRID_SHARD and _HYBRID_SHARD_ZERO2 shard within and replicate across hosts.
    ``cpu_offload``: parameters, gradients and the optimizer's step stay on the host.
    ``auto_wrap_policy``: selects inner modules that become units. Modules with shared parameters stay in the enclosing unit.
    ``mixed_precision``: torch's ``MixedPrecision``.
    ``ignored_modules`` or ``ignored_states``: modules or parameters that stay as they are.
    ``param_init_fn``: initialises a module on the meta device (default: its ``reset_parameters``).
    ``device_id``: the unit's device (a number is an accelerator's index; without accelerators, it means the CPU).
    ``sync_module_states``: broadcasts the first rank's values.
    ``forward_prefetch``: from the second forward on, each unit prefetches its successor in the first forward (for static graphs).
    ``backward_prefetch``, ``limit_all_gathers``: checked and ignored; the step graph does both.
    Raises TypeError and ValueError for unsuitable arguments, ValueError for modules managed by DDP, ``fully_shard`` or torch's FSDP.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> FullyShardedDataParallel:
        return object.__new__(cls)  # no subclass, because programs compare types

    _api_name = "FSDP"  # the name in error messages

    StateDictType = _Elsewhere("FullyShardedDataParallel has no StateDictType: write from shoal.fsdp1 import StateDictType")

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Callable | None = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        device_id: int | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
        device_mesh: DeviceMesh | None = None,
        **others: Any,
    ):
        super().__init__()
        auto_wrap_policy = _arguments.renamed(others, auto_wrap_policy)
        if not isinstance(module, nn.Module):
            raise TypeError(f"FullyShardedDataParallel wraps a module, not a {type(module).__name__}")
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            warnings.warn(f"a {type(module).__name__} has no forward, so nothing would gather its parameters", stacklevel=2)
        strategy = _arguments.strategy_of(sharding_strategy)
        shared = {
            "cpu_offload": cpu_offload,
            "mixed_precision": mixed_precision,
            "backward_prefetch": backward_prefetch,
            "param_init_fn": param_init_fn,
            "sync_module_states": sync_module_states,
            "forward_prefetch": forward_prefetch,
            "limit_all_gathers": limit_all_gathers,
            "use_orig_params": use_orig_params,
        }
        _arguments.check_all(device_mesh=device_mesh, **shared)
        _auto_wrap.check_mix(module, auto_wrap_policy is not None)
        self._ignored_modules, self._ignored_params = _arguments.ignored_of(module, ignored_modules, ignored_states)
        device = _arguments.device_of(module, self._ignored_params, device_id)
        base = _meshes.base_mesh(process_group, device_mesh, strategy, auto_wrap_policy is not None, device.type)
        if auto_wrap_policy is not None:
            shared |= {"sharding_strategy": strategy, "device_id": device_id, "device_mesh": base, "ignored_states": self._ignored_params}
            units = _auto_wrap.plan(module, auto_wrap_policy, self._ignored_modules, self._ignored_params, shared)
            _auto_wrap.execute(module, units, FullyShardedDataParallel, lowered=mixed_precision is not None)

        self.sharding_strategy, self.mixed_precision, self.cpu_offload = strategy, mixed_precision, cpu_offload or CPUOffload()
        self.compute_device, self.process_group = device, base.get_group(base.ndim - 1)
        self.rank, self.world_size = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        self._mesh = _meshes.unit_mesh(base, strategy)
        self._settings = _state_dict.settings_for(StateDictType.FULL_STATE_DICT)
        self._is_root: bool | None = None
        self._comm_hook: HookedReduceScatter | None = None
        self._not_synced = 0  # how many no_sync() blocks are open, one inside the other
        self._summoned = self._keep_vars = False
        self._forward_prefetch = forward_prefetch
        self._order: list[FullyShardedDataParallel] | None = None  # order of units' forwards, while it is recorded
        _values.materialize(module, self._ignored_modules, param_init_fn, device)
        _values.prepare(module, self._ignored_modules, self._ignored_params, device)
        if sync_module_states:
            _values.broadcast(module, self._ignored_modules, self._ignored_params, self._mesh)
        self.add_module(WRAPPED, module)
        self._buffers_of = _precision.Buffers(self, self._ignored_modules, mixed_precision)
        arguments = _arguments.fully_shard_arguments(strategy, self._mesh, mixed_precision, cpu_offload)
        fully_shard(self, ignored_params=self._ignored_params, **arguments)
        self._managed = [
            _Managed(clean(prefix + name), m, name, p)
            for prefix, m in modules_of(self)
            for name, p in m._parameters.items()
            if isinstance(p, DTensor)
        ]
        for m in self._managed:
            m.parameter._fsdp_flattened = True  # by this Lightning recognises FSDP parameters in an optimizer
        kept = _precision.kept_gradient_dtype(mixed_precision)
        for p in {m.parameter: None for m in self._managed} if kept is not None else ():
            _precision.keep_gradient_in(kept, p)
        self.register_forward_pre_hook(FullyShardedDataParallel._before_forward, prepend=True)
        self.register_state_dict_post_hook(_state_dict.to_user)
        self.register_load_state_dict_pre_hook(_state_dict.from_user)

    # ---- the wrapper ----

    @property
    def module(self) -> nn.Module:
        """The wrapped module, without a ``checkpoint_wrapper`` around it."""
        inner = self._modules[WRAPPED]
        return inner._modules.get("_checkpoint_wrapped_module", inner)

    @property
    def _has_params(self) -> bool:
        return bool(self._managed)

    @property
    def _flat_param(self) -> FlatParameter | None:
        return FlatParameter(self) if self._managed else None

    @property
    def _handle(self) -> FlatParameter | None:
        return self._flat_param

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Raises InvalidArgument, because only DistributedDataParallel reads this attribute."""
        raise InvalidArgument("DistributedDataParallel cannot wrap an FSDP model", hint="leave DDP out: FSDP takes its place")

    def _get_name(self) -> str:
        return "FullyShardedDataParallel"

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_modules", {}).get(WRAPPED)
            if inner is None:
                raise
            return getattr(inner, name)

    def __getitem__(self, key: Any) -> Any:
        return self._modules[WRAPPED][key]

    def _fqn_modifiers(self) -> dict[str, str]:
        """For torch.distributed.checkpoint.state_dict: maps the first part of a name in the wrapped module to the wrapper's prefix, which
        state dicts omit."""
        inner = self._modules[WRAPPED]
        return dict.fromkeys([*inner._modules, *inner._parameters, *inner._buffers], WRAPPED)

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the wrapped module. Inputs are cast to ``param_dtype`` by ``cast_root_forward_inputs`` and ``cast_forward_inputs``."""
        dtype = None if self._summoned else _precision.input_dtype(self.mixed_precision, self._is_root)
        if dtype is not None:
            args, kwargs = _precision.cast((args, kwargs), dtype)
        return self._modules[WRAPPED](*args, **kwargs)

    def _before_forward(self, args: tuple) -> None:
        if self._summoned:
            if torch.is_grad_enabled() or any(isinstance(m.module._parameters[m.attribute], DTensor) for m in self._managed):
                raise InvalidArgument(
                    "forward inside summon_full_params cannot compute gradients, or this rank has no whole parameters (rank0_only)",
                    hint="use torch.no_grad() and summon on all ranks, or leave the context first",
                )
            return
        self._lazy_init()
        if self._order is not None and torch.is_grad_enabled():
            self._follow_order()

    def _follow_order(self) -> None:
        """Implements ``forward_prefetch``: records the units' order in the first forward, then sets each unit's successor."""
        order = self._order
        if self not in order:
            order.append(self)
            return
        if order[0] is not self:
            return
        for unit, following in pairwise(order):
            unit.set_modules_to_forward_prefetch([following])
        for unit in order:
            unit._order = None

    def _lazy_init(self) -> None:
        """Makes this unit the root of the units inside, at its first use."""
        if self._is_root is not None:
            return
        self._is_root = True
        order: list[FullyShardedDataParallel] = []
        for unit in self.fsdp_modules(self):
            unit._order = order if self._forward_prefetch else None
            if unit is not self:
                unit._is_root = False
            unit._buffers_of.cast()

    def _require_root(self, what: str, words: str, error: type[InvalidArgument] = NotTheRoot) -> None:
        """Raises ``error`` if this unit is not the root. ``words``: the beginning of the message, which is torch's."""
        self._lazy_init()
        if not self._is_root:
            raise error(f"{words} {what} was called on an inner unit", hint="call it on the outermost FullyShardedDataParallel")

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``nn.Module.named_parameters``, with names as before wrapping."""
        for name, p in super().named_parameters(*args, **kwargs):
            yield clean(name), p

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """As ``nn.Module.named_buffers``, with names as before wrapping."""
        for name, b in super().named_buffers(*args, **kwargs):
            yield clean(name), b

    def check_is_root(self) -> bool:
        """Returns True for the outermost unit. Before the first forward the unit on which it is called becomes the root."""
        self._lazy_init()
        return bool(self._is_root)

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
        """The units in a tree, outermost first. ``root_only``: only those inside no other unit of the tree."""
        units = _full_parameters.units_of(module)
        if not root_only:
            return units
        inner = {id(u) for outer in units for u in _full_parameters.units_of(outer) if u is not outer}
        return [u for u in units if id(u) not in inner]

    def apply(self, fn: Callable[[nn.Module], None]) -> FullyShardedDataParallel:
        """Calls ``fn`` on every module inside, with whole parameters, and keeps its writes. Every rank must call it."""
        with self.summon_full_params(self):
            return super().apply(fn)

    summon_full_params = staticmethod(_full_parameters.summon_full_params)

    # ---- gradients ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward accumulates whole gradients without reduction. The next backward outside reduces the sum. Root only."""
        self._require_root(
            "no_sync()", "`no_sync()` on inner FSDP instances is not supported. Please call `no_sync()` on root FSDP module."
        )
        self._not_synced += 1
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._not_synced -= 1
            self.set_requires_gradient_sync(self._not_synced == 0)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients so that their norm over all ranks is at most ``max_norm``. Returns the norm before, a scalar tensor.

        Root only; every rank must call it.
        """
        self._require_root("clip_grad_norm_()", "`clip_grad_norm_()` should only be called on the root FSDP instance:")
        return clip_grad_norm_(self.parameters(), float(max_norm), norm_type)

    def register_comm_hook(self, state: object, hook: Callable) -> None:
        """Reduces gradients of every unit by ``hook(state, gradients, rows)`` from now on.

        ``gradients``: one flat tensor of the unit's whole gradients, in the reduce dtype, padded to equal parts per rank. The hook fills
        ``rows`` with this rank's part of the mean, as torch's ``default_hooks`` do.
        Call it on the root, once, before the first backward, on every rank. With one rank the hook is never called. Raises
        NotImplementedError where parameters are replicated (NO_SHARD, hybrid strategies).
        """
        self._require_root("register_comm_hook()", "register_comm_hook can only be called on a root instance.", HookRefused)
        units = self.fsdp_modules(self)
        for u in units:
            if u._mesh.ndim > 1:
                raise HookUnsupported(
                    f"Communication hook is not supported for hybrid strategies: {u.sharding_strategy}",
                    hint="take FULL_SHARD or SHARD_GRAD_OP",
                )
        if any(u._comm_hook is not None for u in units):
            raise HookRefused("A communication hook is already registered")
        if not callable(hook):
            raise OtherType(f"The communication hook must be callable but got {hook}")
        for unit in units:
            unit._comm_hook = HookedReduceScatter(state, hook)
            unit.set_custom_reduce_scatter(unit._comm_hook)
            if unit.world_size > 1:
                unit.set_gradient_divide_factor(1.0)  # the hook divides instead

    # ---- state dicts ----

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns parameters and buffers by their names before wrapping, in the form of ``state_dict_type``: by default whole tensors on
        every rank.

        Whole tensors are gathered, so every rank must call it, also if only rank 0 keeps the result (``rank0_only``). With ``keep_vars``
        the values are always the sharded parameters themselves.
        """
        for name in ("state_dict_type", "fsdp_state_dict_config"):
            if name in kwargs:
                raise TypeError(
                    f"state_dict() has no argument {name}: with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, "
                    "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)): model.state_dict()"
                )
        self._keep_vars = bool(kwargs.get("keep_vars"))
        if self._is_root is None and kwargs.get("destination") is None:  # unsharding makes the outermost unit the root
            with _full_parameters.unsharded(self):
                pass
        return super().state_dict(*args, **kwargs)

    set_state_dict_type = staticmethod(_state_dict.set_state_dict_type)
    get_state_dict_type = staticmethod(_state_dict.get_state_dict_type)
    state_dict_type = staticmethod(_state_dict.state_dict_type)

    # ---- optimizer states ----

    optim_state_dict = staticmethod(_optimizer_methods.optim_state_dict)
    optim_state_dict_to_load = staticmethod(_optimizer_methods.optim_state_dict_to_load)
    full_optim_state_dict = staticmethod(_optimizer_methods.full_optim_state_dict)
    sharded_optim_state_dict = staticmethod(_optimizer_methods.sharded_optim_state_dict)
    shard_full_optim_state_dict = staticmethod(_optimizer_methods.shard_full_optim_state_dict)
    scatter_full_optim_state_dict = staticmethod(_optimizer_methods.scatter_full_optim_state_dict)
    flatten_sharded_optim_state_dict = staticmethod(_optimizer_methods.flatten_sharded_optim_state_dict)
    rekey_optim_state_dict = staticmethod(_optimizer_state.rekey_optim_state_dict)
