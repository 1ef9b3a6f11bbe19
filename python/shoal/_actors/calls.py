"""The caller's side of a call: packed arguments, options that few calls have, and results."""

from __future__ import annotations

import pickle
from typing import Any

from shoal import _native
from shoal._core import serialize
from shoal._core.process import session as _session
from shoal._objects.refs import ObjectRef
from shoal._objects.streams import ObjectRefGenerator

__all__ = ["GRAPH", "HAND_OVER", "NO_ARGUMENTS", "RELEASE", "Dep", "extra_of", "pack_call", "results", "streaming"]

RELEASE = "__shoal_release__"  # the method that asks an actor to end, because no handle is left
HAND_OVER = "__shoal_last_words__"  # the method that asks a worker of functions for the actors that it leaves
GRAPH = "__shoal_graph__"  # the method that runs an actor's part in a compiled graph (shoal.dag)


class Dep:
    """Takes the place of a call's k-th reference argument in the pickled call."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return Dep, (self.k,)


# The packed arguments of a call without any.
NO_ARGUMENTS = serialize.dumps(((), {}))[0]

_Packed = tuple[bytes, list[memoryview], list[_native.Ref], list[_native.Ref]]


def _unsendable(args: tuple, kwargs: dict, error: Exception) -> Exception:
    """Returns the error with the name of the argument that caused it."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *((f"argument {k}=", a) for k, a in kwargs.items())):
        try:
            serialize.pack(value)
        except serialize.UNSENDABLE as own:
            return serialize.unsendable(name, value, own)
    return error


def pack_call(args: tuple, kwargs: dict, extra: dict[str, Any] | None = None, first: int = 0, ours: int = 0) -> _Packed:
    """Returns (value head, buffers, references that are arguments, references inside arguments). ``extra``: options that few calls have
    (num_returns, group, name). ``first``: the index of the first reference argument. ``ours``: the number of leading arguments that Shoal
    added. TypeError names an argument that cannot be pickled."""
    deps: list[_native.Ref] = []
    if not kwargs and not extra:  # the common case
        if not args:
            return NO_ARGUMENTS, [], deps, []
        if all(map(serialize.small, args)):
            return pickle.dumps((args, kwargs), protocol=5), [], deps, []
    if any(isinstance(a, ObjectRef) for a in args) or any(isinstance(a, ObjectRef) for a in kwargs.values()):

        def replaced(a):
            if not isinstance(a, ObjectRef):
                return a
            deps.append(a._ref)
            return Dep(first + len(deps) - 1)

        args = tuple(replaced(a) for a in args)
        kwargs = {k: replaced(a) for k, a in kwargs.items()}
    if args:
        args = tuple(map(serialize.beside, args))
    if kwargs:
        kwargs = {k: serialize.beside(a) for k, a in kwargs.items()}
    try:
        head, buffers, refs = serialize.pack((args, kwargs, extra) if extra else (args, kwargs))
    except serialize.UNSENDABLE as error:
        if (named := _unsendable(args[ours:], kwargs, error)) is error:
            raise
        raise named from error
    return head, buffers, deps, refs


def extra_of(options: dict[str, Any]) -> dict[str, Any]:
    return {k: options[k] for k in ("num_returns", "concurrency_group", "name") if k in options and (k, options[k]) != ("num_returns", 1)}


def streaming(extra: dict[str, Any], where: str) -> tuple[dict[str, Any], ObjectRefGenerator | None]:
    """Returns the options of one call, and the generator of its items if it streams them."""
    if extra.get("num_returns") != "streaming":
        return extra, None
    items = ObjectRefGenerator(where)
    return {**extra, "stream": items._stream}, items


def results(ref: _native.Ref, extra: dict[str, Any], where: str, items: ObjectRefGenerator | None = None):
    """Returns the result of ``.remote()``: a reference, a list of them, a generator, or None."""
    num_returns = extra.get("num_returns", 1)
    if num_returns in (1, "dynamic"):
        return ObjectRef(ref, where)
    if items is not None:
        return items._follow(ref)
    return [ObjectRef(r, where) for r in ref.split(_session(), num_returns)] if num_returns else None
