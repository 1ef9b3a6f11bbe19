"""``Cluster``: a head and several nodes on this host, each with its own processes, for tests. Names are Ray's.

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
node = cluster.add_node(num_cpus=1, resources={"custom": 1})
shoal.init(address=cluster.address)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from shoal._core.ids import NodeID
from shoal._core.local_cluster import binary, package_path
from shoal._core.process import state
from shoal._driver.arguments import check_system_config
from shoal._driver.cluster import shutdown
from shoal._driver.init import init
from shoal.exceptions import RaySystemError

__all__ = ["Cluster", "ClusterNode"]

_END_S = 10.0  # time for a node to end after a signal
_COMMAND_S = 60.0
_CHECK_S = 0.05
_OPTIONS = {
    "num_cpus": "--num-cpus",
    "num_gpus": "--num-gpus",
    "memory": "--memory",
    "object_store_memory": "--object-store-memory",
    "object_spilling_directory": "--object-spilling-directory",
}
_OF_THE_HEAD = {"include_dashboard", "dashboard_port"}
# Settings of Ray's own processes, without effect.
_CHANGE_NOTHING = {
    "_system_config", "dashboard_host", "redis_address", "redis_password", "redis_username", "gcs_address", "min_worker_port",
    "max_worker_port", "node_manager_port", "object_manager_port", "include_log_monitor", "dashboard_agent_listen_port", "node_name",
    "node_ip_address", "ray_debugger_external",
}  # fmt: skip


class ClusterNode:
    """A node that ``Cluster.add_node`` started: its id, the cluster's address and the node's pid."""

    def __init__(self, node_id: str, gcs_address: str, pid: int):
        self.node_id, self.gcs_address, self.pid = NodeID(node_id), gcs_address, pid
        self.node_ip_address = "127.0.0.1"

    @property
    def unique_id(self) -> NodeID:
        return self.node_id

    address = property(lambda self: self.gcs_address)

    def remaining_processes_alive(self) -> bool:
        """True if the node's process runs."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
        except OSError:
            return False

    any_processes_alive = live_processes = remaining_processes_alive

    def kill_raylet(self, check_alive: bool = True) -> None:
        """Kills the node's process at once, like a crash of its host. Its workers end with it."""
        if check_alive and not self.remaining_processes_alive():
            raise RaySystemError(f"the process {self.pid} of node {self.node_id} has ended already")
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        for each, seconds in ((number, _END_S), (signal.SIGKILL, _END_S)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, each)
            end = time.monotonic() + seconds
            while self.remaining_processes_alive():
                if time.monotonic() > end:
                    break
                time.sleep(_CHECK_S)
            else:
                return
        raise RaySystemError(f"the process {self.pid} of node {self.node_id} did not end")

    def __repr__(self) -> str:
        return f"ClusterNode({self.node_id}, pid {self.pid})"


