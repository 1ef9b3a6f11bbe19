"""Units of SpmdFullyShardedDataParallel on the engine of ``shoal.fsdp``, in programs with one process per device.

A process runs the module on its rows of the batch with ordinary tensors. Operators have no extra cost, parameters are unsharded and dropped
unit by unit, and gradients are reduced into their owners' memory. This equals the global program only if rows do not meet: no operator may
sum over the batch, reshard it or draw random numbers. A unit tests that at the first call with inputs of new shapes. It runs operator by
operator on whole parameters and notes operators that move data. Then each process tries its rows with ordinary tensors, and all outputs
must match those of the first run. Otherwise the unit runs operator by operator, on the same memory.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import logging
import operator
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.nn.modules import module as modules_of_torch
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from shoal.exceptions import Unimplemented
from shoal.spmd._engine.tensor import Box, Parameter, Tensor, on_device
from shoal.spmd._fsdp.module_tree import ModuleTree
from shoal.spmd._layout.array import Array, observed, unobserved
from shoal.spmd._layout.processes import Processes, loading, world
from shoal.spmd._layout.sharding import Sharding

if TYPE_CHECKING:
    from shoal.fsdp._parameters.parameter import ShardedParameter
    from shoal.spmd._layout.mesh import Mesh

_log = logging.getLogger("shoal.spmd")
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest output: the two runs may sum in different orders


class EngineBox(Box):
    """The value of a parameter whose rows lie in the engine's memory. ``whole`` replaces it while a unit is tested."""

    def __init__(self, parameter: ShardedParameter, sharding: Sharding):
        self._parameter, self._sharding = parameter, sharding
        self.whole: Array | None = None
        super().__init__(self._made())
        self.mark = sharding

    def _made(self) -> Array:
        p = self._parameter
        made = Array(p.shape, p.dtype, self._sharding, {self._sharding.position(world().rank): p.own})
        made.yields = True
        return made

    @property
    def array(self) -> Array:
        if self.whole is not None:
            return self.whole
        if next(iter(self._array.locals.values())) is not self._parameter.own:  # the unit was rebuilt
            self._array = self._made()
        return self._array

    def before_write(self) -> None:
        self._parameter.state.writes.before_rows(self._parameter)

    def put(self, array: Array) -> None:
        raise Unimplemented(
            f"parameter {self._parameter.name} is split by SpmdFullyShardedDataParallel and keeps that sharding",
            hint="mark parameters before the module is wrapped: marked ones are left alone",
        )


_gradient_of_operators = torch.Tensor.grad.__get__


class EngineParameter(Parameter):
    """A parameter of an engine's unit. Its gradient is the sum of the engine's gradient and of those from operators."""

    _engine: ShardedParameter
    _known: tuple | None = None

    @property
    def grad(self):
        reduced, operators = self._engine.views.sharded.grad, _gradient_of_operators(self)
        if operators is not None:
            operators._box.lay(self._box.mark)
        if reduced is None:
            return operators
        if self._known is None or self._known[0] is not reduced:
            box = self._box
            array = box._made()
            array.locals = dict.fromkeys(array.locals, reduced._local_tensor)
            self._known = (reduced, Tensor(Box(array)))
        if operators is not None:  # this parameter was also used outside of its unit
            torch.Tensor.grad.__set__(self, None)
            with torch.no_grad():
                self._known[1].add_(operators)
        return self._known[1]

    @grad.setter
    def grad(self, value):
        if self._known is not None and value is self._known[1]:
            return
        self._engine.views.sharded.grad = self._known = None
        torch.Tensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self):
        self.grad = None

    def __deepcopy__(self, memo):
        """Returns a parameter outside of the engine, with this one's sharding as its mark."""
        copied = super().__deepcopy__(memo)
        copied._box.let_yield()
        return copied

    @property
    def data(self):
        return Tensor(self._box)

    @data.setter
    def data(self, value):
        """Copies the values into the engine's memory, which stays in place."""
        self._check_alike(value)
        if value.dtype != self.dtype:
            raise Unimplemented(
                f"parameter {self._engine.name} was converted to {value.dtype} after SpmdFullyShardedDataParallel split it",
                hint="convert the module before it is wrapped",
            )
        with torch.no_grad():
            self.copy_(value)


