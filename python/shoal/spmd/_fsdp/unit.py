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
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.exceptions import Unimplemented
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Parameter, Tensor
from shoal.spmd._fsdp import running
from shoal.spmd._fsdp.crossing import Enter, Leave
from shoal.spmd._fsdp.module_tree import ModuleTree
from shoal.spmd._fsdp.observing import (
    CONSTANTS,
    ResultsRecorder,
    are_close,
    function_behind,
    gradients_watched,
    have_hooks,
    hooks_of,
    hooks_of_all,
    is_by_rows,
    is_of_program,
    kept_by,
    put_back,
    rows_of,
)
from shoal.spmd._fsdp.parameter import EngineBox, EngineParameter, named_as
from shoal.spmd._fsdp.running import begin_again, end_again, going, is_again, loaders_waiting, local_buffers, paused
from shoal.spmd._layout.array import Array, observed, unobserved
from shoal.spmd._layout.processes import Processes, world
from shoal.spmd._layout.sharding import Sharding

if TYPE_CHECKING:
    from shoal.spmd._layout.mesh import Mesh


_log = logging.getLogger("shoal.spmd")


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
    """Returns the dimension that is split: the largest one, or the first of several."""
    return max(range(len(shape)), key=lambda d: shape[d])


@dataclass
class Way:
    """How calls of one kind run on rows. ``entering``: the sharding of each tensor input. ``outputs``: shape, sharding and constructor of
    each output; the constructor makes XLAShardedTensors if an input is one."""

    entering: list[Sharding]
    outputs: list[tuple[tuple[int, ...], Sharding, Callable[[Box], Tensor]]]


class _Stopped(Exception):
    """Ends a trial, because another process could not continue."""


class _Otherwise(Exception):
    """Ends a run on rows, because its outputs are not those of the unit's Way: the program has changed the module."""


