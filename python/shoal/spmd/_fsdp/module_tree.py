"""The modules inside a module, and facts about them; the tree is walked again only after a change."""

from __future__ import annotations

import functools
from collections import OrderedDict
from enum import EnumMeta
from itertools import chain, count
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_SWITCHES = {bool, str, FunctionType, BuiltinFunctionType, type, torch.dtype}
_MOST_FACTS = 256  # the most facts in a tree's cache
_number = count()


class ModuleTree:
    """The modules inside ``root``, as a cached list. Each call of ``modules`` notices replaced, added and removed modules at any depth."""

    def __init__(self, root: nn.Module):
        self._root = root
        self._modules: list[nn.Module] = []
        self._children: list[tuple[str, nn.Module | None]] | None = None
        self._facts: _Facts | None = None
        self._numbers: dict[Any, int] = {}

    def modules(self) -> list[nn.Module]:
        """Returns the list of ``root.modules()``. It is a new list after a change, else the same object."""
        if self._children is None or self._now() != self._children:
            self._modules = list(self._root.modules())
            self._children, self._facts = self._now(), None
        return self._modules

    def _now(self) -> list[tuple[str, nn.Module | None]]:
        return list(chain.from_iterable([m._modules.items() for m in self._modules]))

    def number(self) -> int:
        """Returns a number for the classes and attributes on which a forward depends. Equal facts have equal numbers, unless 256 other
        facts came in between; then the unit is tested again."""
        modules = self.modules()
        if self._facts is None or not self._facts.hold(modules):
            self._facts = _Facts(modules)
            names = tuple(name for name, _ in self._children or ())
            key = self._facts.key, tuple(map(id, modules)), names
            if key not in self._numbers:
                if len(self._numbers) >= _MOST_FACTS:
                    self._numbers.clear()
                self._numbers[key] = next(_number)
            self._facts.number = self._numbers[key]
        return self._facts.number


class _Facts:
    """The classes and attributes of modules on which a forward depends. ``hold`` compares attributes by type, switches by value, and
    torch's dicts of hooks (OrderedDicts) by their length. Numeric attributes are ignored, because programs count in them."""

    number: int

    def __init__(self, modules: list[nn.Module]):
        values = _attributes(modules)
        self._types = list(map(type, values))
        self._at = [i for i, kind in enumerate(self._types) if _decides(kind)]
        self._hooks_at = [i for i, kind in enumerate(self._types) if kind is OrderedDict]
        self._decisive = [values[i] for i in self._at]
        self._hooks = [len(values[i]) for i in self._hooks_at]
        self._classes = list(map(type, modules))
        self._forwards = [c.forward for c in self._classes]
        code = tuple(map(_code, self._decisive))
        self.key = tuple(self._types), code, tuple(self._hooks), tuple(self._classes), tuple(self._forwards)

    def hold(self, modules: list[nn.Module]) -> bool:
        values = _attributes(modules)
        return (
            list(map(type, values)) == self._types
            and list(map(values.__getitem__, self._at)) == self._decisive
            and [len(values[i]) for i in self._hooks_at] == self._hooks
            and list(map(type, modules)) == self._classes
            and [c.forward for c in self._classes] == self._forwards
        )


def _attributes(modules: list[nn.Module]) -> list[Any]:
    return list(chain.from_iterable([m.__dict__.values() for m in modules]))


def _decides(kind: type) -> bool:
    return kind in _SWITCHES or kind is MethodType or kind is functools.partial or type(kind) is EnumMeta


def _code(v: Any) -> Any:
    """Returns the part of an attribute that identifies its code: the function of a method or partial, else the attribute itself."""
    return v.__func__ if type(v) is MethodType else v.func if type(v) is functools.partial else v
