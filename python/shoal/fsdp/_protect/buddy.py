"""Replicas of step records on other hosts: this rank's transfers."""

from __future__ import annotations

from shoal import _native
from shoal._distributed.buddies import buddies


class Replicas:
    """This rank's replica at its buddy, and the replicas that this rank holds for others."""

    def __init__(self, actor: _native.ShardActor, model: _native.ShardedModel, record: _native.ProtectedShard, step: int):
        self._link = actor.replicate(model, record, buddies(actor.hosts))
        self.stale = False  # states have changed otherwise than by an update, so ``send_step`` has to send them
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
