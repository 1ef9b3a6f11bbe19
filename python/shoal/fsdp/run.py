"""``python -m shoal.fsdp.run [-m] PROGRAM ...``: runs a program with torch's FSDP replaced by Shoal's.

The program runs as with ``python PROGRAM ...`` or ``python -m PROGRAM ...``. Under a launcher:
``torchrun --nproc-per-node 2 -m shoal.fsdp.run train.py``, ``accelerate launch -m shoal.fsdp.run train.py``.
Processes that the program starts inherit ``SHOAL_FSDP=1``.
"""

from __future__ import annotations

import sys

from shoal._core import program
from shoal.fsdp._install import install


def main(words: list[str]) -> None:
    program.run(words, "shoal.fsdp.run", "torch's FSDP replaced by Shoal's", "SHOAL_FSDP", install)


if __name__ == "__main__":
    main(sys.argv[1:])
