"""Facts of torch's operators, read from each schema once, and arguments as flat lists."""

from __future__ import annotations

import functools
from typing import Any

import torch

# The form of arguments: per positional one the length of its list, or None for no list; the keywords; the same per keyword argument.
Form = tuple[tuple[int | None, ...], tuple[str, ...], tuple[int | None, ...]]


class Operator:
    """Facts of one operator. ``name`` has no namespace. ``written``: (position, name) of each argument that the operator changes; the
    position is None for keyword-only ones. ``written_returns``: positions of results that are such arguments."""

    __slots__ = (
        "is_fused", "is_view", "name", "num_returns", "on_lists", "qualified_name", "random", "reshapes", "strided", "strides_given",
        "updates_statistics", "written", "written_returns",
    )  # fmt: skip

    def __init__(self, func: Any):
        schema = func._schema
        self.qualified_name: str = schema.name
        self.name = self.qualified_name.removeprefix("aten::")
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.reshapes = torch.Tag.inplace_view in func.tags
        self.is_fused = self.name.startswith("_fused_")
        self.on_lists = self.is_fused or self.name.startswith("_foreach_")
        self.strided = self.name.startswith("as_strided")
        self.strides_given = self.name == "new_empty_strided"
        aliases = [a.alias_info for a in schema.arguments]
        self.written = [
            (None if a.kwarg_only else i, a.name) for i, a in enumerate(schema.arguments) if aliases[i] is not None and aliases[i].is_write
        ]
        # True if the operator writes to running statistics that its schema does not mark as written
        self.updates_statistics = func is torch.ops.aten.native_batch_norm.default
        results = [r.alias_info for r in schema.returns]
        self.num_returns = len(results)
        self.written_returns = [i for i, info in enumerate(results) if info is not None and info.is_write]
        self.is_view = bool(results) and results[0] is not None and not results[0].is_write

    def written_by(self, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        """Returns the tensors that a call changes in place."""
        found: list[torch.Tensor] = []
        for i, name in self.written:
            value = args[i] if i is not None and i < len(args) else kwargs.get(name)
            found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]
        if self.updates_statistics and args[5]:
            found += [v for v in args[3:5] if v is not None]
        return found


@functools.cache
def operator_of(func: Any) -> Operator:
    return Operator(func)


def flatten(args: tuple, kwargs: dict) -> tuple[list[Any], Form]:
    """Returns the leaves and the form. Elements of lists are leaves, because schemas have no lists of lists."""
    flat: list[Any] = []
    positional = tuple([_append(flat, a) for a in args])
    if not kwargs:
        return flat, (positional, (), ())
    return flat, (positional, tuple(kwargs), tuple([_append(flat, a) for a in kwargs.values()]))


def unflatten(flat: list[Any], form: Form) -> tuple[tuple, dict]:
    """Reverses ``flatten``. A tuple comes back as a list, which operators accept as well."""
    positional, names, named = form
    leaves = iter(flat)
    args = tuple([next(leaves) if n is None else [next(leaves) for _ in range(n)] for n in positional])
    if not names:
        return args, {}
    return args, {name: next(leaves) if n is None else [next(leaves) for _ in range(n)] for name, n in zip(names, named, strict=True)}


def _append(flat: list[Any], a: Any) -> int | None:
    if isinstance(a, (list, tuple)):
        flat += a
        return len(a)
    flat.append(a)
    return None
