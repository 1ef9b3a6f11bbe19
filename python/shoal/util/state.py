"""Queries of a cluster's state: ``list_actors``, ``get_node``, ``summarize_actors``, ``list_logs`` and others. Names and fields are Ray's.

A call asks this process's cluster, or the one at ``address`` (``"auto"``, ``"HOST:PORT"``, ``"http://HOST:PORT"``). It needs no
``shoal.init``. A row is a dict with its fields as attributes. ``filters`` are ``(field, "=" or "!=", value)``; all must hold, and text is
compared without regard to case. ``_explain`` has no effect.
"""

from __future__ import annotations

import codecs
import fnmatch
import json
import os
import re
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._core.local_cluster import binary
from shoal._core.process import state
from shoal._driver.http import Http
from shoal._objects.refs import ObjectRef
from shoal.exceptions import InvalidArgument, NotFound, Unavailable, Unimplemented

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

_TIMEOUT_S = 30.0


class StateRow(dict):
    """A row: ``row["state"]`` or ``row.state``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a row has no {name!r}; it has {', '.join(self)}") from None

    def asdict(self) -> dict[str, Any]:
        return dict(self)


class ListApiOptions:
    """The arguments ``limit``, ``timeout``, ``detail`` and ``filters`` of Ray's StateApiClient."""

    def __init__(self, limit: int = 100, timeout: float = _TIMEOUT_S, detail: bool = False, filters: Any = None):
        self.limit, self.timeout, self.detail, self.filters = limit, timeout, detail, filters or []


# ---- conversion of the cluster's rows to Ray's; fields under "detail" require detail=True


def _death(row: dict[str, Any]) -> str | None:
    return row["cause"]["message"] if row.get("cause") else None


def _actor(r: dict[str, Any], detail: bool) -> StateRow:
    states = {"PENDING": "PENDING_CREATION", "STARTING": "PENDING_CREATION"}
    row = StateRow(
        actor_id=r["id"],
        class_name=r["class"],
        state=states.get(r["state"], r["state"]),
        job_id=r["job"],
        name=r["name"],
        node_id=r["node"],
        pid=r["pid"],
        ray_namespace=r["namespace"],
    )
    if detail:
        row.update(
            death_cause=_death(r),
            is_detached=r["detached"],
            num_restarts=r["num_restarts"],
            max_restarts=r["max_restarts"],
            pending_reason=r["pending_reason"],
            worker_id=r["worker"],
            address=r["endpoint"],
        )
    return row


def _node(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        node_id=r["id"], node_ip=r["host"], state=r["state"], node_name=r["host"], resources_total=r["total"], labels=r["labels"]
    )
    if detail:
        row.update(resources_available=r["available"], pid=r["pid"], endpoint=r["endpoint"])
        row.update(drain_until_ms=r["drain_until_unix_ms"] or None)
    return row


def _worker(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        worker_id=r["id"],
        is_alive=r["state"] != "EXITED",
        worker_type="DRIVER" if r["role"] == "driver" else "WORKER",
        node_id=r["node"],
        pid=r["pid"],
        job_id=r["job"],
        exit_detail=_death(r),
    )
    if detail:
        row.update(role=r["role"], rank=r["rank"] if r["rank"] >= 0 else None)
    return row


def _job(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        job_id=r["id"],
        submission_id=r["submission_id"] or None,
        type="SUBMISSION" if r["submission_id"] else "DRIVER",
        status=r["state"],
        entrypoint=r["entrypoint"] or r["name"],
        message=_death(r) or r["pending_reason"],
        start_time=r["started_unix_ms"] or None,
        end_time=r["ended_unix_ms"] or None,
        metadata=r["metadata"],
        error_type=r["cause"]["reason"] if r.get("cause") else None,
    )
    if detail:
        row.update(driver_exit_code=r["exit_code"] if r["ended_unix_ms"] else None, driver_pid=r["driver_pid"])
    return row