EngineParameter.__name__ = EngineParameter.__qualname__ = "Parameter"  # the program's name of the class
_foreach_supported_types.append(EngineParameter)


@functools.cache
def _named_as(cls: type, sharded: type) -> type:
    def copied(module: nn.Module, memo: dict) -> nn.Module:
        return _copied(module, cls, memo)

    return type(cls.__name__, (sharded,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__deepcopy__": copied})


def _copied(module: nn.Module, cls: type, memo: dict) -> nn.Module:
    """Copies a unit's module. The copy runs operator by operator on marked parameters."""
    for m in reversed(list(module.modules())[1:]):  # inner ones first; modules of the unit have hooks of the engine
        if id(m) not in memo and not hasattr(type(m), "__deepcopy__"):
            _copied(m, type(m), memo)
    memo[id(module)] = made = cls.__new__(cls)
    for name, value in vars(module).items():
        if name in _OF_ENGINE:
            continue
        if isinstance(value, dict) and name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            value = type(value)((k, h) for k, h in value.items() if not _of_engine(h))
        vars(made)[name] = copy.deepcopy(value, memo)
    return made


_OF_ENGINE = {"_shoal_fsdp_state", "_is_fsdp_managed_module", "_fsdp_use_orig_params", STATE_KEY, REGISTRY_KEY}


def _of_engine(hook: Any) -> bool:
    return (getattr(getattr(hook, "hook", hook), "__module__", None) or "").startswith("shoal.")


class _Once(torch.autograd.Function):
    """Runs ``make(gradient)``, which cannot be differentiated again."""

    @staticmethod
    def forward(ctx, gradient, make):
        return make(gradient.detach())

    @staticmethod
    def backward(ctx, *gradients):
        raise Unimplemented(
            "gradients of a module under SpmdFullyShardedDataParallel cannot be differentiated again by the engine of shoal.fsdp",
            hint="mark one of its parameters before the module is wrapped: then it runs operator by operator",
        )


class _Enter(torch.autograd.Function):
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


class _Leave(torch.autograd.Function):
    """Makes a device tensor from each process's rows. ``leaf`` and the parameters get no gradients here: they show which gradients a
    backward pass wants."""

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
            array = gradient._box.array if isinstance(gradient, Tensor) else Array.whole(gradient, world().num_devices)  # torch's zeros
            (local,) = array.resharded(ctx.sharding, "backward of an output").locals.values()
            return local.detach()

        return _Once.apply(gradient, make), *(None for _ in range(4 + len(parameters)))


def _is_wanted(node: Any) -> bool:
    """True if the running backward pass computes the gradient of a leaf."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for leaves that were given to torch.autograd.grad
        return True


def _on_device(local: torch.Tensor, shape: tuple[int, ...], sharding: Sharding) -> Tensor:
    return Tensor(Box(Array(shape, local.dtype, sharding, {sharding.position(world().rank): local})))


def allows(module: nn.Module, mesh: Mesh, inner: list[Unit]) -> bool:
    """True if this module can be a unit. Each process must have one device, all of them in order on the axis ``fsdp``. Every parameter must
    be a whole floating-point tensor without views."""
    w = world()
    if not isinstance(w, Processes) or w.per_process != 1 or dict(mesh.shape())["fsdp"] != w.num_devices:
        return False
    if mesh.device_ids.tolist() != list(range(w.num_devices)):
        return False
    theirs = {id(m) for unit in inner for m in unit.module.modules()}
    own = [p for m in module.modules() if id(m) not in theirs for p in m._parameters.values() if p is not None]
    buffers = any(b is not None for b in module.buffers())
    checkpointed = any(hasattr(m.forward, "_shoal_checkpointed") for m in module.modules())
    return bool(own) and not (buffers and checkpointed) and all(map(_fits, own))


def _fits(p: nn.Parameter) -> bool:
    if type(p) is not Parameter or p._backward_hooks or p._post_accumulate_grad_hooks or p.grad is not None:
        return False
    plain = p._box.base is None and p._box.mark is None and p._box.array.sharding.is_replicated
    return plain and p.is_floating_point() and p.dim() > 0 and p.numel() > 0


def largest_dim(shape: torch.Size) -> int:
    """The dimension that is split: the largest, the first of several."""
    return max(range(len(shape)), key=lambda d: shape[d])


@dataclass
class Way:
    """The execution of a kind of call on rows. ``entering``: the sharding of each tensor input. ``outputs``: shape, sharding and
    constructor of each output; the constructor makes wrappers if an input is one."""

    entering: list[Sharding]
    outputs: list[tuple[tuple[int, ...], Sharding, Callable[[Box], Tensor]]]


class _Stopped(Exception):
    """Another process could not continue a trial."""


class _Otherwise(Exception):
    """The module's outputs do not fit its way, because the program has changed it."""


class Unit:
    """One wrapped module."""

    def __init__(self, module: nn.Module):
        from shoal.fsdp import fully_shard  # late: loads shoal.fsdp, which other programs of shoal.spmd do not need
        from shoal.fsdp._engine.collect import state_of  # late: as above

        self.module = module
        self._tree = ModuleTree(module)
        self._inside: tuple[list[nn.Module], list[Unit]] | None = None  # cached, for a list of modules
        self._ways: dict[Any, Way | None] = {}  # per kind of call; None: operator by operator
        self._again: set[Any] = set()  # kinds of calls to test once more
        self._changed = False  # the last test changed attributes of modules
        self._never = False  # its training forward does not work by rows; nested units' may
        self.reason: str | None = None  # why the last such kind of call runs operator by operator
        originals: dict[tuple[int, str], nn.Parameter] = {}
        plain: dict[int, nn.Parameter] = {}
        for m in module.modules():
            for name, p in m._parameters.items():
                if p is None or isinstance(p, EngineParameter):
                    continue
                originals[id(m), name] = p
                if id(p) not in plain:
                    plain[id(p)] = nn.Parameter(p._box.array.locals[0], requires_grad=p.requires_grad)
                m._parameters[name] = plain[id(p)]
        mesh, cls = init_device_mesh("cpu", (world().num_processes,)), type(module)
        with _local_buffers(list(module.modules())):
            fully_shard(module, mesh=mesh, reshard_after_forward=True, shard_placement_fn=lambda p: Shard(largest_dim(p.shape)))
        for m in module.modules():
            if m._buffers and _begin_again not in m._forward_pre_hooks.values():
                m.register_forward_pre_hook(_begin_again, with_kwargs=True)
                m.register_forward_hook(_end_again, always_call=True)
        module.__class__ = _named_as(cls, type(module))
        module.set_gradient_divide_factor(1.0)  # gradients are those of the whole batch
        self.state = state_of(module)
        for q in (q for u in self.state.units for q in u.parameters):
            owner, name = q.owners[0]
            front = originals[id(owner), name]
            parts = tuple(mesh.size() if d == q.dim else 1 for d in range(len(q.shape)))
            front._box = EngineBox(q, Sharding(parts, tuple(range(mesh.size()))))
            front.__class__, front._engine, front._shoal_state = EngineParameter, q, self.state
            q.views.front = front
            q.views.register(q.views.sharded)

    def __deepcopy__(self, memo: dict) -> None:
        """A copy of the module has no unit: see _copied."""

    @property
    def parameters(self) -> list[EngineParameter]:
        return [q.views.front for u in self.state.units for q in u.parameters]

    def _units(self) -> list[Unit]:
        """This unit and the nested ones."""
        modules = self._tree.modules()
        if self._inside is None or self._inside[0] is not modules:
            self._inside = modules, [self, *(u for m in modules if isinstance(u := vars(m).get("_unit"), Unit))]
        return self._inside[1]

    def run(self, args: tuple, kwargs: dict) -> Any:
        """Runs the module and returns its outputs."""
        if _way is not None:
            return self._run_inside(args, kwargs)
        if is_again(args, kwargs):
            with _going("rows"):
                return self.module(*args, **kwargs)
        units = self._units()
        if torch._C._current_graph_task_id() == -1:  # a forward recomputed in the backward pass finds unsharded parameters
            self._check_parameters(units)
        flat, tree = tree_flatten((args, kwargs))
        other = next((a for a in flat if not isinstance(a, (Tensor, *_CONSTANTS))), None)
        key = None
        if other is not None:  # its value may change, and its id may be reused
            way = self._because("an input is a " + ("tensor of the host" if isinstance(other, torch.Tensor) else type(other).__name__))
        else:
            key = self._key(flat, tree, units)
            way = self._way_of(key, flat, tree, units)
        for last in (False, True):
            if way is None:
                break
            try:
                return self._on_rows(flat, tree, units, way)
            except _Otherwise:
                way = self._ways[key] = None if last else self._look(flat, tree, units)
        with _paused([self] if self._never else units), contextlib.nullcontext() if self._never else _going("operators"):
            return self.module(*args, **kwargs)

    def _check_parameters(self, units: list[Unit]) -> None:
        for p in (p for u in units for p in u.parameters):
            if any(m._parameters.get(name) is not p for m, name in p._engine.owners):
                raise Unimplemented(
                    f"parameter {p._engine.name} of a module under SpmdFullyShardedDataParallel was replaced by another one",
                    hint="replace or convert parameters before the module is wrapped, or write values into it: p.data = value",
                )

    def _way_of(self, key: Any, flat: list[Any], tree: Any, units: list[Unit]) -> Way | None:
        if key in self._ways:
            return self._ways[key]
        self._changed = False
        way = None if self._never else self._look(flat, tree, units)
        if way is None and self._changed and key not in self._again:  # modules may make caches at their first call
            if len(self._again) > _MOST_WAYS:
                self._again.clear()
            self._again.add(key)
            return None
        self._again.discard(key)
        self._ways[key] = way
        if len(self._ways) > _MOST_WAYS:
            del self._ways[next(iter(self._ways))]
        if way is None:
            self._never |= torch.is_grad_enabled() and not any(self._ways.values())
            _log.info("%s runs operator by operator: %s", type(self.module).__name__, self.reason)
        return way

    def _run_inside(self, args: tuple, kwargs: dict) -> Any:
        if _way not in ("looking", "trying"):
            return self.module(*args, **kwargs)
        if _way == "trying" and not all(close for close, _ in world().passed((True, False))):
            raise _Stopped
        with unobserved(), torch._C.DisableTorchFunction():
            whole = {p: Array.whole(p._box.array.gathered(), world().num_devices) for p in self.parameters}
        places = [(m, name, m._parameters[name]) for p in whole for m, name in p._engine.owners] if _way == "trying" else []
        try:
            for p, array in whole.items():
                if _way == "trying":
                    for m, name in p._engine.owners:
                        m._parameters[name] = nn.Parameter(array.locals[0], requires_grad=p.requires_grad)
                else:
                    p._box.whole = array
            return self.module(*args, **kwargs)
        finally:
            for m, name, p in places:
                m._parameters[name] = p
            for p in whole:
                p._box.whole = None

    def _key(self, flat: list[Any], tree: Any, units: list[Unit]) -> Any:
        """The facts that decide how a call runs: shapes, dtypes and shardings, constants, modes, hooks, and switches of modules."""
        inputs = tuple(
            (tuple(a.shape), a.dtype, a._box.array.sharding, a.requires_grad) if isinstance(a, Tensor) else (type(a), a) for a in flat
        )
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), _have_hooks(units), tuple(map(len, _hooks_of_all()))
        wanted = tuple(p.requires_grad for u in units for p in u.parameters)
        return inputs, str(tree), modes, self._tree.number(), wanted

    def _look(self, flat: list[Any], tree: Any, units: list[Unit]) -> Way | None:
        """Returns the way to run on rows, or None if the module does not work by rows."""
        inputs = [a for a in flat if isinstance(a, Tensor)]
        given = [t._box.array.sharding for t in inputs]
        if not any(map(_by_rows, given)):
            return self._because("no input is split over the batch")
        if not all(_by_rows(s) or s.is_replicated for s in given):
            return self._because("an input is split in another dimension than the batch")
        if _have_hooks(units):
            return self._because("a parameter has hooks")
        every = [*_hooks_of_all(), *(of for m in self.module.modules() for of in _hooks_of(m))]
        if any(_of_program(h) for of in every for h in of.values()):
            return self._because("a module has hooks")
        if not all(b._box.array.sharding.is_replicated for b in self.module.buffers()):
            return self._because("a buffer is split")
        counts = {t.shape[0] for t in inputs if _by_rows(t._box.array.sharding)}
        cut = [_rows(t.dim()) if t.shape[:1] and t.shape[0] in counts else s for t, s in zip(inputs, given, strict=True)]
        for entering in [cut, given] if cut != given else [given]:
            way = self._looked(flat, tree, units, entering)
            if way is not None:
                self.reason = None
                return way
        return None

    def _looked(self, flat: list[Any], tree: Any, units: list[Unit], entering: list[Sharding]) -> Way | None:
        copies = [a.detach().clone() if isinstance(a, Tensor) else a for a in flat]
        inputs = [c for c in copies if isinstance(c, Tensor)]
        for t, sharding in zip(inputs, entering, strict=True):
            t._box.lay(sharding)
        before = [t._box.written for t in inputs]
        local = [
            next(iter(c._box.array.locals.values())).clone().requires_grad_(a.requires_grad) if isinstance(c, Tensor) else c
            for c, a in zip(copies, flat, strict=True)
        ]
        made = _Made(Tensor)
        try:
            with (
                _going("looking"), _loaders_waiting(), self._leaving_no_trace(units) as traces, torch.no_grad(), observed() as seen, made,
            ):  # fmt: skip
                output = self._run_inside(*tree_unflatten(copies, tree))
        except Exception as error:  # if the program causes it, the actual run raises it again
            return self._because(f"its forward raised {type(error).__name__} without gradients")
        if seen:
            return self._because(seen[0])
        said = [t for ts in world().passed(traces) for t in ts]  # on some processes a loader's thread may draw random numbers
        if said:
            self._changed = any(again for _, again in said)
            return self._because(said[0][0])
        if self._is_any_kept(world().passed(made.kept(tree_flatten(output)[0]))):
            return None
        if before != [t._box.written for t in inputs]:
            return self._because("it writes to its inputs")
        flat_output = tree_flatten(output)[0]
        outputs = [o for o in flat_output if isinstance(o, Tensor)]
        for o in flat_output:
            if not isinstance(o, (Tensor, int, float, str, bool, type(None))):
                return self._because(f"an output is a {type(o).__name__}")
        if not all(_by_rows(o._box.array.sharding) for o in outputs):
            return self._because("an output is not split over the batch")
        self._because("its outputs depend on how many rows it gets")
        if not self._tried(local, tree, units, [next(iter(o._box.array.locals.values())) for o in outputs]):
            return None
        return Way(entering, [(tuple(o.shape), o._box.array.sharding, getattr(type(o), "result", Tensor)) for o in outputs])

    def _tried(self, local: list[Any], tree: Any, units: list[Unit], wanted: list[torch.Tensor]) -> bool:
        """Runs the module on rows of inputs; True if every process gets the wanted rows of outputs. A process that fails reports it where
        the others begin their next unit."""
        made_inside = _Made(torch.Tensor)
        made_inside.note(local)
        try:
            # A checkpoint around the module counts tensors that its forward saves; those of this trial must not count.
            unseen = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda t: t)
            args, kwargs = tree_unflatten([t.clone() if isinstance(t, torch.Tensor) and t.requires_grad else t for t in local], tree)
            local.clear()
            with (
                _going("trying"), _loaders_waiting(), self._leaving_no_trace(units), _local_buffers(self._tree.modules()), unseen,
                made_inside, _gradients_watched() as said,
            ):  # fmt: skip
                output = self._run_inside(args, kwargs)
        except _Stopped:
            return False
        except Exception:
            return self._agreed(False, False)
        made = [o for o in tree_flatten(output)[0] if isinstance(o, torch.Tensor)]
        function = _function_behind(made)
        if function is not None:
            said.append(f"the backward of {function} has no rule")
        close = not said and len(made) == len(wanted) and all(map(_close, made, wanted))
        if said:
            self._because(said[0])
        del args, kwargs, output, made
        return self._agreed(close, made_inside.kept([]))

    def _agreed(self, close: bool, kept: bool) -> bool:
        found = world().passed((close, kept))
        return not self._is_any_kept([kept for _, kept in found]) and all(close for close, _ in found)

    def _is_any_kept(self, kept: list[bool]) -> bool:
        """True if any process still has a tensor that the forward made, other than its outputs."""
        if any(kept):
            self._changed = True  # it may be a cache
            self._because("it keeps a tensor")
        return any(kept)

    @contextlib.contextmanager
    def _leaving_no_trace(self, units: list[Unit]) -> Iterator[list[tuple[str, bool]]]:
        """Pauses the engine, and afterwards restores random streams, attributes and buffers of modules. Yields a list that gets the changes
        at the end, each with True if a second run may not repeat it."""
        held = [(b, b.detach().clone()) for b in self.module.buffers()]
        kept = [(m, of, copy.copy(of)) for m in self.module.modules() for of in _kept(m)]
        state, pythons, numpys = torch.get_rng_state(), random.getstate(), np.random.get_state()
        traces: list[tuple[str, bool]] = []
        try:
            with _paused(units):
                yield traces
        finally:
            drawn = not torch.equal(state, torch.get_rng_state()) or pythons != random.getstate()
            if drawn or numpys[2:] != np.random.get_state()[2:] or any(numpys[1] != np.random.get_state()[1]):
                traces.append(("it draws random numbers", False))
            torch.set_rng_state(state)
            random.setstate(pythons)
            np.random.set_state(numpys)
            for m, of, before in kept:
                changed = _put_back(of, before)
                if changed:
                    traces.append((f"it changes {changed} of {type(m).__name__}", True))
            with torch.no_grad():
                for b, value in held:
                    b.copy_(value)

    def _because(self, reason: str) -> None:
        self.reason = reason

    def _on_rows(self, flat: list[Any], tree: Any, units: list[Unit], way: Way) -> Any:
        for p in (p for u in units for p in u.parameters):
            if p._engine.views.sharded.requires_grad != p.requires_grad:
                p._engine.views.sharded.requires_grad_(p.requires_grad)
        entering = iter(way.entering)
        args, kwargs = tree_unflatten([_Enter.apply(a, next(entering)) if isinstance(a, Tensor) else a for a in flat], tree)
        with _going("rows"), _local_buffers(self._tree.modules()):
            made, made_tree = tree_flatten(self.module(*args, **kwargs))
        if [o.shape[1:] for o in made if isinstance(o, torch.Tensor)] != [shape[1:] for shape, *_ in way.outputs]:
            raise _Otherwise
        outputs = iter(way.outputs)
        asked = [torch.zeros((), requires_grad=True), *(p for u in units for p in u.parameters)]
        of = [(asked if o.requires_grad else [None]) if isinstance(o, torch.Tensor) else [] for o in made]
        return tree_unflatten(
            [_Leave.apply(o, *next(outputs), *a) if isinstance(o, torch.Tensor) else o for o, a in zip(made, of, strict=True)], made_tree
        )