class Unit:
    """One module that SpmdFullyShardedDataParallel wraps, as a unit of ``shoal.fsdp``'s engine."""

    def __init__(self, module: nn.Module):
        from shoal.fsdp import fully_shard  # late: loads shoal.fsdp, which other programs of shoal.spmd do not need
        from shoal.fsdp._engine.bootstrap import add_in_rank_order  # late: loads shoal.fsdp
        from shoal.fsdp._engine.collect import state_of  # late: loads shoal.fsdp

        add_in_rank_order()

        self.module = module
        self._tree = ModuleTree(module)
        self._inside: tuple[list[nn.Module], list[Unit]] | None = None  # its modules, and the nested units among them
        self._plans: dict[Any, Way | None] = {}  # by kind of call: how it runs on rows; None: operator by operator
        self._again: set[Any] = set()  # kinds of calls whose first test changed modules: they get a second one
        self._changed = False  # the last test changed attributes of modules
        self._never = False  # True: the training forward of this module does not work by rows; those of nested units may
        self.reason: str | None = None  # why the last call that ran operator by operator did so
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
        with local_buffers(list(module.modules())):
            fully_shard(module, mesh=mesh, reshard_after_forward=True, shard_placement_fn=lambda p: Shard(largest_dim(p.shape)))
        for m in module.modules():
            if m._buffers and begin_again not in m._forward_pre_hooks.values():
                m.register_forward_pre_hook(begin_again, with_kwargs=True)
                m.register_forward_hook(end_again, always_call=True)
        module.__class__ = named_as(cls, type(module))
        module.set_gradient_divide_factor(1.0)  # no division: gradients are those of the whole batch
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
        """Returns None, so that a copy of the module has no unit (see ``_copied`` in parameter.py)."""

    @property
    def parameters(self) -> list[EngineParameter]:
        return [q.views.front for u in self.state.units for q in u.parameters]

    def _units(self) -> list[Unit]:
        """Returns this unit and the nested ones."""
        modules = self._tree.modules()
        if self._inside is None or self._inside[0] is not modules:
            self._inside = modules, [self, *(u for m in modules if isinstance(u := vars(m).get("_unit"), Unit))]
        return self._inside[1]

    def run(self, args: tuple, kwargs: dict) -> Any:
        """Runs the module and returns its outputs."""
        if running.now is not None:
            return self._run_inside(args, kwargs)
        if is_again(args, kwargs):
            with going("rows"):
                return self.module(*args, **kwargs)
        units = self._units()
        if torch._C._current_graph_task_id() == -1:  # not in a backward pass, whose recomputed forwards find unsharded parameters
            self._check_parameters(units)
        flat, tree = tree_flatten((args, kwargs))
        other = next((a for a in flat if not isinstance(a, (Tensor, *CONSTANTS))), None)
        key = None
        if other is not None:  # such an input cannot be part of a key: its value may change, and its id may be reused
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
                way = self._plans[key] = None if last else self._test(flat, tree, units)
        states = [self.state] if self._never else [u.state for u in units]
        with paused(states), contextlib.nullcontext() if self._never else going("operators"):
            return self.module(*args, **kwargs)

    def _check_parameters(self, units: list[Unit]) -> None:
        for p in (p for u in units for p in u.parameters):
            if any(m._parameters.get(name) is not p for m, name in p._engine.owners):
                raise Unimplemented(
                    f"parameter {p._engine.name} of a module under SpmdFullyShardedDataParallel was replaced by another one",
                    hint="replace or convert parameters before the module is wrapped, or write values into it: p.data = value",
                )

    def _way_of(self, key: Any, flat: list[Any], tree: Any, units: list[Unit]) -> Way | None:
        if key in self._plans:
            return self._plans[key]
        self._changed = False
        way = None if self._never else self._test(flat, tree, units)
        if way is None and self._changed and key not in self._again:  # a second test, because modules may make caches at their first call
            if len(self._again) > _MAX_PLANS:
                self._again.clear()
            self._again.add(key)
            return None
        self._again.discard(key)
        self._plans[key] = way
        if len(self._plans) > _MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        if way is None:
            self._never |= torch.is_grad_enabled() and not any(self._plans.values())
            _log.info("%s runs operator by operator: %s", type(self.module).__name__, self.reason)
        return way

    def _run_inside(self, args: tuple, kwargs: dict) -> Any:
        if running.now not in ("looking", "trying"):
            return self.module(*args, **kwargs)
        if running.now == "trying" and not all(close for close, _ in world().passed((True, False))):
            raise _Stopped
        with unobserved(), torch._C.DisableTorchFunction():
            whole = {p: Array.whole(p._box.array.gathered(), world().num_devices) for p in self.parameters}
        places = [(m, name, m._parameters[name]) for p in whole for m, name in p._engine.owners] if running.now == "trying" else []
        try:
            for p, array in whole.items():
                if running.now == "trying":
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
        parameters = [p for u in units for p in u.parameters]
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), have_hooks(parameters), tuple(map(len, hooks_of_all()))
        wanted = tuple(p.requires_grad for p in parameters)
        return inputs, str(tree), modes, self._tree.number(), wanted

    def _test(self, flat: list[Any], tree: Any, units: list[Unit]) -> Way | None:
        """Tests whether the module works by rows. Returns how it then runs, or None if it does not."""
        inputs = [a for a in flat if isinstance(a, Tensor)]
        given = [t._box.array.sharding for t in inputs]
        if not any(map(is_by_rows, given)):
            return self._because("no input is split over the batch")
        if not all(is_by_rows(s) or s.is_replicated for s in given):
            return self._because("an input is split in another dimension than the batch")
        if have_hooks(p for u in units for p in u.parameters):
            return self._because("a parameter has hooks")
        every = [*hooks_of_all(), *(of for m in self.module.modules() for of in hooks_of(m))]
        if any(is_of_program(h) for of in every for h in of.values()):
            return self._because("a module has hooks")
        if not all(b._box.array.sharding.is_replicated for b in self.module.buffers()):
            return self._because("a buffer is split")
        counts = {t.shape[0] for t in inputs if is_by_rows(t._box.array.sharding)}
        cut = [rows_of(t.dim()) if t.shape[:1] and t.shape[0] in counts else s for t, s in zip(inputs, given, strict=True)]
        for entering in [cut, given] if cut != given else [given]:
            way = self._test_without_gradients(flat, tree, units, entering)
            if way is not None:
                self.reason = None
                return way
        return None

    def _test_without_gradients(self, flat: list[Any], tree: Any, units: list[Unit], entering: list[Sharding]) -> Way | None:
        copies = [a.detach().clone() if isinstance(a, Tensor) else a for a in flat]
        inputs = [c for c in copies if isinstance(c, Tensor)]
        for t, sharding in zip(inputs, entering, strict=True):
            t._box.lay(sharding)
        before = [t._box.written for t in inputs]
        local = [
            next(iter(c._box.array.locals.values())).clone().requires_grad_(a.requires_grad) if isinstance(c, Tensor) else c
            for c, a in zip(copies, flat, strict=True)
        ]
        recorder = ResultsRecorder(Tensor)
        try:
            with (
                going("looking"), loaders_waiting(), self._leaving_no_trace(units) as traces, torch.no_grad(), observed() as seen, recorder,
            ):  # fmt: skip
                output = self._run_inside(*tree_unflatten(copies, tree))
        except Exception as error:  # the actual run raises the error again if the program causes it
            return self._because(f"its forward raised {type(error).__name__} without gradients")
        if seen:
            return self._because(seen[0])
        # all processes compare, because a loader's thread may draw random numbers on some of them
        said = [t for ts in world().passed(traces) for t in ts]
        if said:
            self._changed = any(again for _, again in said)
            return self._because(said[0][0])
        if self._is_any_kept(world().passed(recorder.kept(tree_flatten(output)[0]))):
            return None
        if before != [t._box.written for t in inputs]:
            return self._because("it writes to its inputs")
        flat_output = tree_flatten(output)[0]
        outputs = [o for o in flat_output if isinstance(o, Tensor)]
        for o in flat_output:
            if not isinstance(o, (Tensor, int, float, str, bool, type(None))):
                return self._because(f"an output is a {type(o).__name__}")
        if not all(is_by_rows(o._box.array.sharding) for o in outputs):
            return self._because("an output is not split over the batch")
        self._because("its outputs depend on how many rows it gets")
        if not self._tried(local, tree, units, [next(iter(o._box.array.locals.values())) for o in outputs]):
            return None
        return Way(entering, [(tuple(o.shape), o._box.array.sharding, getattr(type(o), "result", Tensor)) for o in outputs])

    def _tried(self, local: list[Any], tree: Any, units: list[Unit], wanted: list[torch.Tensor]) -> bool:
        """Runs the module on rows of inputs. Returns True if every process gets the wanted rows of outputs. A process that fails
        reports that in the exchange with which the others begin their next unit."""
        inner = ResultsRecorder(torch.Tensor)
        inner.note(local)
        try:
            # Hides this trial's saved tensors from torch.utils.checkpoint around the module, which counts the tensors that a forward saves.
            unseen = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda t: t)
            args, kwargs = tree_unflatten([t.clone() if isinstance(t, torch.Tensor) and t.requires_grad else t for t in local], tree)
            local.clear()
            with (
                going("trying"), loaders_waiting(), self._leaving_no_trace(units), local_buffers(self._tree.modules()), unseen,
                inner, gradients_watched() as said,
            ):  # fmt: skip
                output = self._run_inside(args, kwargs)
        except _Stopped:
            return False
        except Exception:
            return self._agreed(False, False)
        tensors = [o for o in tree_flatten(output)[0] if isinstance(o, torch.Tensor)]
        function = function_behind(tensors)
        if function is not None:
            said.append(f"the backward of {function} has no rule")
        close = not said and len(tensors) == len(wanted) and all(map(are_close, tensors, wanted))
        if said:
            self._because(said[0])
        del args, kwargs, output, tensors
        return self._agreed(close, inner.kept([]))

    def _agreed(self, close: bool, kept: bool) -> bool:
        found = world().passed((close, kept))
        return not self._is_any_kept([kept for _, kept in found]) and all(close for close, _ in found)

    def _is_any_kept(self, kept: list[bool]) -> bool:
        """True if on any process a tensor that the forward made still exists and is no output."""
        if any(kept):
            self._changed = True  # the kept tensor may be a cache, which a second test does not make again
            self._because("it keeps a tensor")
        return any(kept)

    @contextlib.contextmanager
    def _leaving_no_trace(self, units: list[Unit]) -> Iterator[list[tuple[str, bool]]]:
        """Pauses the engine, and afterwards restores random streams, attributes and buffers of modules. Yields a list that gets the changes
        at the end, each with True if a second run may not repeat it."""
        held = [(b, b.detach().clone()) for b in self.module.buffers()]
        kept = [(m, of, copy.copy(of)) for m in self.module.modules() for of in kept_by(m)]
        state, pythons, numpys = torch.get_rng_state(), random.getstate(), np.random.get_state()
        traces: list[tuple[str, bool]] = []
        try:
            with paused([u.state for u in units]):
                yield traces
        finally:
            drawn = not torch.equal(state, torch.get_rng_state()) or pythons != random.getstate()
            if drawn or numpys[2:] != np.random.get_state()[2:] or any(numpys[1] != np.random.get_state()[1]):
                traces.append(("it draws random numbers", False))
            torch.set_rng_state(state)
            random.setstate(pythons)
            np.random.set_state(numpys)
            for m, of, before in kept:
                changed = put_back(of, before)
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
        args, kwargs = tree_unflatten([Enter.apply(a, next(entering)) if isinstance(a, Tensor) else a for a in flat], tree)
        with going("rows"), local_buffers(self._tree.modules()):
            flat_out, out_tree = tree_flatten(self.module(*args, **kwargs))
        if [o.shape[1:] for o in flat_out if isinstance(o, torch.Tensor)] != [shape[1:] for shape, *_ in way.outputs]:
            raise _Otherwise
        outputs = iter(way.outputs)
        targets = [torch.zeros((), requires_grad=True), *(p for u in units for p in u.parameters)]
        of = [(targets if o.requires_grad else [None]) if isinstance(o, torch.Tensor) else [] for o in flat_out]
        return tree_unflatten(
            [Leave.apply(o, *next(outputs), *a) if isinstance(o, torch.Tensor) else o for o, a in zip(flat_out, of, strict=True)], out_tree
        )


_MAX_PLANS = 256  # the most kinds of calls that a unit remembers
