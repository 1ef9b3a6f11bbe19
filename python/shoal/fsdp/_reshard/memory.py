"""The memory of one change of meshes on this rank: the parts that move, at their old and their new place."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from shoal import _native
from shoal._objects.tensors import dtensor, long_lived
from shoal.fsdp._engine.bootstrap import leave_unused, make_model, place_actor
from shoal.fsdp._engine.lasting import shared_arrays
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._protect import AdoptedRank
from shoal.fsdp._reshard.contents import Contents, Described, Sharded, SharedStates, Whole
from shoal.fsdp._reshard.stream import Entry, OldShard


def bounds(rows: int, shards: int, shard: int) -> tuple[int, int]:
    """Begin and end of a shard's rows, as torch.chunk divides them."""
    piece = -(-rows // shards)
    return min(shard * piece, rows), min((shard + 1) * piece, rows)


@dataclass
class NewMesh:
    """This rank's place on the new mesh, made beside the old one: nothing of the model has changed yet."""

    data: DataMesh
    actor: _native.ShardActor
    units: list[_native.ShardedUnit] = field(default_factory=list)
    rows: list[list[torch.Tensor]] = field(default_factory=list)  # by unit and parameter: this rank's slices
    models: list[_native.ShardedModel] = field(default_factory=list)  # by root
    shared: _native.SharedArrays | None = None  # states that the mesh takes over with their values

    @classmethod
    def make(cls, contents: Contents, data: DataMesh, gang: str, arenas: list[str], shared: SharedStates | None) -> NewMesh:
        """``arenas``: by unit, the key of an arena that the mesh takes over with its values, or "". ``shared``: states to take over."""
        new = cls(data, place_actor(data.ranks, data.index, data.replicas, gang))
        try:
            for u, arena in zip(contents.units, arenas, strict=True):
                native = u.native_on(new.actor, arena)
                new.units.append(native)
                new.rows.append([_rows(p, native, index, data) for index, p in enumerate(u.parameters)])
            if shared is not None:
                new.shared = new.actor.share_arrays(new.units, shared.states, shared.key, contents.shared_arrays)
        except BaseException:
            new.drop()
            raise
        return new

    def make_models(self, contents: Contents) -> None:
        """Adds a model on the new mesh for each root. The first one waits until all ranks of that mesh are placed."""
        native = dict(zip(map(id, contents.units), self.units, strict=True))
        for root in contents.roots:
            units = [u for units in root.units_of for u in units]
            names = [u.state.name for u in units]
            self.models.append(make_model(self.actor, [native[id(u)] for u in units], names, root.slots))

    def commit(self, contents: Contents) -> None:
        """Moves states, units and roots to this mesh."""
        for s in contents.states:
            s.show_sharded()
            s.data = self.data
        for u, native, rows in zip(contents.units, self.units, self.rows, strict=True):
            u.move(self.data, self.actor, native, rows)
        for root, model in zip(contents.roots, self.models, strict=True):
            root.move(model)
            shared_arrays[root.states[0]] = self.shared

    def drop(self) -> None:
        """Gives the memory back, after an error."""
        self.models.clear()
        self.shared = None
        self.rows.clear()
        self.units.clear()
        leave_unused(self.actor)


def _rows(p: ShardedParameter, unit: _native.ShardedUnit, index: int, data: DataMesh) -> torch.Tensor:
    begin, end = data.own_bounds(p.shape[p.dim])
    shape = torch.Size((*p.shape[: p.dim], end - begin, *p.shape[p.dim + 1 :]))
    return torch.empty(shape, dtype=p.dtype, device="cpu") if shape.numel() == 0 else p.rows_in(unit, index)


def leave(contents: Contents) -> None:
    """Takes a rank that is not on the new mesh off the old one. Its model cannot run any more."""
    for root in contents.roots:
        root.dissolve()
    for u in contents.units:
        u.native = u.model = u.actor = None


class Ledger:
    """The tensors that move, as entries of the plan, and the replicated ones that newcomers need.

    ``old_shard``: this rank's place on the old mesh, None if it has none. ``adopted``: by shard, the adopted records of dead ranks.
    ``taken_over``: by unit, True if the new mesh takes its arena over. ``shared``: the arrays that it takes over, as SharedArrays has them.
    """

    def __init__(
        self,
        contents: Contents,
        described: Described,
        taken_over: list[bool],
        shared: list[tuple[int, int, str, str]],
        old_shards: int,
        old_shard: int | None,
        adopted: dict[int, AdoptedRank],
    ):
        self._contents, self._described = contents, described
        self._taken_over = taken_over
        self._shared = {(unit, parameter, name): i for i, (unit, parameter, name, _) in enumerate(shared)}
        self._old_shards = old_shards
        self._shards = [*([] if old_shard is None else [old_shard]), *adopted]  # the old shards whose rows this rank has
        self._has_own = old_shard is not None
        # By id of a parameter: the positions of its unit and of itself, as records have them.
        self._places = {id(p): (u, i) for u, unit in enumerate(contents.units) for i, p in enumerate(unit.parameters)}
        self._arrays = [{(a.unit, a.parameter, a.name): a.values for a in rank.arrays()} for rank in adopted.values()]
        self.entries: list[Entry] = []
        self.states: dict[tuple[int, int, str], torch.Tensor] = {}  # new local tensors by optimizer, position and name
        self._specs: dict[tuple, DTensorSpec] = {}  # by dim, shape, stride and dtype

    def fill(self, new: NewMesh | None) -> None:
        """Makes the entries, and allocates the new states."""
        by_parameter = self._sharded_states()
        position = 0
        for unit, (u, taken) in enumerate(zip(self._contents.units, self._taken_over, strict=True)):
            for index, p in enumerate(u.parameters):
                entry = self._entry(p.name, tuple(p.shape), p.dim, new)
                if not taken:
                    own = p.own if self._has_own else None
                    self._add(entry, p, "param", p.shape, p.dtype, own, None if new is None else new.rows[unit][index])
                self.entries.append(entry)
                for at, state in by_parameter.get(position, []):
                    alike = state.shape == tuple(p.shape) and state.dim == p.dim
                    target = entry if alike else self._entry(f"{p.name}/{at[2]}", state.shape, state.dim, new)
                    if not alike:
                        self.entries.append(target)
                    self._add_state(at, state, p, target, new)
                position += 1

    def _sharded_states(self) -> dict[int, list[tuple[tuple[int, int, str], Sharded]]]:
        """By the position of a parameter: its sharded states, with their optimizer, place in it, and name."""
        found: dict[int, list[tuple[tuple[int, int, str], Sharded]]] = {}
        for o, (optimizer, described) in enumerate(zip(self._contents.optimizers, self._described.optimizers, strict=True)):
            for k, ((_, _, _, key), states) in enumerate(zip(self._contents.optimized(optimizer), described.states, strict=True)):
                for name, state in states.items():
                    if isinstance(state, Sharded):
                        found.setdefault(key, []).append(((o, k, name), state))
        return found

    def _entry(self, name: str, shape: tuple[int, ...], dim: int, new: NewMesh | None) -> Entry:
        rows, outer = shape[dim], torch.Size(shape[:dim]).numel()
        entry = Entry(name, rows, dim, contiguous=outer <= 1)
        entry.old = [OldShard(*bounds(rows, self._old_shards, shard)) for shard in self._shards]
        if new is not None:
            entry.new_begin = new.data.own_bounds(rows)[0]
        return entry

    def _add(
        self,
        entry: Entry,
        p: ShardedParameter,
        name: str,
        shape: torch.Size,
        dtype: torch.dtype,
        own: torch.Tensor | None,
        new: torch.Tensor | None,
    ) -> None:
        """Adds a tensor: its rows on this rank, those in adopted arrays of this ``name``, and their new place."""
        entry.row_bytes += torch.Size(shape).numel() // max(1, entry.rows) * dtype.itemsize
        old = [] if own is None else [own]
        for arrays, shard in zip(self._arrays, entry.old[len(old) :], strict=True):
            rows = torch.Size((*shape[: entry.dim], shard.end - shard.begin, *shape[entry.dim + 1 :]))
            empty = rows.numel() == 0
            old.append(torch.empty(rows, dtype=dtype) if empty else arrays[(*self._places[id(p)], name)].view(rows))
        for shard, t in zip(entry.old, old, strict=True):
            shard.tensors.append(t)
        if new is not None:
            entry.new.append(new)

    def _add_state(self, at: tuple[int, int, str], state: Sharded, p: ShardedParameter, entry: Entry, new: NewMesh | None) -> None:
        if (index := self._shared.get((*self._places[id(p)], at[2]))) is not None:
            if new is not None:
                begin, end = new.data.own_bounds(entry.rows)
                row = torch.Size(state.shape).numel() // max(1, entry.rows) * state.dtype.itemsize
                shape = torch.Size((*state.shape[: state.dim], end - begin, *state.shape[state.dim + 1 :]))
                self.states[at] = new.shared.part(index, begin * row, (end - begin) * row).view(state.dtype).view(shape)
            return
        old = None
        if self._has_own:
            optimizer = self._contents.optimizers[at[0]]
            value = optimizer.state[p.views.sharded][at[2]]
            old = (value if state.plain else value._local_tensor).detach().contiguous()
        moved = None
        if new is not None:
            begin, end = new.data.own_bounds(state.shape[state.dim])
            shape = torch.Size((*state.shape[: state.dim], end - begin, *state.shape[state.dim + 1 :]))
            in_place = old is not None and old.shape == shape and entry.old[0].begin == entry.new_begin
            moved = old if in_place else long_lived(shape, state.dtype, touched=True)
            self.states[at] = moved
        self._add(entry, p, at[2], state.shape, state.dtype, old, moved)

    def state(self, at: tuple[int, int, str], state: Sharded, data: DataMesh) -> torch.Tensor:
        """A state on the new mesh, as the optimizer keeps it."""
        local = self.states[at]
        if state.plain:
            return local
        layout = (state.dim, state.shape, state.stride, state.dtype)
        if layout not in self._specs:
            self._specs[layout] = data.sharded_spec(state.dim, TensorMeta(torch.Size(state.shape), state.stride, state.dtype))
        return dtensor(local, self._specs[layout])


class Copies:
    """The tensors of which every rank has a whole copy; one old rank sends them to newcomers."""

    def __init__(self, contents: Contents, described: Described, newcomer: bool):
        self._contents, self._described = contents, described
        self.tensors: list[torch.Tensor] = []
        self._whole: list[tuple[int, int, str]] = []  # large states: optimizer, position, name
        mine = contents.replicated()
        for (_, t), (_, dtype, shape) in zip(mine, described.replicated, strict=True):
            self.tensors.append(torch.empty(shape, dtype=dtype) if newcomer else t.detach().cpu().contiguous())
        for o, optimizer in enumerate(described.optimizers):
            mine = contents.optimized(contents.optimizers[o])
            for k, states in enumerate(optimizer.states):
                for name, s in states.items():
                    if isinstance(s, Whole) and s.value is None:
                        self._whole.append((o, k, name))
                        value = None if newcomer else contents.optimizers[o].state[mine[k][2]][name]
                        self.tensors.append(torch.empty(s.shape, dtype=s.dtype) if newcomer else value.detach().cpu().contiguous())

    def commit(self) -> None:
        """Stores what a newcomer has received in its buffers and plain parameters."""
        with torch.no_grad():
            for (_, t), received in zip(self._contents.replicated(), self.tensors, strict=False):
                if not t.is_meta:
                    t.data.copy_(received)
                elif isinstance(t, torch.nn.Parameter):
                    torch.utils.swap_tensors(t, torch.nn.Parameter(received, t.requires_grad))
                else:
                    set_buffer(self._contents.model, t, received)

    def state(self, at: tuple[int, int, str]) -> torch.Tensor:
        return self.tensors[len(self._described.replicated) + self._whole.index(at)]


def set_buffer(model: torch.nn.Module, old: torch.Tensor, new: torch.Tensor) -> None:
    for module in model.modules():
        for name, t in module._buffers.items():
            if t is old:
                module._buffers[name] = new
