"""The cluster that this process is in: its addresses, nodes and resources, and the ways to leave it. Names are Ray's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._core.process import close, state
from shoal._core.process import session as _session

__all__ = ["ClusterContext", "available_resources", "cluster_resources", "is_initialized", "nodes", "shutdown"]


class ClusterContext:
    """The result of ``init``: the addresses of the cluster. ``with shoal.init(): ...`` shuts down at its end."""

    def __init__(self, session: _native.Session):
        self._folder = session.folder
        self.python_version = ".".join(map(str, sys.version_info[:3]))
        self.ray_version = _native.__version__
        self.address_info = {
            "address": session.head_endpoint,
            "gcs_address": session.head_endpoint,
            "node_id": session.node,
            "session_dir": session.folder,
            "webui_url": self.dashboard_url,
        }

    @property
    def dashboard_url(self) -> str | None:
        """The address of the HTTP interface; None without one."""
        try:
            return json.loads(Path(self._folder, "info.json").read_text()).get("http") or None
        except (OSError, ValueError):
            return None

    def disconnect(self) -> None:
        shutdown()

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    def __enter__(self) -> ClusterContext:
        return self

    def __exit__(self, *exc) -> None:
        shutdown()

    def __repr__(self) -> str:
        return f"ClusterContext({self.address_info['address']})"


def shutdown(*, wait_for_processes: bool = False, _exiting_interpreter: bool = False) -> None:
    """Leaves the cluster. The driver's actors and tasks end, and so does a private cluster, for whose end this always waits. In a worker it
    does nothing: the process belongs to its node, and the call continues."""
    del wait_for_processes, _exiting_interpreter  # Ray's arguments, without effect
    if not state.is_worker:
        close()


def is_initialized() -> bool:
    return state.session is not None


def nodes() -> list[dict[str, Any]]:
    """Returns a row per node: id, host, state, pid, total and available resources, labels. Ray's names are NodeID, Alive, Resources,
    Labels, NodeManagerHostname, NodeManagerAddress and NodeName (the last three all hold the host)."""
    return [{**row, **_rays_names(row)} for row in _session().list("nodes")]


def _rays_names(row: dict[str, Any]) -> dict[str, Any]:
    alive, host = row["state"] != "DEAD", row["host"]
    address = {"NodeManagerHostname": host, "NodeManagerAddress": host, "NodeName": host}
    return {"NodeID": row["id"], "Alive": alive, "alive": alive, "Resources": row["total"], "Labels": row["labels"], **address}


def cluster_resources() -> dict[str, float]:
    sums = _session().resources()
    return _sums_of_nodes("total") if sums.left_out else sums.total


def available_resources() -> dict[str, float]:
    sums = _session().resources()
    return _sums_of_nodes("available") if sums.left_out else sums.available


def _sums_of_nodes(column: str) -> dict[str, float]:
    """Adds up the amounts in the nodes' rows: the head's own sums leave out some resources' names in a large cluster."""
    out: dict[str, float] = {}
    for row in _session().list("nodes"):
        for name, amount in row[column].items() if row["state"] != "DEAD" else ():
            out[name] = out.get(name, 0) + amount
    return out
