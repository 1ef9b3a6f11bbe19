"""``PublicAPI``, ``DeveloperAPI``, ``Deprecated``: decorators that mark a library's API. Names are Ray's; the first two have no effect."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

__all__ = ["Deprecated", "DeveloperAPI", "PublicAPI", "RayDeprecationWarning"]


class RayDeprecationWarning(DeprecationWarning):
    """The warning for targets of ``Deprecated(warning=True)``."""


def _plain(*args: Any, **_: Any):
    return args[0] if len(args) == 1 and callable(args[0]) else lambda target: target


PublicAPI = DeveloperAPI = _plain


def Deprecated(*args: Any, message: str = "", warning: bool = False):
    """Marks a target; with ``warning`` each use warns."""
    if len(args) == 1 and callable(args[0]):
        return args[0]

    def mark(target):
        if not warning:
            return target
        text = f"{target.__qualname__} is deprecated. {message}".rstrip()
        if inspect.isclass(target):
            original = target.__init__

            @functools.wraps(original)
            def init(self, /, *args, **kwargs):
                warnings.warn(text, RayDeprecationWarning, stacklevel=2)
                original(self, *args, **kwargs)

            target.__init__ = init
            return target

        @functools.wraps(target)
        def called(*args, **kwargs):
            warnings.warn(text, RayDeprecationWarning, stacklevel=2)
            return target(*args, **kwargs)

        return called

    return mark
