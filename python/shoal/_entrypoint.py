"""The start of a submitted job whose ``runtime_env`` must be prepared: ``python -m shoal._entrypoint COMMAND``.

It installs and copies the contents of ``$SHOAL_RUNTIME_ENV``, then executes the command in the same process.
"""

from __future__ import annotations

import json
import os
import sys

from shoal._core.variables import variable
from shoal._runtime_env import environment, shipping
from shoal.exceptions import ShoalError


def main() -> None:
    command = sys.argv[1]
    try:
        shipping.settle("", [])
        env = environment.check(json.loads(variable("SHOAL_RUNTIME_ENV", "{}")))
        # On the submitter's host the folder is used in place, so that changes are visible. Processes that the job starts use copies.
        folder = env.pop("working_dir") if shipping.in_place(env.get("working_dir", "")) else None
        around = environment.prepare(env)
        if folder:
            around.setdefault("python_path", []).insert(0, folder)
            applied = json.loads(around.get("env", {}).get("SHOAL_RUNTIME_ENV", "{}"))
            around.setdefault("env", {})["SHOAL_RUNTIME_ENV"] = json.dumps({**applied, "working_dir": folder})
            around["cwd"] = folder
    except (ShoalError, TypeError, ValueError, OSError) as error:
        sys.exit(f"the job's runtime_env could not be prepared: {error}")
    os.environ.update({k: environment.expanded(v) for k, v in around.get("env", {}).items()})
    env = dict(os.environ)
    path = [*around.get("python_path", []), *filter(None, [env.get("PYTHONPATH")])]
    if path:
        env["PYTHONPATH"] = os.pathsep.join(path)
    if "cwd" in around:
        os.chdir(around["cwd"])
    os.execve("/bin/sh", ["/bin/sh", "-c", command], env)


if __name__ == "__main__":
    main()
