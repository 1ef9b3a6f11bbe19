"""The program that a submitted job starts with when its ``runtime_env`` has to be prepared: ``python -m shoal._entrypoint COMMAND``.

Installs and copies what ``$SHOAL_RUNTIME_ENV`` names, then becomes the command: its process is the job's.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    command = sys.argv[1]
    from shoal import _environment, _shipping
    from shoal._zygote import expanded
    from shoal.exceptions import ShoalError

    try:
        _shipping.settle("", [])
        env = _environment.check(json.loads(os.environ.get("SHOAL_RUNTIME_ENV", "{}")))
        # On the submitter's host as it is: whoever works there sees its files. What the job starts gets copies, on every host.
        folder = env.pop("working_dir") if _shipping.in_place(env.get("working_dir", "")) else None
        around = _environment.prepare(env)
        if folder:
            around.setdefault("python_path", []).insert(0, folder)
            done = json.loads(around.get("env", {}).get("SHOAL_RUNTIME_ENV", "{}"))
            around.setdefault("env", {})["SHOAL_RUNTIME_ENV"] = json.dumps({**done, "working_dir": folder})
            around["cwd"] = folder
    except (ShoalError, TypeError, ValueError, OSError) as error:
        sys.exit(f"the job's runtime_env could not be prepared: {error}")
    os.environ.update({k: expanded(v) for k, v in around.get("env", {}).items()})
    env = dict(os.environ)
    path = [*around.get("python_path", []), *filter(None, [env.get("PYTHONPATH")])]
    if path:
        env["PYTHONPATH"] = os.pathsep.join(path)
    if "cwd" in around:
        os.chdir(around["cwd"])
    os.execve("/bin/sh", ["/bin/sh", "-c", command], env)


if __name__ == "__main__":
    main()
