"""``fully_shard``: the hooks of FSDP2, translated into words of the engine."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from shoal import _native
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp import _bootstrap, _graph
from shoal.fsdp._parameters import ShardedParameter

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "share_comm_ctx",
    "step_graph",
    "write",
]

_LEASE_GUARD = os.environ.get("SHOAL_LEASE_GUARD", "0") == "1"


class _ForwardToken:
    """One forward pass whose backward has not come yet, or may come again. Dies with the autograd graph that would bring it."""

    __slots__ = ("__weakref__", "version")

    def __init__(self, version: int):
        self.version = version


class _Backward:
    """A backward pass that has not ended. Belongs to autograd's callback at its end, so that an exception that leaves the pass ends it."""

    __slots__ = ("__weakref__",)


class _Root:
    """What the states of one model share: the native model, and where the program is."""

    def __init__(self, states: list[_State]):
        self.states = states
        actor = states[0].actor
        self.model: _native.ShardedModel = actor.make_model([s.unit for s in states], [s.name for s in states], slots=2)
        self.forwards: weakref.WeakSet[_ForwardToken] = weakref.WeakSet()
        self.backward: weakref.ref[_Backward] | None = None  # dead: an exception left it
        self.is_last_backward = True
        self.preliminary = False  # made by unshard(): the first forward may show that another module is the root
        self.running: _State | None = None  # the unit whose forward the program called, maybe one inside the root
        self.accumulated: dict[ShardedParameter, None] = {}  # in this backward pass, of those with hooks for that, in order
        self.held: list[int] | None = None  # a synchronised backward opened no window: how often each parameter had been written then
        for index, s in enumerate(states):
            s.root, s.index = self, index

    def dissolve(self) -> None:
        for s in self.states:
            s.to_sharded()
            self.model.reshard(s.index)
            s.root = None

    def queue_callback(self) -> None:
        if self.backward is not None and self.backward() is not None:
            return
        self.recover()
        backward = _Backward()
        self.backward = weakref.ref(backward)
        Variable._execution_engine.queue_callback(partial(self.finish_backward, backward))

    def finish_backward(self, backward: _Backward) -> None:
        """At the end of a backward pass: units whose inputs wanted no gradient, then the reductions, then the write window."""
        del backward  # no frame of a traceback may keep it
        synced = False
        for s in reversed(self.states):
            if s.in_backward or s.ran:
                s.post_backward()
            synced |= s.sync
        # More forward passes than this one's may still want their backward: then this version is read on.
        last = synced and self.is_last_backward
        leave = last and not self.forwards
        if leave:  # no lease is held behind the window
            for s in self.states:
                s.to_sharded()
        self.model.finish_backward(leave)
        self.held = self.writes() if last and self.forwards else None
        self.settle()
        self.backward = self.running = None
        self.run_hooks()

    def writes(self) -> list[int]:
        return [p.sharded._version + p.sharded._local_tensor._version for s in self.states for p in s.parameters]

    def check_held(self) -> None:
        """A forward begins and no window has opened since a synchronised backward: nothing may have been written."""
        held, self.held = self.held, None
        if held == self.writes():
            return
        raise InvalidArgument(
            "parameters were written while the write window was closed: the output of another forward is kept, whose backward may come",
            hint="delete outputs that want no backward, or write inside `with shoal.fsdp.write(model)`",
        )

    def recover(self) -> None:
        """After a backward pass that an exception left: forgets what it had under way."""
        if self.backward is None or self.backward() is not None:
            return
        states = [s for s in self.states if s.sync]
        if any(p.reducing or p.unsharded.grad is not None for s in states for p in s.parameters):
            warnings.warn("gradients of a backward pass that an exception left are dropped, as by reset_iter_state()", stacklevel=2)
        self.reset(states)

    def reset(self, states: list[_State]) -> None:
        self.backward = self.running = None
        self.accumulated.clear()
        self.model.reset()
        for s in self.states:
            s.in_backward = s.ran = False
            s.to_sharded()
            for p in s.parameters:
                p.forget()
        for s in states:
            for p in s.parameters:
                p.unsharded.grad = None

    def settle(self) -> None:
        for unit, present in self.model.take_reduced():
            for p, has in zip(self.states[unit].parameters, present, strict=True):
                p.gradient_done(has)
                if has and p.sharded._post_accumulate_grad_hooks:
                    self.accumulated[p] = None

    def run_hooks(self) -> None:
        """Hooks of parameters that got a gradient in the pass that is over: they may write, so they come behind the window."""
        accumulated, self.accumulated = self.accumulated, {}
        for p in accumulated:
            for hook in tuple(p.sharded._post_accumulate_grad_hooks.values()):
                hook(p.sharded)

    def open_window(self, door: str) -> None:
        self.recover()
        self.running = self.held = None
        for s in self.states:
            s.to_sharded()
        self.model.open_window(door)


