"""Placement groups, actors by name, a pool of actors (``ActorPool``), a queue that processes share (``shoal.util.queue``).

Names are Ray's."""

from shoal._remote import list_named_actors
from shoal.util.actor_pool import ActorPool
from shoal.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "ActorPool",
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
