"""Transfer of a runtime_env's folders to hosts that lack them.

In a cluster over several hosts a process packs the copies of ``environment`` into zip files, named by content, and stores them at the
head. A worker on another host finds the needed packages in ``SHOAL_PACKAGES`` and fetches them before any user code runs. Each host
fetches a package once; a lock keeps it while a process uses it. Clusters on one host do not use this.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from shoal._core.attach import attach_worker
from shoal._core.process import session
from shoal._core.variables import variable
from shoal._runtime_env import packages
from shoal.exceptions import DataLoss, InvalidArgument, RuntimeEnvSetupError

__all__ = [
    "ENVIRONMENT",
    "MAX_BYTES",
    "MAX_ENTRIES",
    "digest_of",
    "files_in",
    "in_place",
    "keep_packed",
    "leave",
    "needed",
    "pack",
    "removed_on_failure",
    "settle",
    "unpack",
]

ENVIRONMENT = "SHOAL_PACKAGES"  # {"store": the sender's folder of copies, "of": {path: package}}
MAX_BYTES = 500 << 20  # for one folder, as in Ray
MAX_ENTRIES = 200_000  # files and folders of one zip file
_MAX_PATH = 4096  # Linux opens no longer path, and the parents of a very long one would fill memory
_DESCRIPTION = 1 << 10  # most bytes of an entry's description, on average
_PART = 512 << 10  # same as in actors/protocol/wire/packages.h
_ATTEMPTS = 5
_SURE_S = 60  # seconds in which the head is not asked again whether it has a package
_CACHE = "SHOAL_RUNTIME_ENV_CACHE_BYTES"  # limit for a host's fetched packages; unused ones beyond it are deleted
_CACHE_BYTES = 10 << 30  # Ray's default

_left: dict[str, tuple[str, float]] = {}  # by path: the package at the head, and when this was last known
_leaving = threading.Lock()
_in_use: list[int] = []  # descriptors, locked until this process ends


# ---- zip files


def files_in(folder: Path) -> list[tuple[Path, str]]:
    return [(f, f.relative_to(folder).as_posix()) for f in sorted(folder.rglob("*")) if f.is_file()]


def pack(files: Iterable[tuple[Path, str]], into: IO[bytes]) -> str:
    """Writes (path, name) pairs as a reproducible zip file; returns its SHA-256."""
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for file, name in files:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | stat.S_IMODE(file.stat().st_mode)) << 16
            with file.open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    return digest_of(into)


def digest_of(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _opened(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip file once the count of entries that it states is small enough, because zipfile loads a description of each."""
    end = zipfile._EndRecData(file)
    if end and (end[zipfile._ECD_ENTRIES_TOTAL] > MAX_ENTRIES or end[zipfile._ECD_SIZE] > MAX_ENTRIES * _DESCRIPTION):
        raise RuntimeEnvSetupError(f"a zip file of runtime_env has more than {MAX_ENTRIES} entries")
    return zipfile.ZipFile(file)


def unpack(file: str | os.PathLike | IO[bytes], into: Path) -> int:
    """Unpacks a zip file and returns the size of its files in bytes. RuntimeEnvSetupError for a path outside of ``into``, for a link, and
    beyond MAX_BYTES or MAX_ENTRIES. A failure leaves no part of ``into``."""
    if not hasattr(file, "read"):
        with open(file, "rb") as opened:
            return unpack(opened, into)
    with _opened(file) as archive:
        size = 0
        paths: set[PurePosixPath] = set()
        for entry in archive.infolist():
            name, kind = PurePosixPath(entry.filename), stat.S_IFMT(entry.external_attr >> 16)
            if name.is_absolute() or ".." in name.parts or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                what = f"{entry.filename!r}, which is a link or would lie outside of the target folder"
                raise RuntimeEnvSetupError(f"a zip file of runtime_env has a forbidden entry: {what}")
            if len(entry.filename) > _MAX_PATH:
                raise RuntimeEnvSetupError(
                    f"a zip file of runtime_env has a path of {len(entry.filename)} characters; {_MAX_PATH} are allowed"
                )
            size += entry.file_size
            paths.update((name, *name.parents[:-1]))
            if len(paths) > MAX_ENTRIES:
                raise RuntimeEnvSetupError(f"a zip file of runtime_env unpacks to more than {MAX_ENTRIES} files and folders")
        if size > MAX_BYTES:
            raise RuntimeEnvSetupError(f"a zip file of runtime_env unpacks to {size >> 20} MiB; {MAX_BYTES >> 20} are allowed")
        with removed_on_failure(into):
            into.mkdir(parents=True, exist_ok=True)
            for entry in archive.infolist():
                member = archive.extract(entry, into)
                if not entry.is_dir() and (mode := stat.S_IMODE(entry.external_attr >> 16)):
                    os.chmod(member, mode & 0o777 | 0o600)
    return size