class _State:
    """One unit: a module on which fully_shard was called."""

    def __init__(
        self, module: nn.Module, mesh: DeviceMesh, reshard_after_forward: bool | None, mp_policy: MixedPrecisionPolicy, lease_guard: bool
    ):
        self.module, self.mesh, self.mp_policy = module, mesh, mp_policy
        self.reshard_asked = self.reshard_after_forward = reshard_after_forward  # None: as is_root says
        self.reshard_after_backward = True
        self.cast_to = mp_policy.param_dtype if mp_policy.cast_forward_inputs else None  # what floating-point inputs become
        self.sync = True  # gradients are reduced in backward
        self.actor = _bootstrap.shard_actor(mesh)
        self.lease_guard = lease_guard
        self.parameters: list[ShardedParameter] = []
        self.unit: _native.ShardedUnit | None = None
        self.root: _Root | None = None
        self.is_root = False
        self.index = -1
        self.name = ""
        self.shows_unsharded = False
        self.in_backward = False
        self.ran = False  # forward since its last backward
        self.ends: weakref.WeakSet = weakref.WeakSet()  # nodes of autograd that end a backward of this unit: one per forward in a graph

    # ---- set-up ----

    def shard(self, ignored: set[nn.Parameter]) -> None:
        found = _own_parameters(self.module, ignored)
        specs = []
        for name, (parameter, owners) in found.items():
            if isinstance(parameter.data, torch.distributed.tensor.DTensor):
                raise Unimplemented(f"parameter {name} is a DTensor already: sharding on top of tensor parallelism is not in this release")
            if parameter.dim() == 0:
                raise ValueError(f"fully_shard doesn't support scalar parameters. Change {name} to a 1D tensor with numel equal to 1.")
            if not parameter.is_contiguous():
                raise NotImplementedError(f"fully_shard does not support non-contiguous parameters: {name} has stride {parameter.stride()}")
            if parameter.device.type not in ("cpu", "meta"):
                raise Unimplemented(f"parameter {name} is on {parameter.device}: GPUs are not in this release", hint="use a CPU mesh")
            self.parameters.append(ShardedParameter(name, parameter, owners))
            dtype = str(parameter.dtype).removeprefix("torch.")
            specs.append((name, list(parameter.shape), dtype, parameter.requires_grad, 0, dtype, dtype, False))
        self.unit = self.actor.add_unit(self.name, specs, self.lease_guard)
        for index, (p, (parameter, _)) in enumerate(zip(self.parameters, found.values(), strict=True)):
            p.bind(self.unit, index, self.mesh, parameter)
            p.sharded._shoal_state = p.unsharded._shoal_state = self
            parameter._shoal_sharded = weakref.ref(self)  # who else has the original is tied to it no more
            p.register(p.sharded)

    def hook(self) -> None:
        self.module.register_forward_pre_hook(self._pre_forward, prepend=True, with_kwargs=True)
        self.module.register_forward_hook(self._post_forward, prepend=False)
        self.module.register_state_dict_pre_hook(lambda *_: self.to_sharded())
        self.module.register_load_state_dict_pre_hook(lambda *_: self.door("load_state_dict"))

    def _lazy_init(self) -> None:
        """At the first forward: the module that runs it is the root of all units inside."""
        states = [s for s in map(_state_of, self.module.modules()) if s is not None]
        taken = [s for s in states if s.root is not None]
        if all(s.root.preliminary for s in taken):
            for root in {id(s.root): s.root for s in taken}.values():
                root.dissolve()
        else:
            raise InvalidArgument(
                f"{type(taken[0].module).__name__} ran a forward of its own before the model that contains it",
                hint="run the whole model's forward first, or call fully_shard on the outer module before",
            )
        names = {id(m): n for n, m in self.module.named_modules()}
        for s in states:
            s.is_root = s is self
            s.name = names[id(s.module)]
            s.reshard_after_forward = not s.is_root if s.reshard_asked is None else s.reshard_asked
        _Root(states)

    # ---- the two faces ----

    def to_unsharded(self) -> None:
        for p in self.parameters:
            if not self.shows_unsharded and p.unsharded.requires_grad != p.sharded.requires_grad:  # frozen or thawed since
                p.unsharded.requires_grad_(p.sharded.requires_grad)
            if not p.show(p.unsharded):
                raise InvalidArgument(
                    f"parameter {p.name} of {self.name or 'the root'} was replaced while the write window was closed",
                    hint="replace it inside `with shoal.fsdp.write(model)`, or by load_state_dict(assign=True)",
                )
        self.shows_unsharded = True

    def to_sharded(self) -> None:
        if not self.shows_unsharded:
            return
        self.shows_unsharded = False
        for p in self.parameters:
            p.show(p.sharded)

    def door(self, name: str) -> None:
        """Opens the write window: before the first forward it is open."""
        self.to_sharded()
        if self.root is not None:
            self.root.open_window(name)

    def adopt(self) -> None:
        for p in self.parameters:
            p.adopt()

    # ---- forward ----

    def _pre_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.root is None:
            self._lazy_init()
        root, training = self.root, torch.is_grad_enabled()
        root.preliminary = False
        in_graph = torch._C._current_graph_task_id() != -1
        if not in_graph:
            root.recover()
            if self.is_root or root.running is None:
                root.running = self
                if root.held is not None:
                    root.check_held()
        if root.model.window_open:
            for s in root.states:
                s.adopt()
        if self.is_root:
            root.model.enter(training)
        root.model.forward_begin(self.index, training and not in_graph)
        self.to_unsharded()
        if self.cast_to is not None:
            args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(self.cast_to) if t.is_floating_point() else t, (args, kwargs))
        if training and (not in_graph or not self.more_to_come()):  # a checkpoint may be run again as a graph of its own
            args, kwargs = self._watch_inputs(args, kwargs)
        return args, kwargs

    def _watch_inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Lets the backward pass say when it has left this unit: when the gradients of its inputs are there."""
        flat, spec = tree_flatten((args, kwargs))
        at = [i for i, t in enumerate(flat) if torch.is_tensor(t) and t.requires_grad]
        self.ran = True
        if not at:
            return args, kwargs  # the end of the backward pass will say it
        watched = _AfterBackward.apply(self, *(flat[i] for i in at))
        for i, t in zip(at, watched, strict=True):
            flat[i] = t
        return tree_unflatten(flat, spec)

    def _post_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        root, training = self.root, torch.is_grad_enabled()
        recomputed = torch._C._current_graph_task_id() != -1
        outermost = root.running is self and not recomputed
        if outermost:
            root.running = None
        reshard = self.reshard_after_forward and not self.in_backward
        root.model.forward_end(self.index, training and not recomputed, reshard)
        if reshard:
            self.to_sharded()
        if training and not (recomputed and self.in_backward):
            token = _ForwardToken(root.model.version)
            if self.is_root or outermost:
                root.forwards.add(token)
            for t in tree_flatten(output)[0]:
                if torch.is_tensor(t) and t.requires_grad:
                    t.register_hook(partial(self._pre_backward, token))
        if self.mp_policy.output_dtype is not None:
            output = tree_map_only(torch.Tensor, lambda t: t.to(self.mp_policy.output_dtype) if t.is_floating_point() else t, output)
        return output

    # ---- backward ----

    def _pre_backward(self, token: _ForwardToken, grad: torch.Tensor) -> torch.Tensor:
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # else its backward may come again
            self.root.forwards.discard(token)
        self.root.queue_callback()
        if self.in_backward:  # for another forward maybe, that read another version
            self.root.model.check_version(self.index, token.version)
        else:
            self.in_backward = True
            self.root.model.backward_begin(self.index, token.version)
            self.to_unsharded()
        return grad

    def more_to_come(self) -> bool:
        """Whether the backward pass that is running will leave this unit again, because its forward ran more than once."""
        task = torch._C._current_graph_task_id()
        return any(end.left_in != task and torch._C._will_engine_execute_node(end) for end in self.ends)

    def inputs_done(self, end) -> None:
        """The gradients of a forward's inputs are there: the unit's backward is over, unless this pass comes back to it."""
        self.root.queue_callback()
        end.left_in = torch._C._current_graph_task_id()
        if not self.more_to_come():
            self.post_backward()

    def post_backward(self) -> None:
        self.in_backward = self.ran = False
        if self.sync and self.parameters and self.parameters[0].reducing:
            # Published before in this pass, by a graph of its own. Ranks publish in one order, so nobody waits for a rank that waits.
            self.root.model.await_reductions()
            self.root.settle()
        work = [p.gradient_work() for p in self.parameters] if self.sync else []
        self.root.model.backward_end(self.index, work, 1.0 / self.mesh.size(), True, self.reshard_after_backward)
        for p in self.parameters:
            p.published()
        if self.reshard_after_backward:
            self.to_sharded()
        self.root.settle()


class _AfterBackward(torch.autograd.Function):
    """The identity on a unit's inputs; its backward runs after everything that came after it, the unit's own backward included."""

    @staticmethod
    def forward(ctx, state: _State, *inputs: torch.Tensor):
        ctx.state, ctx.left_in = state, -1
        state.ends.add(ctx)
        return inputs

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):
        ctx.state.inputs_done(ctx)
        return (None, *grads)


def _state_of(module: nn.Module) -> _State | None:
    return module.__dict__.get("_shoal_fsdp_state")


def _own_parameters(module: nn.Module, ignored: set[nn.Parameter]) -> dict[str, tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Parameters below ``module`` that no unit inside it manages, each once, by its first name, with every module that has it."""
    found: dict[str, tuple[nn.Parameter, list]] = {}
    names: dict[int, str] = {}
    visited: set[int] = set()

    def visit(m: nn.Module, prefix: str) -> None:
        if id(m) in visited or (m is not module and _state_of(m) is not None):
            return
        visited.add(id(m))
        for attribute, p in m._parameters.items():
            if p is None or p in ignored:
                continue
            original_of = getattr(p, "_shoal_sharded", None)
            outer = getattr(p, "_shoal_state", None)
            if outer is not None and any(owner is m for q in outer.parameters for owner, _ in q.owners):
                raise InvalidArgument(
                    f"parameter {prefix}{attribute} is in a unit already: a module around this one was sharded before",
                    hint="call fully_shard innermost first: on the blocks, then on the model",
                )
            if hasattr(p, "_shoal_state") or (original_of is not None and original_of() is not None):
                raise InvalidArgument(
                    f"parameter {prefix}{attribute} is shared with a unit that was sharded before",
                    hint="call fully_shard on the module that contains both users of a tied parameter, and not on the inner ones",
                )
            if id(p) in names:
                found[names[id(p)]][1].append((m, attribute))
            else:
                names[id(p)] = prefix + attribute
                found[prefix + attribute] = (p, [(m, attribute)])
        for name, child in m._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.")

    visit(module, "")
    return found


