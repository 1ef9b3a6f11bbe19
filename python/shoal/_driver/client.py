"""``init``, ``shutdown``, ``get``, ``put``, ``wait``, ``kill``: a driver's access to the cluster. Names and semantics are Ray's."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._actors.options import meant
from shoal._core import serialize
from shoal._core.numbers import amount, flag, number, whole
from shoal._core.process import attach_worker, close, retry_delay_ms, start_local, started_by_node, state
from shoal._core.process import session as _session
from shoal._objects.refs import ObjectRef, ResultRef, Waitable, load
from shoal._runtime_env.environment import check, inherited, merged
from shoal.exceptions import ActorHandleNotFoundError, GetTimeoutError, InvalidArgument, NotFound, Unimplemented

__all__ = [
    "ClusterContext",
    "ObjectRef",
    "available_resources",
    "cancel",
    "cluster_resources",
    "get",
    "init",
    "is_initialized",
    "kill",
    "nodes",
    "put",
    "shutdown",
    "wait",
]

HEAD_TIMEOUT_S = 60.0  # wait for a dead head to return, or for another to take the lead

# Arguments of Ray's init that are Unimplemented here, with an alternative.
_FEWER = "num_cpus= and memory= offer less than the machine has"
_ETCD = "a head whose state outlives it is one of several over etcd: `shoal start --head --store etcd://..`"
_NOT_HERE = {
    "job_config": "namespace=, runtime_env= and logging_config= say what is in one",
    "enable_resource_isolation": _FEWER,
    "cgroup_path": _FEWER,
    "system_reserved_cpu": _FEWER,
    "system_reserved_memory": _FEWER,
    "proxy_server_url": "include_dashboard=True: an HTTP interface of its own, on loopback",
    "_enable_object_reconstruction": "max_retries= and max_task_retries= make calls again whose process died",
    "_metrics_export_port": "include_dashboard=True and dashboard_port=: GET /metrics is of that interface",
    "_node_ip_address": "a cluster over several hosts is begun by `shoal start --head --host ADDRESS`",
    "_node_name": "labels= tells nodes apart",
    "_plasma_directory": "object_store_memory= says how much is in memory, object_spilling_directory= where the rest goes",
    "_redis_password": _ETCD,
    "_redis_username": _ETCD,
    "_tracing_startup_hook": "shoal.timeline() is a trace of what ran",
}
_CHANGE_NOTHING = {"_driver_object_store_memory", "_skip_env_hook"}  # without effect in Ray as well: deprecated, and for an unset hook

_NO_EFFECT = {  # settings of Ray's own processes that programs and tests use most
    "automatic_object_spilling_enabled", "enable_timeline", "enable_worker_prestart", "event_stats", "fetch_warn_timeout_milliseconds",
    "gcs_rpc_server_reconnect_timeout_s", "gcs_server_request_timeout_seconds", "health_check_failure_threshold",
    "health_check_initial_delay_ms", "health_check_period_ms", "health_check_timeout_ms", "idle_worker_killing_time_threshold_ms",
    "kill_idle_workers_interval_ms", "lineage_pinning_enabled", "local_fs_capacity_threshold", "max_direct_call_object_size",
    "max_io_workers", "max_lineage_bytes", "max_pending_lease_requests_per_scheduling_category", "max_task_args_memory_fraction",
    "memory_monitor_refresh_ms", "memory_usage_threshold", "metrics_report_interval_ms", "min_spilling_size", "num_heartbeats_timeout",
    "num_workers_soft_limit", "object_manager_default_chunk_size", "object_manager_max_bytes_in_flight", "object_spilling_config",
    "object_spilling_threshold", "object_store_full_delay_ms", "object_timeout_milliseconds", "preallocate_plasma_memory",
    "prestart_worker_first_driver", "raylet_heartbeat_period_milliseconds", "scheduler_spread_threshold",
    "task_events_report_interval_ms", "task_rpc_inlined_bytes_limit", "worker_cap_enabled", "worker_lease_timeout_milliseconds",
    "worker_register_timeout_seconds",
}  # fmt: skip


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


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: float | None = None,
    resources: dict[str, float] | None = None,
    log_to_driver: bool | None = None,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    logging_level: Any = None,
    object_store_memory: int | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    logging_config: Any = None,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    local_mode: bool = False,
    configure_logging: bool = True,
    logging_format: str | None = None,
    object_spilling_directory: str | None = None,
    _temp_dir: str | None = None,
    _memory: float | None = None,
    _system_config: dict[str, Any] | None = None,
    **others: Any,
) -> ClusterContext:
    """Connects this process to a cluster.


    ``address``: ``"HOST:PORT"`` or ``"unix:@NAME"`` of a running head (one on another host: after ``shoal start --address`` joined it).
    Without one: ``$SHOAL_ADDRESS``, else the cluster that this user started last on this host (``shoal start``), else a private one. A
    private cluster ends with this process. ``"auto"``: likewise, but never private. ``"local"``: always private. A process that a node
    started is in its cluster already.

    A private cluster offers ``num_cpus``, ``num_gpus``, ``memory`` (bytes) and ``resources``. The defaults are the machine's logical CPUs
    and memory, and the GPUs that ``CUDA_VISIBLE_DEVICES`` names; ValueError for more GPUs than that. ``labels``: labels of its one node,
    for ``label_selector``. ``include_dashboard``: serve the HTTP interface (jobs, state) on loopback, at ``dashboard_port`` (default:
    8265, or any free one). ``object_store_memory``: bytes for large values, default 30 % of the machine's (or control group's) memory.
    Beyond it, the least recently used values move to files in ``object_spilling_directory``, a folder on a disk. Its default is the
    session's folder, or ``/var/tmp`` where the session lies in memory. ``_temp_dir`` replaces ``$SHOAL_HOME``.

    ``namespace``: the scope of actor names, by default one per job. ``runtime_env``: the environment of this job's processes, unless an
    actor or a function has its own. Its keys are ``env_vars``, ``working_dir``, ``py_modules``, ``excludes``, ``pip``, ``uv`` and
    ``config`` (``RuntimeEnvConfig``). ``logging_config``: a ``LoggingConfig`` for the root loggers of this process and the job's workers.
    ``_system_config``: only ``task_retry_delay_ms`` has an effect, the delay in milliseconds before a call is repeated after its process
    died. It replaces ``$SHOAL_TASK_RETRY_DELAY_MS`` (1000). Ray's settings of its own processes have no effect; ValueError for unknown
    names.

    Ray's ``logging_level``, ``logging_format`` and ``configure_logging`` have no effect. Its other arguments raise Unimplemented unless
    None, False or "". Raises Unavailable when no head answers. Raises InvalidArgument when the token is refused, or for arguments of a
    private cluster when a running one is joined. Returns a ClusterContext, which is a context manager as well.
    """
    _check_others(others)
    if local_mode:
        raise RuntimeError("local_mode is no longer supported, by Ray as well: init(num_cpus=...) starts a cluster of this process's own")
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address is a str, HOST:PORT, not {type(address).__name__}")
    if address is not None and address.startswith("ray://"):
        raise Unimplemented(
            "ray:// addresses: there is no client on a host that is not of the cluster",
            hint="run the program on one that is (`shoal start --address HOST:PORT ..` makes it one), or submit it as a job",
        )
    if dashboard_host not in ("127.0.0.1", "localhost", "::1"):
        raise Unimplemented("the HTTP interface is on loopback only: it speaks no TLS", hint="reach it through ssh -L")
    check_system_config(_system_config)
    delay_ms = (_system_config or {}).get("task_retry_delay_ms")
    if delay_ms is not None and (delay_ms := whole("task_retry_delay_ms", delay_ms)) < 0:
        raise ValueError(f"task_retry_delay_ms is a number of milliseconds, not {delay_ms}")
    home = _temp_dir or os.environ.get("SHOAL_HOME", "")
    if _temp_dir is not None and not os.path.isabs(_temp_dir):
        raise ValueError(f"_temp_dir is an absolute path, not {_temp_dir!r}")
    memory = _memory if memory is None else memory
    environment = check(runtime_env)
    if namespace is not None and (not isinstance(namespace, str) or not namespace):
        raise TypeError(f"a namespace is a str that is not empty, not {namespace!r}")
    if labels is not None and not (isinstance(labels, dict) and all(isinstance(w, str) and w for kv in labels.items() for w in kv)):
        raise TypeError(f"labels is a dict of str by str, not {labels!r}")
    if logging_config is not None and type(logging_config).__name__ != "LoggingConfig":
        raise TypeError(f"logging_config is a shoal.LoggingConfig, not {type(logging_config).__name__}")
    if state.session is not None:
        if ignore_reinit_error:
            return ClusterContext(state.session)
        what = "an actor or a remote function is in its cluster already, also after shutdown()" if state.is_worker else ""
        hint = "leave it out" if state.is_worker else "call shoal.shutdown() in between"
        raise RuntimeError(f"shoal.init(): {what or 'it was called twice'}; {hint}, or pass ignore_reinit_error=True")
    del logging_level, logging_format, configure_logging  # arguments of Ray's log messages, which Shoal does not have
    log_to_driver = True if log_to_driver is None else log_to_driver
    wanted = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory, "resources": resources, "labels": labels}
    wanted |= {"object_store_memory": object_store_memory, "object_spilling_directory": object_spilling_directory}
    wanted["_system_config"] = _system_config or None
    given = [k for k, v in wanted.items() if v is not None]
    if address in (None, "auto") and started_by_node():
        _refuse_offers(given, "of this job")
        attach_worker()
        state.namespace = namespace or state.namespace
        state.runtime_env = merged(inherited(), environment)
        _log(logging_config)
        return ClusterContext(state.session)
    running = joined(address, home)
    if running:
        _refuse_offers(given, running)
        folder, head = _native.find_session(running, home)
        _open(folder, head, log_to_driver, namespace, environment)
        _log(logging_config)
        return ClusterContext(state.session)
    offers = _offers(wanted)
    if object_store_memory is not None:
        offers["object_store_memory"] = whole("object_store_memory", object_store_memory)
        if offers["object_store_memory"] <= 0:
            raise ValueError(f"object_store_memory is a number of bytes, not {object_store_memory!r}")
    if object_spilling_directory is not None:
        object_spilling_directory = os.path.abspath(object_spilling_directory)
        if not os.path.isdir(object_spilling_directory):
            raise ValueError(f"object_spilling_directory is a folder that is there, not {object_spilling_directory!r}")
    state.retry_delay_ms = delay_ms
    process, said = start_local(
        offers,
        labels=labels,
        spill_folder=object_spilling_directory,
        home=home,
        http_port=(dashboard_port or 0) if include_dashboard else None,
    )
    try:
        _open(said["session"], said["head_local"], log_to_driver, namespace, environment)
    except BaseException:
        process.kill()
        process.wait()
        raise
    state.cluster = process
    _log(logging_config)
    return ClusterContext(state.session)


def _offers(wanted: dict[str, Any]) -> dict[str, int | float]:
    """The amounts that a private cluster offers, by resource. ``wanted``: the arguments of ``init``, by name."""
    given = {k: amount(k, wanted[k]) for k in ("num_cpus", "num_gpus", "memory") if wanted[k] is not None}
    resources = wanted["resources"] or {}
    if not isinstance(resources, dict):
        raise TypeError(f"resources is a dict of amounts by name, not {type(resources).__name__}")
    return {
        "CPU": given["num_cpus"] if "num_cpus" in given else len(os.sched_getaffinity(0)),
        **({"GPU": given["num_gpus"]} if "num_gpus" in given else {}),  # by default the node counts them
        "memory": given["memory"] if "memory" in given else _native.machine_memory(),
        **{name: amount(f"resources[{name!r}]", wanted) for name, wanted in resources.items()},
    }


def check_system_config(given: Any) -> None:
    """Raises TypeError for anything but a dict, ValueError for a setting that neither Shoal nor _NO_EFFECT has."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise TypeError(f"_system_config is a dict, not {type(given).__name__}")
    known = {"task_retry_delay_ms"} | _NO_EFFECT
    for name in given:
        if name not in known:
            raise ValueError(f"_system_config has no setting {name!r}; {meant(str(name), known)} (all but task_retry_delay_ms: no effect)")


