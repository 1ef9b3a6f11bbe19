"""The end of a command in Python: its exit code, its error, and the end of the program that reads its output."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

from shoal._printable import say
from shoal.exceptions import ResourceExhausted, ShoalError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_NO_READER = 141  # the exit code that a shell reports of a program that SIGPIPE has ended


def run_command(main: Callable[..., int], *arguments: object) -> NoReturn:
    """Runs a command and ends the process with its exit code. It ends without a word once nothing reads its output, as with ``| head``.

    A full disk under its output is an error.
    """
    try:
        code = main(*arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise  # another connection broke, not stdout
        _drop_output()
        code = _NO_READER
    except OSError as error:
        if error.errno not in _FULL or _takes_output():
            raise  # the error is about another file, not stdout
        _drop_output()
        hint = "free the disk, or write to another file"
        print_error(ResourceExhausted(f"stdout did not take the whole output: {error.strerror}", hint=hint), False)
        code = 1
    sys.exit(code)


def _drop_output() -> None:
    """Redirects stdout to /dev/null: Python writes the rest of the output when it ends, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _takes_output() -> bool:
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return False
    return True


def print_error(error: ShoalError, as_json: bool) -> None:
    if as_json:
        facts = {"code": error.code, "reason": error.reason, "message": error.message, "hint": error.hint, "in": list(error.context)}
        print(json.dumps({"schema": "shoal.error/1", **facts}))
    else:
        say(f"shoal: {error}")


def _reader_has_gone() -> bool:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
