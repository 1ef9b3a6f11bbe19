"""Functions as sessions have them, pickled once, and the class of the workers that run them."""

from __future__ import annotations

import itertools

from shoal._actors.retry import Retries
from shoal._core import serialize
from shoal._core.process import session

__all__ = ["FunctionWorker", "Sent"]


class FunctionWorker:
    """The class of the actor in a worker of functions. It runs one task at a time."""

    def run(self, function, /, *args, **kwargs):
        return function(*args, **kwargs)


class Sent:
    """A function as one session sends it: pickled once, whatever the options of its calls."""

    _numbers = itertools.count(1)

    def __init__(self, function, name: str, identity: bytes):
        self.session, self._by_judgement = session(), {}
        try:
            head, buffers, refs = serialize.pack_function(function)
            serialize.check_size(f"remote function {name}", len(head) + sum(buffer.nbytes for buffer in buffers))
            # Pickle ignores bytes after its end; workers use them as the function's key (shoal._worker.serving).
            number = next(self._numbers).to_bytes(serialize.NUMBER_BYTES, "big")
            self.code = self.session.put(head + identity + (number if serialize.is_large(head, buffers) else b""), buffers, refs)
        except serialize.UNSENDABLE as error:
            hint = "shoal.util.inspect_serializability(..) of the function shows what it refers to"
            raise TypeError(f"remote function {name} cannot be sent: {error}; {hint}") from error

    def number(self, retries: Retries) -> int:
        """Returns a number for calls with equal rules for exceptions. By this number a pool finds the rules when a call has raised."""
        judgement = retries.exceptions if retries.judges_exceptions else False
        return self._by_judgement.setdefault(judgement, next(self._numbers))
