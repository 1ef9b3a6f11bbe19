"""Functions in the form in which pools and workers use them: pickled once, with the options of their calls."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from shoal._actors.calls import extra_of
from shoal._actors.placement import where
from shoal._actors.retry import Retries
from shoal._core import serialize
from shoal._core.process import session

if TYPE_CHECKING:
    from shoal._tasks.pool import _Pool

__all__ = ["Function", "FunctionWorker", "Sent"]

MAX_RETRIES = 3  # default for a task whose worker died


class FunctionWorker:
    """The class of the actor in a worker of functions. It runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


class Sent:
    """A function in a session: pickled once, and identified by a number, which does not depend on the options of its calls."""

    _numbers = itertools.count(1)

    def __init__(self, function, name: str, identity: bytes):
        self.session, self._by_judgement = session(), {}
        try:
            head, buffers, refs = serialize.pack_function(function)
            serialize.check_size(f"remote function {name}", len(head) + sum(buffer.nbytes for buffer in buffers))
            # Pickle ignores bytes after its end; workers use them as the function's key (shoal._worker.functions).
            number = next(self._numbers).to_bytes(serialize.NUMBER_BYTES, "big")
            self.code = self.session.put(head + identity + (number if serialize.is_large(head, buffers) else b""), buffers, refs)
        except serialize.UNSENDABLE as error:
            hint = "shoal.util.inspect_serializability(..) of the function shows what it refers to"
            raise TypeError(f"remote function {name} cannot be sent: {error}; {hint}") from error

    def number(self, retries: Retries) -> int:
        """Returns a number for calls with equal rules for exceptions. By this number a pool finds the rules when a call has raised."""
        judgement = retries.exceptions if retries.judges_exceptions else False
        return self._by_judgement.setdefault(judgement, next(self._numbers))


class Function:
    """A function with the options of its calls."""

    def __init__(self, sent: Sent, name: str, resources: dict[str, float], options: dict[str, Any]):
        self.session, self.code, self.name, self.resources = sent.session, sent.code, name, resources
        self.placed = (*where(options), options.get("runtime_env"))
        self.retries = Retries.of(options.get("max_retries", MAX_RETRIES), options.get("retry_exceptions", False))
        self.number = sent.number(self.retries)
        # Device memory is released only at the end of the process.
        self.max_calls = options.get("max_calls", 1 if resources.get("GPU") else 0)
        self.extra = extra_of(options)
        self.pool: _Pool | None = None
