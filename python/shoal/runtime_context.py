"""``get_runtime_context``: the identity of this process and of the call that it executes. Names are Ray's."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal._actors.options import methods_of, with_retries
from shoal._core.context import CallInfo, current_call, running
from shoal._core.ids import ActorID, JobID, NodeID, PlacementGroupID, TaskID, WorkerID
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._core.variables import variable
from shoal._driver.cluster import nodes
from shoal._runtime_env import environment
from shoal.runtime_env import RuntimeEnv

__all__ = ["RuntimeContext", "get_gpu_ids", "get_runtime_context"]


class RuntimeContext:
    """Ids are hexadecimal text with ``hex()``. Fields that only a worker has are None in a driver, with a warning."""

    def get_job_id(self) -> JobID:
        return JobID(_session().job)

    def get_node_id(self) -> NodeID:
        return NodeID(_session().node)

    def get_worker_id(self) -> WorkerID:
        return WorkerID(_session().worker)

    def get_actor_id(self) -> ActorID | None:
        """The id of this actor, or None in a remote function."""
        return ActorID(running.actor_id) if _in_worker("get_actor_id") and running.actor_id else None

    def get_actor_name(self) -> str | None:
        """The actor's name, ``""`` for an actor without one, None outside of actors."""
        if not _in_worker("get_actor_name") or not running.actor_id:
            return None
        return running.settings.get("name") or ""

    def get_task_id(self) -> TaskID | None:
        """The id of the executing call; each attempt has its own id."""
        call = _call("get_task_id")
        return TaskID(call.task_id) if call else None

    def get_task_name(self) -> str | None:
        """``Class.method`` or the function's name, unless the call was given a ``name``."""
        call = _call("get_task_name")
        return ((call.extra or {}).get("name") or call.where) if call else None

    def get_task_function_name(self) -> str | None:
        """``module.Class.method``, or ``module.function``."""
        call = _call("get_task_function_name")
        if call is None:
            return None
        of = running.cls if running.function is None else running.function
        return f"{getattr(of, '__module__', None) or '__main__'}.{call.where}"

    def get_placement_group_id(self) -> PlacementGroupID | None:
        """The id of the group that this actor or task is placed in."""
        group = os.environ.get("SHOAL_GROUP")
        return PlacementGroupID(group) if group else None

    @property
    def job_id(self) -> JobID:
        return self.get_job_id()

    @property
    def node_id(self) -> NodeID:
        return self.get_node_id()

    @property
    def worker_id(self) -> WorkerID:
        return self.get_worker_id()

    @property
    def task_id(self) -> TaskID | None:
        """Same as get_task_id."""
        call = _call("task_id")
        return TaskID(call.task_id) if call else None

    @property
    def actor_id(self) -> ActorID | None:
        """Same as get_actor_id."""
        return ActorID(running.actor_id) if _in_worker("actor_id") and running.actor_id else None

    @property
    def current_placement_group_id(self) -> PlacementGroupID:
        """Same as get_placement_group_id, but nil where there is no group."""
        return PlacementGroupID(self.get_placement_group_id() or PlacementGroupID.nil())

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        return os.environ.get("SHOAL_GROUP_CAPTURES") == "1"

    def get_node_labels(self) -> dict[str, str]:
        return next((n["labels"] for n in nodes() if n["id"] == self.get_node_id()), {})

    def is_canceled(self) -> bool:
        """True if the executing call was cancelled; for code that polls. RuntimeError outside of calls, and in async actors, whose calls
        are interrupted."""
        call = _call("is_canceled")
        if call is None or call.incoming is None:
            raise RuntimeError("is_canceled() is for remote functions and methods of actors")
        if (running.settings.get("concurrency") or {}).get("async"):
            raise RuntimeError("is_canceled() is not for async actors: their calls are cancelled as asyncio tasks are")
        return _session().cancelled(call.incoming)

    @property
    def runtime_env(self) -> RuntimeEnv:
        """The environment of this job, or of this actor or task."""
        return RuntimeEnv(**environment.inherited())

    def get_runtime_env_string(self) -> str:
        return json.dumps(environment.inherited())

    def get_session_name(self) -> str:
        return os.path.basename(_session().folder)

    def get_temp_dir(self) -> str:
        """The folder of this cluster's session: logs, copies of working_dirs."""
        return _session().folder

    def get_assigned_resources(self) -> dict[str, float]:
        """The resources that the actor or the function requested. The defaults are none for an actor and one CPU for a function."""
        return dict(running.settings.get("resources") or {}) if _in_worker("get_assigned_resources") else {}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The ids of the devices that this worker may use, by kind."""
        return {"GPU": _visible_gpus()}

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the executing actor. Neither this handle nor its copies keep the actor alive (as in Ray). RuntimeError outside of
        actors."""
        if not running.actor_id:
            raise RuntimeError("current_actor is there in methods of actors only")
        name = running.settings["class_name"]
        _session().know(running.actor_id, name)
        methods = with_retries(methods_of(running.cls), running.settings.get("max_task_retries"))
        handle = ActorHandle(running.actor_id, name, methods, max_pending=running.settings["max_pending_calls"])
        handle._shoal_actor.weak = True
        return handle

    @property
    def namespace(self) -> str:
        return state.namespace

    @property
    def gcs_address(self) -> str:
        """The address of the head."""
        return _session().head_endpoint

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """True if the actor's process was restarted."""
        return int(variable("SHOAL_RESTARTS", "0")) > 0

    def get(self) -> dict[str, Any]:
        """A dict with job_id, node_id, namespace, and in a worker task_id and actor_id if any."""
        out = {"job_id": self.get_job_id(), "node_id": self.get_node_id(), "namespace": self.namespace}
        if state.is_worker:
            out |= {k: v for k, v in (("task_id", self.get_task_id()), ("actor_id", self.get_actor_id())) if v is not None}
        return out


def _in_worker(what: str) -> bool:
    if not state.is_worker:
        warnings.warn(f"{what}() is for workers: in a driver it has no value", stacklevel=3)
    return state.is_worker


def _call(what: str) -> CallInfo | None:
    return current_call() if _in_worker(what) else None


def get_runtime_context() -> RuntimeContext:
    """Returns the context of this process; calls ``init`` if the process is not connected."""
    _session()
    return RuntimeContext()


def _visible_gpus() -> list[str]:
    if state.is_worker and not running.settings.get("resources", {}).get("GPU"):
        return []
    return [i.strip() for i in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if i.strip()]


def get_gpu_ids() -> list[int | str]:
    """The ids of the GPUs that this process may use (``CUDA_VISIBLE_DEVICES``); empty in a worker that requested none."""
    _session()
    return [int(i) if i.isdigit() else i for i in _visible_gpus()]
