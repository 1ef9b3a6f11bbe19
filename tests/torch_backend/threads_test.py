"""Threads that use a group of the backend shoal at once."""

import pytest
from ranks import check


@pytest.mark.parametrize("part", ["keeping", "waiting", "opening", "nesting", "turns_of_threads"])
def test_two_threads_use_one_group(part):
    check("threads_program.py", part, 1)


def test_a_message_that_does_not_come_delays_no_future_but_its_own():
    check("threads_program.py", "futures", 2)


@pytest.mark.parametrize("part", ["chains", "callbacks_of_torch", "a_program_that_goes_on"])
def test_callbacks_of_futures_wait_for_further_operations(part):
    check("threads_program.py", part, 2)
