"""Generations of a process group: members leave, come, die and meet again, as torch's ``_reconfigure`` describes."""

import pytest
import torch.distributed as dist
from ranks import check

PARTS = [
    "again",
    "without_the_last",
    "without_the_middle",
    "without_the_first",
    "alone_and_together",
    "later",
    "counted_alike",
    "two_groups",
    "in_any_order",
    "in_another_order",
    "after_an_abort",
    "after_a_late_operation",
    "after_a_death",
    "under_way",
    "missing_member",
    "wrong_calls",
    "other_backends",
    "a_newcomer",
]


@pytest.mark.parametrize("part", PARTS)
def test_the_next_generation_works(part):
    check("membership_program.py", part, 0)


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch, before 2.14, has no enable_reconfigure=")
def test_a_group_without_members_waits_for_its_first_generation():
    check("membership_program.py", "unformed", 0)
