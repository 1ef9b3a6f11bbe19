"""Rows of a cluster's state, converted from the cluster's names to Ray's. Fields under "detail" require detail=True."""

from __future__ import annotations

from typing import Any


class StateRow(dict):
    """A row: ``row["state"]`` or ``row.state``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a row has no {name!r}; it has {', '.join(self)}") from None

    def asdict(self) -> dict[str, Any]:
        return dict(self)


# ---- conversion of the cluster's rows to Ray's; fields under "detail" require detail=True


def _death(row: dict[str, Any]) -> str | None:
    return row["cause"]["message"] if row.get("cause") else None


def actor_row(r: dict[str, Any], detail: bool) -> StateRow:
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


def node_row(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(
        node_id=r["id"], node_ip=r["host"], state=r["state"], node_name=r["host"], resources_total=r["total"], labels=r["labels"]
    )
    if detail:
        row.update(resources_available=r["available"], pid=r["pid"], endpoint=r["endpoint"])
        row.update(drain_until_ms=r["drain_until_unix_ms"] or None)
    return row


def worker_row(r: dict[str, Any], detail: bool) -> StateRow:
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


def job_row(r: dict[str, Any], detail: bool) -> StateRow:
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


def group_row(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(placement_group_id=r["id"], name=r["name"], creator_job_id=r["job"], state=r["state"])
    if detail:
        row.update(bundles=r["bundles"], is_detached=r["job"] is None, strategy=r["strategy"])
        row.update(pending_reason=r["pending_reason"], namespace=r["namespace"])
    return row


def task_row(r: dict[str, Any], detail: bool) -> StateRow:
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


def object_row(r: dict[str, Any], detail: bool) -> StateRow:
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


def runtime_env_row(r: dict[str, Any], detail: bool) -> StateRow:
    row = StateRow(runtime_env=r["runtime_env"], success=True, node_id=r["node"])
    if detail:
        row.update(creation_time_ms=None, ref_cnt=r["processes"], error=None)
    return row
