"""``runtime_env``: what the processes of a job, an actor or a function find around them. Names and errors are Ray's.

Folders are copied into the session's own, by their content, before the first process that needs them: what changes in them later changes
nothing there, and what is the same is copied once.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from shoal._runtime import session, state
from shoal.exceptions import RuntimeEnvSetupError, Unimplemented

__all__ = ["check", "inherited", "merged", "prepare"]

_KEYS = {"env_vars", "excludes", "pip", "py_modules", "working_dir"}
_RAYS_OTHERS = {"conda", "config", "container", "image_uri", "java_jars", "mpi", "nsight", "uv", "worker_process_setup_hook"}
_MAX_BYTES = 500 << 20  # of one folder, as Ray has it
_ALWAYS_LEFT_OUT = (".git", "__pycache__")


def check(env: Any) -> dict[str, Any]:
    """What is given, if it is one that can be made."""
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise TypeError(f"runtime_env is a dict, not {type(env).__name__}")
    for key in env:
        if key in _RAYS_OTHERS:
            raise Unimplemented(f"{key} of runtime_env is not in this release", hint=f"use {', '.join(sorted(_KEYS))}")
        if key not in _KEYS:
            raise ValueError(f"runtime_env has no {key}; there are {', '.join(sorted(_KEYS))}")
    variables = env.get("env_vars") or {}
    if not isinstance(variables, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in variables.items()):
        raise TypeError(f"env_vars of runtime_env is a dict of str by str, not {variables!r}")
    for key in ("excludes", "py_modules"):
        if not isinstance(env.get(key) or [], (list, tuple)):
            raise TypeError(f"{key} of runtime_env is a list, not {type(env[key]).__name__}")
    if not isinstance(env.get("working_dir") or "", (str, os.PathLike)):
        raise TypeError(f"working_dir of runtime_env is a path, not {type(env['working_dir']).__name__}")
    _packages(env.get("pip"))
    return {k: v for k, v in env.items() if v}


def inherited() -> dict[str, Any]:
    """What this process was started with, or ``init`` was given: what its children get unless told otherwise."""
    if state.runtime_env is None:
        state.runtime_env = json.loads(os.environ.get("SHOAL_RUNTIME_ENV", "{}"))
    return state.runtime_env


def merged(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """``inner`` decides; of ``env_vars`` each by itself."""
    out = {**outer, **inner}
    if variables := {**outer.get("env_vars", {}), **inner.get("env_vars", {})}:
        out["env_vars"] = variables
    return out


def prepare(env: dict[str, Any]) -> dict[str, Any]:
    """For ``launch``: ``env``, ``cwd`` and ``python_path`` of a process. Raises RuntimeEnvSetupError."""
    if not env:
        return {}
    done: dict[str, Any] = {k: env[k] for k in ("env_vars",) if k in env}
    path: list[str] = []
    out: dict[str, Any] = {"env": dict(env.get("env_vars", {}))}
    if "working_dir" in env:
        done["working_dir"] = out["cwd"] = _kept(env["working_dir"], env.get("excludes", ()), "working_dir")
        path.append(out["cwd"])
    if "py_modules" in env:
        done["py_modules"] = [_kept(m, env.get("excludes", ()), "py_modules", as_module=True) for m in env["py_modules"]]
        path += [os.path.dirname(m) for m in done["py_modules"]]
    if "pip" in env:
        done["pip"] = _packages(env["pip"])
        path.append(_installed(done["pip"]))
    out["env"]["SHOAL_RUNTIME_ENV"] = json.dumps(done)
    return {**out, "python_path": path}


def _store() -> Path:
    folder = Path(session().folder, "files")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _kept(given: str | os.PathLike, excludes: Any, what: str, *, as_module: bool = False) -> str:
    """The session's copy of a folder or of a .zip; of a module it keeps the name."""
    text = os.fspath(given)
    if "://" in text:
        raise Unimplemented(f"{what} of runtime_env at an address ({text})", hint="give a folder or a .zip of this host")
    source = Path(text).expanduser().resolve()
    if source.is_relative_to(_store()):
        return str(source)  # of the process that started this one
    zipped = source.suffix == ".zip" and source.is_file()
    if not zipped and not source.is_dir():
        raise ValueError(f"{what} of runtime_env is a folder or a .zip: there is none at {source}")
    files = [(source, source.name)] if zipped else list(_files(source, excludes))
    size = sum(f.stat().st_size for f, _ in files)
    if size > _MAX_BYTES:
        raise RuntimeEnvSetupError(
            f"{what} of runtime_env, {source}, has {size >> 20} MiB; {_MAX_BYTES >> 20} are allowed",
            hint="name in excludes what processes do not need",
        )
    digest = hashlib.sha256()
    for file, name in files:
        stat = file.stat()
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_mode}\0".encode())
    digest.update(str(source).encode())
    target = _store() / digest.hexdigest()[:24]
    inner = target / source.name if as_module and not zipped else target
    if not target.exists():
        making = Path(tempfile.mkdtemp(dir=_store()))
        into = making / inner.relative_to(target)
        if zipped:
            with zipfile.ZipFile(source) as archive:
                archive.extractall(into)
        else:
            for file, name in files:
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, into / name)
            into.mkdir(parents=True, exist_ok=True)
        _publish(making, target)
    return str(inner)


def _files(folder: Path, excludes: Any):
    """(path, name in the folder) of what is not left out: patterns match a name or a path within the folder."""
    patterns = [str(p).strip("/") for p in (*_ALWAYS_LEFT_OUT, *excludes)]

    def left_out(relative: str) -> bool:
        name = relative.rpartition("/")[2]
        return any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(relative, p) for p in patterns)

    for at, folders, names in os.walk(folder):
        base = os.path.relpath(at, folder)
        prefix = "" if base == "." else base + "/"
        folders[:] = sorted(f for f in folders if not left_out(prefix + f))
        for name in sorted(names):
            path = Path(at, name)
            if path.is_file() and not left_out(prefix + name):  # no pipe, no link to nothing: an editor's lock
                yield path, prefix + name


def _publish(making: Path, target: Path) -> None:
    try:
        making.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(making, ignore_errors=True)


def _packages(given: Any) -> list[str]:
    if given is None:
        return []
    packages = given.get("packages") if isinstance(given, dict) else given
    if isinstance(packages, (str, os.PathLike)):
        packages = [line.strip() for line in Path(packages).read_text().splitlines() if line.strip() and not line.strip().startswith("#")]
    if not isinstance(packages, (list, tuple)) or not all(isinstance(p, str) for p in packages):
        raise TypeError(f"pip of runtime_env is a list of requirements, or the path of a file of them, not {given!r}")
    return list(packages)


def _installed(packages: list[str]) -> str:
    """A folder with these packages, from the index that pip is configured for."""
    target = _store() / ("pip-" + hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()[:24])
    if not target.exists():
        making = Path(tempfile.mkdtemp(dir=_store()))
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(making), *packages]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(making, ignore_errors=True)
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise RuntimeEnvSetupError(f"pip of runtime_env failed to install {', '.join(packages)}:\n{last}")
        _publish(making, target)
    return str(target)
