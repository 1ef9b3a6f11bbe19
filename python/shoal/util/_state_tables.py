"""Tables of a cluster's state: lists with filters, single rows, and summaries, which come from the ``shoal`` command or from HTTP."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from shoal._core.local_cluster import binary
from shoal._core.process import state
from shoal._driver.http import Http
from shoal._objects.refs import ObjectRef
from shoal._printable import printable
from shoal.exceptions import InvalidArgument, NotFound, Unavailable, Unimplemented
from shoal.util._state_rows import StateRow, actor_row, group_row, job_row, node_row, object_row, runtime_env_row, task_row, worker_row

TIMEOUT_S = 30.0
_DEFAULT_LIMIT = 100  # Ray's DEFAULT_LIMIT
_HTTP_ROWS = 10_000  # rows per answer (JobsApi::kMaxRows)


def address_of(address: str | None) -> list[str]:
    if address in (None, "auto") and state.session is not None:
        return ["--address", state.session.head_endpoint]
    return [] if address in (None, "auto") else ["--address", address]


def run_command(*words: str, timeout: float) -> str:
    """Returns the command's output."""
    try:
        process = subprocess.run([binary(), *words, "--json"], capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the cluster did not answer within {timeout:g} s") from error
    if process.returncode:
        said = json.loads(process.stdout) if process.stdout else {"message": process.stderr.strip()}
        hint = said.get("hint", "")
        kind = {"Unimplemented": Unimplemented, "NotFound": NotFound}.get(said.get("code"), InvalidArgument)
        raise (Unavailable if process.returncode in (4, 5, 6) else kind)(said.get("message", ""), hint=hint)
    return process.stdout


def answer_of(*words: str, timeout: float) -> dict[str, Any]:
    return json.loads(run_command(*words, timeout=timeout))


def _raw(what: str, address: str | None, timeout: float) -> list[dict[str, Any]]:
    if address is not None and "://" in address:
        return _over_http(Http(address), f"/api/v0/{'placement_groups' if what == 'groups' else what}?limit={_HTTP_ROWS}")
    return answer_of("list", what, *address_of(address), timeout=timeout)["rows"]


def _over_http(http: Http, path: str) -> list[dict[str, Any]]:
    page = http.request("GET", path)
    rows = page["rows"]
    while page["next"]:
        page = http.request("GET", f"{path}&after={page['next']}")
        rows += page["rows"]
    return rows


def _reported(what: str, filters: Any, address: str | None, timeout: float, raise_on_missing_output: bool) -> list[dict[str, Any]]:
    """Returns rows that nodes and their processes report. If a process does not answer, this raises Unavailable or warns. It also warns if
    the filters may choose ended calls, of which a process keeps only the last ones."""
    rows, missing, forgotten = _answered(what, address, timeout)
    if missing and raise_on_missing_output:
        raise _incomplete(what, missing)
    if forgotten and not _chooses_open_ones(filters):
        missing.append(f"{forgotten} ended calls are kept no more (a process keeps the last 2048 that finished, and as many that failed)")
    if missing:
        warnings.warn(f"the list of {what} is incomplete: {printable('; '.join(missing))}", stacklevel=4)
    return rows


def _chooses_open_ones(filters: Any) -> bool:
    states = [str(f[2]).upper() for f in filters or [] if len(f) == 3 and (f[0], f[1]) == ("state", "=")]
    return any(state not in ("FINISHED", "FAILED") for state in states)


def _answered(what: str, address: str | None, timeout: float) -> tuple[list[dict[str, Any]], list[str], int]:
    """Returns (rows, descriptions of what is missing, number of ended calls that are kept no more)."""
    if address is not None and "://" in address:
        raise Unimplemented(f"{what} cannot be listed over HTTP", hint="give the address of the cluster itself: HOST:PORT")
    said = answer_of("list", what, "--limit", "0", *address_of(address), timeout=timeout)
    missing = [f"{'process ' + str(s['pid']) if s['worker'] else 'node ' + s['node']}: {s['why']}" for s in said["silent"]]
    missing += [f"{said['left_out']} rows exceed the size of an answer"] if said["left_out"] else []
    return said["rows"], missing, said["forgotten"]


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
        limit: int | None = None,
        timeout: float = TIMEOUT_S,
        detail: bool = False,
        raise_on_missing_output: bool = True,
        _explain: bool = False,
    ) -> list[StateRow]:
        reported = what in ("objects", "runtime-envs", "tasks")
        raw = _reported(what, filters, address, timeout, raise_on_missing_output) if reported else _raw(what, address, timeout)
        rows = _kept([shape(r, detail) for r in raw], filters)
        shown = rows[: _DEFAULT_LIMIT if limit is None else limit]
        if len(shown) < len(rows) and (limit is None or _explain):
            warnings.warn(f"{lister.__name__} returns {len(shown)} of {len(rows)} rows; limit=N returns up to N", stacklevel=2)
        return shown

    lister.__name__ = lister.__qualname__ = f"list_{what}"
    lister.__doc__ = doc
    return lister