class Cluster:
    """A head and a changing set of nodes on this host.

    ``initialize_head``: start the first node at once, with ``head_node_args`` for ``add_node``. ``connect``: join this process to the
    cluster. ``shutdown_at_exit``: end the cluster when this process exits (a killed process runs no exit handlers).
    """

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: dict[str, Any] | None = None,
        shutdown_at_exit: bool = True,
    ):
        self.head_node: ClusterNode | None = None
        self.worker_nodes: set[ClusterNode] = set()
        self.webui_url = ""
        self._endpoints: tuple[str, ...] = ()
        self.connected = False
        if connect and not initialize_head:
            raise RuntimeError("Cannot connect to uninitialized cluster.")
        if shutdown_at_exit:
            atexit.register(self.shutdown)
        if initialize_head:
            self.add_node(**(head_node_args or {}))
            if connect:
                self.connect()

    @property
    def address(self) -> str | None:
        """The argument for ``init(address=...)``; None without a head."""
        return None if self.head_node is None else self.head_node.gcs_address

    gcs_address = address

    def connect(self, namespace: str | None = None) -> None:
        """Joins this process to the cluster."""
        if self.address is None:
            raise RuntimeError("Cannot connect to uninitialized cluster.")
        init(address=self.address, namespace=namespace, ignore_reinit_error=True)
        self.connected = True

    def add_node(self, wait: bool = True, **node_args: Any) -> ClusterNode:
        """Starts a node, the first time with the head. The node has joined when this returns; ``wait`` has no effect.

        It offers ``num_cpus`` (1), ``num_gpus`` (0), ``memory`` (bytes), ``resources``, ``labels`` (dicts), ``object_store_memory`` (bytes)
        and ``object_spilling_directory``. ``env_vars``: variables of its processes. The head also takes ``include_dashboard`` and
        ``dashboard_port``. Ray's arguments about its own processes have no effect; TypeError for others.
        """
        del wait
        is_head = self.head_node is None
        unknown = node_args.keys() - _OPTIONS.keys() - _OF_THE_HEAD - _CHANGE_NOTHING - {"resources", "labels", "env_vars"}
        if unknown:
            raise TypeError(f"add_node() got an unexpected keyword argument {min(unknown)!r}")
        check_system_config(node_args.get("_system_config"))
        given = {"num_cpus": 1, "num_gpus": 0, **{k: v for k, v in node_args.items() if v is not None}}
        words = ["start", *(["--head", "--port", "0"] if is_head else ["--address", self.address])]
        for name, option in _OPTIONS.items():
            words += [option, f"{given[name]}"] if name in given else []
        words += ["--resources", json.dumps({k: float(v) for k, v in given["resources"].items()})] if given.get("resources") else []
        for name, value in (given.get("labels") or {}).items():
            words += ["--label", f"{name}={value}"]
        if is_head:
            words += ["--include-dashboard", "true" if given.get("include_dashboard") else "false"]
            words += ["--dashboard-port", f"{given['dashboard_port']}"] if "dashboard_port" in given else []
        said = self._command(*words, env=given.get("env_vars"))
        rows = self._rows(said["address"])
        row = rows[0] if is_head else next(row for row in rows if row["id"] == said["node"])
        node = ClusterNode(row["id"], said["address"], row["pid"])
        if is_head:
            self.head_node, self.webui_url = node, said["http"].removeprefix("http://")
        else:
            self.worker_nodes.add(node)
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """Ends a node and its workers; removing the head's node ends the cluster. Without ``allow_graceful`` the node is killed. For its
        own node, a process leaves the cluster (``shutdown``) and raises ValueError, because it would end with that node."""
        if state.session is not None and state.session.node == node.node_id:
            self.connected = False
            shutdown()
            raise ValueError(
                "remove_node() of the node that this process is connected to: call shoal.shutdown() first, or remove another one"
            )
        if node is self.head_node:
            self.head_node = None
            self._command("stop", "--address", node.gcs_address, *([] if allow_graceful else ["--force"]))
            node._end(signal.SIGTERM)
        else:
            self.worker_nodes.remove(node)
            node._end(signal.SIGTERM if allow_graceful else signal.SIGKILL)

    def wait_for_nodes(self, timeout: float = 30) -> None:
        """Returns once as many nodes are alive as were added and not removed. TimeoutError after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while sum(row["state"] != "DEAD" for row in self._rows(self.address)) != len(self.list_all_nodes()):
            if time.monotonic() > end:
                raise TimeoutError("Timed out while waiting for nodes to join.")
            time.sleep(_CHECK_S)

    def list_all_nodes(self) -> list[ClusterNode]:
        """The nodes, the head's first."""
        return [*([self.head_node] if self.head_node else []), *self.worker_nodes]

    def remaining_processes_alive(self) -> bool:
        """True if the processes of all nodes run."""
        return all(node.remaining_processes_alive() for node in self.list_all_nodes())

    def shutdown(self) -> None:
        """Ends all nodes, the head's last. A connected process leaves the cluster first."""
        if state.session is not None and self.address is not None and state.session.head_endpoint in self._endpoints:
            shutdown()
        self.connected = False
        for node in tuple(self.worker_nodes):
            self.remove_node(node)
        if self.head_node is not None:
            self.remove_node(self.head_node)

    _endpoints: tuple[str, ...] = ()

    def _rows(self, address: str | None) -> list[dict[str, Any]]:
        return self._command("list", "nodes", "--address", address)["rows"] if address else []

    def _command(self, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        path = os.pathsep.join(filter(None, [package_path(), os.environ.get("PYTHONPATH")]))
        programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        around = {**os.environ, "PYTHONPATH": path, "PATH": programs, **(env or {})}
        process = subprocess.run(
            [binary(), *words, "--json"],
            env=around,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        if process.returncode:
            raise RaySystemError(f"shoal {words[0]} failed: {process.stderr.strip() or process.stdout.strip()}")
        said = json.loads(process.stdout)
        if words[0] == "start" and "--head" in words:
            self._endpoints = (said["address"], said["local"])
        return said
