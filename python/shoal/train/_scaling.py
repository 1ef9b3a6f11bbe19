"""``python -m shoal.train._scaling ADDRESS JOB WORKERS [--json]``, the Python part of ``shoal scale``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from shoal import _native
from shoal._actors.handle import ActorHandle
from shoal._core.process import close, retry_delay_ms, state
from shoal._objects.values import get
from shoal.exceptions import InvalidArgument, ShoalError
from shoal.train._changes import Change
from shoal.train._run import METHODS, REPORTS


def scale(job: str, workers: int) -> Change:
    """Asks the driver of a job for a number of workers, and waits for the change. Raises InvalidArgument if the job trains nothing."""
    session = state.session
    drivers = [r["id"] for r in session.list("actors") if r["job"] == job and r["class"] == REPORTS and r["state"] == "ALIVE"]
    if not drivers:
        raise InvalidArgument(f"job {job} runs no training of a shoal.train.Trainer now", hint="see: shoal list actors")
    session.know(drivers[-1], REPORTS)
    return get(ActorHandle(drivers[-1], REPORTS, METHODS).scale.remote(workers))


def main() -> int:
    address, job, workers, *options = sys.argv[1:]
    try:
        folder, head = _native.find_session(address, os.environ.get("SHOAL_HOME", ""))
        # In the training's job, so that the command is no job of its own.
        state.session = _native.Session.open(
            folder=folder,
            head=head,
            job=job,
            name="shoal scale",
            role="command",
            print_logs=False,
            ends_job=False,
            retry_delay_s=retry_delay_ms() / 1000,
        )
        change = scale(job, int(workers))
    except (ShoalError, OSError) as error:
        hint = getattr(error, "hint", "")
        print(f"error[{type(error).__name__}]: {getattr(error, 'message', error)}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"shoal: the training still has the request; see it with: shoal job logs -f {job}", file=sys.stderr)
        return 130
    finally:
        close()
    if "--json" in options:
        print(json.dumps({"schema": "shoal.scale/1", "job_id": job, **asdict(change)}))
    elif change.workers == change.workers_before:
        print(f"Job {job} has {change.workers} workers already.")
    else:
        print(f"Job {job}: {change}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
