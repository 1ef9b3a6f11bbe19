"""A model and its optimizer under protection: states and gradients in the rank's step record, and steps that all ranks commit."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shoal import _native
from shoal._distributed.buddies import buddies
from shoal._objects.tensors import dtensor, long_lived, with_dtype
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, Unavailable, Unimplemented
from shoal.fsdp._engine.lasting import shared_arrays
from shoal.fsdp._engine.root import Root
from shoal.fsdp._parameters.gradient import uses
from shoal.fsdp._parameters.parameter import ShardedParameter
from shoal.fsdp._parameters.precision import engine_dtype
from shoal.fsdp._protect.adopted import AdoptedRank, adopt
from shoal.fsdp._protect.buddy import Replicas
from shoal.fsdp._protect.host_copy import HostCopy
from shoal.fsdp._protect.moments import Moment, reached
from shoal.fsdp._protect.states import NEW
from shoal.optim._fused import MASTER, Fused

_BESIDE_STATES = ("grad", "step")


def _is_state(name: str) -> bool:
    return name not in _BESIDE_STATES and not name.startswith(NEW)


class Protection:
    """The step record of this rank. ``optimizer.step()`` calls ``begin``, adds its updates to ``record``, and calls ``run``."""

    host_copy: HostCopy | None = None  # the copy of a model on devices
    replicas: Replicas | None = None  # set if a rank of another host holds this rank's replica

    def __init__(self, root: Root, optimizer: Any, step: int, replicas: bool = False):
        self.root, self.optimizer, self.model = root, optimizer, root.models[0]
        self._opened: list[Any] = []  # records and replicas of other ranks that this rank has opened after a death
        self._homes: dict[tuple[int, str], torch.Tensor] = {}  # by id of the sharded parameter and name of the array
        self._gradients: dict[int, _GradientHome] = {}  # by id of the sharded parameter
        # The names of the records and replicas of other ranks at this node, if they exist.
        self.keys_of_others: list[str] = []
        self._new_states: list[tuple[torch.Tensor, str]] = []  # states that the step under way has made: parameter and name
        self._check()
        arrays = self._arrays()
        specs = [(u, i, name, engine_dtype(dtype)) for u, i, _, name, dtype in arrays]
        self.shared, fresh = self._share_arrays(specs)
        self.record: _native.ProtectedShard = self.actor.protect(self.model, specs, step, self.shared)
        for rank in range(len(root.units[0].data.ranks)):
            if rank != self.actor.rank:
                self.keys_of_others += self.record.key_of(rank), self.record.replica_key_of(rank)
        for index, (_, _, p, name, dtype) in enumerate(arrays):
            shape = torch.Size() if name == "step" else p.own_shape
            self._homes[id(p.views.sharded), name] = self.record.state(index).view(dtype).view(shape)
        for _, _, p, name, _ in arrays:
            if name == "grad":
                self._gradients[id(p.views.sharded)] = pool = _GradientHome(self.home(p.views.sharded, name))
                p.gradient.use_pool(pool)
        self.take_states(fresh)
        optimizer._protection = self
        self._announce(self)
        if replicas and self.actor.hosts:
            self.replicas = Replicas(self.actor, self.model, self.record, step)

    def await_all(self) -> None:
        """Waits until every rank has its record, and its replica."""
        self.model.commit(self.step)

    @property
    def actor(self) -> _native.ShardActor:
        return self.root.units[0].actor

    def steps(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if this protects the steps of ``optimizer``."""
        return optimizer is self.optimizer

    @property
    def in_use(self) -> bool:
        """False once the model was rebuilt, with other units."""
        return self.root.models == [self.model]

    @property
    def step(self) -> int:
        """The number of the last complete step."""
        return self.record.words[2]

    @property
    def latest_step(self) -> int:
        """The number of the latest step that the program has made. On devices it may not count yet."""
        return self.step

    def wait(self) -> None:
        """Waits until the last step that the program has made counts on all ranks."""

    @property
    def words(self) -> tuple[int, int, int]:
        """Numbers of steps: (recorded, begun, finished), for ``committed_step``."""
        return self.record.words

    def end(self) -> None:
        """Ends the protection. States, gradients and replicas stay where they are, as long as this object does."""
        self.stop_replicas()
        self._release_opened()
        self.optimizer._protection = None
        self._announce(None)
        for p in (p for u in self.root.units for p in u.parameters):
            p.gradient.pool = None

    def abandon_step(self) -> None:
        """Drops the step under way, without other ranks."""
        self.stop_replicas()
        self.root.abandon_step()

    def join_step(self) -> None:
        """Called once a death is known: waits until no thread works on this rank's step any more."""

    def follow_writes(self) -> None:
        """On devices: copies to the host what the program has written since the last step otherwise than by its optimizer."""

    def stop_replicas(self) -> None:
        """Ends the transfers between this rank and its buddy. The replicas stay as they are."""
        if self.replicas is not None:
            self.replicas.stop()

    def _announce(self, protection: Protection | None) -> None:
        for s in self.root.states:
            s.settings.protection = protection

    # ---- memory ----

    def home(self, p: torch.Tensor, name: str) -> torch.Tensor:
        """The tensor in the record of an array of a sharded parameter: a state, "grad" or "step"."""
        home = self._homes.get((id(p), name))
        if home is None:
            raise InvalidArgument("a parameter was added to the optimizer after protect()", hint="call protect again on every rank")
        return home

    @property
    def bytes(self) -> int:
        """The bytes of this rank's record, with its part of the shared arrays."""
        return self.record.bytes + (0 if self.shared is None else self.shared.bytes // len(self.root.units[0].data.ranks))

    def _share_arrays(self, specs: list[tuple[int, int, str, str]]) -> tuple[_native.SharedArrays | None, bool]:
        """Returns the memory that the ranks share for states and gradients, or None if they cannot share one, and whether all arrays are
        zeros. A former mesh may have left this memory, with its values."""
        first, units = self.root.states[0], [u.native for u in self.root.units]
        before = shared_arrays.get(first)
        if before is not None and before.fits(units, specs):
            return before, False
        shared_arrays[first] = shared = self.actor.share_arrays(units, specs)
        return shared, True

    def take_states(self, fresh: bool = False) -> None:
        """Moves the optimizer's present states to their places in the record. A death during the move loses them, which the record shows.
        ``fresh``: these places are zeros."""
        self.record.set_usable(False)
        names: dict[int, list[str]] = {}  # by id of the sharded parameter
        for owner, name in self._homes:
            if _is_state(name):
                names.setdefault(owner, []).append(name)
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                self._take_states(p, self.optimizer.state.get(p) or {}, names.get(id(p), []), fresh)
        if isinstance(self.optimizer, Fused):
            self.optimizer._shards.clear()
            self.optimizer._reserved.clear()
        self.record.set_usable(True)
        if self.replicas is not None:
            self.replicas.send_contents(self.step)

    def new_state(self, p: torch.Tensor, name: str) -> torch.Tensor:
        """Returns the place in the record of a state that the optimizer makes now, filled with zeros."""
        home = self.home(p, name)
        self._new_states.append((p, name))
        if self.replicas is not None and home.any():
            self.replicas.stale = True
        return home.zero_()

    def _take_states(self, p: torch.Tensor, state: dict[str, Any], names: list[str], fresh: bool) -> None:
        for name in names:
            home, t = self.home(p, name), state.get(name)
            if t is None:
                if not fresh:
                    home.zero_()
                continue
            values = t._local_tensor if isinstance(t, DTensor) else t
            if values.data_ptr() != home.data_ptr():
                home.copy_(values)
                state[name] = dtensor(home, with_dtype(p._spec, home.dtype))
        if (id(p), "step") not in self._homes:
            return
        if "step" in state:
            state["step"] = self.home(p, "step").fill_(float(state["step"]))
        else:  # SGD: 1 once there is a momentum
            self.home(p, "step").fill_(1.0 if any(state.get(name) is not None for name in names) else 0.0)

    def gradient(self, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the gradient in the record; copies it there if it is elsewhere."""
        home = self.home(p, "grad")
        if gradient.data_ptr() == home.data_ptr():
            return home
        if gradient.dtype != home.dtype:
            raise Unimplemented(
                f"a protected parameter of {home.dtype} has a gradient of {gradient.dtype}", hint="use gradients of the parameter's dtype"
            )
        if not self._gradients[id(p)].idle:
            raise InvalidArgument(
                f"a gradient of an earlier step is still held, whose memory protection uses for the next (shape {list(home.shape)})",
                hint="keep p.grad.clone() instead of p.grad",
            )
        return home.copy_(gradient)

    # ---- a step ----

    def begin(self) -> bool:
        """Begins to record the next step. False: an interrupted call has recorded it already."""
        if not self.in_use:
            raise InvalidArgument(
                "the model was rebuilt since protect(): a parameter changed its dtype, or was tied", hint="call protect again on every rank"
            )
        return self.record.begin(self.step + 1)

    def run(self, began: bool, num_threads: int) -> None:
        """Commits the recorded step with all ranks, and makes its updates."""
        if began:
            self.record.record()
        reached(Moment.UNSENT, self)
        if self.replicas is not None:
            self.replicas.send_step(self.step + 1)
        reached(Moment.RECORDED, self)
        try:
            self.model.commit(self.step + 1)
        except Unavailable:
            if not self._recorded_by_all(self.step + 1):
                raise
        reached(Moment.COMMITTED, self)
        if self.replicas is not None:
            self.replicas.committed(self.step + 1)
        self.record.run(num_threads)
        self._new_states.clear()

    def _recorded_by_all(self, step: int) -> bool:
        """Called after a death. True if every rank of the mesh has recorded the step all the same. A rank's control word shows that, or its
        record or replica in memory of this node: the word may be lost with its host. False, too, if neither is here, so another survivor
        may find that the step counts."""
        ranks = range(len(self.root.units[0].data.ranks))
        return all(self.model.has_recorded(rank, step) or self._has_record(rank, step) for rank in ranks)

    def _has_record(self, rank: int, step: int) -> bool:
        """Holds the record until ``settle``, because the node drops a record with its last holder."""
        try:
            self._opened.append(self.adopt(rank))
        except NotFound:
            return False
        return self._opened[-1].words[0] >= step

    def settle(self, committed: int) -> None:
        """Called after a death. Finishes this rank's own update if an error stopped it although the step counts (``committed_step``). The
        successors of dead ranks have adopted their records before. A step that does not count leaves no new states: not every rank has
        them, and SGD's momentum begins with the step that counts."""
        self._release_opened()
        if committed == self.step + 1:
            self.record.run(num_threads=1)
            self._end_recorded()
        else:
            for p, name in self._new_states:
                state = self.optimizer.state[p]
                state.pop(name, None)
                if state.keys() <= {"step"}:
                    del self.optimizer.state[p]
        self._new_states.clear()

    def _end_recorded(self) -> None:
        """Called once a recorded step is made, after a death."""
        self.optimizer._end_recorded()

    def adopt(self, rank: int) -> AdoptedRank:
        """Opens a dead rank's record if it was a rank of this host, or else its replica. Raises NotFound if neither is here."""
        return adopt(self.actor, self.record.key_of(rank) if self._is_local(rank) else self.record.replica_key_of(rank))

    def held_by(self, rank: int) -> list[AdoptedRank]:
        """Opens the replicas that a dead rank of this host has held, so that their memory can be released."""
        if self.replicas is None or not self._is_local(rank):
            return []
        found = []
        for ward, buddy in enumerate(buddies(self.actor.hosts)):
            if buddy == rank:
                with contextlib.suppress(NotFound, DataLoss):
                    found.append(adopt(self.actor, self.record.replica_key_of(ward)))
        return found

    def _is_local(self, rank: int) -> bool:
        hosts = self.actor.hosts
        return not hosts or hosts[rank] == hosts[self.actor.rank]

    def _release_opened(self) -> None:
        for rank in self._opened:
            rank.release()
        self._opened = []

    # ---- checks, and the arrays of the record ----

    def _check(self) -> None:
        root = self.root
        check_unprotected(root)
        if len(root.models) != 1 or root.in_backward_optimizer is not None or root.added.any:
            raise Unimplemented(
                "protection needs one mesh for all units, no optimizer in backward, and no parameters that were added after fully_shard"
            )
        for u in root.units:
            for p in u.parameters:
                if p.external or u.gathered is not None:
                    raise Unimplemented(
                        f"parameter {p.name} of {u.state.name or 'the root'} cannot be protected: collectives gather it, outside of the "
                        "node's memory"
                    )
        mine = {id(p.views.sharded) for u in root.units for p in u.parameters}
        if any(id(p) not in mine for group in self.optimizer.param_groups for p in group["params"]):
            raise InvalidArgument(
                "the optimizer has a parameter that the model has not sharded",
                hint="build it after fully_shard, of model.parameters()",
            )

    def _arrays(self) -> list[tuple[int, int, ShardedParameter, str, torch.dtype]]:
        """(unit, parameter, its object, name, dtype) of every array in the record."""
        found = []
        group_of = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for u in self.root.units:
            for i, p in enumerate(u.parameters):
                view = p.views.sharded
                group = group_of.get(id(view))
                if group is None:
                    continue
                found += [(u.index, i, p, name, dtype) for name, dtype in self._arrays_of(p, group)]
        return found

    def _arrays_of(self, p: ShardedParameter, group: dict[str, Any]) -> list[tuple[str, torch.dtype]]:
        """(name, dtype) of the arrays of one parameter."""
        optimizer, view = self.optimizer, p.views.sharded
        states = [*optimizer._keys(group), *([MASTER] if optimizer._has_master(view, group) else [])]
        return [("grad", p.dtype), ("step", torch.float32), *((name, optimizer._state_dtype(view, group)) for name in states)]


def check_unprotected(root: Root) -> None:
    before = root.states[0].settings.protection
    if before is not None and before.in_use:
        raise InvalidArgument("this model is protected already", hint="call end() of its Protection first")


class _GradientHome:
    """A pool with one buffer, a parameter's gradient in the record. While an earlier gradient is held there, ``take`` allocates."""

    def __init__(self, home: torch.Tensor):
        self._home, self._idle_uses = home, uses(home)

    def take(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        fits = self._home.shape == shape and self._home.dtype == dtype
        return self._home if fits and self.idle else long_lived(shape, dtype)

    @property
    def idle(self) -> bool:
        """True if no object still holds a gradient in this memory."""
        return uses(self._home) == self._idle_uses

    def put(self, buffer: torch.Tensor) -> None:
        """Does nothing: the memory belongs to the record."""