def _refuse(condition: bool, what: str, hint: str = "") -> None:
    if condition:
        raise Unimplemented(f"{what} is not in this release", hint=hint)


def fully_shard(
    module: nn.Module,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn=None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008  frozen, and FSDP2's signature
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims=None,
    lease_guard: bool | None = None,
) -> nn.Module:
    """Makes ``module`` a unit of fully sharded training: its parameters (those of no inner unit) become ``DTensor``s with ``Shard(0)``
    over ``mesh``, are whole while its forward and backward run, and get the mean of all ranks' gradients, each rank its rows.

    Call it bottom-up, then build the optimizer, then train as before. Returns ``module``, which is an ``FSDPModule`` from now on.
    ``mesh``: 1-D; by default all ranks of the process group (``init_process_group("gloo")`` is called if need be).
    ``reshard_after_forward``: drop the lease between forward and backward; None is True, and False for the root.
    ``lease_guard``: an access to unsharded parameters without a lease ends the process, naming the unit (default: $SHOAL_LEASE_GUARD).
    ``mp_policy``: inputs are cast to ``param_dtype``, outputs to ``output_dtype``; a ``param_dtype`` must be the module's own.
    Raises TypeError for arguments of another type, ValueError for scalar parameters, containers without forward, and a parameter that is
    tied to one of a unit sharded before; NotImplementedError for what this release has not got.
    Semantics: PyTorch FSDP2 (torch.distributed.fsdp.fully_shard, torch 2.13); collective in the sense that every rank must call it for the
    same modules in the same order.
    """
    _refuse(isinstance(module, (list, tuple)), "a list of modules", "call fully_shard on each, or on their parent")
    if not isinstance(module, nn.Module):
        raise TypeError(f"fully_shard takes a module, not a {type(module).__name__}")
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        raise ValueError(f"fully_shard does not support containers that do not implement forward: {type(module).__name__}")
    if _state_of(module) is not None:
        raise InvalidArgument(f"fully_shard was called on this {type(module).__name__} before")
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh should be a DeviceMesh, got {type(mesh).__name__}")
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, int):  # a bool is one
        raise ValueError(f"reshard_after_forward should be a bool or None, got {reshard_after_forward!r}")
    if ignored_params is not None and not isinstance(ignored_params, (set, frozenset)):
        raise TypeError(f"ignored_params should be a set of parameters, got {type(ignored_params).__name__}")
    _refuse(shard_placement_fn is not None, "shard_placement_fn", "parameters are sharded on dim 0")
    _refuse(dp_mesh_dims is not None, "dp_mesh_dims", "pass a 1-D mesh")
    _refuse(type(offload_policy) is not OffloadPolicy, "CPU offload", "parameters lie in host memory already")
    _refuse(type(reshard_after_forward) is int, "reshard_after_forward as a number", "use True or False")
    low = mp_policy.param_dtype
    dtypes = {p.dtype for p in module.parameters()}
    _refuse(
        low is not None and dtypes != {low},
        f"MixedPrecisionPolicy(param_dtype={low})",
        "it needs a compute arena in the lower precision; use torch.autocast, or convert the model",
    )
    _refuse(
        mp_policy.reduce_dtype not in (None, torch.float32, *dtypes),
        f"reduce_dtype={mp_policy.reduce_dtype}",
        "gradients are reduced in fp32",
    )
    mesh = mesh if mesh is not None else _bootstrap.default_mesh()
    _refuse(mesh.ndim != 1, f"a {mesh.ndim}-D mesh", "pass a 1-D mesh")
    _refuse(mesh.device_type != "cpu", f"a {mesh.device_type} mesh", 'use init_device_mesh("cpu", ...)')
    guard = _LEASE_GUARD if lease_guard is None else lease_guard
    state = _State(module, mesh, reshard_after_forward, mp_policy, guard)
    state.name = type(module).__name__
    state.shard(ignored_params or set())
    module._shoal_fsdp_state = state
    cls = type(module)
    module.__class__ = _sharded_class(cls)
    state.hook()
    return module


