"""The session of a process that a node started."""

from __future__ import annotations

import os

from shoal import _native
from shoal._core.process import retry_delay_ms, state
from shoal._core.variables import variable

__all__ = ["attach_worker"]


def attach_worker() -> _native.Session:
    """Opens the session of a process that a node started, from the environment that the node set."""
    if state.session is not None:
        return state.session
    env = os.environ
    state.session = _native.Session.open(
        folder=env["SHOAL_SESSION"],
        node=env["SHOAL_NODE"],
        worker=env["SHOAL_WORKER_ID"],
        job=env["SHOAL_JOB_ID"],
        role=f"rank {env['RANK']}" if variable("RANK") else "worker",
        print_logs=not state.is_worker and variable("RANK", "0") == "0",  # the job's own process prints the head's warnings
        retry_delay_s=retry_delay_ms() / 1000,
    )
    state.namespace = variable("SHOAL_NAMESPACE", state.session.job)
    if variable("SHOAL_LOGGING"):
        from shoal._core.logging import apply, from_environment  # late: loads logging, only with a LoggingConfig

        state.logging = from_environment()
        apply(state.logging)
    return state.session
