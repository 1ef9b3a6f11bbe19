"""The state of a call of fully_shard: modules, their units, and the hooks that report the program's progress to the engine."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import Shard
from torch.distributed.utils import _apply_to_tensors
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal._objects.tensors import tensors_in
from shoal.exceptions import InvalidArgument
from shoal.fsdp._collect import managed, own_parameters, state_of
from shoal.fsdp._errors import RootRanLater, StaleBackward
from shoal.fsdp._mesh import DataMesh, of_mesh_info, post_forward_mesh
from shoal.fsdp._names import clean
from shoal.fsdp._parameters import ShardedParameter, local_of, version_of
from shoal.fsdp._root import ForwardToken, Root
from shoal.fsdp._unit import Unit
from shoal.fsdp._untraced import only_inlined, untraced


class State:
    """One call of fully_shard: its modules (usually one), and the units of their parameters."""

    def __init__(
        self,
        modules: tuple[nn.Module, ...],
        data: DataMesh,
        reshard_after_forward: bool | int | None,
        policy: Any,
        offload: CPUOffloadPolicy | None = None,
        guard: bool = False,
    ):
        self.modules, self.data, self.mp_policy = modules, data, policy
        self.home = data.device if offload is None else torch.device("cpu")  # device of sharded tensors
        self.pinned = offload is not None and offload.pin_memory and not data.in_arena
        self.reshard_asked = self.reshard_after_forward = reshard_after_forward  # lazy_init resolves None
        self.reshard_after_backward = True
        self.cast_to = policy.param_dtype if policy.cast_forward_inputs else None  # dtype of floating-point inputs
        self.sync = True  # backward reduces gradients
        self.everywhere = True  # backward also reduces over replicas
        self.reduce_unused = False
        self.unshard_in_backward = True
        self.max_input_buffers = 2
        self.forward_prefetch: list[State] = []
        self.backward_prefetch: list[State] = []
        self.lease_guard = guard
        self.ignored: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()  # attribute names by module
        self.units: list[Unit] = []
        self.root: Root | None = None
        self.outer: weakref.ref[State] | None = None  # the last state sharded around this one
        self.is_root = False
        self.index = -1
        self.closed_window: tuple[str, dict[str, int]] | None = None  # reason for the closed write window, and write counts
        self.name = type(modules[0]).__name__
        self.shows = "sharded"  # the view in modules: "sharded", "unsharded" or "post_forward"
        self.replaced = False  # parameters are temporarily replaced (FSDP1's summon_full_params)
        self.in_backward = False
        self.ran = False  # a forward with gradients ran since the last backward
        self.ends_unseen = False  # no input of the running forward wants a gradient
        self.casts = 0  # Root.casts at the last forward
        self.seen = False  # ran in a forward of the root whose backward is pending, with gradients or in a checkpoint
        self.forwarding = False  # a forward is running
        self.entered: nn.Module | None = None  # an inner module that the program called directly
        self.post_optim_event: Any = None
        self.weigh_samples = self.joining = False
        self.endless: weakref.WeakSet[ForwardToken] = weakref.WeakSet()  # forwards without an input that wants gradients: no node ends them
        self.ends: weakref.WeakSet = weakref.WeakSet()  # autograd nodes that end a backward of this unit, one per forward

    @property
    def module(self) -> nn.Module:
        return self.modules[0]

    # ---- set-up ----

    def shard(self, ignored: set[nn.Parameter], placement: Callable | None) -> None:
        for m in (m for top in self.modules for m in top.modules()):
            if names := {name for name, p in m._parameters.items() if p in ignored}:
                self.ignored[m] = names
        found = own_parameters(self.modules, ignored)
        originals: dict[ShardedParameter, nn.Parameter] = {}
        meshes: dict[tuple, DataMesh] = {}  # by process groups of the mesh
        if placement is not None and self.data.shard_dim is None:
            raise ValueError(
                "Per-param mesh via shard_placement_fn is not supported with DDPMeshInfo; it requires FSDPMeshInfo (or subclass): "
                "this mesh has no dim that shards"
            )
        for name, (parameter, owners) in found.items():
            self._check(name, parameter)
            dim, data = self._placed(name, parameter, placement)
            known = data if placement is None else meshes.setdefault(data.groups, data)
            if known is not data:
                raise ValueError(
                    "Params sharing the same process group must use the same FSDPMeshInfo object, but got different objects: "
                    f"{known.mesh} vs {data.mesh} of parameter {name}"
                )
            p = ShardedParameter(name, parameter, owners, data, dim, self.mp_policy, self.home, self.pinned)
            unit = next((u for u in self.units if u.data is data), None)
            if unit is None:
                unit = Unit(self, data)
                self.units.append(unit)
            unit.parameters.append(p)
            originals[p] = parameter
        if not self.units:
            self.units.append(Unit(self, self.data))
        self._move_buffers()
        donors = self._take_tied()
        if isinstance(self.reshard_after_forward, int) and not isinstance(self.reshard_after_forward, bool):
            self._reshard_to(self.reshard_after_forward)
        for u in donors:
            u.build_again()
        for u in self.units:
            u.build([originals.get(p) for p in u.parameters])
        for p, original in originals.items():
            original._shoal_sharded = weakref.ref(p)  # later holders of the original are tied to it

    def _move_buffers(self) -> None:
        """Moves buffers to the compute device, as FSDP2 does. Parameters are gathered there by unsharding."""
        for module in {m for top in self.modules for m in top.modules()}:
            for buffer in module._buffers.values():
                if buffer is not None and not buffer.is_meta and buffer.device != self.data.device:
                    buffer.data = buffer.to(self.data.device)  # .data: other holders keep the same tensor

    def _take_tied(self) -> list[Unit]:
        """Moves parameters shared by modules of several inner units to this state, which is around all. Returns the units they left."""
        mine = self.covered()
        donors = []
        for s in {id(s): s for s in map(state_of, (m for top in self.modules for m in top.modules())) if s not in (None, self)}.values():
            theirs = s.covered()
            for u in list(s.units):
                homes = {p: {id(m) for m, _ in p.owners} for p in u.parameters}
                tied = [p for p, home in homes.items() if home <= mine and not home <= theirs]
                for p in tied:
                    u.parameters.remove(p)
                    self.unit_like(u).parameters.append(p)
                if tied:
                    donors.append(u)
        return donors

    def covered(self) -> set[int]:
        """Ids of all modules in its trees."""
        return {id(m) for top in self.modules for m in top.modules()}

    def _check(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.dim() == 0:
            api = getattr(self.module, "_api_name", "fully_shard")
            raise ValueError(f"{api} doesn't support scalar parameters. Change {clean(name)} to a 1D tensor with numel equal to 1.")
        local = local_of(parameter)
        if not local.is_contiguous():
            raise NotImplementedError(
                f"FSDP does not support non-contiguous parameters yet: param.shape={parameter.shape} param.stride()={parameter.stride()}: "
                f"parameter {name}"
            )
        if parameter.device.type not in ("cpu", "meta", self.data.mesh.device_type):
            raise InvalidArgument(f"parameter {name} is on {parameter.device}, the mesh is of {self.data.mesh.device_type}")

    def _placed(self, name: str, parameter: nn.Parameter, placement: Callable | None) -> tuple[int, DataMesh]:
        """Returns dim and mesh of a parameter, from shard_placement_fn if given."""
        said = None if placement is None else placement(parameter)
        data = self.data
        if said is not None and hasattr(said, "mesh_info"):
            data = next((u.data for u in self.units if u.data.info is said.mesh_info), None) or of_mesh_info(said.mesh_info)
            said = said.placement
        if said is None:
            return 0, data
        if not isinstance(said, Shard):
            raise ValueError(f"Invalid shard_placement_fn result: {said}")
        dim = said.dim + parameter.ndim if said.dim < 0 else said.dim
        if not 0 <= dim < parameter.ndim:
            raise AssertionError(f"Shard dim {said.dim} is invalid for {parameter.ndim}D tensor: {parameter.shape}: parameter {name}")
        return dim, data

    def _reshard_to(self, size: int) -> None:
        for u in self.units:
            if any(p.on_other_mesh for p in u.parameters):
                raise NotImplementedError("Resharding to smaller mesh is not supported for DTensor parameters yet")
            if any(p.extended for p in u.parameters):
                raise NotImplementedError("reshard_after_forward as a number is not possible with all-gather extensions")
            u.post_forward_mesh = post_forward_mesh(u.data, size)

    def unit_like(self, other: Unit) -> Unit:
        """Returns this state's unit on the same ranks as ``other``; creates it if necessary."""
        for u in self.units:
            if u.data.key == other.data.key:
                return u
        self.units.append(Unit(self, other.data))
        return self.units[-1]

    def outermost(self) -> State:
        """The root; before the first forward determines it, the outermost known state around this one."""
        if self.root is not None and not self.root.preliminary:
            return next(s for s in self.root.states if s.is_root)
        outer = None if self.outer is None else self.outer()
        return self if outer is None or id(self.module) not in outer.covered() else outer

    def hook(self) -> None:
        for s in map(state_of, (m for top in self.modules for m in top.modules())):
            if s not in (None, self):
                s.outer = weakref.ref(self)
        for module in self.modules:
            module.register_forward_pre_hook(self._pre_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._post_forward, prepend=False, always_call=True)
            module.register_state_dict_pre_hook(lambda *_: self.to_sharded())
            module.register_load_state_dict_pre_hook(lambda *_: self.open_write_window("load_state_dict"))
            module.register_load_state_dict_post_hook(lambda *_: self.adopt_loaded())
        for module in self._inside():
            _hook_alike(module, self._enter_inside, self._leave_inside)

    def _inside(self) -> list[nn.Module]:
        """Modules of this unit below its top modules. The program may call one of them directly."""
        found: dict[nn.Module, None] = {}

        def visit(m: nn.Module) -> None:
            for child in m.children():
                if child not in found and state_of(child) is None:
                    found[child] = None
                    visit(child)

        for m in self.modules:
            visit(m)
        return list(found)

    def lazy_init(self, preliminary: bool = False) -> None:
        """Makes this state the root of all units inside, at its first forward. ``preliminary``: before the first forward."""
        if len(self.modules) > 1 and not preliminary:
            raise RuntimeError(f"FSDP requires a single root module but got {self.modules}")
        states: list[State] = []
        for module in (m for top in self.modules for m in top.modules()):
            s = state_of(module)
            if s is not None and s not in states:
                states.append(s)
        taken = [s for s in states if s.root is not None]
        if all(s.root.preliminary for s in taken):
            for root in {id(s.root): s.root for s in taken}.values():
                root.dissolve()
        else:
            first = next((clean(n) for n, m in self.module.named_modules() if state_of(m) is taken[0]), "")
            raise RootRanLater(
                f"FSDP state has already been lazily initialized for {first}\nFSDP requires running forward through the root module first: "
                f"{type(taken[0].module).__name__} ran a forward of its own before the model that contains it",
                hint="run the whole model's forward first, or call fully_shard on the outer module before",
            )
        self._check_tied(states)
        names = {id(m): clean(n) for top in self.modules for n, m in top.named_modules()}
        for s in states:
            s.is_root = s is self
            s.name = ", ".join(names[id(m)] for m in s.modules if id(m) in names)
            s.reshard_after_forward = not s.is_root if s.reshard_asked is None else s.reshard_asked
        Root(states).preliminary = preliminary

    def _check_tied(self, states: list[State]) -> None:
        """Raises ValueError for a parameter whose unit is not around all modules that have it."""
        parameters = (p for top in self.modules for p in top.parameters())
        tied = {q for p in parameters if getattr(p, "_shoal_state", self) not in states and (q := managed(p)) is not None}
        for s in states:
            covered = s.covered()
            tied |= {p for u in s.units for p in u.parameters if not all(id(m) in covered for m, _ in p.owners)}
        for p in tied:
            raise ValueError(
                f"Parameter '{p.name}' is shared with a parameter already managed by another FSDP group. For shared/tied parameters, use "
                "fully_shard([module_a, module_b]) to place them in the same FSDP group, or call fully_shard on a module that contains "
                f"both: Parameter '{p.name}' of {p.state.name} is shared with a module outside"
            )

    # ---- the views ----

    def to_unsharded(self) -> None:
        third = self.shows == "post_forward"
        for u in self.units:
            if u.gathered is not None:
                u.gathered.unshard()
            for p in u.parameters:
                if third or not (p.unsharded.requires_grad == p.sharded.requires_grad == p.requires_grad):
                    p.follow_requires_grad()
                if not p.show(p.unsharded):
                    p.refuse_substitutes()
                    raise InvalidArgument(
                        f"parameter {p.name} of {self.name or 'the root'} was replaced while the write window was closed",
                        hint="replace it inside `with shoal.fsdp.write(model)`, or by load_state_dict(assign=True)",
                    )
        self.shows = "unsharded"

    def to_sharded(self) -> None:
        if self.shows == "sharded":
            return
        third, self.shows = self.shows == "post_forward", "sharded"
        for u in self.units:
            for p in u.parameters:
                if third or not (p.unsharded.requires_grad == p.sharded.requires_grad == p.requires_grad):
                    p.follow_requires_grad()
                p.show(p.sharded)
            if u.gathered is not None:
                u.gathered.reshard()

    def to_post_forward(self) -> None:
        self.shows = "post_forward"
        for u in self.units:
            for p in u.parameters:
                p.show_post_forward(u.post_forward_mesh)

    def to_guarded(self) -> None:
        """Shows whole parameters as Whole after an evaluation, if the unit keeps them: writes are redirected."""
        if self.shows != "unsharded":
            return
        self.shows = "post_forward"
        for u in self.units:
            for p in u.parameters:
                if u.in_arena(p) and not p.unsharded.is_inference():
                    p.show_guarded()

    def open_write_window(self, name: str) -> None:
        """Opens the write window for the operation ``name``. Before the first forward it is open."""
        self.to_sharded()
        if self.root is not None:
            self.root.open_window(name)

    def guards(self, p: ShardedParameter) -> bool:
        """Returns True if other ranks may read this parameter's rows now."""
        root = self.root
        if root is None or root.window_open:
            return False
        if root.in_backward_optimizer is not None and root.in_backward_optimizer.updating:
            return False  # no rank reads the unit again
        return all(u.in_arena(p) for u in self.units if p in u.parameters)

    def before_write(self, p: ShardedParameter) -> None:
        """Called before the user writes to this rank's rows. Opens the write window, as an optimizer's step does."""
        if not self.guards(p):
            return
        self._check_write(p)
        self.root.open_window(f"a write to {self._full_name(p)}")

    def before_write_to_whole(self, p: ShardedParameter) -> None:
        """Called before the user writes to a whole parameter after an evaluation. Copies all such parameters, then opens the window."""
        root = self.root
        if root is None or p in root.copies:
            return
        resharded = any(u.post_forward_mesh is not None for u in self.units)
        if root.window_open or resharded or p.dtype != p.compute_dtype:
            raise InvalidArgument(
                f"{self._full_name(p)} is unsharded after a forward, in memory that all ranks share, and cannot be written",
                hint="call reshard() on the module first: then it shows the sharded parameters, which may be written",
            )
        self._check_write(p)
        for s in root.states:
            if s.shows == "post_forward":
                for q in (q for u in s.units if u.post_forward_mesh is None for q in u.parameters if u.in_arena(q)):
                    root.copies[q] = local_of(q.unsharded.detach()).clone()
        root.open_window(f"a write to {self._full_name(p)}")

    def _full_name(self, p: ShardedParameter) -> str:
        return f"parameter {p.name} of {self.name or 'the root'}"

    def _check_write(self, p: ShardedParameter) -> None:
        root, name = self.root, self._full_name(p)
        if root.joining:
            raise InvalidArgument(
                f"{name} is written inside join, after a forward: ranks without batches would take it for an optimizer's step",
                hint="write before or after the loop, or between a synchronised backward and the next forward",
            )
        in_backward = root.backward is not None and root.backward() is not None
        if in_backward or any(s.forwarding for s in root.states):
            raise InvalidArgument(
                f"{name} is written inside a forward or backward pass, in which other ranks may be, too",
                hint="write before the forward or after the backward (register_post_accumulate_grad_hook runs there)",
            )

    def adopt_loaded(self) -> None:
        """Adopts tensors of load_state_dict(assign=True) at once, so that an optimizer built next holds the sharded parameters."""
        for u in self.units:
            for p in u.parameters:
                p.adopt_early()

    def writes(self) -> dict[str, int]:
        """Counts torch's in-place writes per arena parameter, by name. Raises InvalidArgument for a written whole parameter."""
        found = {}
        for p in (p for u in self.units for p in u.parameters if u.in_arena(p)):
            if version_of(p.unsharded) != p.whole_version:
                raise InvalidArgument(
                    f"the whole parameter {p.name} of {self.name or 'the root'} was written, in memory that all ranks share",
                    hint="write to the sharded parameter, before the forward or after the backward; after a forward call reshard() first",
                )
            found[p.name] = version_of(p.sharded) + version_of(p.sharded._local_tensor)
        return found

    def reserve_gradient(self, view: torch.Tensor) -> None:
        """Allocates the memory of one parameter's gradient, for an optimizer's constructor."""
        for p in (p for u in self.units for p in u.parameters if p.sharded is view):
            p.reserve_gradient()

    def unshard(self) -> None:
        if self.root is None:
            self.lazy_init(preliminary=True)
        if self.root.window_open:
            self.root.adopt()
        for u in self.units:
            u.unshard()
        self.to_unsharded()

    def reshard(self) -> None:
        self.to_sharded()
        for u in self.units:
            u.reshard()

    # ---- forward ----

    @untraced
    def _pre_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.replaced:
            return None
        if self.root is None:
            self.lazy_init()
        root, training = self.root, torch.is_grad_enabled()
        root.preliminary, self.forwarding = False, True
        if self.casts == root.casts:  # no clearing since its last forward
            root.forget_casts()
        self.casts = root.casts
        if self.post_optim_event is not None:
            event, self.post_optim_event = self.post_optim_event, None
            (event.synchronize if hasattr(event, "synchronize") else event.wait)()
        in_graph = torch._C._current_graph_task_id() != -1
        if not in_graph:
            root.recover()
            if self.is_root or root.running is None:
                if not root.window_open:
                    root.check_closed_window(root.states if self.is_root else [self])
                root.running = self
        if root.window_open:
            root.adopt()
        if self.is_root:
            root.samples = _samples(args, kwargs) if self.weigh_samples else None
            root.joining |= self.joining
            root.enter(training)
        self.seen = True
        for u in self.units:
            u.model.forward_begin(u.index, training and not in_graph)
        self.to_unsharded()
        if not in_graph:
            for s in self.forward_prefetch:
                for u in s.units:
                    u.unshard()
        if self.cast_to is not None:
            args, kwargs = _apply_to_tensors(partial(_cast, self.cast_to), (args, kwargs))
        if training and (not in_graph or not self.more_to_come()):  # a checkpoint may recompute in a separate graph
            args, kwargs = self._watch_inputs(args, kwargs)
        return args, kwargs

    def _watch_inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Inserts a node whose backward runs when the gradients of the inputs are computed, which ends the unit's backward."""
        flat, spec = tree_flatten((args, kwargs))
        at = [i for i, t in enumerate(flat) if torch.is_tensor(t) and t.requires_grad]
        self.ran = True
        self.ends_unseen = not at
        if not at:
            return args, kwargs  # the end of the backward pass ends it
        watched = InputOfShardedUnit.apply(self, *(flat[i] for i in at))
        for i, t in zip(at, watched, strict=True):
            flat[i] = t
        return tree_unflatten(flat, spec)

    @untraced
    def _post_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """Ends the unit's forward. Also runs after an exception in forward, with ``output`` None."""
        if not self.forwarding:  # its pre-hook has not run
            return output
        if output is None:
            self._explain(sys.exc_info()[1])
        self.forwarding = False
        root, training = self.root, torch.is_grad_enabled()
        recomputed = torch._C._current_graph_task_id() != -1
        outermost = root.running is self and not recomputed
        if outermost:
            root.running = None
            if not root.window_open:  # open if the forward failed before it began
                root.record_window(root.states if self.is_root else [self], "a forward has run, and no synchronised backward after it")
        resharded = self.reshard_after_forward is True and not self.in_backward
        for u in self.units:
            u.model.forward_end(u.index, training and not recomputed, resharded)
        if resharded:
            self.to_sharded()
        elif not isinstance(self.reshard_after_forward, bool) and not self.in_backward:
            self.to_post_forward()
        if outermost and not training:
            for s in root.states if self.is_root else [self]:
                s.to_guarded()
        if training and not (recomputed and self.in_backward):
            token = ForwardToken(root.versions())
            if self.is_root or outermost:
                root.forwards.add(token)
            if self.ends_unseen:
                self.endless.add(token)
            for t in tensors_in(output):
                if t.requires_grad:
                    t.register_hook(partial(self._pre_backward, token))
        if self.mp_policy.output_dtype is not None:
            output = _apply_to_tensors(partial(_cast, self.mp_policy.output_dtype), output)
        return output

    def _explain(self, error: BaseException | None) -> None:
        """Adds the unit's name to autograd's error about an in-place change, which names only an internal function or a view."""
        if "modified inplace" in (text := str(error)) and "custom Function" in text and not hasattr(error, "_unit"):
            error._unit = self.name
            error.args = (
                f"{text}\n  an input of {self.name or 'the root'}, a unit of fully_shard, was changed in place in its forward or "
                "afterwards as its output\n  hint: change a copy (x = x.clone()); its backward ends with its inputs' gradients",
            )

    @only_inlined
    def _enter_inside(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Pre-hook of an inner module. A call from outside this unit's forward is this unit's forward, for that call."""
        if self.forwarding or self.replaced or (self.shows == "unsharded" and torch._C._current_graph_task_id() != -1):
            return None
        self.entered = module
        return self._pre_forward(module, args, kwargs)

    @only_inlined
    def _leave_inside(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self.entered is not module:
            return None
        self.entered = None
        return self._post_forward(module, args, output)

    def run(self, module: nn.Module, method: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs a method of the module as the unit's forward."""
        if self.replaced:
            return method(*args, **kwargs)
        args, kwargs = self._pre_forward(module, args, kwargs)
        try:
            output = method(*args, **kwargs)
        except BaseException:
            self._post_forward(module, args, None)
            raise
        return self._post_forward(module, args, output)

    # ---- backward ----

    @untraced
    def _pre_backward(self, token: ForwardToken, grad: torch.Tensor) -> torch.Tensor:
        task, freed_in = torch._C._current_graph_task_id(), token.ended_in
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # the graph is freed: no further backward
            self.root.forwards.discard(token)
            token.ended_in = task
        self.root.queue_callback()
        try:
            self._begin_backward(token)
        except InvalidArgument as error:
            if error.reason != "StaleBackward":
                raise
            again = "Trying to backward through the graph a second time: " if freed_in not in (-1, task) else ""
            raise StaleBackward(again + error.message, reason=error.reason, hint=error.hint, context=error.context) from None
        return grad

    def _begin_backward(self, token: ForwardToken) -> None:
        if self.in_backward:  # perhaps of another forward, which read another version
            for u in self.units:
                u.model.check_version(u.index, token.versions[u.place])
        else:
            self.in_backward = True
            for u in self.units:
                u.model.backward_begin(u.index, token.versions[u.place])
            if self.unshard_in_backward:
                self.to_unsharded()
            for s in self.backward_prefetch:
                for u in s.units:
                    u.unshard()

    def more_to_come(self) -> bool:
        """Returns True if the running backward pass will leave this unit again, because its forward ran more than once."""
        task = torch._C._current_graph_task_id()
        return any(end.left_in != task and torch._C._will_engine_execute_node(end) for end in self.ends)

    def inputs_done(self, end) -> None:
        """Called when the gradients of a forward's inputs are computed. Ends the unit's backward unless this pass returns to it."""
        self.root.queue_callback()
        end.left_in = torch._C._current_graph_task_id()
        if not self.more_to_come() and not self.endless:
            self.post_backward()

    def post_backward(self) -> None:
        self.root.publish_skipped(self)
        self.in_backward = self.ran = False
        for u in self.units:
            if self.sync and u.parameters and u.parameters[0].reducing:
                # Published in this pass already, by another graph. Ranks publish in one order, so this wait cannot deadlock.
                u.model.await_reductions()
                self.root.settle_all()
            self._publish(u, self.reshard_after_backward)
        if self.reshard_after_backward or self.root.gives_up(self):
            self.to_sharded()

    def publish(self) -> None:
        """Publishes a unit that did not run in this pass, with its kept gradients."""
        for u in self.units:
            if self.sync and not u.published:
                self._publish(u, False)

    def _publish(self, u: Unit, reshard: bool) -> None:
        if self.sync:
            gives_up = self.root.gives_up(self)
            u.publish(reshard or gives_up)
            if gives_up:
                u.model.give_up(u.index)
                if u.gathered is not None and u.gathered.reduces:  # every rank has contributed
                    self.root.in_backward_optimizer.update(u)
            if len(self.root.models) > 1:  # a wait on one mesh serves no other: never two at once
                u.model.await_reductions()
            return
        u.model.backward_end(u.index, [], 1.0, True, reshard)
        for p in u.parameters:
            p.keep_gradient(self.root.samples)

    # ---- attributes that torch.distributed.pipelining uses after the microbatches of a step ----

    _fsdp_param_groups: tuple = ()  # empty: pipelining would end the backward of each

    @property
    def _state_ctx(self) -> SimpleNamespace:
        return SimpleNamespace(all_states=self.root.states if self.root is not None else [])

    def _root_post_backward_final_callback(self) -> None:
        """Reduces the gradients kept by backward passes without synchronisation."""
        if self.root is not None:
            self.root.reduce_kept()


class InputOfShardedUnit(torch.autograd.Function):
    """The identity on a unit's inputs. Its backward runs after the unit's own backward."""

    @staticmethod
    def forward(ctx, state: State, *inputs: torch.Tensor):
        ctx.state, ctx.left_in = state, -1
        state.ends.add(ctx)
        return inputs

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):
        ctx.state.inputs_done(ctx)
        return (None, *grads)


_INSIDE = "shoal.fsdp"


def _hook_alike(module: nn.Module, before: Callable, after: Callable) -> None:
    """As register_forward_pre_hook and register_forward_hook, but under one name in all modules.

    The guards of dynamo include hook ids, so that unique ids would make it compile identical blocks separately.
    """
    module._forward_pre_hooks[_INSIDE] = before
    module._forward_pre_hooks.move_to_end(_INSIDE, last=False)
    module._forward_pre_hooks_with_kwargs[_INSIDE] = True
    module._forward_hooks[_INSIDE] = after
    module._forward_hooks_always_called[_INSIDE] = True


def _cast(dtype: torch.dtype, t: torch.Tensor) -> torch.Tensor:
    return t.to(dtype) if t.is_floating_point() else t


def _samples(args: tuple, kwargs: dict) -> int:
    """The number of samples in a batch: dim 0 of its first tensor."""
    return next((t.shape[0] for t in tree_flatten((args, kwargs))[0] if torch.is_tensor(t) and t.dim() > 0), 1)
