"""Helpers over actors: a pool of them (``ActorPool``), a queue that processes share (``shoal.util.queue``)."""

from shoal.util.actor_pool import ActorPool

__all__ = ["ActorPool"]