def _group(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(placement_group_id=r["id"], name=r["name"], creator_job_id=r["job"], state=r["state"])
    if detail:
        row.update(bundles=r["bundles"], is_detached=r["job"] is None, strategy=r["strategy"])
        row.update(pending_reason=r["pending_reason"], namespace=r["namespace"])
    return row


def _task(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        task_id=r["id"],
        attempt_number=r["attempt"],
        name=r["name"],
        state=r["state"],
        job_id=r["job"],
        actor_id=r["actor"],
        type=r["type"],
        func_or_class_name=r["name"],
        parent_task_id=None,
        node_id=r["node"],
        worker_id=r["worker"],
        worker_pid=r["pid"],
        error_type=r["error_type"],
    )
    if detail:
        row.update(start_time_ms=r["start_unix_ms"], end_time_ms=r["end_unix_ms"], caller_worker_id=r["caller"])
    return row


def _object(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        object_id=r["id"],
        object_size=r["bytes"],
        task_status=r["status"],
        attempt_number=0,
        reference_type=r["reference"],
        call_site="disabled",  # Ray's value where none is recorded
        type="DRIVER" if r["role"] == "driver" else "WORKER",
        pid=r["pid"],
        ip=r["host"],
    )
    if detail:
        row.update(node_id=r["node"], worker_id=r["worker"], job_id=r["job"], spilled=r["spilled"])
    return row


def _runtime_env(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(runtime_env=r["runtime_env"], success=True, node_id=r["node"])
    if detail:
        row.update(creation_time_ms=None, ref_cnt=r["processes"], error=None)
    return row


# ---- queries


def _address(address: str | None) -> list[str]:
    if address in (None, "auto") and state.session is not None:
        return ["--address", state.session.head_endpoint]
    return [] if address in (None, "auto") else ["--address", address]


def _run(*words: str, timeout: float) -> str:
    """Returns the command's output."""
    try:
        done = subprocess.run([binary(), *words, "--json"], capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the cluster did not answer within {timeout:g} s") from error
    if done.returncode:
        said = json.loads(done.stdout) if done.stdout else {"message": done.stderr.strip()}
        hint = said.get("hint", "")
        kind = {"Unimplemented": Unimplemented, "NotFound": NotFound}.get(said.get("code"), InvalidArgument)
        raise (Unavailable if done.returncode in (4, 5, 6) else kind)(said.get("message", ""), hint=hint)
    return done.stdout


def _command(*words: str, timeout: float) -> dict[str, Any]:
    return json.loads(_run(*words, timeout=timeout))


def _raw(what: str, address: str | None, timeout: float) -> list[dict[str, Any]]:
    if address is not None and "://" in address:
        return Http(address).ask("GET", f"/api/v0/{'placement_groups' if what == 'groups' else what}")["rows"]
    return _command("list", what, *_address(address), timeout=timeout)["rows"]


def _told(what: str, address: str | None, timeout: float, raise_on_missing_output: bool) -> list[dict[str, Any]]:
    """Returns rows that nodes and their processes report. If some do not answer, it raises Unavailable or warns."""
    rows, missing = _asked(what, address, timeout)
    if missing and raise_on_missing_output:
        raise _incomplete(what, missing)
    if missing:
        warnings.warn(f"the list of {what} is incomplete: {'; '.join(missing)}", stacklevel=4)
    return rows


def _asked(what: str, address: str | None, timeout: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns (rows, descriptions of what is missing)."""
    if address is not None and "://" in address:
        raise Unimplemented(f"{what} cannot be listed over HTTP", hint="give the address of the cluster itself: HOST:PORT")
    said = _command("list", what, "--limit", "0", *_address(address), timeout=timeout)
    missing = [f"{'process ' + str(s['pid']) if s['worker'] else 'node ' + s['node']}: {s['why']}" for s in said["silent"]]
    missing += [f"{said['left_out']} rows exceed the size of an answer"] if said["left_out"] else []
    return said["rows"], missing


def _incomplete(what: str, missing: list[str]) -> Unavailable:
    return Unavailable(f"the list of {what} is incomplete: {'; '.join(missing)}", hint="raise_on_missing_output=False returns it")


def _kept(rows: list[StateRow], filters: Any) -> list[StateRow]:
    for given in filters or []:
        if len(given) != 3 or given[1] not in ("=", "!="):
            raise ValueError(f'a filter is (field, "=" or "!=", value), not {given!r}')
        field, how, value = given
        if rows and field not in rows[0]:
            raise ValueError(f"rows have no {field!r} to filter by; they have {', '.join(rows[0])} (more with detail=True)")
        rows = [r for r in rows if (str(r[field]).casefold() == str(value).casefold()) == (how == "=")]
    return rows


def _lister(what: str, shape: Callable[[dict[str, Any], bool], StateRow], doc: str):
    def lister(
        address: str | None = None,
        filters: list[tuple[str, str, Any]] | None = None,
        limit: int = 100,
        timeout: float = _TIMEOUT_S,
        detail: bool = False,
        raise_on_missing_output: bool = True,
        _explain: bool = False,
    ) -> list[StateRow]:
        del _explain  # Ray's argument, without effect
        asked = what in ("objects", "runtime-envs", "tasks")
        raw = _told(what, address, timeout, raise_on_missing_output) if asked else _raw(what, address, timeout)
        return _kept([shape(r, detail) for r in raw], filters)[:limit]

    lister.__name__ = lister.__qualname__ = f"list_{what}"
    lister.__doc__ = doc
    return lister


list_actors = _lister("actors", _actor, "The cluster's actors, those that ended among them.")
list_nodes = _lister("nodes", _node, "The cluster's nodes: ALIVE, CORDONED, DRAINING or DEAD.")
list_workers = _lister("workers", _worker, "The cluster's processes: drivers, actors, ranks.")
list_jobs = _lister("jobs", _job, "The cluster's jobs, submitted or opened by a driver.")
list_placement_groups = _lister("groups", _group, "The cluster's placement groups.")
list_placement_groups.__name__ = list_placement_groups.__qualname__ = "list_placement_groups"
list_objects = _lister(
    "objects",
    _object,
    """Objects, a row per process that holds one: LOCAL_REFERENCE (it refers to it), PINNED_IN_MEMORY (it has the bytes), or
    CAPTURED_IN_OBJECT (another object contains a reference). Values of more than 100 KiB, and those that have left their process.""",
)
list_tasks = _lister(
    "tasks",
    _task,
    """Calls of remote functions and of actors' methods, a row per attempt: those that wait, run, and the last of those that are over, as
    long as the process lives that ran them (of remote functions: or that called them).""",
)
list_runtime_envs = _lister("runtime-envs", _runtime_env, "The runtime_envs of processes that live, a row per node.")
list_runtime_envs.__name__ = list_runtime_envs.__qualname__ = "list_runtime_envs"


def _one(what: str, shape: Callable, id: str, address: str | None, timeout: float) -> StateRow | None:
    return next((shape(r, True) for r in _raw(what, address, timeout) if id in (r["id"], r.get("submission_id"))), None)


def get_actor(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    """Returns an actor with all fields, or None."""
    return _one("actors", _actor, id, address, timeout)


def get_node(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("nodes", _node, id, address, timeout)


def get_worker(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("workers", _worker, id, address, timeout)


def get_job(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    """Returns the job of an id or of a submission id, or None."""
    return _one("jobs", _job, id, address, timeout)


def get_placement_group(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("groups", _group, id, address, timeout)


def get_task(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> StateRow | list[StateRow] | None:
    """Returns a task with all fields, or a list with a row per attempt if there were several. An unknown task gives None;
    Unavailable if processes that may have one did not answer. ``id``: the task's id, or a reference to its result."""
    if isinstance(id, ObjectRef):
        if (ref := id).task_id().is_nil():
            raise ValueError(f"{ref!r} was put: no task returned it")
        id = ref.task_id()
    raw, missing = _asked("tasks", address, timeout)
    rows = [_task(r, True) for r in raw if r["id"] == id]
    if not rows and missing:
        raise _incomplete("tasks", missing)
    return (rows[0] if len(rows) == 1 else rows) if rows else None


def summarize_tasks(
    address: str | None = None, timeout: float = _TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
) -> dict[str, Any]:
    """Counts tasks by function or method and by state."""
    del _explain
    rows = list_tasks(address, None, 1 << 30, timeout, False, raise_on_missing_output)
    summary: dict[str, dict[str, Any]] = {}
    kinds: Counter[str] = Counter()
    for row in rows:
        name, kind = row["name"], row["type"]
        kinds[kind] += 1
        of_name = summary.setdefault(name, {"func_or_class_name": name, "type": kind, "state_counts": Counter()})
        of_name["state_counts"][row["state"]] += 1
    for of_name in summary.values():
        of_name["state_counts"] = dict(of_name["state_counts"])
    totals = {"total_tasks": kinds["NORMAL_TASK"], "total_actor_tasks": kinds["ACTOR_TASK"]}
    totals["total_actor_scheduled"] = kinds["ACTOR_CREATION_TASK"]
    return {"cluster": {"summary": summary, **totals, "summary_by": "func_name"}}


def get_objects(id: str, address: str | None = None, timeout: float = _TIMEOUT_S, _explain: bool = False) -> list[StateRow]:
    """Returns a row per process that holds the object; an empty list if there is none."""
    return list_objects(address, [("object_id", "=", id)], limit=1 << 30, timeout=timeout, detail=True)


def summarize_objects(
    address: str | None = None, timeout: float = _TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
) -> dict[str, Any]:
    """Counts objects, their sizes and kinds of references. There is one call site, because none are recorded."""
    del _explain
    rows = list_objects(address, None, 1 << 30, timeout, True, raise_on_missing_output)
    sizes = {(r.node_id, r.object_id or n): r.object_size for n, r in enumerate(rows)}
    total, size_mb = len(sizes), sum(sizes.values()) / 2**20
    site = {
        "total_objects": total,
        "total_size_mb": size_mb,
        "total_num_workers": len({r.pid for r in rows}),
        "total_num_nodes": len({r.node_id for r in rows}),
        "task_state_counts": dict(Counter(r.task_status for r in rows)),
        "ref_type_counts": dict(Counter(r.reference_type for r in rows)),
    }
    summary = {"disabled": site} if rows else {}
    cluster = {"summary": summary, "total_objects": total, "total_size_mb": size_mb, "callsite_enabled": False, "summary_by": "callsite"}
    return {"cluster": cluster}


def summarize_actors(
    address: str | None = None, timeout: float = _TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
) -> dict[str, Any]:
    """Counts actors by class and by state."""
    del raise_on_missing_output, _explain  # the head has all actors
    rows = list_actors(address, limit=1 << 30, timeout=timeout)
    summary = {
        name: {"class_name": name, "state_counts": dict(Counter(r.state for r in rows if r.class_name == name))}
        for name in sorted({r.class_name for r in rows})
    }
    return {"cluster": {"summary": summary, "total_actors": len(rows), "summary_by": "class"}}


def _timeline(filename: str | None) -> list[dict[str, Any]] | None:
    said = _run("timeline", "-o", filename or "-", *_address(None), timeout=_TIMEOUT_S)
    return None if filename else json.loads(said)


# ---- logs


def _logs_folder(address: str | None) -> Path:
    if address in (None, "auto") and state.session is not None:
        return Path(state.session.folder, "logs")
    folder, _ = _native.find_session(address or os.environ.get("SHOAL_ADDRESS") or "auto", os.environ.get("SHOAL_HOME", ""))
    return Path(folder, "logs")


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: float = _TIMEOUT_S,
) -> dict[str, list[str]]:
    """The session's log files by writer: "head", "node", "local", "worker_out", "worker_err".

    All nodes of a host share a folder; ``node_id`` or ``node_ip`` restricts workers' files to that node. Files of another host are fetched
    from a living node there (Unavailable without one). ValueError for an unknown node."""
    glob_filter = "*" if glob_filter is None else glob_filter
    folder = _logs_folder(address)
    nodes, elsewhere = _nodes_named(folder, address, node_id, node_ip, timeout)
    theirs = None if nodes is None else {r.worker_id for r in list_workers(address, limit=1 << 30, timeout=timeout) if r.node_id in nodes}
    out: dict[str, list[str]] = {}
    files = map(Path, _files_elsewhere(elsewhere, glob_filter, 0, address, timeout)["files"]) if elsewhere else sorted(folder.iterdir())
    for file in files:
        if not fnmatch.fnmatch(file.name, glob_filter):
            continue
        kind = file.name.partition("-")[0].partition(".")[0]
        if kind == "worker":
            if theirs is not None and not any(worker in file.name for worker in theirs):
                continue
            kind = "worker_err" if file.suffix == ".err" else "worker_out"
        out.setdefault(kind, []).append(file.name)
    return out


def _nodes_named(
    folder: Path, address: str | None, node_id: str | None, node_ip: str | None, timeout: float
) -> tuple[set[str] | None, str]:
    """Returns (ids of the named nodes, or None if none is named; one of these ids if they are on another host, else "")."""
    if node_id is None and node_ip is None:
        return None, ""
    rows = list_nodes(address, limit=1 << 30, timeout=timeout)
    rows = [r for r in rows if node_id in (None, r.node_id) and node_ip in (None, r.node_ip)]
    if not rows:
        raise ValueError(f"there is no node {node_id or node_ip}")
    here = _this_host(folder) or rows[0].node_ip
    return {r.node_id for r in rows}, "" if any(r.node_ip == here for r in rows) else rows[0].node_id


def _this_host(folder: Path) -> str:
    """This host's address in a cluster over several hosts, "" in a cluster on one host."""
    host = folder.parent / "tls" / "host"
    return host.read_text().strip() if host.exists() else ""


def _files_elsewhere(node: str, pattern: str, tail: int, address: str | None, timeout: float) -> dict[str, Any]:
    return _command("logs", "cluster", pattern, "--node-id", node, "--tail", str(tail), *_address(address), timeout=timeout)


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    timeout: float = _TIMEOUT_S,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str | None = "replace",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Iterator[str]:
    """Yields a log in pieces (of bytes with ``encoding=None``). The log is a file (``list_logs``), the output of an actor or a process, a
    submitted job's, or a task's. ``suffix``: "out" for stdout, "err" for stderr.

    A task's output is that of its last attempt. Attempts in one process are not separated, whatever ``attempt_number``. Unimplemented for
    a process that runs several tasks at once, NotFound for an unknown task.

    ``tail``: the number of last lines (-1: all that are kept). ``follow``: also yields later output, polled every ``_interval`` seconds,
    until the process ends. ``filter_ansi_code``: removes colours. ``node_id`` or ``node_ip`` selects the node of a process. Logs on another
    host come from a living node there (else Unavailable), at most the last 16 MiB, and cannot be followed (Unimplemented)."""
    del attempt_number

    def shown(pieces: Iterator[bytes]) -> Iterator[str]:
        return _shown(pieces, encoding, errors or "replace", filter_ansi_code)

    if suffix not in ("out", "err"):
        raise ValueError(f'suffix is "out" or "err", not {suffix!r}')
    if task_id is not None:
        if follow:
            raise Unimplemented("the log of one task cannot be followed", hint="pass pid=get_task(id).worker_pid to follow its process")
        return shown(_printed_by(task_id, address, tail, timeout, suffix))
    worker, folder = None, _logs_folder(address)
    nodes, elsewhere = _nodes_named(folder, address, node_id, node_ip, timeout)
    if filename is None:
        worker = _worker_of(address, actor_id, pid, submission_id, timeout, nodes)
        elsewhere = elsewhere or _node_elsewhere(folder, worker, address, timeout)
        filename = f"worker-{worker}.{suffix}"
    path = folder / filename
    if path.parent != folder or path.name in ("", ".", "..") or path.is_symlink():
        raise ValueError(f"{filename!r} is no file of the session's logs")
    if elsewhere and follow:
        hint = f"`shoal logs worker --id {worker} -f`" if worker else "follow it on that host"
        raise Unimplemented("a file of another host cannot be followed", hint=hint)
    if elsewhere:
        return shown(iter([_files_elsewhere(elsewhere, filename, tail, address, timeout).get("text", "").encode()]))

    def over() -> bool:
        row = None if worker is None else get_worker(worker, address, timeout)
        return row is None or not row.is_alive

    return shown(_pieces(path, tail, follow, over, 0.1 if _interval is None else _interval))


_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


def _shown(pieces: Iterator[bytes], encoding: str | None, errors: str, plain: bool) -> Iterator[Any]:
    decode = codecs.getincrementaldecoder(encoding)(errors).decode if encoding else bytes
    for piece in pieces:
        yield decode(_COLOURS.sub(b"", piece) if plain else piece)
    if encoding and (rest := decode(b"", True)):  # an incomplete last character
        yield rest


def _node_elsewhere(folder: Path, worker: str, address: str | None, timeout: float) -> str:
    """Returns the worker's node if it is on another host, else ""."""
    here = _this_host(folder)
    row = get_worker(worker, address, timeout) if here else None
    node = get_node(row.node_id, address, timeout) if row is not None else None
    return node.node_id if node is not None and node.node_ip != here else ""


def _printed_by(task: str, address: str | None, tail: int, timeout: float, suffix: str) -> Iterator[bytes]:
    said = _command("logs", "task", "--id", task, "--tail", str(tail), *_address(address), timeout=timeout)
    return iter([log["text"].encode() for log in said["logs"] if log["stream"] == f"std{suffix}"])


def _worker_of(
    address: str | None, actor_id: str | None, pid: int | None, submission_id: str | None, timeout: float, nodes: set[str] | None
) -> str:
    if actor_id is not None:
        row = get_actor(actor_id, address, timeout)
        if row is not None and int(row.worker_id, 16):
            return row.worker_id
        raise ValueError(f"the cluster has no process of actor {actor_id}")
    rows = list_workers(address, limit=1 << 30, timeout=timeout)
    if submission_id is not None:
        job = get_job(submission_id, address, timeout)
        rows = [r for r in rows if job is not None and r.job_id == job.job_id and r.worker_type == "DRIVER"]
    elif pid is not None:
        rows = [r for r in rows if r.pid == pid and (nodes is None or r.node_id in nodes)]
    else:
        raise ValueError("name a log by filename, actor_id, pid or submission_id")
    if not rows:
        raise ValueError(f"the cluster has no process of {submission_id or pid}")
    return rows[0].worker_id


def _pieces(path: Path, tail: int, follow: bool, over: Callable[[], bool], interval_s: float) -> Iterator[bytes]:
    if not path.exists() and not follow:
        return
    text = path.read_bytes() if path.exists() else b""
    at = len(text)
    lines = text.splitlines(keepends=True)
    yield b"".join(lines if tail < 0 else lines[len(lines) - tail :] if tail else [])
    while follow:
        last = over()
        size = path.stat().st_size if path.exists() else 0
        if size < at:
            at = 0  # the file was full and has been started anew
        if size > at:
            with path.open("rb") as file:
                file.seek(at)
                piece = file.read()
            at += len(piece)
            yield piece
        elif last:
            return
        else:
            time.sleep(interval_s)
