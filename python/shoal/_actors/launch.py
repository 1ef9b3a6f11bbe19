"""The start parameters of a worker of this driver: interpreter, import path, folder and environment."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache
from typing import Any

from shoal._core.local_cluster import package_path
from shoal._core.process import state
from shoal._runtime_env import environment

__all__ = ["interpreters_paths", "launch"]


@cache
def interpreters_paths() -> frozenset[str]:
    """The folders of the standard library and of site-packages. The first call reads files; a zygote makes it before it forks workers."""
    own = *sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_config_var("DESTSHARED")
    return frozenset(own)


def launch(
    cpus: float = 0, *, torch: bool = False, env: dict[str, str] | None = None, runtime_env: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the start parameters of a worker of this driver: same interpreter, import path and folder, unless ``runtime_env`` differs. By
    default it computes with as many threads as it has CPUs."""
    around = environment.prepare(environment.merged(environment.inherited(), runtime_env or {}))
    # Like Python, ignores entries of sys.path that are no str, and archives that do not exist.
    there = [p for p in sys.path if isinstance(p, str) and (not p.endswith(".zip") or os.path.exists(p))]
    path = [os.path.abspath(p) if p else os.getcwd() for p in there]
    # The script's folder comes first, unless Python left it out: the main module of `python -m package.main` is no script.
    scripts = {os.path.dirname(way(sys.argv[0])) for way in (os.path.abspath, os.path.realpath)} if sys.argv else set()
    script = [p for p in path if p in scripts][:1]
    # The worker has its own standard library and site-packages: only added entries matter.
    added = [p for p in path if p not in interpreters_paths()]
    ours = package_path().split(os.pathsep)
    logging = {} if state.logging is None else state.logging._as_environment()
    threads = {"OMP_NUM_THREADS": str(int(cpus))} if cpus >= 2 else {}
    return {
        "program": sys.executable,
        "torch": torch,
        "cwd": around.get("cwd") or os.getcwd(),
        "env": list({**threads, **around.get("env", {}), "SHOAL_NAMESPACE": state.namespace, **logging, **(env or {})}.items()),
        "python_path": list(dict.fromkeys(around.get("python_path", []) + script + ours + added)),
    }
