"""``runtime_env``: the environment of the processes of a job, an actor or a function. Names and errors are Ray's.

Folders are copied into the session's folder before the first process needs them; later changes have no effect. The key of a copy is made
of path, names, sizes and times, so that a folder is copied once. ``shipping`` sends copies to other hosts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from shoal._core.process import session, state
from shoal._core.variables import switch, variable
from shoal._runtime_env import ignored, packages, shipping
from shoal.exceptions import RuntimeEnvSetupError, Unimplemented

__all__ = ["check", "chosen", "expanded", "inherited", "merged", "prepare"]

_KEYS = {"config", "env_vars", "excludes", "pip", "py_modules", "uv", "working_dir"}
_RAYS_OTHERS = {
    "conda", "container", "image_uri", "java_jars", "mpi", "nsight", "py_executable", "rocprof_sys", "worker_process_setup_hook",
}  # fmt: skip
_ALWAYS_LEFT_OUT = (".git", ".venv", "venv", "__pycache__")  # as in Ray


def check(env: Any) -> dict[str, Any]:
    """Returns ``env`` with defaults removed. Raises TypeError, ValueError or Unimplemented for an invalid one."""
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
    _check_config(env.get("config") or {})
    out = {k: v for k, v in env.items() if v}
    for tool in out.keys() & {"pip", "uv"}:
        out[tool] = packages.check(tool, out[tool])
    if "pip" in out and "uv" in out:
        raise ValueError("runtime_env has pip or uv, not both")
    if "py_modules" in out:
        out["py_modules"] = [_path_of(m) for m in out["py_modules"]]
    return out


def _check_config(config: Any) -> None:
    kinds = {"setup_timeout_seconds": int, "eager_install": bool, "log_files": list}
    if not isinstance(config, dict):
        raise TypeError(f"config of runtime_env is a dict, not {type(config).__name__}")
    for name, value in config.items():
        if name not in kinds:
            raise ValueError(f"config of runtime_env has no {name}; there are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]):
            raise TypeError(f"{name} of runtime_env is of {kinds[name].__name__}, not {value!r}")
    if (timeout := config.get("setup_timeout_seconds", -1)) <= 0 and timeout != -1:
        raise ValueError(f"setup_timeout_seconds of runtime_env is above 0, or -1 for none, not {timeout}")


def _path_of(module: Any) -> str:
    """The path of a module's source. The module is given as a path or as an imported module."""
    if isinstance(module, (str, os.PathLike)):
        return os.fspath(module)
    if not isinstance(module, types.ModuleType) or not (getattr(module, "__file__", None) or getattr(module, "__path__", None)):
        raise TypeError(f"py_modules of runtime_env lists modules and paths of them, not {module!r}")
    places = list(getattr(module, "__path__", [module.__file__]))
    if len(places) != 1:
        raise ValueError(f"py_modules of runtime_env: {module.__name__} lies in {len(places)} folders")
    return places[0]


def inherited() -> dict[str, Any]:
    """The environment from this process's start or from ``init``, which its children inherit by default."""
    if state.runtime_env is None:
        state.runtime_env = json.loads(variable("SHOAL_RUNTIME_ENV", "{}"))
    return state.runtime_env


def merged(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """``inner`` overrides ``outer``; ``env_vars`` are merged by name."""
    tools = ("pip", "uv") if inner.keys() & {"pip", "uv"} else ()
    out = {**{k: v for k, v in outer.items() if k not in tools}, **inner}
    if variables := {**outer.get("env_vars", {}), **inner.get("env_vars", {})}:
        out["env_vars"] = variables
    return out


def expanded(value: str) -> str:
    """Returns the value with variables filled in for ``$NAME`` and ``${NAME}``; a missing ``${NAME}`` becomes ""."""
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))


def prepare(env: dict[str, Any]) -> dict[str, Any]:
    """Returns the ``env``, ``cwd`` and ``python_path`` with which a process is to start. Raises RuntimeEnvSetupError."""
    env = check(env)
    if not env:
        return {}
    resolved: dict[str, Any] = {k: env[k] for k in ("config", "env_vars") if k in env}
    end = packages.end_of(env)
    path: list[str] = []
    out: dict[str, Any] = {"env": dict(env.get("env_vars", {}))}
    if "working_dir" in env:
        resolved["working_dir"] = out["cwd"] = _kept(env["working_dir"], env.get("excludes", ()), "working_dir")
        path.append(out["cwd"])
    if "py_modules" in env:
        resolved["py_modules"] = [_module(m, env.get("excludes", ())) for m in env["py_modules"]]
        path += [m if Path(m).parent == _store() else os.path.dirname(m) for m in resolved["py_modules"]]
    for tool in ("pip", "uv"):
        if tool in env:
            resolved[tool] = packages.check(tool, env[tool])
            path.append(packages.installed(tool, resolved[tool], _store(), end))
    out["env"]["SHOAL_RUNTIME_ENV"] = json.dumps(resolved)
    if path and shipping.needed():
        mine = [given for key in ("working_dir", "py_modules") for given in _list(resolved.get(key))]
        roots = (str(_store() / Path(given).relative_to(_store()).parts[0]) for given in mine)
        out["env"][shipping.ENVIRONMENT] = shipping.leave(roots, str(_store()))
    return {**out, "python_path": path}