_classes: dict[type, type] = {}


def _sharded_class(cls: type) -> type:
    if cls not in _classes:
        _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__deepcopy__": _no_deepcopy})
    return _classes[cls]


def _no_deepcopy(self, memo):
    raise AssertionError("FSDP does not support deepcopy. Please use state dict for serialization.")


class FSDPModule:
    """What a module on which fully_shard was called can do besides (the names are FSDP2's)."""

    def __new__(cls, *args, **kwargs):
        # Indexing a sharded Sequential makes a module of its class: that one is not sharded.
        original = cls.__mro__[2]
        self = original.__new__(original, *args, **kwargs)
        self.__init__(*args, **kwargs)
        return self

    def _shoal(self) -> _State:
        return _state_of(self)

    def unshard(self, async_op: bool = False):
        """Takes the lease now; the parameters are whole until ``reshard`` or the end of the next forward. Not recursive."""
        state = self._shoal()
        if state.root is None:
            state._lazy_init()
            state.root.preliminary = True
        if state.root.model.window_open:
            for s in state.root.states:
                s.adopt()
        state.root.model.unshard(state.index)
        state.to_unsharded()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Drops the lease now. Not recursive."""
        state = self._shoal()
        state.to_sharded()
        if state.root is not None:
            state.root.model.reshard(state.index)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: backward keeps whole gradients and reduces nothing (gradient accumulation); the next synchronised one reduces the sum."""
        for s in self._states(recurse):
            s.sync = requires_gradient_sync

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """False: another backward of this step follows; parameters stay readable after this one.

        They do anyway while a forward's output is kept whose backward has not come, or came with ``retain_graph=True``.
        """
        root = self._shoal().root
        if root is not None:
            root.is_last_backward = is_last_backward

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for s in self._states(recurse):
            s.reshard_asked = s.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: whole parameters stay readable behind a backward that is not the step's last one, too."""
        for s in self._states(recurse):
            s.reshard_after_backward = reshard_after_backward

    def reset_iter_state(self) -> None:
        """After an exception in forward or backward: drops leases and gradients under way, on this rank. Every rank must do it.

        The next forward after an exception in backward does so by itself, but for what was accumulated without synchronisation.
        Raises InvalidArgument at the end of the backward pass of a rank that goes on where another has started over.
        """
        root = self._shoal().root
        if root is None:
            return
        root.reset(root.states)

    def step_graph(self) -> _graph.StepGraph:
        """The step as a graph: see ``shoal.fsdp.step_graph``."""
        return step_graph(self)

    def _states(self, recurse: bool) -> list[_State]:
        modules = self.modules() if recurse else [self]
        return [s for s in map(_state_of, modules) if s is not None]

    def _apply(self, *args, **kwargs):
        for s in self._states(True):
            s.door("_apply")
        return super()._apply(*args, **kwargs)


