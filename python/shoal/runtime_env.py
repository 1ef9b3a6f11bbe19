"""``RuntimeEnv``: a ``runtime_env`` that is looked at where it is made. Names are Ray's; a dict does as well."""

from __future__ import annotations

from typing import Any

from shoal import _environment

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]


class RuntimeEnv(dict):
    """``env_vars``, ``working_dir``, ``py_modules``, ``excludes``, ``pip``, ``uv``, ``config`` as keywords. TypeError or ValueError for
    what makes no sense."""

    def __init__(self, /, **keys: Any):
        super().__init__(_environment.check({k: v for k, v in keys.items() if v is not None}))

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class RuntimeEnvConfig(dict):
    """``config`` of a ``runtime_env``. ``setup_timeout_seconds``: how long ``pip`` or ``uv`` may take for it, -1 for no limit (also the
    default); then RuntimeEnvSetupError. ``eager_install`` and ``log_files`` change nothing: it is made when a process first needs it, and
    what failed is in the error."""

    def __init__(self, setup_timeout_seconds: int = -1, eager_install: bool = True, log_files: list[str] | None = None):
        super().__init__(setup_timeout_seconds=setup_timeout_seconds, eager_install=eager_install, log_files=log_files or [])
        _environment.check({"config": self})
