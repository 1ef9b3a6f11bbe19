"""Checks of a call's arguments. As in Ray, a wrong one raises TypeError at the call, not only when its result is fetched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Signature", "of_callable", "of_method"]


class Signature(NamedTuple):
    """``least`` and ``most`` bound the positional arguments of calls without keywords. It is small, as handles carry one per method."""

    least: int
    most: int
    positional: tuple[str, ...]
    required: int  # how many of ``positional`` are required
    only_positional: int
    any_positional: bool
    keywords: tuple[str, ...]
    required_keywords: tuple[str, ...]
    any_keyword: bool

    def check(self, name: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if not kwargs and self.least <= len(args) <= self.most:
            return
        count = len(args)
        if count > len(self.positional) and not self.any_positional:
            raise TypeError(f"{name}() takes {self._counts()} but {count} {'was' if count == 1 else 'were'} given")
        by_name = self.positional[self.only_positional :]
        for key in kwargs:
            if key in self.positional[self.only_positional : count]:
                raise TypeError(f"{name}() got multiple values for argument {key!r}")
            if key not in by_name and key not in self.keywords and not self.any_keyword:
                raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
        missing = [p for i, p in enumerate(self.positional[: self.required]) if i >= count and (p not in kwargs or p not in by_name)]
        missing += [k for k in self.required_keywords if k not in kwargs]
        if missing:
            raise TypeError(f"{name}() is missing {', '.join(map(repr, missing))}")

    def _counts(self) -> str:
        least, most = self.required, len(self.positional)
        return f"{most if least == most else f'{least} to {most}'} positional argument{'' if most == 1 else 's'}"


def of_callable(function: Callable, bound: int = 0) -> Signature | None:
    """Returns the signature without the first ``bound`` parameters, or None for a callable without one, which accepts anything."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)][bound:]
    keywords = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
    any_positional = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is kinds.empty for p in positional)
    needed = tuple(p.name for p in keywords if p.default is kinds.empty)
    return Signature(
        least=1 << 30 if needed else required,
        most=1 << 30 if any_positional else len(positional),
        positional=tuple(p.name for p in positional),
        required=required,
        only_positional=sum(p.kind is kinds.POSITIONAL_ONLY for p in positional),
        any_positional=any_positional,
        keywords=tuple(p.name for p in keywords),
        required_keywords=needed,
        any_keyword=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def of_method(cls: type, name: str) -> Signature | None:
    """Returns the signature that callers of an instance see."""
    defined = inspect.getattr_static(cls, name)
    if isinstance(defined, (staticmethod, classmethod)):
        return of_callable(getattr(cls, name))
    return of_callable(defined, bound=1) if inspect.isfunction(defined) else None
