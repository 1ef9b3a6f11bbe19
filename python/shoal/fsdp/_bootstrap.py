"""The ShardActor of this process for a mesh: found, or placed through the node that its ranks share."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal._ranks import TIMEOUT, WARN_AFTER, attach, default_mesh, gang_name, process_group_communicator
from shoal._remote import ActorHandle
from shoal._runtime import state
from shoal.exceptions import InvalidArgument


@dataclass
class _Bootstrap:
    actors: dict[tuple[tuple[int, ...], int, int], _native.ShardActor] = field(default_factory=dict)


_state = _Bootstrap()


def shard_actor(ranks: tuple[int, ...], index: int, replicas: int) -> _native.ShardActor:
    """This rank's ShardActor among these global ranks, of which it is number ``index``; placed at the first call. ``replicas``: so many
    rows of them have all shards each."""
    key = (ranks, replicas, index)  # ranks may be threads of one process
    actor = _state.actors.get(key)
    if actor is None:
        host = attach(ranks)
        gang = gang_name("mesh" if replicas == 1 else f"mesh-{replicas}", ranks, index)
        actor = _native.ShardActor.place(
            state.session,
            gang=gang,
            rank=index,
            world_size=len(ranks),
            replicas=replicas,
            timeout=TIMEOUT,
            warn_after=WARN_AFTER,
            communicator=None if host.shared else process_group_communicator(gang, ranks),
            place_as=host.place_as,
        )
        _state.actors[key] = actor
        state.ending.append(lambda: _leave(key))
    return actor


def _leave(key: tuple[tuple[int, ...], int, int]) -> None:
    actor = _state.actors.pop(key, None)
    if actor is not None:
        actor.leave()


def leave_all() -> None:
    """This process's ranks are done with their models: whoever still needs something of them is told so."""
    for key in list(_state.actors):
        _leave(key)


def shard_actor_handles(mesh: DeviceMesh | None = None) -> list[ActorHandle]:
    """Handles of the ShardActors of a mesh, by rank: ``describe`` them, or ``shoal.kill`` one. They are known after the first forward."""
    from shoal.fsdp._mesh import data_mesh

    data = data_mesh(mesh or default_mesh())
    actor = _state.actors.get((*data.key, data.index))
    if actor is None or not actor.members:
        raise InvalidArgument("these ranks have sharded nothing yet", hint="call fully_shard and run one forward first")
    handles = []
    for member in actor.members:
        state.session.know(member, "ShardActor")
        handles.append(ActorHandle(member, "ShardActor", {"describe": {}}))
    return handles
