"""Marks in a worker's output that attribute it to calls.

A worker that runs one call at a time writes a mark, as a separate line, before a call's first line on each stream. A worker of
functions also writes one when the called function changes, because C code and other processes bypass these streams. The node removes the
marks (scheduler/node/logs/task_marks.h).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from shoal._core.context import running

__all__ = ["mark_beginning", "mark_function", "mark_output"]

_MARK = "\x01shoal task "
_NO_CALL = "0" * 32


class _Marked(io.TextIOWrapper):
    """A marked stream. Output that bypasses it is attributed to the last call that printed, or to a function called since."""

    _said = ("", "")  # task and name of the last mark
    _at_start = True  # this stream's output ends with a line end
    _pipe = None  # device and inode of the node's pipe, which user code may replace

    _writes = False  # this stream itself, and not other code, is writing to its buffer

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
            os.write(self.fileno(), mark.encode(self.encoding, self.errors))  # ends a line that the last function has not ended
            self._at_start = True

    def mark_bytes(self, data) -> bytes:
        """Flushes earlier text, and returns the mark to write before ``data``, which other code is about to write to the buffer."""
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
        """Returns the mark to write first. Returns "" if it was the last mark, or if user code has replaced the node's pipe."""
        if (task, name) == self._said or _file(self) != self._pipe:
            return ""
        self._said = task, name
        mark = f"{_MARK}{task} {name}".replace("\n", " ") + "\n"
        return mark.encode(self.encoding, "backslashreplace").decode(self.encoding)


class _MarkedFile(io.FileIO):
    """The file under an unbuffered stream, which user code also reaches as ``sys.stdout.buffer``."""

    text: _Marked | None = None
    raw = property(lambda self: self)  # so that ``buffer.raw`` exists, as for a buffered stream

    def write(self, data, /) -> int | None:
        if self.text is not None and (mark := self.text.mark_bytes(data)):
            super().write(mark)
        return super().write(data)


class _MarkedBuffer(io.BufferedWriter):
    """The buffer under a buffered stream, which users also reach as ``sys.stdout.buffer``."""

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
    """Marks the output of print() and everything else through ``sys.stdout`` and ``sys.stderr``. It must be called once, before other code
    keeps one of them. No mark is written while no call runs (``running.incoming``)."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if type(old) is not io.TextIOWrapper:
            continue
        old.flush()
        # A new file object: the descriptor may have been replaced since the old one was made.
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
    """Marks the start of this process's calls: earlier output belongs to no call. Writes the mark even if no call prints through Python."""
    for stream in _streams:
        with contextlib.suppress(OSError, ValueError):  # the stream may be closed
            stream.begin()


_function = ""  # the function called last


def mark_function() -> None:
    """Attributes further output, also that of C code and other processes, to the running call's function. It costs two writes when the
    function changes, and nothing otherwise."""
    global _function
    if running.where == _function:
        return
    _function = running.where
    for stream in _streams:
        with contextlib.suppress(OSError, ValueError):  # the stream may be closed
            stream.begin_function()
