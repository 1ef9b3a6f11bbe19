"""What is known of a job."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class JobStatus(str, enum.Enum):
    """Where a job is in its life. Compares equal to its name."""

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


@dataclass(frozen=True)
class DriverInfo:
    pid: str


@dataclass(frozen=True)
class JobDetails:
    """Times are in milliseconds since 1970, None while they are still to come. ``message`` says why it waits, or how it ended."""

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
    driver_exit_code: int | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> JobDetails:
        """From the HTTP interface's answer."""
        driver = row["driver_info"]
        made = {"type": JobType(row["type"]), "status": JobStatus(row["status"]), "driver_info": DriverInfo(**driver) if driver else None}
        return cls(**{**{name: row[name] for name in cls.__dataclass_fields__}, **made})


JobInfo = JobDetails
