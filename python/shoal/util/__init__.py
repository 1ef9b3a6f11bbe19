"""Placement groups, named actors, a pool of actors (``ActorPool``) and a shared queue (``shoal.util.queue``). Also results in order of
arrival (``as_completed``, ``map_unordered``), and a check of values that cannot be sent (``inspect_serializability``).
Names are Ray's."""

from shoal._actors.registry import list_named_actors
from shoal.util import accelerators, scheduling_strategies
from shoal.util._helpers import (
    as_completed,
    disable_log_once_globally,
    get_node_ip_address,
    inspect_serializability,
    log_once,
    map_unordered,
)
from shoal.util.actor_pool import ActorPool
from shoal.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from shoal.util.serialization import deregister_serializer, register_serializer

__all__ = [
    "ActorPool",
    "accelerators",
    "as_completed",
    "deregister_serializer",
    "disable_log_once_globally",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
    "scheduling_strategies",
]
