"""Helpers of programs for Ray: results in order of arrival, a check of values that cannot be sent, messages logged once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from shoal._core import serialize
from shoal._core.process import session
from shoal._objects.refs import ObjectRef
from shoal._objects.values import get, wait

__all__ = ["as_completed", "disable_log_once_globally", "get_node_ip_address", "inspect_serializability", "log_once", "map_unordered"]


def as_completed(
    refs: Sequence[ObjectRef], *, chunk_size: int = 10, yield_obj_refs: bool = False, timeout: float | None = None
) -> Iterator[Any]:
    """Yields values, or with ``yield_obj_refs`` references, as they arrive, ``chunk_size`` at a time. Ends early when no chunk arrives
    within ``timeout`` seconds."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size is at least 1, not {chunk_size}")
    left = list(refs)
    while left:
        ready, left = wait(left, num_returns=min(chunk_size, len(left)), timeout=timeout)
        if not ready:
            return
        yield from ready if yield_obj_refs else get(ready)


def map_unordered(
    fn: Any, items: Iterable[Any], *, backpressure_size: int | None = 100, chunk_size: int = 10, yield_obj_refs: bool = False
) -> Iterator[Any]:
    """Calls ``fn.remote(item)`` for each item and yields results as they arrive. At most ``backpressure_size`` calls are in flight (None:
    unlimited). ``fn`` is a remote function or a method of an actor."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size is at least 1, not {chunk_size}")
    if backpressure_size is not None and backpressure_size < chunk_size:
        raise ValueError(f"backpressure_size is at least chunk_size ({chunk_size}), not {backpressure_size}")
    rest = iter(items)
    running: list[ObjectRef] = []
    while True:
        running += [fn.remote(item) for item in islice(rest, None if backpressure_size is None else backpressure_size - len(running))]
        if not running:
            return
        ready, running = wait(running, num_returns=min(chunk_size, len(running)))
        yield from ready if yield_obj_refs else get(ready)


class FailureTuple(NamedTuple):
    """An object that cannot be sent, with its name and the object that contains it."""

    obj: Any
    name: str
    parent: Any


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: Any = None
) -> tuple[bool, set[FailureTuple]]:
    """Returns (True if the object can be sent, the parts that prevent it). Parts are variables of a function's closure or attributes of an
    object, down to ``depth`` levels. The result is also printed, to ``print_file`` or stdout."""
    failures: set[FailureTuple] = set()
    good = _inspect(base_obj, name or getattr(base_obj, "__name__", repr(base_obj)), None, depth, failures)
    print(f"{name or base_obj!r} can {'' if good else 'not '}be sent", file=print_file)
    for failure in failures:
        print(f"  {failure.name} = {failure.obj!r}, of {failure.parent!r}", file=print_file)
    return good, failures


def _inspect(obj: Any, name: str, parent: Any, depth: int, failures: set[FailureTuple]) -> bool:
    try:
        serialize.dumps(obj)
        return True
    except Exception:
        pass
    guilty = False
    for part_name, part in _parts(obj).items() if depth > 1 else ():
        guilty |= not _inspect(part, part_name, obj, depth - 1, failures)
    if not guilty:
        failures.add(_Failure(obj, name, parent))
    return False


class _Failure(FailureTuple):
    """A FailureTuple with a hash, also for unhashable objects."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((id(self.obj), self.name, id(self.parent)))

    def __eq__(self, other) -> bool:
        return isinstance(other, FailureTuple) and (self.obj is other.obj and self.name == other.name and self.parent is other.parent)


def _parts(obj: Any) -> dict[str, Any]:
    if inspect.isfunction(obj):
        around = inspect.getclosurevars(obj)
        return {**around.globals, **around.nonlocals}
    if isinstance(obj, dict):
        return {str(k): v for k, v in obj.items()}
    if isinstance(obj, (list, tuple, set)):
        return {f"[{k}]": v for k, v in enumerate(obj)}
    return dict(vars(obj)) if hasattr(obj, "__dict__") else {}


def get_node_ip_address() -> str:
    """The address at which other hosts reach this node."""
    return session().host


_said: set[str] = set()
_silent = False


def log_once(key: str) -> bool:
    """True at the first call with this key in this process."""
    first = not _silent and key not in _said
    _said.add(key)
    return first


def disable_log_once_globally() -> None:
    """Makes all further calls of log_once return False."""
    global _silent
    _silent = True
