"""``python -m shoal.spmd.run [-m] PROGRAM ...``: runs a torch_xla script with Shoal in torch_xla's place.

It works like ``python PROGRAM ...`` or ``python -m PROGRAM ...``. Under a launcher: ``torchrun --nproc-per-node 2 -m shoal.spmd.run
train.py``. Child processes of the program inherit ``SHOAL_SPMD=1``.
"""

from __future__ import annotations

import sys

from shoal._core import program
from shoal.spmd import install


def main(words: list[str]) -> None:
    program.run(words, "shoal.spmd.run", "Shoal in the place of torch_xla", "SHOAL_SPMD", install)


if __name__ == "__main__":
    main(sys.argv[1:])
