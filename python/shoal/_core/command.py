"""The end of a command in Python: its exit code, its error, and the end of the program that reads its output."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

from shoal._printable import say
from shoal.exceptions import ShoalError

_NO_READER = 141  # the exit code that a shell reports of a program that SIGPIPE has ended


def run_command(main: Callable[..., int], *arguments: object) -> NoReturn:
    """Runs a command and ends the process with its exit code. It ends without a word once nothing reads its output, as with ``| head``."""
    try:
        code = main(*arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise  # another connection
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it ends
        code = _NO_READER
    sys.exit(code)


def print_error(error: ShoalError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema": "shoal.error/1", "code": error.code, "message": error.message, "hint": error.hint}))
    else:
        say(f"shoal: {error}")


def _reader_has_gone() -> bool:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
