"""This rank's rows of a parameter: a tensor whose in-place operators first open the write window.

Other ranks read the rows in place. An operator that writes therefore waits until no rank reads this version, as an optimizer's step does.
This covers the ``DTensor``, ``p.data``, ``p.to_local()`` and all views of them. Reads are not intercepted.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from shoal.fsdp._parameters.slices import Slices


class Rows(torch.Tensor):
    """The local tensor of a sharded parameter, created by ``rows_of``. Operators return plain tensors, except for views; copies and pickles
    are plain."""

    _parameter: weakref.ref[Slices]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(t, Rows) for t in types):
            return NotImplemented  # a DTensor raises a clear error, an AsyncCollectiveTensor waits
        effect, kwargs = _effect(func), kwargs or {}
        written = effect.written(args, kwargs) if effect.writes else ()
        for t in written:
            if isinstance(t, Rows):
                t.before_write()
        with torch._C._DisableTorchDispatch():
            if Whole not in types:
                out = func(*args, **kwargs)
            else:
                out = func(*tree_map(_current, args), **tree_map(_current, kwargs))
                for t in written:
                    if isinstance(t, Whole):
                        t.after_write()
                if isinstance(out, torch.Tensor) and written:
                    return written[0]
        if not effect.views:
            return out
        source = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, Rows))
        if isinstance(out, (list, tuple)):
            return type(out)(_wrapped(t, type(source), source._parameter) for t in out)
        return _wrapped(out, type(source), source._parameter)

    def before_write(self) -> None:
        p = self._parameter()
        if p is not None and p.state is not None:
            p.state.writes.before_rows(p)

    def plain(self) -> torch.Tensor:
        """A plain tensor over the same memory. Writes to it do not open the window."""
        with torch._C._DisableTorchDispatch():
            return self.detach()

    def numpy(self, *, force: bool = False):
        """Returns the NumPy array of a plain tensor. It is read-only while the write window is closed, because its writes cannot be
        intercepted."""
        array = self.plain().numpy(force=force)
        p = self._parameter()
        if p is not None and p.state is not None and p.state.writes.guards(p):
            array.flags.writeable = False
        return array

    def tolist(self):
        return self.plain().tolist()  # torch's tolist() refuses subclasses of Tensor

    def __reduce_ex__(self, protocol):
        return self.plain().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return self.plain().clone()

    def __repr__(self, **kwargs):
        return self.plain().__repr__(**kwargs)


def rows_of(own: torch.Tensor, parameter: Slices) -> Rows:
    """Wraps ``own``, the memory of this rank's rows."""
    return _wrapped(own, Rows, weakref.ref(parameter))


class Whole(Rows):
    """A whole parameter after an evaluation, in memory that all ranks share. An operator that writes gets a private copy, and this rank's
    rows of the result are stored. Every rank must write the same."""

    def before_write(self) -> None:
        p = self._parameter()
        if p is not None and p.state is not None:
            p.state.writes.before_whole(p)

    def after_write(self) -> None:
        p = self._parameter()
        if p is not None and (copy := _copy_of(p)) is not None:
            p.own.copy_(p.slice(copy))

    def numpy(self, *, force: bool = False):
        array = super().numpy(force=force)
        array.flags.writeable = False
        return array


def _copy_of(p: Slices) -> torch.Tensor | None:
    root = None if p.state is None else p.state.root
    return None if root is None else root.copies.get(p)


def _current(t: Any) -> Any:
    """Replaces a view of a whole parameter by the same view of this rank's private copy, if there is one; returns other values
    unchanged."""
    p = t._parameter() if isinstance(t, Whole) else None
    copy = None if p is None else _copy_of(p)
    if copy is None or t.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr():
        return t
    return copy.as_strided(t.size(), t.stride(), t.storage_offset() - p.whole_offset)


def whole_of(t: torch.Tensor, parameter: Slices) -> Whole:
    return _wrapped(t.detach(), Whole, weakref.ref(parameter))


def _wrapped(t: Any, kind: type[Rows], parameter: weakref.ref[Slices]) -> Any:
    if type(t) is not torch.Tensor:
        return t
    rows = torch.Tensor._make_subclass(kind, t)
    rows._parameter = parameter
    return rows


# ---- effects of an operator on its arguments ----


@dataclass(frozen=True)
class _Effect:
    at: tuple[int, ...] = ()  # positions of written arguments
    named: tuple[str, ...] = ()  # names of written arguments
    views: bool = False  # the results are views of arguments

    @property
    def writes(self) -> bool:
        return bool(self.at or self.named)

    def written(self, args: tuple, kwargs: dict) -> list:
        return tree_leaves([*(args[i] for i in self.at if i < len(args)), *(kwargs[name] for name in self.named if name in kwargs)])


_COLLECTIVES_THAT_READ = {"c10d::send", "c10d::barrier", "c10d::monitored_barrier_"}


@functools.cache
def _effect(func) -> _Effect:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _Effect()
    if schema.name.startswith("c10d::"):  # schemas of collectives lack write annotations
        return _Effect() if schema.name in _COLLECTIVES_THAT_READ else _Effect(at=(0,))
    written = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return _Effect(
        tuple(i for i, a in written if not a.kwarg_only),
        tuple(a.name for _, a in written),
        any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
    )
