"""Replicas of step records on other hosts: the choice of each rank's buddy, and this rank's transfers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shoal import _native


def buddies(hosts: Sequence[Hashable]) -> tuple[int, ...]:
    """Returns, by rank, the rank of another host that holds its replica; -1 for all if there is one host. ``hosts``: by rank.

    Ranks hold numbers of replicas that are as equal as possible. A rank of the next host comes first, so that the replicas of one host's
    ranks are on few other hosts. Every process computes the same buddies.
    """
    order = list(dict.fromkeys(hosts))
    held = [0] * len(hosts)
    found = []
    for rank, host in enumerate(hosts):
        at = order.index(host)
        others = [r for r, h in enumerate(hosts) if h != host]
        buddy = min(others, key=lambda r: (held[r], (order.index(hosts[r]) - at) % len(order), (r - rank) % len(hosts)), default=-1)
        if buddy >= 0:
            held[buddy] += 1
        found.append(buddy)
    return tuple(found)


class Replicas:
    """This rank's replica at its buddy, and the replicas that this rank holds for others."""

    def __init__(self, actor: _native.ShardActor, model: _native.ShardedModel, record: _native.ProtectedShard, step: int):
        self._link = actor.replicate(model, record, buddies(actor.hosts))
        self.stale = False  # states have changed otherwise than by an update
        self._link.send_contents(step)

    def send_contents(self, step: int) -> None:
        """Sends rows and states after a complete step, and waits until the buddy has them."""
        self._link.send_contents(step)
        self.stale = False

    def send_step(self, step: int) -> None:
        """Sends the recorded update with its gradients, and waits until the buddy has recorded it."""
        self._link.send_step(step, self.stale)
        self.stale = False

    def committed(self, step: int) -> None:
        """Called once the step counts: the replicas that this rank holds make the step in the background."""
        self._link.committed(step)

    def stop(self) -> None:
        """Ends the transfers. The replicas stay in memory of the nodes while the record of this rank does."""
        self._link.stop()

    @property
    def costs(self) -> dict[str, float]:
        """``memory_bytes`` of the replicas that this rank holds; ``step_bytes`` sent per step; ``steps`` and ``waited_s``, the time that
        these steps have waited; ``contents`` and ``contents_bytes``, messages with rows and states."""
        return self._link.costs
