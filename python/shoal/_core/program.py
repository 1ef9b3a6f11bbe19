"""``python -m shoal.fsdp.run`` and ``python -m shoal.spmd.run``: run a program with Shoal in place of another library."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path


def run(words: list[str], name: str, what: str, variable: str, install: Callable[[], None]) -> None:
    """Runs ``[-m] PROGRAM ARGUMENT ...`` after ``install()``, as python would. ``what`` completes the usage text. Child processes inherit
    ``variable``."""
    usage = f"usage: python -m {name} [-m] PROGRAM [ARGUMENT ...]"
    as_module = words[:1] == ["-m"]
    program = words[as_module:]
    if not program or program[0] in ("-h", "--help"):
        print(f"{usage}\n\nRuns a script, or with -m a module, with {what}.", file=sys.stdout if program else sys.stderr)
        sys.exit(0 if program else 2)
    if program[0].startswith("-"):
        sys.exit(f"{name}: {program[0]} is no option of this command; options of the program follow its name\n{usage}")
    if not as_module and not Path(program[0]).exists():
        sys.exit(f"{name}: there is no file {program[0]}; a module is run with -m")
    os.environ[variable] = "1"
    install()
    sys.argv = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")
