"""Failures on the backend shoal: every rank gets the first cause, in an error of Shoal's and torch's classes."""

import pytest
from ranks import check

PARTS = [
    "killed",
    "killed_in_training",
    "killed_in_hook",
    "killed_in_message",
    "diverged",
    "aborted",
    "late",
    "late_by_default",
    "wait_limit",
    "monitored",
    "left",
]


@pytest.mark.parametrize("part", PARTS)
def test_every_rank_gets_the_cause(part):
    check("failures_program.py", part, 0)