# Surface of FSDP2 that is there in name: each says in one sentence why not, instead of an AttributeError.
def _not_yet(name: str, instead: str):
    def method(self, *args, **kwargs):
        raise Unimplemented(f"FSDPModule.{name} is not in this release", hint=instead)

    method.__name__ = name
    method.__doc__ = f"Not in this release: {instead}."
    return method


for _name, _instead in {
    "set_modules_to_forward_prefetch": "the step graph prefetches the next unit by itself",
    "set_modules_to_backward_prefetch": "the step graph prefetches the next unit by itself",
    "set_requires_all_reduce": "there is no replicated dimension on a 1-D mesh",
    "set_custom_all_gather": "on one host nothing is gathered",
    "set_custom_reduce_scatter": "owners read their rows in place",
    "set_all_reduce_hook": "there is no all_reduce on a 1-D mesh",
    "set_post_optim_event": "there are no streams on a CPU mesh",
    "set_reduce_scatter_divide_factor": "gradients are divided by the world size; scale the loss",
    "set_symm_mem_for_comm": "gradients travel through shared memory",
    "set_gradient_divide_factor": "gradients are divided by the world size; scale the loss",
    "set_force_sum_reduction_for_comms": "gradients are divided by the world size; scale the loss",
    "set_unshard_in_backward": "taking a lease moves nothing on one host",
    "set_allocate_memory_from_process_group_for_comm": "gradients travel through shared memory",
    "set_reduce_scatter_unused_params": "a parameter without a gradient on this rank counts as zero if another rank has one",
    "set_reduce_scatter_max_input_buffers": "two units' gradients are in flight",
    "set_separate_reduce_scatter_group": "no process group is used",
}.items():
    setattr(FSDPModule, _name, _not_yet(_name, _instead))


