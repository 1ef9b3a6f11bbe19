"""Queries of a cluster's state: ``list_actors``, ``get_node``, ``summarize_actors``, ``list_logs`` and others. Names and fields are Ray's.

A call asks this process's cluster, or the one at ``address`` (``"auto"``, ``"HOST:PORT"``, ``"http://HOST:PORT"``). It needs no
``shoal.init``. A row is a dict with its fields as attributes. ``filters`` are ``(field, "=" or "!=", value)``; all must hold, and text is
compared without regard to case. A list has the first 100 rows, or the first ``limit``. It warns of rows that the default limit leaves out,
and with ``_explain`` also of those that ``limit`` leaves out.
"""

from __future__ import annotations

import json
from typing import Any

from shoal.util import _state_tables as _tables
from shoal.util._state_logs import get_log, list_logs
from shoal.util._state_rows import StateRow
from shoal.util._state_tables import (
    get_actor,
    get_job,
    get_node,
    get_objects,
    get_placement_group,
    get_task,
    get_worker,
    list_actors,
    list_jobs,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_runtime_envs,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_objects,
    summarize_tasks,
)

__all__ = [
    "ListApiOptions",
    "StateRow",
    "get_actor",
    "get_job",
    "get_log",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_jobs",
    "list_logs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_runtime_envs",
    "list_tasks",
    "list_workers",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]


class ListApiOptions:
    """The arguments ``limit``, ``timeout``, ``detail`` and ``filters`` of Ray's StateApiClient."""

    def __init__(self, limit: int = 100, timeout: float = _tables.TIMEOUT_S, detail: bool = False, filters: Any = None):
        self.limit, self.timeout, self.detail, self.filters = limit, timeout, detail, filters or []


def _timeline(filename: str | None) -> list[dict[str, Any]] | None:
    said = _tables.run_command("timeline", "-o", filename or "-", *_tables.address_of(None), timeout=_tables.TIMEOUT_S)
    return None if filename else json.loads(said)