def _check_others(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in _NOT_HERE and name not in _CHANGE_NOTHING:
            known = inspect.signature(init).parameters
            raise TypeError(f"init() got an unexpected keyword argument {name!r}; {meant(name, known.keys() - {'others'})}")
        if name in _NOT_HERE and value not in (None, False, ""):
            raise Unimplemented(f"{name} of init() is not in this release", hint=_NOT_HERE[name])


def joined(address: str | None, home: str) -> str:
    """The address of the cluster that ``init`` joins, or "" if it starts one."""
    if address in (None, "auto"):
        address = os.environ.get("SHOAL_ADDRESS") or address
    if address not in (None, "auto"):
        _check_address(address)
        return "" if address == "local" else address
    shared = _native.shared_clusters(home)
    if len(shared) > 1:
        warnings.warn(
            f"{len(shared)} clusters run here: {', '.join(shared)}. Connecting to the latest, {shared[0]}; init(address=...) or "
            "$SHOAL_ADDRESS names another.",
            stacklevel=3,
        )
    return shared[0] if shared else address or ""


def _check_address(address: str) -> None:
    """Raises InvalidArgument unless the address is "local" or one or several head addresses, separated by commas."""
    one = r"unix:@.+|(?!\w+://)\S+:\d+(/@.+)?"
    if address != "local" and not all(re.fullmatch(one, part) for part in address.split(",")):
        raise InvalidArgument(
            f"{address!r} is no address of a cluster",
            hint='HOST:PORT of a running one is expected, as `shoal start` prints it, or "auto" for the latest on this host, or "local" '
            "for one of this process's own",
        )


def _refuse_offers(given: list[str], cluster: str) -> None:
    if given:
        raise InvalidArgument(
            f"{', '.join(given)} cannot be set when connecting to a running cluster ({cluster})",
            hint='init(address="local", ...) starts one of its own',
        )


def _log(config) -> None:
    if config is None:
        return
    from shoal._core.logging import apply

    state.logging = config
    apply(config)


def _open(folder: str, head: str, log_to_driver: bool, namespace: str | None, environment: dict[str, Any]) -> None:
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "interactive"
    fold = os.environ.get("SHOAL_DEDUP_LOGS", "1") != "0"  # repeated lines, on a terminal
    state.session = _native.Session.open(
        folder=folder,
        head=head,
        name=name,
        print_logs=log_to_driver,
        fold_logs=fold,
        retry_delay_s=retry_delay_ms() / 1000,
        head_timeout_s=HEAD_TIMEOUT_S,
    )
    state.shows_logs, state.notified_of_detached = log_to_driver, False
    state.namespace = namespace or state.session.job
    state.runtime_env = merged(inherited(), environment)


def shutdown(*, wait_for_processes: bool = False, _exiting_interpreter: bool = False) -> None:
    """Leaves the cluster. The driver's actors and tasks end, and so does a private cluster, which this always waits for. In a worker it
    does nothing: the process belongs to its node, and the call continues."""
    del wait_for_processes, _exiting_interpreter  # Ray's arguments, without effect
    if not state.is_worker:
        close()


def is_initialized() -> bool:
    return state.session is not None


def put(value: Any, *, _owner: Any = None, _tensor_transport: str | None = None) -> ObjectRef:
    """Stores a value: up to 100 KiB in this process, larger ones in shared memory, which other processes read without a copy. Raises
    ObjectStoreFullError when neither memory nor the disk (for values moved to files) has room."""
    if _owner is not None:
        raise ValueError("put() has no _owner any more, as in Ray: a value belongs to the process that puts it")
    if _tensor_transport is not None:
        raise Unimplemented(
            "_tensor_transport of put() is not in this release", hint="tensors are put as they are; shoal.collective sends them"
        )
    if isinstance(value, ObjectRef):
        raise TypeError("put() of an ObjectRef: it is a reference already")
    return ObjectRef(_session().put(*serialize.pack(value, what="the value that was put")))


_SHORT_S = 0.002  # a wait this short is not reported to the node; tasks in a chain of waits each pay it


def _wait(waits, enough, timeout: float | None, *what):
    """Calls ``waits(*what, timeout)``. A remote function that waits longer than a moment lends its CPUs to other tasks."""
    if not state.lends or threading.current_thread() is not threading.main_thread():
        return waits(*what, timeout)
    end = None if timeout is None else time.monotonic() + timeout
    result = waits(*what, _SHORT_S if timeout is None else min(timeout, _SHORT_S))
    if enough(result) or (timeout is not None and timeout <= _SHORT_S):
        return result
    _session().set_blocked(True)
    try:
        return waits(*what, None if end is None else max(0.0, end - time.monotonic()))
    finally:
        _session().set_blocked(False)


def get(object_refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
    """Returns the value of a reference, or the values of a list of references, in order.

    Raises the exception of the remote code (an instance of both its own class and TaskError) or ActorDiedError. Raises GetTimeoutError
    after ``timeout`` seconds (None or -1: never). For a list it raises the first failure without waiting for the others. ValueError for
    anything but a reference, TypeError for a list with other elements.

    Arrays are read-only; those of 4096 bytes and more lie in shared memory. Tensors do, too, but torch has no read-only tensors: a write
    copies the pages, and only this value sees it.
    """
    refs = object_refs  # Ray's name of the argument
    if timeout is None and type(refs) is ObjectRef and refs._ref.ready:  # the fast path
        return load(refs)
    timeout = None if timeout is None or timeout == -1 else number("timeout", timeout)  # after the fast path
    single = isinstance(refs, ObjectRef)
    if not single and isinstance(refs, ResultRef):
        return refs.get(timeout)
    if not single and isinstance(refs, Waitable):  # a generator is its own value
        return refs
    wanted = [refs] if single else list(refs) if isinstance(refs, (list, tuple)) else None
    if wanted and all(isinstance(r, ResultRef) for r in wanted):
        return [r.get(timeout) for r in wanted]
    if wanted is None:
        raise ValueError(f"get() takes an ObjectRef or a list of them, not {type(refs).__name__}")
    others = [r for r in wanted if not isinstance(r, ObjectRef)]
    if others:
        raise TypeError(f"get() takes a list of ObjectRefs: there is something else in it, of {type(others[0]).__name__}")
    if timeout is not None and timeout < 0:
        raise ValueError("a timeout is not negative")
    natives = [r._ref for r in wanted]
    ready, failed = _native.settled(natives)
    if not ready:
        if not _wait(_session().wait_all, bool, timeout, natives):
            late = [repr(r) for r in wanted if not r._ref.ready]
            raise GetTimeoutError(f"not ready within {timeout:g} s: {', '.join(late[:5])}{' ...' if len(late) > 5 else ''}")
        failed = _native.settled(natives)[1]
    if failed >= 0:  # raised before the pending values arrive
        load(wanted[failed])
    values = [load(r) for r in wanted]
    return values[0] if single else values


def wait(
    ray_waitables: list[ObjectRef], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Returns (ready, rest) once ``num_returns`` are ready or ``timeout`` seconds are over. ``ready`` has at most ``num_returns`` elements;
    both keep the given order. References of dead actors are ready. An ObjectRefGenerator is ready if its next item has arrived or it is
    exhausted."""
    del fetch_local  # values of one host are local
    refs = ray_waitables  # Ray's name of the argument
    if not isinstance(refs, list) or not all(isinstance(r, Waitable) for r in refs):
        raise TypeError("wait() takes a list of ObjectRefs and ObjectRefGenerators")
    if timeout is not None and timeout < 0:
        raise ValueError("a timeout is not negative")
    num_returns = whole("num_returns", num_returns)
    timeout = None if timeout is None else number("timeout", timeout)
    if not refs:
        return [], []
    if len({r._id or id(r) for r in refs}) != len(refs):  # copies of a reference share its id
        raise ValueError("wait() takes each ObjectRef once")
    if not 1 <= num_returns <= len(refs):
        raise ValueError(f"num_returns is between 1 and the number of references ({len(refs)})")
    natives = [r._ref for r in refs]
    if _native.settled(natives)[0]:  # works after shutdown as well
        return refs[:num_returns], refs[num_returns:]
    flags = _wait(_session().wait_some, lambda flags: sum(flags) >= num_returns, timeout, natives, num_returns)
    ready = [r for r, f in zip(refs, flags, strict=True) if f][:num_returns]
    chosen = {id(r) for r in ready}
    return ready, [r for r in refs if id(r) not in chosen]


def kill(actor, *, no_restart: bool = True) -> None:
    """Ends an actor at once; calls on it fail with ActorDiedError. With ``no_restart=False`` an actor that has ``max_restarts`` left only
    loses its process."""
    held = getattr(actor, "_shoal_actor", None)
    if held is None:
        raise ValueError(f"kill() takes an actor handle, not {type(actor).__name__}; a call is ended by cancel()")
    actor_id = held.id
    if state.session is None and not state.forked:  # must not start a cluster
        raise ActorHandleNotFoundError(f"this process has left the cluster of actor {actor_id}")
    session = _session()
    try:
        session.kill(actor_id, not no_restart)
    except NotFound:  # unknown to the head, or already removed there
        if not session.dead(actor_id):
            raise ActorHandleNotFoundError(f"the cluster does not know actor {actor_id}") from None


def cancel(ray_waitable, *, force: bool = False, recursive: bool = True) -> None:
    """Cancels a call: ``get`` of its result, and of results that depend on it, raises TaskCancelledError.

    A call that has not begun never runs. A running remote function gets a KeyboardInterrupt, or with ``force`` its process ends. An
    ``async def`` method is cancelled like an asyncio task. Any other running method continues, and its result stands. ``recursive``: the
    unfinished calls that it made are cancelled as well. For an ``ObjectRefGenerator`` the remaining items are cancelled. Finished calls
    and values of ``put`` are not affected. ValueError for ``force`` with a method of an actor.

    The call's owner cancels it. This waits up to 30 seconds for another process (DeadlineExceeded); a dead owner is no error.
    """
    ref = getattr(ray_waitable, "_done", ray_waitable)  # the completion reference of an ObjectRefGenerator
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel() takes an ObjectRef, not {type(ref).__name__}; an actor is ended by kill()")
    session, recursive, force = _session(), flag("recursive", recursive), flag("force", force)
    if not ref._owner:
        session.cancel(ref._ref, recursive, force)
    elif type(ref) is not ObjectRef or not ref._ref.ready:  # by id: the reference may be a copy, even of one that this process owns
        session.cancel_elsewhere(ref._id, ref._owner, recursive, force)


def nodes() -> list[dict[str, Any]]:
    """Returns a row per node: id, host, state, pid, total and available resources, labels. Ray's names are NodeID, Alive, Resources,
    Labels, NodeManagerHostname, NodeManagerAddress and NodeName (the last three all hold the host)."""
    return [{**row, **_rays_names(row)} for row in _session().list("nodes")]


def _rays_names(row: dict[str, Any]) -> dict[str, Any]:
    alive, host = row["state"] != "DEAD", row["host"]
    address = {"NodeManagerHostname": host, "NodeManagerAddress": host, "NodeName": host}
    return {"NodeID": row["id"], "Alive": alive, "alive": alive, "Resources": row["total"], "Labels": row["labels"], **address}


def cluster_resources() -> dict[str, float]:
    return _session().resources()[0]


def available_resources() -> dict[str, float]:
    return _session().resources()[1]
