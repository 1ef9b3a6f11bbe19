"""``python -m shoal.fsdp.run [-m] PROGRAM ...``: runs a program with torch's FSDP replaced by Shoal's.

As ``python PROGRAM ...``, or ``python -m PROGRAM ...``. Under a launcher: ``torchrun --nproc-per-node 2 -m shoal.fsdp.run train.py``,
``accelerate launch -m shoal.fsdp.run train.py``. Processes that the program starts inherit ``SHOAL_FSDP=1``.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

USAGE = "usage: python -m shoal.fsdp.run [-m] PROGRAM [ARGUMENT ...]"


def main(words: list[str]) -> None:
    as_module = words[:1] == ["-m"]
    program = words[as_module:]
    if not program or program[0] in ("-h", "--help"):
        print(
            f"{USAGE}\n\nRuns a script, or with -m a module, with torch's FSDP replaced by Shoal's.",
            file=sys.stdout if program else sys.stderr,
        )
        sys.exit(0 if program else 2)
    if program[0].startswith("-"):
        sys.exit(f"shoal.fsdp.run: {program[0]} is no option of it; options of the program follow its name\n{USAGE}")
    if not as_module and not Path(program[0]).exists():
        sys.exit(f"shoal.fsdp.run: there is no file {program[0]}; a module is run with -m")
    os.environ["SHOAL_FSDP"] = "1"
    from shoal.fsdp import install

    install()
    sys.argv = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
