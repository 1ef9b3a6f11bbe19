"""``FSDPModule``: what a module on which fully_shard was called can do besides. The names and semantics are FSDP2's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import UnshardHandle as TorchUnshardHandle

from shoal import _native
from shoal.exceptions import InvalidArgument
from shoal.fsdp import _example, _graph, _plan
from shoal.fsdp._collect import state_of
from shoal.fsdp._errors import ShardedOutsideForward
from shoal.fsdp._state import State
from shoal.fsdp._unit import Unit


class FSDPModule(TorchFSDPModule):
    """Mixed into the class of a module by fully_shard; an instance of torch's own ``FSDPModule``, too."""

    _orig_cls_mro_index = 3  # FSDP<Cls>, this, torch's, <Cls>

    def __new__(cls, /, *args, **kwargs):
        # Indexing a sharded Sequential makes a module of its class: that one is not sharded.
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
        """Takes the lease now; the parameters are whole until ``reshard`` or the end of the next forward. Not recursive."""
        self._get_fsdp_state().unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Drops the lease now. Not recursive."""
        self._get_fsdp_state().reshard()

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Units that are unsharded when this one's forward begins, behind its own. Raises ValueError for other modules."""
        state = self._get_fsdp_state()
        state.forward_prefetch = _states_of(modules)
        if state.root is not None:
            _plan.replan(state.root)

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Units that are unsharded when this one's backward begins, behind its own. Raises ValueError for other modules."""
        state = self._get_fsdp_state()
        state.backward_prefetch = _states_of(modules)
        if state.root is not None:
            _plan.replan(state.root)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for s in self._states(recurse):
            s.reshard_asked = s.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: whole parameters stay readable behind a backward that is not the step's last one, too."""
        for s in self._states(recurse):
            s.reshard_after_backward = reshard_after_backward

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: this unit's parameters are not needed for its backward (an embedding): the module keeps showing the sharded ones."""
        self._get_fsdp_state().unshard_in_backward = unshard_in_backward

    # ---- gradients ----

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ``nn.Module.zero_grad``. Behind a forward, where the module shows whole parameters, it reaches the sharded gradients, too."""
        super().zero_grad(set_to_none)
        for p in (p.sharded for s in self._states(True) for u in s.units for p in u.parameters):
            if p.grad is not None:
                p.grad = None if set_to_none else p.grad.detach().zero_()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: backward keeps whole gradients (in the reduce dtype) and reduces nothing; the next synchronised one reduces the sum."""
        for s in self._states(recurse):
            s.sync = s.everywhere = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """False, on a mesh with replicas: backward reduces within each replica only; the next one over all takes that in."""
        for s in self._states(recurse):
            s.everywhere = requires_all_reduce

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """False: another backward of this step follows; parameters stay readable after this one.

        They do anyway while a forward's output is kept whose backward has not come, or came with ``retain_graph=True``.
        """
        root = self._get_fsdp_state().root
        if root is not None:
            root.is_last_backward = is_last_backward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Gradients are summed and divided by this instead of the number of ranks."""
        for u in self._get_fsdp_state().units:
            u.divide_factor = float(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Use ``set_gradient_divide_factor`` instead."""
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Nothing to set: owners sum in fp32, then scale once."""

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """True: a parameter that no rank used gets a gradient of zeros. (One that some rank used counts as zero elsewhere in any case.)"""
        for s in self._states(recurse):
            s.reduce_unused = reduce_scatter_unused_params

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """How many units' whole gradients a rank may have in flight (2 by default, at most 4; the largest of a model's units counts)."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")
        for s in self._states(recurse):
            s.max_input_buffers = min(max_input_buffers, 4)

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: Any = None) -> None:
        """``hook(reduced)`` is called with this rank's reduced gradients, flat, in the reduce dtype, before they are accumulated."""
        unit = self._only_unit("set_all_reduce_hook", "hook")
        if stream is not None and unit.data.replicate_dim is not None:
            raise ValueError("stream cannot be set when using native HSDP")
        unit.all_reduce_hook = hook

    # ---- communication ----

    def set_custom_all_gather(self, comm: Any) -> None:
        """``comm`` (torch's ``AllGather``) brings this unit's shards together, into memory of this rank's own."""
        self._only_unit("set_custom_all_gather").gather().all_gather = comm

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """``comm`` (torch's ``ReduceScatter``) sums this unit's gradients."""
        self._only_unit("set_custom_reduce_scatter").gather().reduce_scatter = comm

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Nothing to set: gathers and reductions never wait for each other."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Nothing to set: gradients travel through shared memory. AssertionError where the user brings the communication."""
        self._refuse_custom("set_allocate_memory_from_process_group")

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Nothing to set on a CPU mesh: whole parameters already lie in memory that all ranks share. AssertionError where the user brings
        the communication."""
        self._refuse_custom("set_symm_mem")

    def set_post_optim_event(self, event: Any) -> None:
        """The next forward waits for ``event`` (anything with ``synchronize()`` or ``wait()``), once."""
        self._get_fsdp_state().post_optim_event = event

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Nothing to set: unsharding allocates nothing."""

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
                if comm is not None:
                    raise AssertionError(f"cannot call {method}() when {what} comm is custom: {type(comm).__name__}")

    # ---- the rest ----

    def reset_iter_state(self) -> None:
        """After an exception in forward or backward: drops leases and gradients under way, on this rank. Every rank must do it.

        The next forward after an exception in backward does so by itself, but for what was accumulated without synchronisation.
        Raises RuntimeError on a module that is not the root, InvalidArgument at the end of the backward pass of a rank that goes on where
        another has started over.
        """
        state = self._get_fsdp_state()
        if state.root is None:
            return
        if not state.is_root:
            raise RuntimeError("reset_iter_state must be called on the root FSDP module")
        state.root.reset(state.root.states)

    def step_graph(self) -> _graph.StepGraph:
        """The step as a graph: see ``shoal.fsdp.step_graph``."""
        return step_graph(self)

    def to_empty(self, **kwargs):
        """As ``nn.Module.to_empty``; a parameter that nobody has written by the next forward is then named."""
        module = super().to_empty(**kwargs)
        for s in self._states(True):
            for p in (p for u in s.units for p in u.parameters):
                p.poison()
        return module

    def state_dict(self, *args, **kwargs) -> dict[str, Any]:
        """nn.Module's, under inference_mode, too: DTensors cannot be detached there, and what is saved is often trained on."""
        if not torch.is_inference_mode_enabled():
            return super().state_dict(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return super().state_dict(*args, **kwargs)

    def _states(self, recurse: bool) -> list[State]:
        modules = self.modules() if recurse else [self]
        return [s for s in map(state_of, modules) if s is not None]

    def _apply(self, *args, **kwargs):
        for s in self._states(True):
            s.door("_apply")
        return nn.Module._apply(self, *args, **kwargs)


class UnshardHandle(TorchUnshardHandle):
    """The handle that ``unshard(async_op=True)`` returns: on one host the work is done by then."""

    def wait(self) -> None:
        return None


def _states_of(modules: list[FSDPModule]) -> list[State]:
    for m in modules:
        if not isinstance(m, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(m)}: {m}")
    return [m._get_fsdp_state() for m in modules]


_classes: dict[type, type] = {}


def sharded_class(cls: type) -> type:
    """``FSDP<Cls>``; a class that is an ``FSDPModule`` already (FSDP1's wrapper) stays."""
    if issubclass(cls, FSDPModule):
        return cls
    if cls not in _classes:
        _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), _explained_methods(cls))
    return _classes[cls]


