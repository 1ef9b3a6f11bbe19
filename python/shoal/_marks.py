"""Marks in a worker's output that say which call printed what. A worker that runs one call at a time writes a mark, a line of its
own, before the first line that a call prints on a stream. A worker of functions writes one, too, before a call of another function than the
one before: C and other processes write past these streams. Its node takes the marks out again (scheduler/node/task_marks.h), so that no
reader sees them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from shoal._context import running

__all__ = ["mark_beginning", "mark_function", "mark_output"]

_MARK = "\x01shoal task "
_NO_CALL = "0" * 32


class _Marked(io.TextIOWrapper):
    """Output that C and other processes write past it belongs to the call that printed last, or to the function called since."""

    _said = ("", "")  # task and name of the last mark
    _at_start = True  # of a line, as far as this stream knows
    _pipe = None  # the node's; user code may have put a file in its place

    _writes = False  # it is this stream that writes to its buffer, and not a user

    def write(self, text: str, /) -> int:
        if not text:
            return 0
        self._write(self._mark_of_call() + text)
        self._at_start = text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._writes, before = True, self._writes
        try:
            super().flush()
        finally:
            self._writes = before

    def begin(self) -> None:
        if self._at_start:
            self._write(self._mark(_NO_CALL, ""))
            self.flush()

    def begin_function(self) -> None:
        self.flush()
        if mark := self._mark(running.incoming.task_id, running.where):
            os.write(self.fileno(), mark.encode(self.encoding, self.errors))  # which ends a line that the function before has left open
            self._at_start = True

    def mark_bytes(self, data) -> bytes:
        """A user is about to write these bytes to the buffer: what is to be written first. Text that was written before them comes before
        them."""
        if self._writes or not (size := memoryview(data).nbytes):
            return b""
        self.flush()
        mark = self._mark_of_call()
        self._at_start = bytes(memoryview(data).cast("B")[size - 1 :]) == b"\n"
        return mark.encode(self.encoding, self.errors)

    def _write(self, text: str) -> None:
        self._writes, before = True, self._writes
        try:
            super().write(text)
        finally:
            self._writes = before

    def _mark_of_call(self) -> str:
        call = running.incoming
        return self._mark(call.task_id, running.where) if self._at_start and call is not None else ""

    def _mark(self, task: str, name: str) -> str:
        """The mark to write first; "" when it was written."""
        if (task, name) == self._said or _file(self) != self._pipe:
            return ""
        self._said = task, name
        mark = f"{_MARK}{task} {name}".replace("\n", " ") + "\n"
        return mark.encode(self.encoding, "backslashreplace").decode(self.encoding)


class _MarkedFile(io.FileIO):
    """The file that a stream without a buffer writes to, and users through ``sys.stdout.buffer``."""

    text: _Marked | None = None
    raw = property(lambda self: self)  # as of a stream with a buffer

    def write(self, data, /) -> int | None:
        if self.text is not None and (mark := self.text.mark_bytes(data)):
            super().write(mark)
        return super().write(data)


class _MarkedBuffer(io.BufferedWriter):
    """The same of a stream with a buffer."""

    text: _Marked | None = None

    def write(self, data, /) -> int:
        if self.text is not None and (mark := self.text.mark_bytes(data)):
            super().write(mark)
        return super().write(data)


def _file(stream: io.TextIOWrapper) -> tuple[int, int] | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_dev, status.st_ino


_streams: list[_Marked] = []


def mark_output() -> None:
    """From now on, of print() and all else that goes through ``sys.stdout`` and ``sys.stderr``; once, before anybody keeps one of them.
    Nothing is written while no call runs (``running.incoming``)."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if type(old) is not io.TextIOWrapper:
            continue
        old.flush()
        # Not the old file, which knew another one by this descriptor.
        kind, unbuffered = {"mode": "wb", "closefd": False}, isinstance(old.buffer, io.RawIOBase)
        raw = (_MarkedFile if unbuffered else io.FileIO)(old.fileno(), **kind)
        raw.name = old.name
        buffer: Any = raw if unbuffered else _MarkedBuffer(raw)
        how = {"line_buffering": old.line_buffering, "write_through": old.write_through}
        new = _Marked(buffer, encoding=old.encoding, errors=old.errors, **how)
        new.mode, new._pipe = "w", _file(new)
        buffer.text = new
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        _streams.append(new)


def mark_beginning() -> None:
    """This process says of its calls what they print; what is printed until the first one does is of none. Also where no call ever prints
    through Python."""
    for stream in _streams:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            stream.begin()


_function = ""  # that was called last


def mark_function() -> None:
    """Gives output from now on the name of the running call's function, also output of C and of other processes. It costs two writes
    where another function was called before, and nothing otherwise."""
    global _function
    if running.where == _function:
        return
    _function = running.where
    for stream in _streams:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            stream.begin_function()
