"""A run of ``shoal_slurm`` through TorchX's runner: torchx_programs.py follow HANDLE, or cancel OPTIONS SCRIPT."""

import json
import sys

from torchx.runner import get_runner
from torchx.specs import AppDef, Role, parse_app_handle


def follow(handle: str) -> dict:
    """Waits for a run that has been submitted. Returns its end, its output and the list of runs."""
    with get_runner() as runner:
        status = runner.wait(handle, wait_interval=0.5)
        role = runner.describe(handle).roles[0]
        listed = {app.app_id: str(app.state) for app in runner.list("shoal_slurm")}
        return {
            "state": str(status.state),
            "message": status.msg,
            "hosts": [replica.hostname for replica in status.roles[0].replicas],
            "role": role.name,
            "output": "".join(runner.log_lines(handle, role.name, 0)),
            "output of host 1": list(runner.log_lines(handle, role.name, 1)),
            "listed": listed[parse_app_handle(handle)[2]],
        }


def cancel(options: str, script: str) -> dict:
    """Submits a plain role that never ends, waits until it prints, and cancels it."""
    app = AppDef("endless", [Role("endless", image="", entrypoint="python3", args=[script], num_replicas=2)])
    with get_runner() as runner:
        handle = runner.run(app, "shoal_slurm", json.loads(options))
        runner_lines = runner.log_lines(handle, "endless", 0, should_tail=True)
        first = next(line for line in runner_lines if "up" in line)
        runner.cancel(handle)
        status = runner.wait(handle, wait_interval=0.5)
        return {"first": first, "state": str(status.state)}


if __name__ == "__main__":
    print("RESULT", json.dumps({"follow": follow, "cancel": cancel}[sys.argv[1]](*sys.argv[2:])), flush=True)
