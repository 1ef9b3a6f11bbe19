"""``init``: connects this process to a cluster. Names and semantics are Ray's."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from typing import Any

from shoal import _native
from shoal._core.attach import attach_worker
from shoal._core.local_cluster import start_local
from shoal._core.process import retry_delay_ms, started_by_node, state
from shoal._core.variables import variable
from shoal._driver.arguments import ClusterOffer, JobArguments, check_address, check_connection, check_others
from shoal._driver.cluster import ClusterContext
from shoal._runtime_env.environment import inherited, merged

__all__ = ["init", "joined"]

HEAD_TIMEOUT_S = 60.0  # wait for a dead head to return, or for another to take the lead


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

    ``address``: ``"HOST:PORT"`` or ``"unix:@NAME"`` of a running head. If the head is on another host, ``shoal start --address`` must
    have joined this host to the cluster before. Without an address, ``init`` joins the cluster of ``$SHOAL_ADDRESS``, else the one that
    this user started last on this host (``shoal start``). If there is none, it starts a private cluster, which ends with this process.
    ``"auto"``: likewise, but never private. ``"local"``: always private. A process that a node started is in its cluster already.

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
    del logging_level, logging_format, configure_logging  # arguments of Ray's log messages, which Shoal does not have
    check_others(others, inspect.signature(init).parameters.keys() - {"others"})
    check_connection(address, local_mode, dashboard_host, _temp_dir)
    memory, folder = _memory if memory is None else memory, object_spilling_directory
    offer = ClusterOffer(num_cpus, num_gpus, memory, resources, labels, object_store_memory, folder, _system_config or None)
    offer.check()
    job = JobArguments.checked(log_to_driver, namespace, runtime_env, logging_config)
    if state.session is None:
        http_port = (dashboard_port or 0) if include_dashboard else None
        _join(address, _temp_dir or os.environ.get("SHOAL_HOME", ""), offer, job, http_port)
    elif not ignore_reinit_error:
        raise _second_call()
    return ClusterContext(state.session)


def _second_call() -> RuntimeError:
    what = "an actor or a remote function has joined its cluster already, also after shutdown()" if state.is_worker else ""
    hint = "leave it out" if state.is_worker else "call shoal.shutdown() in between"
    return RuntimeError(f"shoal.init(): {what or 'it was called twice'}; {hint}, or pass ignore_reinit_error=True")


def _join(address: str | None, home: str, offer: ClusterOffer, job: JobArguments, http_port: int | None) -> None:
    """Joins the cluster of this process's node or a running one, or starts one."""
    if address in (None, "auto") and started_by_node():
        offer.refuse("of this job")
        attach_worker()
        state.namespace = job.namespace or state.namespace
        state.runtime_env = merged(inherited(), job.environment)
    elif running := joined(address, home):
        offer.refuse(running)
        _open(*_native.find_session(running, home), job)
    else:
        _start(offer, job, home, http_port)
    if job.logging_config is not None:
        from shoal._core.logging import apply  # late: loads logging, only with a LoggingConfig

        state.logging = job.logging_config
        apply(job.logging_config)


def _start(offer: ClusterOffer, job: JobArguments, home: str, http_port: int | None) -> None:
    """Starts a cluster that ends with this process."""
    amounts, spill_folder = offer.amounts(), offer.spill_folder()
    state.retry_delay_ms = offer.retry_delay_ms()
    process, said = start_local(amounts, labels=offer.labels, spill_folder=spill_folder, home=home, http_port=http_port)
    try:
        _open(said["session"], said["head_local"], job)
    except BaseException:
        process.kill()
        process.wait()
        raise
    state.cluster = process


def joined(address: str | None, home: str) -> str:
    """The address of the cluster that ``init`` joins, or "" if it starts one."""
    if address in (None, "auto"):
        address = os.environ.get("SHOAL_ADDRESS") or address
    if address not in (None, "auto"):
        check_address(address)
        return "" if address == "local" else address
    shared = _native.shared_clusters(home)
    if len(shared) > 1:
        warnings.warn(
            f"{len(shared)} clusters run here: {', '.join(shared)}. Connecting to the latest, {shared[0]}; init(address=...) or "
            "$SHOAL_ADDRESS names another.",
            stacklevel=4,
        )
    return shared[0] if shared else address or ""


def _open(folder: str, head: str, job: JobArguments) -> None:
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "interactive"
    fold = variable("SHOAL_DEDUP_LOGS", "1") != "0"  # on a terminal, shows repeated lines of workers once
    state.session = _native.Session.open(
        folder=folder,
        head=head,
        name=name,
        print_logs=job.log_to_driver,
        fold_logs=fold,
        retry_delay_s=retry_delay_ms() / 1000,
        head_timeout_s=HEAD_TIMEOUT_S,
    )
    state.shows_logs, state.notified_of_detached = job.log_to_driver, False
    state.namespace = job.namespace or state.session.job
    state.runtime_env = merged(inherited(), job.environment)


state.join = init