_CONSTANTS = (int, float, complex, bool, str, bytes, torch.dtype, torch.device, Enum, type(None))
_MOST_WAYS = 256  # limit per unit


def _have_hooks(units: list[Unit]) -> bool:
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for u in units for p in u.parameters)


def _hooks_of(m: nn.Module) -> tuple[dict, ...]:
    return m._forward_pre_hooks, m._forward_hooks, m._backward_pre_hooks, m._backward_hooks


def _hooks_of_all() -> tuple[dict, ...]:
    """The hooks of all modules."""
    m = modules_of_torch
    return m._global_forward_pre_hooks, m._global_forward_hooks, m._global_backward_pre_hooks, m._global_backward_hooks


def _of_program(function: Any) -> bool:
    name = getattr(getattr(function, "func", function), "__module__", None) or ""
    return name.partition(".")[0] not in ("torch", "shoal")


def _kept(m: nn.Module) -> list[Any]:
    """The places where a module keeps values: its attributes, and the program's containers and objects reachable from them."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [vars(m)]
    while waiting and len(found) < _MOST_PLACES:
        of = waiting.pop()
        if id(of) in found:
            continue
        found[id(of)] = of
        if len(of) > _MOST_PLACES:
            continue
        for v in list(of.values() if isinstance(of, dict) else of):
            if isinstance(v, (dict, list, set, deque)):
                waiting.append(v)
            elif type(v) not in _PLAIN and _is_object_of_program(v):
                waiting.append(vars(v))
    return list(found.values())


_MOST_PLACES = 10_000
_PLAIN = {*_CONSTANTS, tuple, torch.Tensor, Tensor, Parameter, EngineParameter, FunctionType, BuiltinFunctionType, MethodType}
_NOT_THE_PROGRAMS = {*sys.stdlib_module_names, "torch", "shoal", "numpy"}


def _is_object_of_program(v: Any) -> bool:
    if isinstance(v, (type, nn.Module, torch.Tensor)) or not hasattr(v, "__dict__"):
        return False
    return type(v) is SimpleNamespace or type(v).__module__.partition(".")[0] not in _NOT_THE_PROGRAMS


def _put_back(of: Any, before: Any) -> str:
    """Restores a container. Returns the changes as text."""
    if not isinstance(of, dict):
        if len(of) == len(before) and all(map(operator.is_, of, before)):
            return ""
        of.clear()
        of.update(before) if isinstance(of, set) else of.extend(before)
        return f"a {type(of).__name__}"
    changed = [k for k in {**before, **of} if k not in of or k not in before or of[k] is not before[k]]
    for k in changed:
        if k in before:
            of[k] = before[k]
        else:
            del of[k]
    return ", ".join(map(str, changed))


class _Made(TorchFunctionMode):
    """Records the tensors of a class that torch's functions return."""

    def __init__(self, kind: type[torch.Tensor]):
        super().__init__()
        self._kind = kind
        self._refs: list[weakref.ref] = []

    def note(self, out: Any) -> None:
        if isinstance(out, self._kind):
            self._refs.append(weakref.ref(out))
        elif isinstance(out, (list, tuple)):
            for o in out:
                self.note(o)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not any(out is a for a in args):
            self.note(out)
        return out

    def kept(self, but: list[Any]) -> bool:
        """True if a recorded tensor still exists that is no parameter and not in ``but``."""
        others = {id(b) for b in but}
        for collected in (False, True):
            if collected:
                gc.collect()
            if not any(_is_there(ref, others) for ref in self._refs):
                return False
        return True


