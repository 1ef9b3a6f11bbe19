"""The point from which a step runs again after a death: what a worker remembers there, without other workers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from shoal.train import State, get_context, run
from shoal.train._context import _Here
from shoal.train._gang import Gang
from shoal.train._recovery import Mark, Record


def marked():
    """Returns (state, record) of a worker that has made one step of one batch, and has a mark behind it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = State(model=model, optimizer=optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    record = Record(state)
    optimizer.step()
    state.step = 1
    record.protection = SimpleNamespace(
        step=1, words=(1, 1, 1), actor=SimpleNamespace(hosts=[]), record=None, settle=lambda committed: None
    )
    record.mark()
    return state, record


def test_running_statistics_of_an_abandoned_batch_are_undone():
    model = nn.BatchNorm1d(3)
    state, kept = State(model=model), {}
    Mark(0, state, kept)
    model(torch.randn(8, 3))
    mark = Mark(1, state, kept)
    before = {name: b.clone() for name, b in model.named_buffers()}
    model(torch.randn(8, 3))
    assert not torch.equal(before["running_mean"], model.running_mean)
    mark.restore(state)
    for name, b in model.named_buffers():
        assert torch.equal(before[name], b), name


def test_the_work_between_two_epochs_is_kept():
    state, record = marked()
    state.scheduler.step()
    record.mark()
    record.settle([record.words(())], ())
    assert state.scheduler.get_last_lr() == [0.25]


def test_a_step_of_several_batches_runs_again_from_the_first_one():
    state, record = marked()
    state.step = 2
    record.mark()
    record.settle([record.words(())], ())
    assert state.step == 1


def test_a_worker_that_was_cut_off_goes_on_as_one_that_has_reported(monkeypatch):
    one, of_one = marked()
    other, of_other = marked()
    for state, record in ((one, of_one), (other, of_other)):
        state.step = 2
        record.protection = SimpleNamespace(
            step=2, words=(2, 2, 2), actor=SimpleNamespace(hosts=[]), record=None, settle=lambda committed: None
        )
    monkeypatch.setattr(_Here, "reports", 1)
    words = [of_one.words(())]
    other.scheduler.step()
    _Here.reports = 2
    words.append(of_other.words(()))
    of_other.settle(words, ())
    _Here.reports = 1
    of_one.settle(words, ())
    assert _Here.reports == 2
    assert one.step == other.step == 2
    assert one.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"] == 0.25


def test_a_worker_without_a_mark_has_the_reports_of_those_that_go_back(monkeypatch):
    one, of_one = marked()
    other, of_other = marked()
    of_other._mark = None  # it was interrupted behind a change
    words = []
    for record, reports in ((of_one, 1), (of_other, 0)):  # one has reported before the optimizer's step
        monkeypatch.setattr(_Here, "reports", reports)
        words.append(record.words(()))
    found = []
    for record, reports in ((of_one, 1), (of_other, 0)):
        _Here.reports = reports
        record.settle(words, ())
        found.append(_Here.reports)
    assert found == [0, 0]
    assert one.step == other.step == 1


def test_a_loop_behind_run_may_run_again():
    state, _ = marked()
    state.gang = Gang(state)
    state.gang.repeats = True  # a death in run sets it
    run(lambda batch, state: None, DataLoader(range(4)), state)
    assert not state.gang.repeats


@pytest.mark.parametrize(("newcomer", "before", "joins"), [(False, None, False), (True, None, True), (False, "a gang", True)])
def test_a_loop_joins_if_it_is_a_new_workers_or_runs_again(monkeypatch, newcomer, before, joins):
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_Here, "newcomer", newcomer)
    monkeypatch.setattr(_Here, "before", before)
    assert get_context().joins is joins