def _list(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


def _store() -> Path:
    folder = Path(session().folder, "files")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _module(given: str, excludes: Any) -> str:
    """Returns the copy of a module's folder or file, or for a .whl or .zip the folder to import from."""
    if not given.endswith(".whl"):
        return _kept(given, excludes, "py_modules", as_module=True)
    wheel = Path(given).expanduser().resolve()
    if not wheel.is_file():
        raise ValueError(f"py_modules of runtime_env: there is no wheel at {wheel}")
    stat = wheel.stat()
    config = {"packages": [str(wheel), "--no-deps", "--no-index"], "of": [stat.st_size, stat.st_mtime_ns]}
    return packages.installed("pip", config, _store())


def _kept(given: str | os.PathLike, excludes: Any, what: str, *, as_module: bool = False) -> str:
    """Returns the session's copy of a folder or .zip. A module's copy keeps its name."""
    text = os.fspath(given)
    if "://" in text:
        raise Unimplemented(f"{what} of runtime_env cannot be an address ({text})", hint="give a folder or a .zip of this host")
    source = Path(text).expanduser().resolve()
    if source.is_relative_to(_store()):
        return str(source)  # it is a copy already, made by the process that started this one
    zipped, lone = source.suffix == ".zip" and source.is_file(), as_module and source.suffix == ".py" and source.is_file()
    if not zipped and not lone and not source.is_dir():
        kinds = "a module, a folder, a .py, a .zip or a .whl" if as_module else "a folder or a .zip"
        raise ValueError(f"{what} of runtime_env must name {kinds}: {source} is none")
    files = chosen(source, excludes, what) if source.is_dir() else _checked([(source, source.name)], source, what)
    digest = hashlib.sha256()
    for file, name in files:
        stat = file.stat()
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_mode}\0".encode())
    digest.update(str(source).encode())
    target = _store() / digest.hexdigest()[:24]
    inner = target / source.name if as_module and not zipped and not lone else target
    if not target.exists():
        making = Path(tempfile.mkdtemp(dir=_store()))
        into = making / inner.relative_to(target)
        with shipping.removed_on_failure(making):
            if zipped:
                shipping.unpack(source, into)
            else:
                for file, name in files:
                    (into / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, into / name)
                into.mkdir(parents=True, exist_ok=True)
            if shipping.needed():
                shipping.keep_packed(making, Path(f"{target}.zip"))
        _publish(making, target)
    return str(inner / source.name if lone else inner)


def chosen(source: Path, excludes: Iterable[str], what: str) -> list[tuple[Path, str]]:
    """Returns (path, relative name) of a folder's files, without excluded ones. RuntimeEnvSetupError when they are too large."""
    read = not switch("SHOAL_RUNTIME_ENV_IGNORE_GITIGNORE")
    return _checked(list(ignored.files(source, [*_ALWAYS_LEFT_OUT, *excludes], from_folders=read)), source, what)


def _checked(files: list[tuple[Path, str]], source: Path, what: str) -> list[tuple[Path, str]]:
    size = sum(f.stat().st_size for f, _ in files)
    if size > shipping.MAX_BYTES:
        raise RuntimeEnvSetupError(
            f"{what} of runtime_env, {source}, has {size >> 20} MiB; {shipping.MAX_BYTES >> 20} are allowed",
            hint="list files that processes do not need in excludes",
        )
    entries = len({path for _, name in files for path in (PurePosixPath(name), *PurePosixPath(name).parents[:-1])})
    if entries > shipping.MAX_ENTRIES:
        raise RuntimeEnvSetupError(
            f"{what} of runtime_env, {source}, has {entries} files and folders; {shipping.MAX_ENTRIES} are allowed",
            hint="list files that processes do not need in excludes",
        )
    return files


def _publish(making: Path, target: Path) -> None:
    try:
        making.rename(target)
    except OSError:  # another process has made it meanwhile
        shutil.rmtree(making, ignore_errors=True)
