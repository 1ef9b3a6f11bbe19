"""Private names of shoal.fsdp1, that tests use."""
# ruff: noqa: F401

from shoal.fsdp1 import _arguments
