"""Private names of shoal.dag and shoal._worker, that tests use."""
# ruff: noqa: F401

from shoal._worker import concurrency
from shoal.dag import _compiled
