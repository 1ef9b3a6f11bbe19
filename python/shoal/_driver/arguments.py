"""The arguments of ``init``: their checks, and what a private cluster offers."""

from __future__ import annotations

import os
import re
from collections.abc import Set
from typing import Any, NamedTuple

from shoal import _native
from shoal._actors.options import meant
from shoal._core.numbers import amount, whole
from shoal._runtime_env.environment import check
from shoal.exceptions import InvalidArgument, Unimplemented

__all__ = ["ClusterOffer", "JobArguments", "check_address", "check_connection", "check_others", "check_system_config"]

_FEWER = "num_cpus= and memory= offer less than the machine has"
_ETCD = "several heads over etcd keep the state when one of them ends: `shoal start --head --store etcd://..`"
# Arguments of Ray's init that are Unimplemented here, with an alternative.
_UNSUPPORTED = {
    "job_config": "namespace=, runtime_env= and logging_config= set what it holds",
    "enable_resource_isolation": _FEWER,
    "cgroup_path": _FEWER,
    "system_reserved_cpu": _FEWER,
    "system_reserved_memory": _FEWER,
    "proxy_server_url": "include_dashboard=True: an HTTP interface of its own, on loopback",
    "_enable_object_reconstruction": "max_retries= and max_task_retries= repeat calls whose process died",
    "_metrics_export_port": "include_dashboard=True and dashboard_port=: GET /metrics is of that interface",
    "_node_ip_address": "a cluster over several hosts is begun by `shoal start --head --host ADDRESS`",
    "_node_name": "labels= distinguishes nodes",
    "_plasma_directory": "object_store_memory= limits what is in memory, object_spilling_directory= names the folder for the rest",
    "_redis_password": _ETCD,
    "_redis_username": _ETCD,
    "_tracing_startup_hook": "shoal.timeline() is a trace of what ran",
}
# Arguments that have no effect in Ray either: one is deprecated, the other is for a hook that is not set.
_CHANGE_NOTHING = {"_driver_object_store_memory", "_skip_env_hook"}

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


def check_others(given: dict[str, Any], known: Set[str]) -> None:
    """Raises Unimplemented for arguments of Ray's init that Shoal's lacks, and TypeError for those that both lack. ``known``: the
    arguments of Shoal's init."""
    for name, value in given.items():
        if name not in _UNSUPPORTED and name not in _CHANGE_NOTHING:
            raise TypeError(f"init() got an unexpected keyword argument {name!r}; {meant(name, known)}")
        if name in _UNSUPPORTED and value not in (None, False, ""):
            raise Unimplemented(f"{name} of init() is not in this release", hint=_UNSUPPORTED[name])


def check_connection(address: Any, local_mode: bool, dashboard_host: str, temp_dir: str | None) -> None:
    if local_mode:
        raise RuntimeError("local_mode is no longer supported, as in Ray: init(num_cpus=...) starts a cluster for this process")
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address is a str, HOST:PORT, not {type(address).__name__}")
    if address is not None and address.startswith("ray://"):
        raise Unimplemented(
            "ray:// addresses are not supported: a driver runs on a host of its cluster",
            hint="run the program on a host of the cluster (`shoal start --address HOST:PORT ..` adds one), or submit it as a job",
        )
    if dashboard_host not in ("127.0.0.1", "localhost", "::1"):
        raise Unimplemented("dashboard_host must be a loopback address: the HTTP interface has no TLS", hint="reach it through ssh -L")
    if temp_dir is not None and not os.path.isabs(temp_dir):
        raise ValueError(f"_temp_dir is an absolute path, not {temp_dir!r}")


def check_address(address: str) -> None:
    """Raises InvalidArgument unless the address is "local" or one or several head addresses, separated by commas."""
    one = r"unix:@.+|(?!\w+://)\S+:\d+(/@.+)?"
    if address != "local" and not all(re.fullmatch(one, part) for part in address.split(",")):
        raise InvalidArgument(
            f"{address!r} is no address of a cluster",
            hint='HOST:PORT of a running one is expected, as `shoal start` prints it, or "auto" for the latest on this host, or "local" '
            "for one of this process's own",
        )


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


