"""Private names of shoal.train, that tests use."""
# ruff: noqa: F401

from shoal.train._gang import Gang
