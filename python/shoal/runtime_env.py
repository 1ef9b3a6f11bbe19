"""``RuntimeEnv``: a ``runtime_env`` that is checked on construction. Names are Ray's; a dict is accepted as well."""

from __future__ import annotations

from typing import Any

from shoal._runtime_env import environment

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]


class RuntimeEnv(dict):
    """Keywords: ``env_vars``, ``working_dir``, ``py_modules``, ``excludes``, ``pip``, ``uv``, ``config``. Raises TypeError or ValueError
    for invalid ones."""

    def __init__(self, /, **keys: Any):
        super().__init__(environment.check({k: v for k, v in keys.items() if v is not None}))

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class RuntimeEnvConfig(dict):
    """``config`` of a ``runtime_env``. ``setup_timeout_seconds``: the limit for ``pip`` or ``uv`` (-1: none); beyond it
    RuntimeEnvSetupError. ``eager_install`` and ``log_files`` have no effect: the first process that needs the environment makes it, and the
    error has the output."""

    def __init__(self, setup_timeout_seconds: int = -1, eager_install: bool = True, log_files: list[str] | None = None):
        super().__init__(setup_timeout_seconds=setup_timeout_seconds, eager_install=eager_install, log_files=log_files or [])
        environment.check({"config": self})
