"""Which call printed what. A worker that runs one call at a time writes a mark, a line of its own, before the first line that a call prints
on a stream. Its node takes the marks out again (scheduler/node/task_marks.h): nobody else sees them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from shoal._context import running

__all__ = ["mark_output"]

_MARK = "\x01shoal task "


class _Marked(io.TextIOWrapper):
    """What C and other processes write past it belongs to the call that printed last."""

    _task = ""
    _at_start = True  # of a line
    _pipe = None  # the node's; user code may have put a file in its place

    def write(self, text: str, /) -> int:
        if not text:
            return 0
        call, mark = running.incoming, ""
        if self._at_start and call is not None and self._task != call.task_id and _file(self) == self._pipe:
            self._task = call.task_id
            mark = f"{_MARK}{self._task} {running.where}".replace("\n", " ") + "\n"
        self._at_start = text.endswith("\n")
        super().write(mark + text)
        return len(text)


def _file(stream: io.TextIOWrapper) -> tuple[int, int] | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_dev, status.st_ino


def mark_output() -> None:
    """From now on, of print() and all else that goes through ``sys.stdout`` and ``sys.stderr``."""
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
