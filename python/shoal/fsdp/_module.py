"""``FSDPModule``: the methods that fully_shard adds to a module. Names and semantics are FSDP2's.

The class has more methods than others of Shoal, because FSDP2's has them: most set one field of a unit's ``Settings``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import UnshardHandle as TorchUnshardHandle

from shoal import _native
from shoal._native import AfterForward
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp import _graph, _later
from shoal.fsdp._engine.collect import state_of
from shoal.fsdp._engine.state import State
from shoal.fsdp._engine.unit import Unit
from shoal.fsdp._errors import ShardedOutsideForward
from shoal.fsdp._plan import example, plan


class FSDPModule(TorchFSDPModule):
    """The mixin that fully_shard adds to a module's class. Its instances are also instances of torch's ``FSDPModule``."""

    _orig_cls_mro_index = 3  # MRO: FSDP<Cls>, this class, torch's, <Cls>

    def __new__(cls, /, *args, **kwargs):
        # Indexing a sharded Sequential creates a module of its class, which must not be sharded.
        original = cls.__mro__[cls._orig_cls_mro_index]
        self = original.__new__(original, *args, **kwargs)
        self.__init__(*args, **kwargs)
        return self

    def __deepcopy__(self, memo: dict) -> None:
        raise AssertionError("FSDP does not support deepcopy. Please use state dict for serialization.")

    def _get_fsdp_state(self) -> State:
        state = state_of(self)
        if state is None:
            raise AssertionError(f"No FSDP state found on {self}")
        return state

    # ---- unsharding ----

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Unshards now. The parameters stay so until ``reshard`` or the end of the next forward. Not recursive.

        ``async_op``: gathers run on beside the program, which sees whole parameters after the handle's ``wait()``, or in the next forward.
        """
        state = self._get_fsdp_state()
        state.unshard(shows=not async_op)
        return UnshardHandle(state) if async_op else None

    def reshard(self) -> None:
        """Drops the lease now. Not recursive."""
        self._get_fsdp_state().reshard()

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Unshards these units at the beginning of this unit's forward, after its own. Raises ValueError for other modules."""
        state = self._get_fsdp_state()
        state.settings.forward_prefetch = _checked(modules)
        if state.root is not None:
            state.root.replan()

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Unshards these units at the beginning of this unit's backward, after its own. Raises ValueError for other modules."""
        state = self._get_fsdp_state()
        state.settings.backward_prefetch = _checked(modules)
        if state.root is not None:
            state.root.replan()

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for s in self._states(recurse):
            s.settings.rules.after_forward = AfterForward.RESHARD if reshard_after_forward else AfterForward.KEEP

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: unsharded parameters also stay readable after a backward that is not the step's last one."""
        for s in self._states(recurse):
            s.settings.rules.reshard_after_backward = bool(reshard_after_backward)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: this unit's backward does not need its parameters (an embedding), and the module keeps the sharded ones."""
        self._get_fsdp_state().settings.rules.unshard_in_backward = bool(unshard_in_backward)

    set_keep_unsharded_storage = _later.set_keep_unsharded_storage

    # ---- gradients ----

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ``nn.Module.zero_grad``. It also clears the sharded gradients while the module holds unsharded parameters."""
        if not set_to_none:
            roots = {id(s.root): s.root for s in self._states(True) if s.root is not None}.values()
            for host_copy in (root.states[0].settings.host_copy for root in roots):
                if host_copy is not None:
                    host_copy.order_writes()
        super().zero_grad(set_to_none)
        for p in (p.views.sharded for s in self._states(True) for u in s.units for p in u.parameters):
            if p.grad is not None:
                p.grad = None if set_to_none else p.grad.detach().zero_()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: backward keeps unsharded gradients, in the reduce dtype. The next synchronised backward reduces their sum."""
        for s in self._states(recurse):
            if s.settings.part is not None:
                raise Unimplemented(
                    "set_requires_gradient_sync: with deterministic=True each batch's gradients are reduced, in the order of logical ranks",
                    hint="leave the call out: gradients of several batches add up until zero_grad()",
                )
            s.settings.rules.reduces = s.settings.rules.everywhere = bool(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """False, on a mesh with replicas: backward reduces within each replica only. The next full reduction adds these sums."""
        for s in self._states(recurse):
            s.settings.rules.everywhere = bool(requires_all_reduce)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """False: another backward of this step follows, and parameters stay readable after this one.

        They also stay readable while a forward's output is alive whose backward has not run, or ran with ``retain_graph=True``.
        """
        root = self._get_fsdp_state().root
        if root is not None:
            root.step.set_last_backward(bool(is_last_backward))

    set_manual_backward_finalization = _later.set_manual_backward_finalization
    finalize_backward = _later.finalize_backward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divides the sum of gradients by ``factor`` instead of the number of ranks."""
        for u in self._get_fsdp_state().units:
            u.divide_factor = float(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The former name of ``set_gradient_divide_factor``."""
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Does nothing: owners always sum in fp32, then scale once."""

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """True: a parameter that no rank used gets a zero gradient. A parameter that some rank used counts as zero on the others anyway."""
        for s in self._states(recurse):
            s.settings.reduce_unused = reduce_scatter_unused_params

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Sets how many units' unsharded gradients a rank may have in flight, the maximum over a model's units. On a CPU mesh 2 by default,
        and at most 4; on devices 1 by default, as in FSDP2."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")
        for s in self._states(recurse):
            s.settings.max_input_buffers = max_input_buffers

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: Any = None) -> None:
        """Calls ``hook(reduced)`` with this rank's reduced gradients, flat, in the reduce dtype, before they are accumulated.

        ``stream``: on devices, the stream in which the hook runs and gradients are accumulated.
        """
        unit = self._only_unit("set_all_reduce_hook", "hook")
        if stream is not None and unit.data.replicate_dim is not None:
            raise ValueError("stream cannot be set when using native HSDP")
        unit.all_reduce_hook, unit.all_reduce_hook_stream = hook, stream

    # ---- communication ----

    def set_custom_all_gather(self, comm: Any) -> None:
        """Gathers this unit's parameters with ``comm`` (torch's ``AllGather``), into private memory."""
        self._only_unit("set_custom_all_gather").gather().all_gather = comm

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Reduces this unit's gradients with ``comm`` (torch's ``ReduceScatter``)."""
        self._only_unit("set_custom_reduce_scatter").gather().reduce_scatter = comm

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """On devices, gives reductions a process group of their own, so that they do not queue behind gathers. Collective.

        In an arena gathers and reductions never wait for each other."""
        groups: dict[tuple[int, ...], Any] = {}
        for u in (u for s in self._states(recurse) for u in s.units if u.reduces_by_collectives and u.data.shards > 1):
            ranks = tuple(dist.get_process_group_ranks(u.data.shard_group))
            if enable and ranks not in groups and u.gathered.collectives.reduce_group is not None:
                groups[ranks] = u.gathered.collectives.reduce_group
            if enable and ranks not in groups:
                groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True, group_desc="fsdp_reduce_scatter")
            u.gathered.collectives.reduce_group = groups[ranks] if enable else None

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """On devices, the process group allocates the buffers of this unit's collectives. An arena needs none. Raises AssertionError for a
        unit with custom communication."""
        self._refuse_custom("set_allocate_memory_from_process_group")
        for u in (u for u in self._get_fsdp_state().units if u.reduces_by_collectives and u.data.shards > 1):
            u.gathered.all_gather = _comm_of_torch("ProcessGroupAllocAllGather")(u.data.shard_group) if enable else None
            u.gathered.reduce_scatter = _comm_of_torch("ProcessGroupAllocReduceScatter")(u.data.shard_group) if enable else None

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """On devices, this unit's collectives use buffers in symmetric memory. On a CPU mesh unsharded parameters already lie in shared
        memory. Raises AssertionError for a unit with custom communication."""
        self._refuse_custom("set_symm_mem")
        for u in (u for u in self._get_fsdp_state().units if u.reduces_by_collectives and u.data.shards > 1):
            u.gathered.all_gather = _comm_of_torch("SymmMemAllGather")(u.data.shard_group, backend)
            u.gathered.reduce_scatter = _comm_of_torch("SymmMemReduceScatter")(u.data.shard_group, backend)

    def set_post_optim_event(self, event: Any) -> None:
        """Makes the next forward's gathers wait for ``event``, a device's event, instead of all work that the present stream has queued.

        On a CPU mesh the host waits for it, with ``synchronize()`` or ``wait()``."""
        self._get_fsdp_state().outermost().settings.post_optim_event = event

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Does nothing: no gather makes the program wait before its unit is used."""

    def _only_unit(self, method: str, argument: str = "custom comm") -> Unit:
        units = self._get_fsdp_state().units
        if len(units) > 1:
            raise ValueError(
                f"{method} is not supported with multiple param groups (from per-param mesh via shard_placement_fn). The {argument} would "
                "be ambiguous across groups with different meshes."
            )
        return units[0]

    def _refuse_custom(self, method: str) -> None:
        for gathered in (u.gathered for u in self._get_fsdp_state().units if u.gathered is not None):
            for what, comm in (("all gather", gathered.all_gather), ("reduce scatter", gathered.reduce_scatter)):
                if comm is not None and type(comm).__module__ != _TORCHS:
                    raise AssertionError(f"cannot call {method}() when {what} comm is custom: {type(comm).__name__}")

    # ---- the rest ----

    def reset_iter_state(self) -> None:
        """Drops this rank's leases and unfinished gradients after an exception in forward or backward. Every rank must call it.

        After an exception in backward the next forward does the same, except for gradients accumulated without synchronisation.
        Raises RuntimeError on a module that is not the root. On a rank that continues while another has reset, the end of the backward
        pass raises InvalidArgument.
        """
        state = self._get_fsdp_state()
        if state.root is None:
            return
        if not state.is_root:
            raise RuntimeError("reset_iter_state must be called on the root FSDP module")
        state.root.reset()

    def step_graph(self) -> _graph.StepGraph:
        """Returns the step as a graph, as ``shoal.fsdp.step_graph`` does."""
        return step_graph(self)

    def to_empty(self, **kwargs):
        """As ``nn.Module.to_empty``. The next forward raises an error that names parameters not written since."""
        module = super().to_empty(**kwargs)
        for s in self._states(True):
            for p in (p for u in s.units for p in u.parameters):
                p.poison()
        return module

    def state_dict(self, *args, **kwargs) -> dict[str, Any]:
        """As ``nn.Module.state_dict``. It leaves inference_mode, in which DTensors cannot be detached, and results cannot be trained."""
        if not torch.is_inference_mode_enabled():
            return super().state_dict(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return super().state_dict(*args, **kwargs)

    def _states(self, recurse: bool) -> list[State]:
        modules = self.modules() if recurse else [self]
        return [s for s in map(state_of, modules) if s is not None]

    def _apply(self, *args, **kwargs):
        for s in self._states(True):
            s.open_write_window("_apply")
        return nn.Module._apply(self, *args, **kwargs)


_later.refuse_unknown(FSDPModule)


class UnshardHandle(TorchUnshardHandle):
    """The handle that ``unshard(async_op=True)`` returns."""

    def __init__(self, state: State):
        self._state: State | None = state

    def wait(self) -> None:
        """Makes the module hold whole parameters. Later work of the present stream sees them."""
        state, self._state = self._state, None
        if state is not None:
            state.show_unsharded()


def _checked(modules: list[FSDPModule]) -> list[FSDPModule]:
    for m in modules:
        if not isinstance(m, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(m)}: {m}")
        m._get_fsdp_state()
    return list(modules)


# The module of torch's own AllGather and ReduceScatter, which FSDP2's methods choose.
_TORCHS = "torch.distributed.fsdp._fully_shard._fsdp_collectives"


def _comm_of_torch(name: str) -> Any:
    found = getattr(importlib.import_module(_TORCHS), name, None)
    if found is None:
        raise Unimplemented(f"torch {torch.__version__} has no {name}", hint="use a later torch, or leave the call out")
    return found


_classes: dict[type, type] = {}


def sharded_class(cls: type) -> type:
    """Returns the class ``FSDP<Cls>``, or ``cls`` itself if it is an ``FSDPModule`` already (FSDP1's wrapper)."""
    if issubclass(cls, FSDPModule):
        return cls
    if cls not in _classes:
        _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), _explained_methods(cls))
    return _classes[cls]