@contextlib.contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Removes a file or folder, which is being made, if the block raises."""
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def keep_packed(folder: Path, into: Path) -> None:
    """Packs a folder before any process works in it, so that the package has nothing that a process wrote."""
    fd, making = tempfile.mkstemp(dir=into.parent)
    with os.fdopen(fd, "w+b") as file, removed_on_failure(Path(making)):
        pack(files_in(folder), file)
    os.rename(making, into)


# ---- the sender's side


def needed() -> bool:
    """True if processes may start on other hosts."""
    return Path(session().folder, "tls").is_dir()


def leave(roots: Iterable[str], store: str) -> str:
    """Stores these folders at the head; returns the value of ``SHOAL_PACKAGES`` for the processes that need them."""
    with _leaving:
        return json.dumps({"store": store, "of": {root: _kept_as(root, store) for root in dict.fromkeys(roots)}})


def _kept_as(root: str, store: str) -> str:
    came_with = _sent().get("of", {})
    if root in came_with:  # part of this process's own environment, which the head keeps while this process lives
        return came_with[root]
    package, when = _left.get(root, ("", 0.0))
    if not package or (time.monotonic() - when > _SURE_S and not session().has_package(package)):
        packed = Path(f"{root}.zip")
        with packed.open("rb") if packed.is_file() else tempfile.TemporaryFile(dir=store) as file:
            package = digest_of(file) if packed.is_file() else pack(files_in(Path(root)), file)
            _send(package, file)
    _left[root] = (package, time.monotonic())
    return package


def _send(package: str, file: IO[bytes]) -> None:
    total = file.seek(0, os.SEEK_END)
    if session().has_package(package):
        return
    for attempt in itertools.count():
        file.seek(0)
        try:
            for offset in range(0, total, _PART):
                if session().put_package(package, total, offset, file.read(_PART)):
                    return
        except InvalidArgument as error:
            # If the connection to the head was replaced meanwhile, all parts are sent again.
            if error.reason != "FromTheFirst" or attempt == _ATTEMPTS:
                raise


# ---- the receiver's side


def _sent() -> dict[str, Any]:
    return json.loads(os.environ.get(ENVIRONMENT) or "{}")


def settle(cwd: str, path: list[str]) -> tuple[str, list[str]]:
    """Returns the folder and import path of a new process on this host. It fetches missing packages and updates the environment
    variables."""
    sent = _sent()
    own = os.path.join(os.environ["SHOAL_SESSION"], "files")
    if not sent:
        return cwd, path
    if sent["store"] == own:  # on the sender's host this process, too, locks the packages that the sender has fetched, so that they stay
        for root, package in sent["of"].items():
            if root == os.path.join(own, package[:24]):
                _fetched(package, Path(own))
        return cwd, path
    Path(own).mkdir(mode=0o700, exist_ok=True)
    moved = {root: _fetched(package, Path(own)) for root, package in sent["of"].items()}
    env = json.loads(variable("SHOAL_RUNTIME_ENV", "{}"))
    end = packages.end_of(env)
    for tool in env.keys() & {"pip", "uv"}:
        with _locked(Path(own, f"{tool}.use"), fcntl.LOCK_EX):
            installed = packages.installed(tool, env[tool], Path(own), end)
        theirs = [p for p in path if p not in moved and p.startswith(os.path.join(sent["store"], f"{tool}-"))]
        moved.update(dict.fromkeys(theirs, installed))

    def translated(given: str) -> str:
        for root, own_root in moved.items():
            if given == root or given.startswith(root + "/"):
                return own_root + given[len(root) :]
        return given

    if "working_dir" in env:
        env["working_dir"] = translated(env["working_dir"])
    if "py_modules" in env:
        env["py_modules"] = [translated(m) for m in env["py_modules"]]
    os.environ["SHOAL_RUNTIME_ENV"] = json.dumps(env)
    os.environ[ENVIRONMENT] = json.dumps({"store": own, "of": {moved[root]: package for root, package in sent["of"].items()}})
    return translated(cwd), [translated(p) for p in path]


def in_place(folder: str) -> bool:
    """True if this is the host of the process that named ``folder`` in the runtime_env, and the folder still exists."""
    sent = _sent()
    return os.path.isdir(folder) and folder in sent.get("of", {}) and sent["store"] == os.path.join(os.environ["SHOAL_SESSION"], "files")


def _fetched(package: str, own: Path) -> str:
    """Returns the local folder of a package, which stays while this process lives."""
    target, use = own / package[:24], own / f"{package[:24]}.use"
    fd = os.open(use, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.set_inheritable(fd, True)  # inherited by programs that this process executes or starts
    _in_use.append(fd)
    fcntl.flock(fd, fcntl.LOCK_SH)  # while this process has the lock, no process removes the folder
    if not target.is_dir():
        with _locked(own / f"{package[:24]}.bringing", fcntl.LOCK_EX):
            if not target.is_dir():
                size = _bring(package, target)
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(size).encode(), 0)
    os.utime(fd)
    _forget_others(own)
    return str(target)


def _bring(package: str, target: Path) -> int:
    # One process at a time makes this folder, so an existing one is left over from a process that was killed.
    making = target.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    with tempfile.TemporaryFile(dir=target.parent) as file:
        digest, offset, total = hashlib.sha256(), 0, 1
        while offset < total:
            total, part = attach_worker().get_package(package, offset)
            digest.update(part)
            file.write(part)
            offset += len(part)
        if digest.hexdigest() != package:
            raise DataLoss(f"the head sent package {package[:12]} with other content than its digest names")
        file.seek(0)
        size = unpack(file, making)
    making.rename(target)
    return size


def _forget_others(own: Path) -> None:
    """Deletes packages that no process uses, least recently used first, while they exceed the limit."""
    have = sorted((u.stat().st_mtime_ns, int(u.read_text() or 0), u) for u in own.glob("*.use") if u.with_suffix("").is_dir())
    too_much = sum(size for _, size, _ in have) - int(variable(_CACHE, _CACHE_BYTES))
    for _, size, use in have:
        if too_much <= 0:
            return
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(use, fcntl.LOCK_EX | fcntl.LOCK_NB):
            gone = use.with_suffix(".gone")
            shutil.rmtree(gone, ignore_errors=True)
            use.with_suffix("").rename(gone)  # renamed first, so that an interrupted removal leaves no incomplete folder under the name
            shutil.rmtree(gone, ignore_errors=True)
            too_much -= size


@contextlib.contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)
