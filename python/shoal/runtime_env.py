"""``RuntimeEnv``: a ``runtime_env`` that is looked at where it is made. Names are Ray's; a dict does as well."""

from __future__ import annotations

from typing import Any

from shoal import _environment

__all__ = ["RuntimeEnv"]


class RuntimeEnv(dict):
    """``env_vars``, ``working_dir``, ``py_modules``, ``excludes``, ``pip`` as keywords. TypeError or ValueError for what makes no sense."""

    def __init__(self, **keys: Any):
        super().__init__(_environment.check({k: v for k, v in keys.items() if v is not None}))

    def to_dict(self) -> dict[str, Any]:
        return dict(self)
