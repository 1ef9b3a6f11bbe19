"""The ``shoal`` command of this package, and a private cluster that ends with this process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from shoal import _native
from shoal._core.process import RETRY_DELAY, retry_delay_ms
from shoal.exceptions import DeadlineExceeded, Unavailable, from_error

__all__ = ["binary", "package_path", "start_local"]


# A program that forks a child, which executes the command in its arguments, and ends itself.
_DETACH = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"


def binary() -> str:
    """The path of the ``shoal`` command of this package: in the wheel, or in the build tree next to the extension."""
    package = Path(__file__).resolve().parents[1]
    built = Path(_native.__file__).parent.parent.parent
    for candidate in (package / "bin" / "shoal", built / "scheduler" / "cli" / "shoal"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise Unavailable("the shoal command is missing from this installation", hint="build it: ./dev build")


def package_path() -> str:
    """The import path of this very package and its extension, for child processes."""
    return os.pathsep.join(dict.fromkeys(str(Path(p).parent) for p in sys.modules["shoal"].__path__))


def start_local(
    resources: dict[str, float],
    *,
    labels: dict[str, str] | None = None,
    spill_folder: str | None = None,
    python: str = sys.executable,
    remove_folder: bool = False,
    home: str = "",
    http_port: int | None = None,
    timeout: float = 20,
    detach: bool = False,
):
    """Starts a private cluster: head and node in one process, which ends with this one. ``home``: the parent folder of its session, "" for
    the user's. ``http_port`` is None for no HTTP interface, 0 for 8265 or any free one. ``detach``: the cluster is no child of this
    process, because the library that started this one kills its children. Returns (process, its report when ready)."""
    _native.open_standard_streams()  # in the child, standard streams would replace a pipe with the number 0, 1 or 2
    reading, writing = os.pipe()
    command = [binary(), "role", "local", "--owner", str(os.getpid()), "--python", python, "--ready-fd", str(writing)]
    command += [f"--resource={name}={amount}" for name, amount in resources.items()]
    command += [f"--label={name}={value}" for name, value in (labels or {}).items()]
    command += ["--spill-folder", spill_folder] if spill_folder else []
    command += ["--remove-folder"] if remove_folder else []
    if http_port is not None:
        command += ["--http-port", str(http_port or 8265), *([] if http_port else ["--http-or-any"])]
    if detach:
        command = [sys.executable, "-ISc", _DETACH, *command]
    # In a session of its own: Ctrl-C reaches only the driver, which then ends the cluster in order.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing,),
        start_new_session=True,
        env={
            **os.environ,
            **({"SHOAL_HOME": home} if home else {}),
            RETRY_DELAY: str(retry_delay_ms()),
            "PYTHONPATH": os.pathsep.join(filter(None, [package_path(), os.environ.get("PYTHONPATH")])),
        },
    )
    os.close(writing)
    try:
        said = b""
        end = time.monotonic() + timeout
        while not said.endswith(b"\n"):
            if not select.select([reading], [], [], max(0, end - time.monotonic()))[0]:
                raise DeadlineExceeded(f"the local cluster was not ready within {timeout:g} s")
            piece = os.read(reading, 4096)
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                how = "closed its pipe" if process.returncode is None else f"exit code {process.returncode}"
                raise Unavailable(f"the local cluster ended before it was ready ({how})")
            said += piece
        said = json.loads(said)
        if "error" in said:
            e = said["error"]
            codes = [_native.code_name(c) for c in range(9)]
            raise from_error(codes.index(e["code"]), e["reason"], e["message"], e["hint"], [])
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(reading)
    return process, said