def _explained_methods(cls: type) -> dict[str, Callable]:
    """The methods of its own that a module has beside forward: they say what is missing when they meet a sharded parameter."""
    known = {"forward", *dir(nn.Module), *dir(FSDPModule)}
    names = {name for base in cls.__mro__[: cls.__mro__.index(nn.Module)] for name in vars(base)} - known
    return {name: _explained(cls, name) for name in names if not name.startswith("__") and _is_method(inspect.getattr_static(cls, name))}


def _is_method(value: Any) -> bool:
    deferred = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return isinstance(value, FunctionType) and not any(is_one(value) for is_one in deferred)


def _explained(cls: type, name: str) -> Callable:
    @functools.wraps(getattr(cls, name))
    def method(self, /, *args, **kwargs):  # the user's keywords may be called self
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
    """``module.method_name(...)`` unshards and reshards as ``forward`` does. Does nothing when ``module`` is not sharded.

    Raises ValueError when it has no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    original = getattr(module, method_name)

    @functools.wraps(original)
    def method(self, /, *args, **kwargs):  # the user's keywords may be called self
        return self._get_fsdp_state().run(self, original, args, kwargs)

    setattr(module, method_name, method.__get__(module, type(module)))


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """There are no streams or buffers to share on one host. ValueError for modules that are not sharded."""
    for m in modules:
        if not isinstance(m, FSDPModule):
            raise ValueError(f"Expects list of FSDPModules but got {m}")


def step_graph(model: nn.Module, example_inputs: Any = None, optimizer: torch.optim.Optimizer | None = None) -> _graph.StepGraph:
    """The training step of this rank as a graph, with the planned and the measured times of the last complete step. ``print`` it, ``draw``
    it, ``to_perfetto(path)``, ``peak_bytes()``.

    Measured times are there after two training steps. Before the first one the graph is there only with ``example_inputs``: what the
    forward is called with (a tensor, a tuple, or a dict of named arguments; values do not matter). Then a forward and a backward run on
    fake tensors, without the other ranks and without hooks, and the graph is the expected one, without times. With ``example_inputs`` its
    memory has the bytes of activations, too, and with ``optimizer`` those of its state, whether it is there already or comes with the
    first step. ``model`` is the outermost module that was sharded. Raises InvalidArgument for another one, when there is no step to show,
    the model does not run on fake tensors, or nothing is known of an optimizer of this class before its first step.
    """
    root = _plan.root_of(model)
    activations = boundaries = None
    if example_inputs is not None:
        boundaries, activations = _example.run(model, root.states, example_inputs)
    for m in root.models:
        m.end_step()
    if root.models[0].has_plan:
        return _graph.of_model(root.models[0], _plan.memory_of(root, activations, optimizer))
    if boundaries is None:
        raise InvalidArgument("there is no step to show yet", hint="run a training step, or pass example_inputs=")
    units = root.units_of[0]
    reshard = [u.state.reshard_after_forward is True for u in units]
    expected = _native.StepGraph.expected([u.state.name for u in units], boundaries, reshard, {"prefetch": root.prefetch})
    return _graph.of_model(expected, _plan.memory_of(root, activations, optimizer))
