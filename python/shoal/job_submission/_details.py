"""The description of a job."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class JobStatus(str, enum.Enum):
    """The state of a job. Compares equal to its name."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    def __str__(self) -> str:
        return self.value

    def is_terminal(self) -> bool:
        return self in (JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED)


class JobType(str, enum.Enum):
    """Submitted, or opened by a driver that connected by itself."""

    SUBMISSION = "SUBMISSION"
    DRIVER = "DRIVER"


class JobErrorType(str, enum.Enum):
    """Ray's kinds of failures. A job's ``error_type`` is a reason of Shoal, which has no supervising actors."""

    RUNTIME_ENV_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
    JOB_SUPERVISOR_ACTOR_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
    JOB_SUPERVISOR_ACTOR_START_FAILURE = "JOB_SUPERVISOR_ACTOR_START_FAILURE"
    JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE = "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"
    JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE = "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"
    JOB_SUPERVISOR_ACTOR_DIED = "JOB_SUPERVISOR_ACTOR_DIED"
    JOB_ENTRYPOINT_COMMAND_START_ERROR = "JOB_ENTRYPOINT_COMMAND_START_ERROR"
    JOB_ENTRYPOINT_COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"


@dataclass(frozen=True)
class DriverInfo:
    """``id`` is the job's. ``node_ip_address`` is None, because the HTTP interface does not report it."""

    id: str
    node_ip_address: str | None
    pid: str


@dataclass(frozen=True)
class JobDetails:
    """Times are in milliseconds since 1970, None before the event. ``message`` gives the reason for waiting, or the end's cause. The
    ``driver_`` fields for the place are always None: the HTTP interface does not report it."""

    type: JobType
    job_id: str
    submission_id: str | None
    status: JobStatus
    entrypoint: str
    message: str
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    driver_info: DriverInfo | None = None
    driver_agent_http_address: str | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> JobDetails:
        """Returns the details in an answer of the HTTP interface."""
        driver = {"id": row["job_id"], "node_ip_address": None, **row["driver_info"]} if row["driver_info"] else None
        typed = {"type": JobType(row["type"]), "status": JobStatus(row["status"]), "driver_info": DriverInfo(**driver) if driver else None}
        return cls(**{**{name: row.get(name) for name in cls.__dataclass_fields__}, **typed})


JobInfo = JobDetails
