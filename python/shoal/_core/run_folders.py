"""Folders of runs that got none from their launcher (docs/runs.md)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import sys
import time
from pathlib import Path

from shoal._core.masks import masked
from shoal._core.variables import variable
from shoal._printable import say

_MARK = "made-by-shoal"  # only folders with a file of this name may be removed
_KEPT_RUNS = 50
_LONG_AGO_S = 86400


def new_run_folder() -> str:
    """Makes a new run's folder below ``$SHOAL_HOME/runs``, and removes the oldest of many that this function made. Returns "" if that
    cannot be, and prints why."""
    try:
        runs = _runs()
        with contextlib.suppress(OSError):
            _remove_oldest(runs)
        return str(_make(runs))
    except Exception as error:
        with contextlib.suppress(Exception):  # such as a closed stderr
            say(f"shoal: this training records nothing: {masked(str(error))}; name another folder by SHOAL_RUN_FOLDER")
        return ""


def drop_run_folder(folder: str) -> None:
    """Removes a new folder, into which nothing was recorded."""
    if folder and not os.path.lexists(os.path.join(folder, "processes")):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, _MARK))
            os.rmdir(folder)


def _runs() -> Path:
    home = Path(variable("SHOAL_HOME", f"/tmp/shoal-{os.getuid()}"))
    home.mkdir(0o700, parents=True, exist_ok=True)
    runs = home / "runs"
    with contextlib.suppress(FileExistsError):
        runs.mkdir(0o700)
    found = runs.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{runs} is no folder (a link does not count)")
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{runs} belongs to another user, or others may write there")
    return runs


def _make(runs: Path) -> Path:
    program = (getattr(sys, "argv", None) or [""])[0]
    script = "" if program.startswith("-") else re.sub(r"[^A-Za-z0-9._-]", "_", Path(program).stem)[:64].lstrip("-.")
    name, number = f"{script or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}", 1
    while True:  # another training may have begun in the same second
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            number += 1
            continue
        folder.joinpath(_MARK).touch(0o600)
        return folder


def _remove_oldest(runs: Path) -> None:
    found = []
    for entry in os.scandir(runs):
        with contextlib.suppress(OSError):
            own = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if own and stat.S_ISREG(os.lstat(os.path.join(entry.path, _MARK)).st_mode):
                found.append(Path(entry.path))
    if len(found) < _KEPT_RUNS:
        return
    aged = sorted((_last_active(folder), folder) for folder in found)
    for active, folder in aged[: len(aged) + 1 - _KEPT_RUNS]:
        if time.time() - active > _LONG_AGO_S and not _lives(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _last_active(folder: Path) -> float:
    """Returns the time of the latest write of a process. A folder's own time is that of its begin."""
    times = [_written(folder / _MARK)]
    for pattern in ("processes/*/live", "processes/*/samples*"):
        times += map(_written, folder.glob(pattern))
    return max(times)


def _written(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0


def _lives(folder: Path) -> bool:
    """Returns True if a process with the number of one that records there runs on this host, and if that cannot be found out."""
    host = re.sub(r"[^A-Za-z0-9._]", "_", socket.gethostname()[:64])
    try:
        names = os.listdir(folder / "processes")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    parts = [name.rsplit("-", 2) for name in names]
    return any(len(p) == 3 and p[0] == host and p[1].isdecimal() and os.path.exists(f"/proc/{p[1]}") for p in parts)
