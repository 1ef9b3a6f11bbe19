"""Shoal: a distributed runtime of actors for fully sharded training.

Users of Ray write ``import shoal as ray``. From the source tree: ``PYTHONPATH=python:bazel-bin/python`` (the package's sources and its
extension module).
"""

import importlib
from pkgutil import extend_path

# Finds `shoal._native` in bazel-bin; no effect in an installed wheel.
__path__ = extend_path(__path__, __name__)

from shoal import _stored_names, actor, exceptions, util  # noqa: F401
from shoal._actors.options import method
from shoal._actors.registry import get_actor, kill
from shoal._core import process as _process
from shoal._core.ids import ActorID, JobID, NodeID, ObjectID, PlacementGroupID, TaskID, UniqueID, WorkerID
from shoal._driver.cluster import available_resources, cluster_resources, is_initialized, nodes, shutdown
from shoal._driver.init import init
from shoal._driver.remote import remote
from shoal._native import __version__
from shoal._objects.refs import ObjectRef
from shoal._objects.streams import DynamicObjectRefGenerator, ObjectRefGenerator
from shoal._objects.values import cancel, get, put, wait
from shoal.actor import exit_actor
from shoal.runtime_context import get_gpu_ids, get_runtime_context

SCRIPT_MODE, WORKER_MODE = 0, 1  # Ray's numbers for a driver and a worker


def timeline(filename: str | None = None):
    """Returns the executed calls with place and time, as events of a Chrome trace (for Perfetto), or writes them to a file."""
    from shoal.util.state import _timeline  # late: loads http.client

    return _timeline(filename)


def __getattr__(name: str):
    if name == "LoggingConfig":
        from shoal._core.logging import LoggingConfig  # late: loads logging

        return LoggingConfig
    if name not in ("_raylet", "cloudpickle", "cluster_utils", "dag", "remote_function", "runtime_env", "types", "util"):
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return importlib.import_module(f"shoal.{name}")


_process.state.import_graphs = lambda: importlib.import_module("shoal.dag")  # late: most programs have no graph


__all__ = [
    "SCRIPT_MODE",
    "WORKER_MODE",
    "ActorID",
    "DynamicObjectRefGenerator",
    "JobID",
    "LoggingConfig",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
    "__version__",
    "actor",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "util",
    "wait",
]
