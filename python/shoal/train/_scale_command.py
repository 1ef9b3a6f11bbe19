"""``python -m shoal.train._scale_command ADDRESS JOB WORKERS [--json]``, the Python part of ``shoal scale``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from shoal import _native
from shoal._actors.handle import ActorHandle
from shoal._core.command import run_command
from shoal._core.process import close, retry_delay_ms, state
from shoal._objects.values import get
from shoal._printable import say
from shoal.exceptions import InvalidArgument, ShoalError
from shoal.train._driver.run import METHODS, REPORTS


@contextlib.contextmanager
def open_session(address: str, job: str, name: str) -> Iterator[Any]:
    """Opens a session in the training's job, so that the command does not count as a job."""
    try:
        folder, head = _native.find_session(address, os.environ.get("SHOAL_HOME", ""))
        state.session = _native.Session.open(
            folder=folder,
            head=head,
            job=job,
            name=name,
            role="command",
            print_logs=False,
            ends_job=False,
            retry_delay_s=retry_delay_ms() / 1000,
        )
        yield state.session
    finally:
        close()


def driver_of(session: Any, job: str) -> ActorHandle:
    """Returns a handle of the driver of a job's training. Raises InvalidArgument if the job trains nothing."""
    drivers = [r["id"] for r in session.list("actors") if r["job"] == job and r["class"] == REPORTS and r["state"] == "ALIVE"]
    if not drivers:
        raise InvalidArgument(f"job {job} runs no training of a shoal.train.Trainer now", hint="see: shoal list actors")
    session.know(drivers[-1], REPORTS)
    return ActorHandle(drivers[-1], REPORTS, METHODS)


def print_error(error: Exception) -> None:
    hint = getattr(error, "hint", "")
    say(f"error[{type(error).__name__}]: {getattr(error, 'message', error)}" + (f"\n  hint: {hint}" if hint else ""))


def main() -> int:
    address, job, workers, *options = sys.argv[1:]
    try:
        with open_session(address, job, "shoal scale") as session:
            change = get(driver_of(session, job).scale.remote(int(workers)))
    except (ShoalError, OSError) as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        print(f"shoal: the training still has the request; see it with: shoal job logs -f {job}", file=sys.stderr)
        return 130
    if "--json" in options:
        print(json.dumps({"schema": "shoal.scale/1", "job_id": job, **asdict(change)}))
    elif change.workers == change.workers_before:
        print(f"Job {job} has {change.workers} workers already.")
    else:
        say(f"Job {job}: {change}.", sys.stdout)
    return 0


if __name__ == "__main__":
    run_command(main)
