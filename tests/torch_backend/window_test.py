"""Windows: memory of each rank that others write to, with signals, as torch's ``_new_window`` describes."""

import pytest
from ranks import check

PARTS = ["ring", "signals", "shapes", "wrong_calls", "dead_peer", "other_members", "apart"]


@pytest.mark.parametrize("part", PARTS)
def test_windows_of_ranks(part):
    check("window_program.py", part, 0)
