"""The parts of a model and its optimizers that move, with a description by which participants are compared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from shoal import _native
from shoal._native import AfterForward
from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.fsdp._engine.collect import managed, state_of
from shoal.fsdp._engine.lasting import shared_arrays
from shoal.fsdp._engine.optimizers import replace_by_sharded
from shoal.fsdp._engine.root import Root
from shoal.fsdp._engine.state import State
from shoal.fsdp._engine.unit import Unit
from shoal.fsdp._names import clean
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.slices import Kind, local_of
from shoal.fsdp._reshard.stream import bytes_of

_INLINE_NUMEL = 64  # tensors of at most this many elements travel with the description


@dataclass
class Contents:
    """A sharded model and its optimizers on this rank. Lists are in an order that is equal on all ranks."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    states: list[State] = field(init=False)

    def __post_init__(self) -> None:
        self.states = list(dict.fromkeys(s for s in map(state_of, self.model.modules()) if s is not None))
        if not self.states:
            raise InvalidArgument("nothing in this model was sharded by shoal.fsdp.fully_shard")

    @property
    def units(self) -> list[Unit]:
        return [u for s in self.states for u in s.units]

    @property
    def parameters(self) -> list[ShardedParameter]:
        return [p for u in self.units for p in u.parameters]

    @property
    def roots(self) -> list[Root]:
        return list(dict.fromkeys(s.root for s in self.states if s.root is not None))

    @property
    def shared_arrays(self) -> _native.SharedArrays | None:
        return shared_arrays.get(self.roots[0].states[0]) if len(self.roots) == 1 else None

    # ---- before a change ----

    def settle(self, recovers: bool) -> None:
        """Brings an old rank to the boundary between two steps: every state has a root, replaced parameters are adopted, and the write
        window is open. Collective over the old mesh, unless it has lost a rank (``recovers``): then the present step is dropped."""
        if recovers:
            for root in self.roots:
                root.abandon_step()
            return
        for s in self.states:
            if s.root is None:
                s.outermost().lazy_init(preliminary=True)
        for root in self.roots:
            root.open_window("reshard")
            root.adopt()

    def make_roots(self, described: list[tuple[int, list[int], bool]]) -> None:
        """Gives a newcomer the roots that the old ranks have."""
        for index, members, preliminary in described:
            states = [self.states[i] for i in members]
            if self.states[index].root is None or self.states[index].root.states != states:
                for root in {id(s.root): s.root for s in states if s.root is not None}.values():
                    root.dissolve()
                self.states[index].lazy_init(preliminary)
            self.states[index].root.preliminary = preliminary

    def check(self) -> None:
        """Raises Unimplemented for parts that cannot move, and InvalidArgument between the backward passes of one step."""
        meshes = {u.data.key for u in self.units}
        if len(meshes) > 1:
            raise Unimplemented(
                f"the units of this model are on {len(meshes)} different meshes, and only a model on one mesh can move to another",
                hint="shard all units on one mesh",
            )
        for s in self.states:
            name = f"unit {s.name}" if s.name else "the root"
            if s.settings.rules.after_forward is AfterForward.SMALLER_MESH:
                raise Unimplemented(
                    f"{name} has reshard_after_forward={s.settings.smaller_mesh}, whose smaller mesh does not fit another number of ranks",
                    hint="use reshard_after_forward=True or False",
                )
            if s.data.spmd is not None:
                raise Unimplemented(f"{name} is sharded on dims of a larger mesh (dp_mesh_dims), which cannot move", hint="use a 1-D mesh")
            if s.replaced or s.forwarding:
                raise InvalidArgument(f"{name} is inside a forward or summon_full_params", hint="move the model between two steps")
        if any(s not in self.states for root in self.roots for s in root.states):
            raise InvalidArgument("the model is a part of a larger sharded model", hint="pass the model whose forward runs first")
        for p in self.parameters:
            self._check_parameter(p)

    def _check_parameter(self, p: ShardedParameter) -> None:
        name = f"parameter {p.name} of {p.state.name or 'the root'}"
        if p.kind is not Kind.MEMORY:
            raise Unimplemented(
                f"{name} is no plain tensor (a tensor subclass, or all-gather extensions), and cannot move to another mesh",
                hint="save a checkpoint, and load it on the new mesh",
            )
        if p.on_other_mesh or p.views.front is not None:
            raise Unimplemented(f"{name} is a DTensor of a larger mesh, which cannot move", hint="use data parallelism only")
        if p.gradient.kept:
            raise InvalidArgument(
                f"{name} has a gradient that is not reduced yet",
                hint="move the model after optimizer.step(), not between accumulated backwards",
            )

    # ---- descriptions ----

    def describe(self) -> Described:
        for optimizer in self.optimizers:
            replace_by_sharded(optimizer)
        index = {id(s): i for i, s in enumerate(self.states)}
        roots = [(next(index[id(s)] for s in r.states if s.is_root), [index[id(s)] for s in r.states], r.preliminary) for r in self.roots]
        return Described(
            fingerprint=self._fingerprint(),
            roots=roots,
            replicas=self.units[0].data.replicas,
            world_size=len(self.units[0].data.ranks),
            requires_grad=[p.views.sharded.requires_grad for p in self.parameters],
            arenas=[_arena_of(u) for u in self.units],
            shared=self._shared_states(),
            replicated=[(name, t.dtype, tuple(t.shape)) for name, t in self.replicated()],
            optimizers=[self._describe_optimizer(o) for o in self.optimizers],
        )

    def _fingerprint(self) -> list[str]:
        """A line per parameter and optimizer, which has to be the same on all participants."""
        lines = []
        for i, s in enumerate(self.states):
            for u in s.units:
                for p in u.parameters:
                    dtypes = f"{p.dtype}, computed in {p.compute_dtype}, reduced in {p.reduce_dtype}"
                    lines.append(f"unit {i} parameter {clean(p.name)}: {list(p.global_shape)} sharded on dim {p.dim}, {dtypes}")
        for i, o in enumerate(self.optimizers):
            lines.append(f"optimizer {i}: {type(o).__name__} with groups of {[len(g['params']) for g in o.param_groups]} parameters")
            lines += [f"optimizer {i} group {g} parameter {k}: {key}" for g, k, _, key in self.optimized(o)]
        return lines

    def optimized(self, optimizer: torch.optim.Optimizer) -> list[tuple[int, int, torch.Tensor, Any]]:
        """The optimizer's parameters: (group, position, tensor, key). The key is a position in ``parameters``, or None for others."""
        index = {id(p): i for i, p in enumerate(self.parameters)}
        return [
            (g, k, t, None if (p := managed(t)) is None else index.get(id(p)))
            for g, group in enumerate(optimizer.param_groups)
            for k, t in enumerate(group["params"])
        ]

    def replicated(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors of which every rank has a whole copy: buffers, and parameters of no unit."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        ours = {id(p.views.sharded) for p in self.parameters}
        for name, t in (*self.model.named_buffers(), *self.model.named_parameters()):
            if id(t) not in ours and managed(t) is None:
                found.setdefault(id(t), (clean(name), t))
        for i, o in enumerate(self.optimizers):
            for g, k, t, key in self.optimized(o):
                if key is None:
                    found.setdefault(id(t), (f"parameter {k} in group {g} of optimizer {i}", t))
        for name, t in found.values():
            if isinstance(t, DTensor):
                raise Unimplemented(f"{name} is a DTensor that no unit manages, and cannot move to another mesh")
        return list(found.values())

    def _shared_states(self) -> SharedStates | None:
        """The states in memory that the ranks share, unless the program has put other tensors in their place."""
        if (arrays := self.shared_arrays) is None:
            return None
        units = [u.parameters for u in self.units]
        for unit, parameter, name, _ in arrays.states:
            view = units[unit][parameter].views.sharded
            value = next((s[name] for o in self.optimizers if (s := o.state.get(view)) and name in s), None)
            if value is not None and (local := local_of(value)).numel() and not arrays.has(local.data_ptr()):
                return None
        return SharedStates(arrays.key, arrays.states)

    def _describe_optimizer(self, optimizer: torch.optim.Optimizer) -> DescribedOptimizer:
        options = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        states = []
        for _, _, t, key in self.optimized(optimizer):
            p = None if key is None else self.parameters[key]
            state = optimizer.state.get(t) or optimizer.state.get(p.views.sharded if p is not None else t) or {}
            states.append({name: _describe_value(f"{name} of an optimizer's state", value, p) for name, value in state.items()})
        return DescribedOptimizer(options, states)


def _arena_of(u: Unit) -> str:
    """The arena of a unit that another mesh can take over, or "". Ranks on several hosts take none over, because an arena may hold an
    earlier step's copy of another host's rows."""
    return u.native.arena_key if u.native.fits_any_mesh and not u.actor.hosts else ""


@dataclass
class Sharded:
    """A state that is sharded as its parameter is. ``plain``: the optimizer keeps the local tensor, not a DTensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dim: int
    plain: bool

    def kind(self) -> str:
        return repr(self)


@dataclass
class Whole:
    """A state of which every rank has a copy. ``value``: its bytes, if they are few; tensors are slow to pickle."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    value: bytes | None

    def tensor(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.value), dtype=self.dtype).reshape(self.shape)

    def kind(self) -> str:
        return f"whole {self.dtype} {self.shape}"


