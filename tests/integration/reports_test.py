"""The workers' reports, in the driver, without workers: one that a death has stopped counts if its step does."""

import pytest

from shoal.exceptions import Unavailable
from shoal.train._reports import Reports


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_report_that_a_death_has_stopped_is_that_of_the_lowest_rank(order, together):
    refused, recorded, interrupted = [], [], {}

    def refuse(call, error):
        assert isinstance(error, Unavailable)
        refused.append(call)

    reports = Reports({1: (7, 8, 9)}, set(), set(), interrupted, None, refuse, recorded.append)
    if not together:
        interrupted[9] = 1
    for rank in order:
        reports.add(f"call of {rank}", (7, 8, 9)[rank], 1, 1, {"rank": rank})
    interrupted[9] = 1
    reports.check()
    reports.continue_at(1)
    assert sorted(refused) == ["call of 0", "call of 1"]
    assert recorded == [{"rank": 0}]