def _explained_methods(cls: type) -> dict[str, Callable]:
    """Wraps the class's own methods except forward, so that an error about a sharded parameter names the remedy."""
    known = {"forward", *dir(nn.Module), *dir(FSDPModule)}
    names = {name for base in cls.__mro__[: cls.__mro__.index(nn.Module)] for name in vars(base)} - known
    return {name: _explained(cls, name) for name in names if not name.startswith("__") and _is_method(inspect.getattr_static(cls, name))}


def _is_method(value: Any) -> bool:
    deferred = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return isinstance(value, FunctionType) and not any(is_one(value) for is_one in deferred)


def _explained(cls: type, name: str) -> Callable:
    @functools.wraps(getattr(cls, name))
    def method(self, /, *args, **kwargs):  # positional-only: a keyword may be named self
        try:
            return getattr(super(_classes[cls], self), name)(*args, **kwargs)
        except RuntimeError as error:
            if "got mixed torch.Tensor and DTensor" not in str(error):
                raise
            raise ShardedOutsideForward(
                f"{error}\n{cls.__name__}.{name} computes with a parameter that is sharded, because it is not in forward",
                hint=f'call register_fsdp_forward_method(module, "{name}") after fully_shard',
            ) from error

    return method


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes ``module.method_name(...)`` unshard and reshard as ``forward`` does. Does nothing for a module that is not sharded.

    Raises ValueError for a missing method.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    original = getattr(module, method_name)

    @functools.wraps(original)
    def method(self, /, *args, **kwargs):  # positional-only: a keyword may be named self
        return self._get_fsdp_state().run(self, original, args, kwargs)

    setattr(module, method_name, method.__get__(module, type(module)))


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Does nothing: all models of a device share its streams. Raises ValueError for modules that are not sharded."""
    for m in modules:
        if not isinstance(m, FSDPModule):
            raise ValueError(f"Expects list of FSDPModules but got {m}")


def step_graph(model: nn.Module, example_inputs: Any = None, optimizer: torch.optim.Optimizer | None = None) -> _graph.StepGraph:
    """The training step of this rank as a graph, with planned and measured times of the last complete step. ``print`` it, ``draw``
    it, ``to_perfetto(path)``, ``peak_bytes()``.

    ``model``: the outermost sharded module. Measured times exist after two training steps. With units on devices, transfers have lanes of
    their own, with the devices' times; the other lanes show when the host began the computation.
    ``example_inputs``: the forward's arguments (a tensor, a tuple, or a dict of named arguments, with any values). A forward and a backward
    then run on fake tensors, without the other ranks and without hooks. This adds the bytes of activations; before the first training
    step it yields the expected graph, without times.
    ``optimizer``: adds the bytes of its state, present or future.
    Raises InvalidArgument for an inner module, without a step or ``example_inputs``, and for an optimizer of unknown state size. A forward
    that fails on fake tensors raises it, too.
    """
    root = plan.root_of(model)
    activations = boundaries = None
    if example_inputs is not None:
        boundaries, activations = example.run(model, root.states, example_inputs)
    for m in root.models:
        m.end_step()
    if root.models[0].has_plan:
        timelines = [t.streams.timeline for t in root.transfers]
        return _graph.of_model(root.models[0], plan.memory_of(root, activations, optimizer), timelines, root.number)
    if boundaries is None:
        raise InvalidArgument("there is no step to show yet", hint="run a training step, or pass example_inputs=")
    units = root.units_of[0]
    reshard = [u.state.after_forward is AfterForward.RESHARD for u in units]
    expected = _native.StepGraph.expected([u.state.name for u in units], boundaries, reshard, root.prefetch_depth)
    return _graph.of_model(expected, plan.memory_of(root, activations, optimizer))
