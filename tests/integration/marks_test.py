"""The point from which a step runs again after a death: what a worker remembers there, without other workers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from shoal.exceptions import InvalidArgument, Unavailable
from shoal.train import ScalingConfig, State, get_context, run
from shoal.train._gang import Gang
from shoal.train._recovery import Mark, Record, may_come_of_a_death
from shoal.train._worker import Role, Worker


def protection_of(step):
    nothing = lambda *_: None  # noqa: E731
    return SimpleNamespace(
        step=step,
        latest_step=step,
        words=(step, step, step),
        actor=SimpleNamespace(hosts=[]),
        record=None,
        settle=nothing,
        follow_writes=nothing,
        join_step=nothing,
    )


def worker_of(num_reports=0, newcomer=False):
    worker = Worker(Role(number=0, environment={}, scaling=ScalingConfig(), newcomer=newcomer), driver=None)
    worker.num_reports = num_reports
    return worker


def marked(worker=None, marks=True):
    """Returns (state, record) of a worker after one step of one batch. If ``marks``, the worker has set a step mark after that step."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = State(model=model, optimizer=optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    record = Record(state, worker or worker_of())
    optimizer.step()
    state.step = 1
    record.protection = protection_of(1)
    if marks:
        record.mark()
    return state, record


def test_running_statistics_of_an_abandoned_batch_are_undone():
    model = nn.BatchNorm1d(3)
    state, kept = State(model=model), {}
    Mark(0, state, 0, kept)
    model(torch.randn(8, 3))
    mark = Mark(1, state, 0, kept)
    before = {name: b.clone() for name, b in model.named_buffers()}
    model(torch.randn(8, 3))
    assert not torch.equal(before["running_mean"], model.running_mean)
    mark.restore(state, mark.marked.progress)
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


def test_a_worker_that_was_cut_off_goes_on_as_one_that_has_reported():
    worker = worker_of()
    one, of_one = marked(worker)
    other, of_other = marked(worker_of(2))
    worker.num_reports = 1
    for state, record in ((one, of_one), (other, of_other)):
        state.step = 2
        record.protection = protection_of(2)
    words = [of_one.words(())]
    other.scheduler.step()
    words.append(of_other.words(()))
    of_other.settle(words, ())
    of_one.settle(words, ())
    assert worker.num_reports == 2
    assert one.step == other.step == 2
    assert one.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"] == 0.25


def test_a_worker_without_a_mark_has_the_reports_of_those_that_go_back():
    workers = worker_of(), worker_of()
    one, of_one = marked(workers[0])
    other, of_other = marked(workers[1], marks=False)  # it was interrupted behind a change
    workers[0].num_reports = 1  # one has reported before the optimizer's step
    words = [record.words(()) for record in (of_one, of_other)]
    for record in (of_one, of_other):
        record.settle(words, ())
    assert [w.num_reports for w in workers] == [0, 0]
    assert one.step == other.step == 1


def test_a_loop_behind_run_may_run_again():
    state, _ = marked()
    state.gang = Gang(state, None)
    state.gang.repeats = True  # a death in run sets it
    run(lambda batch, state: None, DataLoader(range(4)), state)
    assert not state.gang.repeats


@pytest.mark.parametrize(("newcomer", "predecessor", "joins"), [(False, None, False), (True, None, True), (False, "a gang", True)])
def test_a_loop_joins_if_it_is_a_new_workers_or_runs_again(monkeypatch, newcomer, predecessor, joins):
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    worker = worker_of(newcomer=newcomer)
    worker.predecessor = predecessor
    with worker.running():
        assert get_context().joins is joins
    assert get_context().joins is False


def test_of_two_steps_between_two_marks_the_first_has_to_count():
    state, record = marked()
    waited = []
    record.protection.wait = lambda: waited.append(record.protection.latest_step)
    for made in (2, 4):
        state.step += 1
        record.protection.latest_step = made
        record.mark()
    assert waited == [4]
    assert [mark.step for mark in record._marks] == [4]


def test_a_survivor_that_gives_its_step_up_may_be_seen_before_the_death():
    assert may_come_of_a_death(InvalidArgument("rank 0 has started step 3 over, rank 1 has not", reason="StartedOver"))
    assert may_come_of_a_death(Unavailable("rank 2 is lost"))
    assert not may_come_of_a_death(InvalidArgument("ranks make different calls", reason="Diverged"))
