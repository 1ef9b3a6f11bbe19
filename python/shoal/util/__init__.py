"""Placement groups and other helpers, under Ray's names."""

from shoal._remote import list_named_actors
from shoal.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
