"""What a submitted job starts with when its ``runtime_env`` has to be prepared: ``python -m shoal._entrypoint COMMAND``.

Installs and copies what ``$SHOAL_RUNTIME_ENV`` names, then becomes the command: its process is the job's.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    command = sys.argv[1]
    from shoal import _environment
    from shoal._zygote import expanded
    from shoal.exceptions import ShoalError

    try:
        around = _environment.prepare(_environment.check(json.loads(os.environ.get("SHOAL_RUNTIME_ENV", "{}"))))
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
