"""The driver of a training without workers: a report that a death has stopped counts if its step does. Waits for the news of a death."""

import queue
import threading
from types import SimpleNamespace

import pytest

from shoal.exceptions import ActorDiedError, TaskError, Unavailable
from shoal.train._driver import membership as m
from shoal.train._driver import run as _run
from shoal.train._driver.reports import Reports
from shoal.train._driver.watches import Doubts
from shoal.train._ranks import Place


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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_complete_report_is_that_of_the_lowest_rank(order):
    replied, recorded = [], []
    reports = Reports({1: (7, 8)}, set(), set(), {}, lambda call, _: replied.append(call), None, recorded.append)
    for rank in order:
        reports.add(f"call of {rank}", (7, 8)[rank], 1, 1, {"rank": rank})
    assert (sorted(replied), recorded, reports.complete) == (["call of 0", "call of 1"], [{"rank": 0}], 1)
    reports.continue_at(0)
    assert reports.undone == 1


def run_of(members):
    session = SimpleNamespace(host_queue=lambda name: "queue", know=lambda *_: None)
    membership = m.Membership(1, 2, members, 2, number=1, protected=True)
    return _run.Run(session, SimpleNamespace(on_report=None), membership, [f"handle of {w}" for w in members])


@pytest.mark.parametrize(("node", "seconds"), [("a", _run._NOTICE_S), ("b", _run._NOTICE_FROM_NODES_S)])
def test_a_worker_that_a_change_has_stopped_waits_for_the_news_of_all_nodes_of_the_change(node, seconds):
    run = run_of((0,))
    run._membership.published = m.Generation(2, (0, 1), (0,), base=1)
    run._places = {0: Place("a", "host of a", 1), 1: Place(node, "its host", 1)}
    waits = []
    run._doubts = SimpleNamespace(begin=lambda worker, limit: waits.append((worker, limit)))
    run._on_interrupted("call", 0, 1, False, run._places[0])
    assert waits == [(0, seconds)]


def test_a_doubt_comes_when_its_time_is_over_unless_the_training_ends_before():
    doubted = queue.Queue()
    doubts = Doubts(lambda *doubt: doubted.put(doubt))
    first = doubts.begin(3, 0.0)
    assert doubted.get(timeout=60) == (3, first)
    assert doubts.begin(3, 1000.0) != first
    doubts.close()
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    assert doubted.empty()


@pytest.mark.parametrize(
    ("ticket", "recovering", "refused"),
    [(2, False, ["NobodyDied"]), (1, False, []), (2, True, [])],
    ids=["nobody", "an earlier wait", "a death"],
)
def test_a_doubt_ends_the_wait_to_which_it_belongs_if_nobody_has_died(ticket, recovering, refused):
    run, reasons = run_of((0, 1)), []
    run._membership.recovering = recovering
    run._reply, run._refuse = lambda *_: None, lambda call, error: reasons.append(error.reason)
    run._interrupted[0] = 2
    run._on_doubted("call", 0, ticket)
    assert reasons == refused
    assert (0 in run._interrupted) == (not refused)


@pytest.mark.parametrize(
    "consequence",
    [
        ActorDiedError("rank 0 is gone"),
        RuntimeError("Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"),
        RuntimeError("[pair.cc:547] Connection closed by peer [127.0.0.1]:12345"),
    ],
)
def test_an_error_about_another_rank_waits_for_that_ranks_own(monkeypatch, consequence):
    first, later = SimpleNamespace(ready=False), SimpleNamespace(ready=True)
    errors = {id(first): ActorDiedError("rank 0 was killed"), id(later): TaskError(consequence, "its traceback", "rank 1")}
    monkeypatch.setattr(_run, "failure", lambda run, where: errors[id(run._ref)] if run._ref.ready else None)
    waits = []

    def wait_some(refs, *_):
        waits.append(refs)
        first.ready = True

    workers = {w: SimpleNamespace(run=SimpleNamespace(_ref=ref)) for w, ref in enumerate((first, later))}
    membership = SimpleNamespace(members=(0, 1), published=None)
    assert _run._first_cause(SimpleNamespace(wait_some=wait_some), membership, workers) is errors[id(first)]
    assert waits == [[first]]
    first.ready, errors[id(later)] = False, TaskError(RuntimeError("its own"), "its traceback", "rank 1")
    assert _run._first_cause(SimpleNamespace(wait_some=wait_some), membership, workers) is errors[id(later)]