class UnshardHandle:
    """What ``unshard(async_op=True)`` returns: on one host it is done."""

    def wait(self) -> None:
        return None


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Not in this release: call the method from forward."""
    raise Unimplemented("register_fsdp_forward_method is not in this release", hint="call the method from the module's forward")


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Not in this release: on one host there are no communication contexts to share."""
    raise Unimplemented("share_comm_ctx is not in this release", hint="leave it out: there are no streams or buffers to share on one host")


def _roots(model: nn.Module) -> list[_Root]:
    roots = {id(s.root): s.root for s in map(_state_of, model.modules()) if s is not None and s.root is not None}
    return list(roots.values())


@contextmanager
def write(model: nn.Module):
    """Opens the write window of a sharded model: inside, each rank may write its rows (``p.to_local()``, ``p.data``) by hand.

    Needed after an evaluation forward, after a backward without synchronisation, and while the output of another forward is kept whose
    backward may still come; else the window is open anyway between a synchronised backward and the next forward. Every rank must enter
    it. What was written is seen by all ranks at their next forward.
    """
    if not any(_state_of(m) for m in model.modules()):
        raise InvalidArgument("nothing in this model was sharded by shoal.fsdp.fully_shard")
    for s in map(_state_of, model.modules()):
        if s is not None:
            s.to_sharded()
    for root in _roots(model):
        root.open_window("write")
    yield model