list_actors = _lister("actors", actor_row, "The cluster's actors, those that ended among them.")
list_nodes = _lister("nodes", node_row, "The cluster's nodes: ALIVE, CORDONED, DRAINING or DEAD.")
list_workers = _lister("workers", worker_row, "The cluster's processes: drivers, actors, ranks.")
list_jobs = _lister("jobs", job_row, "The cluster's jobs, submitted or opened by a driver.")
list_placement_groups = _lister("groups", group_row, "The cluster's placement groups.")
list_placement_groups.__name__ = list_placement_groups.__qualname__ = "list_placement_groups"
list_objects = _lister(
    "objects",
    object_row,
    """Objects, a row per process that holds one: LOCAL_REFERENCE (it refers to it), PINNED_IN_MEMORY (it has the bytes), or
    CAPTURED_IN_OBJECT (another object contains a reference). Values of more than 100 KiB, and those that have left their process.""",
)
list_tasks = _lister(
    "tasks",
    task_row,
    """Calls of remote functions and of actors' methods, a row per attempt: those that wait, run, and the last of those that are over, as
    long as the process lives that ran them (of remote functions: or that called them). A process keeps its last 2048 calls that finished,
    and as many that failed; a warning names the number of others.""",
)
list_runtime_envs = _lister("runtime-envs", runtime_env_row, "The runtime_envs of processes that live, a row per node.")
list_runtime_envs.__name__ = list_runtime_envs.__qualname__ = "list_runtime_envs"


def _one(what: str, shape: Callable, id: str, address: str | None, timeout: float) -> StateRow | None:
    return next((shape(r, True) for r in _raw(what, address, timeout) if id in (r["id"], r.get("submission_id"))), None)


def get_actor(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    """Returns an actor with all fields, or None."""
    return _one("actors", actor_row, id, address, timeout)


def get_node(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("nodes", node_row, id, address, timeout)


def get_worker(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("workers", worker_row, id, address, timeout)


def get_job(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    """Returns the job of an id or of a submission id, or None."""
    return _one("jobs", job_row, id, address, timeout)


def get_placement_group(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | None:
    return _one("groups", group_row, id, address, timeout)


def get_task(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> StateRow | list[StateRow] | None:
    """Returns a task with all fields, or a list with a row per attempt if there were several. An unknown task gives None;
    Unavailable if processes that may have one did not answer. ``id``: the task's id, or a reference to its result."""
    if isinstance(id, ObjectRef):
        if (ref := id).task_id().is_nil():
            raise ValueError(f"{ref!r} was put: no task returned it")
        id = ref.task_id()
    raw, missing, _ = _answered("tasks", address, timeout)
    rows = [task_row(r, True) for r in raw if r["id"] == id]
    if not rows and missing:
        raise _incomplete("tasks", missing)
    return (rows[0] if len(rows) == 1 else rows) if rows else None


def summarize_tasks(
    address: str | None = None, timeout: float = TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
) -> dict[str, Any]:
    """Counts tasks by function or method and by state. Warns if processes no longer keep all ended ones, as `list_tasks` does."""
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


def get_objects(id: str, address: str | None = None, timeout: float = TIMEOUT_S, _explain: bool = False) -> list[StateRow]:
    """Returns a row per process that holds the object; an empty list if there is none."""
    return list_objects(address, [("object_id", "=", id)], limit=1 << 30, timeout=timeout, detail=True)


def summarize_objects(
    address: str | None = None, timeout: float = TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
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
    address: str | None = None, timeout: float = TIMEOUT_S, raise_on_missing_output: bool = True, _explain: bool = False
) -> dict[str, Any]:
    """Counts actors by class and by state."""
    del raise_on_missing_output, _explain  # no output can be missing, because the head has all actors
    rows = list_actors(address, limit=1 << 30, timeout=timeout)
    summary = {
        name: {"class_name": name, "state_counts": dict(Counter(r.state for r in rows if r.class_name == name))}
        for name in sorted({r.class_name for r in rows})
    }
    return {"cluster": {"summary": summary, "total_actors": len(rows), "summary_by": "class"}}
