"""Which call printed what. A worker that runs one call at a time writes a mark, a line of its own, before the first line that a call prints
on a stream. Its node takes the marks out again (scheduler/node/task_marks.h): nobody else sees them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from shoal._context import running

__all__ = ["mark_beginning", "mark_output"]

_MARK = "\x01shoal task "
_NO_CALL = "0" * 32


class _Marked(io.TextIOWrapper):
    """What C and other processes write past it belongs to the call that printed last."""

    _said = ("", "")  # task and name of the last mark
    _at_start = True  # of a line, as far as this stream knows
    _pipe = None  # the node's; user code may have put a file in its place

    def write(self, text: str, /) -> int:
        if not text:
            return 0
        call, mark = running.incoming, ""
        if self._at_start and call is not None:
            mark = self._mark(call.task_id, running.where)
        self._at_start = text.endswith("\n")
        super().write(mark + text)
        return len(text)

    def begin(self) -> None:
        if self._at_start:
            super().write(self._mark(_NO_CALL, ""))
            self.flush()

    def _mark(self, task: str, name: str) -> str:
        """What is to be written first, "" when it was."""
        if (task, name) == self._said or _file(self) != self._pipe:
            return ""
        self._said = task, name
        mark = f"{_MARK}{task} {name}".replace("\n", " ") + "\n"
        return mark.encode(self.encoding, "backslashreplace").decode(self.encoding)


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
        raw = io.FileIO(old.fileno(), "wb", closefd=False)  # not the old one, which knew another file by this descriptor
        raw.name = old.name
        buffer: Any = raw if isinstance(old.buffer, io.RawIOBase) else io.BufferedWriter(raw)
        how = {"line_buffering": old.line_buffering, "write_through": old.write_through}
        new = _Marked(buffer, encoding=old.encoding, errors=old.errors, **how)
        new.mode, new._pipe = "w", _file(new)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        _streams.append(new)


def mark_beginning() -> None:
    """This process says of its calls what they print; what is printed until the first one does is of none. Also where no call ever prints
    through Python."""
    for stream in _streams:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            stream.begin()