class ClusterOffer(NamedTuple):
    """The arguments that only a private cluster takes; each may be None."""

    num_cpus: float | None
    num_gpus: float | None
    memory: float | None
    resources: dict[str, float] | None
    labels: dict[str, str] | None
    object_store_memory: int | None
    object_spilling_directory: str | None
    system_config: dict[str, Any] | None

    def check(self) -> None:
        check_system_config(self.system_config)
        self.retry_delay_ms()
        labels = self.labels
        if labels is not None and not (isinstance(labels, dict) and all(isinstance(w, str) and w for kv in labels.items() for w in kv)):
            raise TypeError(f"labels is a dict of str by str, not {labels!r}")

    def refuse(self, cluster: str) -> None:
        """Raises InvalidArgument if an argument was given although ``init`` joins a running cluster, which the message calls
        ``cluster``."""
        if given := [name for name, value in self._asdict().items() if value is not None]:
            names = ["_system_config" if name == "system_config" else name for name in given]
            raise InvalidArgument(
                f"{', '.join(names)} cannot be set when connecting to a running cluster ({cluster})",
                hint='init(address="local", ...) starts one of its own',
            )

    def retry_delay_ms(self) -> int | None:
        delay_ms = (self.system_config or {}).get("task_retry_delay_ms")
        if delay_ms is not None and (delay_ms := whole("task_retry_delay_ms", delay_ms)) < 0:
            raise ValueError(f"task_retry_delay_ms is a number of milliseconds, not {delay_ms}")
        return delay_ms

    def amounts(self) -> dict[str, int | float]:
        """The amounts that a private cluster offers, by resource."""
        given = {k: amount(k, getattr(self, k)) for k in ("num_cpus", "num_gpus", "memory") if getattr(self, k) is not None}
        resources = self.resources or {}
        if not isinstance(resources, dict):
            raise TypeError(f"resources is a dict of amounts by name, not {type(resources).__name__}")
        out = {
            "CPU": given["num_cpus"] if "num_cpus" in given else _native.usable_cpus(),
            **({"GPU": given["num_gpus"]} if "num_gpus" in given else {}),  # by default the node counts the GPUs
            "memory": given["memory"] if "memory" in given else _native.machine_memory(),
            **{name: amount(f"resources[{name!r}]", wanted) for name, wanted in resources.items()},
        }
        if self.object_store_memory is not None:
            out["object_store_memory"] = whole("object_store_memory", self.object_store_memory)
            if out["object_store_memory"] <= 0:
                raise ValueError(f"object_store_memory is a number of bytes, not {self.object_store_memory!r}")
        return out

    def spill_folder(self) -> str | None:
        if self.object_spilling_directory is None:
            return None
        folder = os.path.abspath(self.object_spilling_directory)
        if not os.path.isdir(folder):
            raise ValueError(f"object_spilling_directory must name an existing folder, not {folder!r}")
        return folder


class JobArguments(NamedTuple):
    """The arguments about this process's job."""

    log_to_driver: bool
    namespace: str | None
    environment: dict[str, Any]
    logging_config: Any

    @classmethod
    def checked(cls, log_to_driver: bool | None, namespace: Any, runtime_env: Any, logging_config: Any) -> JobArguments:
        environment = check(runtime_env)
        if namespace is not None and (not isinstance(namespace, str) or not namespace):
            raise TypeError(f"a namespace is a str that is not empty, not {namespace!r}")
        if logging_config is not None and type(logging_config).__name__ != "LoggingConfig":
            raise TypeError(f"logging_config is a shoal.LoggingConfig, not {type(logging_config).__name__}")
        return cls(True if log_to_driver is None else log_to_driver, namespace, environment, logging_config)
