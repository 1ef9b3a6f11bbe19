"""Runs a function of collectives_program as if each rank were on a host of its own."""

import os

import collectives_program

os.environ["SHOAL_HOST"] = f"host-{os.environ['RANK']}"
collectives_program.main()