def _is_there(ref: weakref.ref, others: set[int]) -> bool:
    t = ref()
    return t is not None and id(t) not in others and not isinstance(t, nn.Parameter)


@contextlib.contextmanager
def _gradients_watched() -> Iterator[list[str]]:
    """Collects the uses of tensor hooks and grad_fn in a forward."""
    said: list[str] = []

    def noting(name: str, found: Any) -> Any:
        def noted(self: torch.Tensor, *args: Any) -> Any:
            said.append(f"it uses {name} of a tensor")
            return found(self, *args)

        return noted

    hooks = {name: getattr(torch.Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook")}
    try:
        for name, found in hooks.items():
            setattr(torch.Tensor, name, noting(name, found))
        torch.Tensor.grad_fn = property(noting("grad_fn", torch._C.TensorBase.grad_fn.__get__))
        yield said
    finally:
        for name, found in hooks.items():
            setattr(torch.Tensor, name, found)
        del torch.Tensor.grad_fn


def _function_behind(outputs: list[torch.Tensor]) -> str | None:
    """The name of a torch.autograd.Function behind the outputs, if it is the program's or hides the operators that it runs."""
    nodes, seen = [o.grad_fn for o in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        made_by = getattr(node, "_forward_cls", None)
        if made_by is not None and (_of_program(made_by) or made_by is CheckpointFunction):
            return made_by.__name__
        nodes += [n for n, _ in node.next_functions]
    return None


def _rows(rank: int) -> Sharding:
    n = world().num_devices
    return Sharding((n, *(1,) * (rank - 1)), tuple(range(n)))


def _by_rows(sharding: Sharding) -> bool:
    n = world().num_devices
    return sharding.parts[:1] == (n,) and sharding.devices == tuple(range(n))


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = _TOLERANCE.get(b.dtype, 1e-2)
    a, b = a.detach().double(), b.detach().double()
    scale = float(b.abs().max()) if b.numel() else 1.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)


# The way of the outermost running unit: "rows", "operators", "looking", "trying"; None outside of units.
_way: str | None = None


def on_rows() -> bool:
    """True while a unit runs on this process's rows, with ordinary tensors."""
    return _way in ("rows", "trying")


@contextlib.contextmanager
def _going(way: str | None) -> Iterator[None]:
    global _way
    before, _way = _way, way
    try:
        yield
    finally:
        _way = before


_PATIENCE_S = 5.0  # limit of the wait for a loader's thread, which may itself wait for the program


@contextlib.contextmanager
def _loaders_waiting() -> Iterator[None]:
    """Keeps loaders' threads from drawing random numbers meanwhile."""
    alone = loading.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if alone:
            loading.release()


_units_paused: list[Unit] = []


@contextlib.contextmanager
def _paused(units: list[Unit]) -> Iterator[None]:
    """Runs modules without the engine, on the program's parameters."""
    global _units_paused
    before, _units_paused = _units_paused, [*_units_paused, *units]
    for u in units:
        u.state.replaced = True
    try:
        yield
    finally:
        _units_paused = before
        for u in units:
            u.state.replaced = u in before


def is_again(args: tuple, kwargs: dict) -> bool:
    """True if the backward pass recomputes a forward that ran on rows: torch.utils.checkpoint then passes ordinary tensors."""
    if _way not in (None, "rows") or torch._C._current_graph_task_id() == -1:
        return False
    return any(isinstance(a, torch.Tensor) and not isinstance(a, Tensor) for a in tree_flatten((args, kwargs))[0])


def as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function so that it runs later as it would now: the backward pass recomputes the forward of a checkpointed module."""
    way, units = _way, _units_paused

    def run(*args: Any, **kwargs: Any) -> Any:
        with _going(way), _paused(units):
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _local_buffers(modules: list[nn.Module]) -> Iterator[None]:
    """Gives these modules ordinary tensors as buffers, in the same memory."""
    held = [(m, name, b) for m in modules if m._buffers for name, b in m._buffers.items() if isinstance(b, Tensor)]
    for m, name, b in held:
        (m._buffers[name],) = b._box.array.locals.values()
    try:
        yield
    finally:
        for m, name, b in held:
            m._buffers[name] = b


_swapped: list[tuple[nn.Module, dict]] = []


def _begin_again(m: nn.Module, args: tuple, kwargs: dict) -> None:
    """Gives a module ordinary tensors as buffers while torch.utils.checkpoint recomputes a forward on rows."""
    if is_again(args, kwargs):
        _swapped.append((m, dict(m._buffers)))
        for name, b in m._buffers.items():
            if isinstance(b, Tensor):
                (m._buffers[name],) = b._box.array.locals.values()


def _end_again(m: nn.Module, args: tuple, output: Any) -> None:
    if _swapped and _swapped[-1][0] is m:
        m._buffers.update(_swapped.pop()[1])
