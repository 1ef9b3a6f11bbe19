"""The driver of a training without workers: a report that a death has stopped counts if its step does. Waits for the news of a death."""

from types import SimpleNamespace

import pytest

from shoal.exceptions import Unavailable
from shoal.train import _membership as m
from shoal.train import _run
from shoal.train._ranks import Place
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


@pytest.mark.parametrize(("node", "seconds"), [("a", _run._NEWS_S), ("b", _run._NEWS_OF_NODES_S)])
def test_a_worker_that_a_change_has_stopped_waits_for_the_news_of_all_nodes_of_the_change(node, seconds):
    session = SimpleNamespace(host_queue=lambda name: "queue", know=lambda *_: None)
    membership = m.Membership(1, 2, (0,), 2, number=1, protected=True)
    membership.published = m.Generation(2, (0, 1), (0,), base=1)
    run = _run.Run(session, SimpleNamespace(on_report=None), membership, ["handle of 0"])
    run._places = {0: Place("a", "host of a", 1), 1: Place(node, "its host", 1)}
    waits = []
    run._doubts = SimpleNamespace(begin=lambda worker, limit: waits.append((worker, limit)))
    run._on_interrupted("call", 0, 1, False, run._places[0])
    assert waits == [(0, seconds)]