def step_graph(model: nn.Module) -> _graph.StepGraph:
    """The training step of this rank as a graph, with the planned and the measured times of the last complete step.

    It is there after one training step, with measured times after two. ``print`` it, or ``to_perfetto(path)``.
    """
    roots = _roots(model)
    for root in roots:
        root.model.end_step()
    if not roots or not roots[0].model.has_plan:
        raise InvalidArgument("there is no step to show yet", hint="run a training step: forward, backward, optimizer.step()")
    return _graph.of_model(roots[0].model)


# ---- optimizers --------------------------------------------------------------------------------------------------------------------


def _roots_of(optimizer: torch.optim.Optimizer) -> list[_Root]:
    roots = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = getattr(p, "_shoal_state", None)
            if state is not None and state.root is not None:
                roots[id(state.root)] = state.root
            replaced_by = getattr(p, "_shoal_sharded", None)
            if replaced_by is not None and (unit := replaced_by()) is not None:
                raise InvalidArgument(
                    f"this optimizer was built before fully_shard: it holds parameters of {unit.name or 'the root'} as they were, "
                    "and would train nothing",
                    hint="build the optimizer after fully_shard",
                )
    return list(roots.values())


def _before_step(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for root in _roots_of(optimizer):
        root.open_window("optimizer.step")
        root.model.optimizer_begin()


def _after_step(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for root in _roots_of(optimizer):
        root.model.optimizer_end()


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