@dataclass
class Value:
    """A state that is no tensor."""

    value: Any

    def kind(self) -> str:
        return type(self.value).__name__


@dataclass
class SharedStates:
    """The key and the arrays of a SharedArrays."""

    key: str
    states: list[tuple[int, int, str, str]]


@dataclass
class DescribedOptimizer:
    options: list[dict[str, Any]]  # by group
    states: list[dict[str, Sharded | Whole | Value]]  # by parameter, group after group


@dataclass
class Described:
    """The contents on one participant. Old ranks have equal contents; of a newcomer only the fingerprint counts."""

    fingerprint: list[str]
    roots: list[tuple[int, list[int], bool]]  # the positions of a root's state and of its states, and ``preliminary``
    replicas: int
    world_size: int
    requires_grad: list[bool]
    arenas: list[str]  # by unit; empty where another mesh cannot take the arena over
    shared: SharedStates | None  # the memory of states and gradients, if the ranks share one
    replicated: list[tuple[str, torch.dtype, tuple[int, ...]]]
    optimizers: list[DescribedOptimizer]

    def summary(self) -> Summary:
        states = [[{name: v.kind() for name, v in state.items()} for state in o.states] for o in self.optimizers]
        names = (self.fingerprint, self.replicated)
        return Summary(self.world_size, _digest(names), _digest((*names, self.roots, self.replicas, self.world_size, self.shared, states)))


