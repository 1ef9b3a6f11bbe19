"""Ranks of a program that forks them itself, since one of them may die. They have a file store in the program's folder."""

import os
import signal
import sys
import traceback
from collections.abc import Callable


def fails(kind, text, call):
    """The call raises an error of this class and text."""
    error = None
    try:
        call()
    except Exception as raised:
        error = raised
    assert isinstance(error, kind), error
    assert text in str(error), error


def run(world: int, main: Callable[[int], None]) -> None:
    """Calls ``main`` with each rank in a process of its own. Exits with 1 if one failed; at most one may have been killed."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                main(rank)
                code = 0
            except BaseException:
                print(f"rank {rank}:", file=sys.stderr)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    unexpected = [c for c in codes if c not in (0, -signal.SIGKILL)]
    sys.exit(1 if unexpected or codes.count(-signal.SIGKILL) > 1 else 0)
