"""The ShardActor of this process for the ranks of a mesh: a cached one, or one placed through the node."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal._actors.handle import ActorHandle
from shoal._core.process import state
from shoal._distributed.communicator import Exchange
from shoal._distributed.ranks import TIMEOUT, TRANSPORT, WARN_AFTER, attach, default_mesh, gang_name, network
from shoal.exceptions import InvalidArgument, NotFound, Unavailable
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._parameters.logical import blocks
from shoal.fsdp._parameters.mesh import data_mesh


@dataclass
class _Bootstrap:
    actors: dict[tuple[tuple[int, ...], int, int], _native.ShardActor] = field(default_factory=dict)
    in_rank_order: bool = False
    logical_ranks: int = 0  # 0: gradients are added up over the ranks themselves
    # Objects with an attribute ``actor`` that use it: the units of all models.
    users: weakref.WeakSet = field(default_factory=weakref.WeakSet)


_state = _Bootstrap()


def add_in_rank_order() -> None:
    """Makes later meshes on one host add gradients one rank after the other, as ``shoal.spmd`` does in one process."""
    _state.in_rank_order = True


def add_over(logical_ranks: int) -> None:
    """Makes later meshes add gradients along the tree over this number of logical ranks, which their ranks divide among themselves
    (``logical.blocks``). 0: over the ranks."""
    _state.logical_ranks = logical_ranks


def shard_actor(ranks: tuple[int, ...], index: int, replicas: int) -> _native.ShardActor:
    """Returns this rank's ShardActor; the first call places it. ``ranks``: the mesh's global ranks; ``index``: this rank's position among
    them; ``replicas``: the number of replicas, each of ``len(ranks) / replicas`` shards."""
    key = (ranks, replicas, index)  # the index too, because ranks may be threads of one process
    actor = _state.actors.get(key)
    if actor is None:
        actor = place_actor(ranks, index, replicas)
        keep_actor(ranks, index, replicas, actor)
    return actor


def place_actor(ranks: tuple[int, ...], index: int, replicas: int, gang: str = "") -> _native.ShardActor:
    """Places a new ShardActor; arguments as for ``shard_actor``. ``gang``: a name that all ranks have agreed on; "": they agree now."""
    host = attach(ranks)
    gang = gang or gang_name("mesh" if replicas == 1 else f"mesh-{replicas}", ranks, index)
    return _native.ShardActor.place(
        state.session,
        gang=gang,
        rank=index,
        world_size=len(ranks),
        replicas=replicas,
        timeout=TIMEOUT,
        warn_after=WARN_AFTER,
        hosts=[] if host.shared else list(host.host_of_rank),
        exchange=None if host.shared else Exchange(gang, len(ranks), index),
        network=network("" if TRANSPORT == "gloo" else TRANSPORT),
        in_rank_order=_state.in_rank_order,
        place_as=host.place_as,
        places=[block[0] for block in blocks(_state.logical_ranks, len(ranks))] if _state.logical_ranks else [],
    )


def make_model(actor: _native.ShardActor, units: list[_native.ShardedUnit], names: list[str], slots: int) -> _native.ShardedModel:
    """Makes a model on the new mesh of a change of meshes (``_reshard``), and waits until all ranks are placed. Raises Unavailable if the
    head has no running process of this rank any more: it counts this rank's node as lost."""
    try:
        return actor.make_model(units, names, slots=slots)
    except NotFound as error:
        raise Unavailable(f"this worker's process counts as lost: {error}", reason="ActorDied") from error


def keep_actor(ranks: tuple[int, ...], index: int, replicas: int, actor: _native.ShardActor) -> None:
    """Makes ``shard_actor`` return this actor until this process leaves it, at the latest when the session closes."""
    _state.actors[ranks, replicas, index] = actor
    if not _ends_of(actor):
        state.ending.append(_End(actor))


def use(actor: _native.ShardActor, user: Any) -> None:
    """Sets ``user.actor`` and records ``user``, since an actor with users is kept."""
    user.actor = actor
    _state.users.add(user)


def leave_unused(actor: _native.ShardActor) -> None:
    """Leaves the actor's mesh and ends the actor, unless units use it."""
    if any(user.actor is actor for user in _state.users):
        return
    _leave(actor)
    with contextlib.suppress(NotFound, Unavailable):  # the head has no row of the actor, or is away
        state.session.kill(actor.id, False)


class _End:
    """Leaves an actor's mesh when the session closes."""

    def __init__(self, actor: _native.ShardActor):
        self.actor = actor

    def __call__(self) -> None:
        _leave(self.actor)


def _ends_of(actor: _native.ShardActor) -> list[_End]:
    return [end for end in state.ending if isinstance(end, _End) and end.actor is actor]


def _leave(actor: _native.ShardActor) -> None:
    for key in [k for k, a in _state.actors.items() if a is actor]:
        del _state.actors[key]
    for end in _ends_of(actor):
        state.ending.remove(end)
    actor.leave()


def leave_all() -> None:
    """Leaves every mesh: this process's ranks are done with their models. A rank that still waits for them gets an error."""
    groups.leave_all()
    for actor in list(_state.actors.values()):
        _leave(actor)


def shard_actor_handles(mesh: DeviceMesh | None = None) -> list[ActorHandle]:
    """Handles of a mesh's ShardActors, by rank, to ``describe`` or to ``shoal.kill``. Raises InvalidArgument before the first forward."""
    data = data_mesh(mesh or default_mesh())
    actor = _state.actors.get((*data.key, data.index))
    if actor is None or not actor.members:
        raise InvalidArgument("these ranks have sharded nothing yet", hint="call fully_shard and run one forward first")
    handles = []
    for member in actor.members:
        state.session.know(member, "ShardActor")
        handles.append(ActorHandle(member, "ShardActor", {"describe": {}}))
    return handles