@dataclass(frozen=True)
class Summary:
    """Digests of a description. Newcomers have the old ranks' ``names``; old ranks have all digests in common."""

    world_size: int
    names: str
    everything: str


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _describe_value(name: str, value: Any, p: ShardedParameter | None) -> Sharded | Whole | Value:
    if not isinstance(value, torch.Tensor):
        return Value(value)
    if isinstance(value, DTensor):
        if p is None:
            raise Unimplemented(f"{name} is a DTensor, but its parameter belongs to no unit")
        placement = value.placements[-1]
        others = value.placements[:-1]
        if isinstance(placement, Shard) and all(isinstance(o, Replicate) for o in others) and value.device_mesh.ndim == p.spec.mesh.ndim:
            return Sharded(value.dtype, tuple(value.shape), tuple(value.stride()), placement.dim, False)
        raise Unimplemented(
            f"{name} of parameter {p.name} has the placements {value.placements}: only states sharded on one dim can move",
            hint="keep it as a DTensor sharded like its parameter, or as a plain tensor that is equal on all ranks",
        )
    if p is not None and value.numel() > 1 and value.shape == p.own_shape:
        return Sharded(value.dtype, tuple(p.shape), tuple(p.spec.tensor_meta.stride), p.dim, True)
    small = 0 < value.numel() <= _INLINE_NUMEL
    return Whole(value.dtype, tuple(value.shape), bytes_of(value.detach().cpu()).numpy().tobytes() if small else None)
