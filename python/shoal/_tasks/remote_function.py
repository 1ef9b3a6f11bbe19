"""``RemoteFunction``: a function decorated with ``remote``, which makes tasks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from shoal._actors.options import INVOCATION_DECORATOR, check_call_options
from shoal._actors.resources import RESOURCE_OPTIONS, check_options, resources_of
from shoal._core import serialize
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._core.signature import Signature, of_callable
from shoal._objects.refs import ObjectRef
from shoal._objects.streams import ObjectRefGenerator
from shoal._tasks.functions import Sent
from shoal._tasks.pool import Function, FunctionPool

__all__ = ["RemoteFunction"]


class RemoteFunction:
    """A function decorated with ``remote``.

    Its copies, also those by ``options``, share its identity. Workers cache functions by identity, because two functions of one factory
    have equal pickles but separate closures.
    """

    def __init__(self, function, options: dict[str, Any], identity: bytes = b""):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ValueError(
                f"'async def' should not be used for remote tasks ({getattr(function, '__qualname__', function)}): "
                "write an ordinary function that calls asyncio.run() with it, or an actor with async methods"
            )
        if not hasattr(function, "__name__"):
            raise TypeError(f"a remote function is a function, not {function!r}: write one that calls it")
        options = check_call_options(options, "remote functions", RESOURCE_OPTIONS)
        self._function, self._options, self._known = function, options, None  # _known: its registration with the session
        self._identity = identity or os.urandom(serialize.IDENTITY_BYTES)
        self._sent: list = []  # at most one element; shared with copies by options()
        self._decorator = getattr(function, INVOCATION_DECORATOR, None)
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @cached_property
    def _takes(self) -> Signature | None:
        return of_callable(self._function)

    def options(self, /, **options) -> RemoteFunction:
        options = {**self._options, **check_options(options)}
        options = check_call_options(options, "remote functions", RESOURCE_OPTIONS)
        self._takes  # noqa: B018 computed once, for the copies as well
        other = object.__new__(RemoteFunction)
        other.__dict__.update(self.__dict__, _options=options, _known=None)
        return other

    def remote(self, /, *args, **kwargs) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        return self._call(args, kwargs) if self._decorator is None else self._decorator(self._call)(args, kwargs)

    def _call(self, args: Sequence, kwargs: dict[str, Any]):
        if (takes := self._takes) is not None and (kwargs or not takes.least <= len(args) <= takes.most):
            takes.check(self.__name__, args, kwargs)
        session, function = _session(), self._known
        if function is None or function.session is not session:
            function = self._known = self._know()
        return state.functions.submit(function, tuple(args), kwargs)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options):
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        called = self.options(**options) if options else self
        return called.remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        """Returns a call that is not made yet: a node of a graph (``shoal.dag``) that is executed without compilation."""
        return state.import_graphs().FunctionNode(self, args, kwargs)

    def _know(self):
        if state.functions is None:
            state.functions = FunctionPool()
        options = {k: v for k, v in self._options.items() if v is not None}
        if "num_returns" not in options and inspect.isgeneratorfunction(self._function):
            options["num_returns"] = "streaming"
        name = options.get("name") or self.__name__
        if not self._sent or self._sent[0].session is not _session():
            self._sent[:] = [Sent(self._function, name, self._identity)]
        return Function(self._sent[0], name, resources_of(options, 1), options)

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"call {self.__name__}.remote(...), or the plain function")

    def __reduce__(self):
        return RemoteFunction, (self._function, self._options, self._identity)
