"""Trackers behind their queue, with a tracker of this file: it is slow, it raises, it hangs, and no step waits for it."""

import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from shoal.exceptions import InvalidArgument, NotFound
from shoal.trackers import MLflow, Tracker, WandB
from shoal.train import Change, report

LIMIT_S = 60


class Recorded(Tracker):
    """Keeps what it gets. ``gate``: it waits for this event before each entry; ``entered`` is set at an entry's begin."""

    def __init__(self, gate=None, **options):
        super().__init__(**options)
        self.rows, self.texts, self.opened, self.finished = [], [], [], []
        self.gate, self.entered = gate, threading.Event()
        self.threads = set()

    def open(self, config):
        self.opened.append(config)

    def log(self, step, numbers):
        self.threads.add(threading.current_thread())
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(LIMIT_S)
        self.rows.append((step, numbers))

    def log_text(self, step, name, text):
        self.texts.append((step, name, text))

    def finish(self, failed):
        self.finished.append(failed)


def test_entries_arrive_in_order_on_one_other_thread():
    with Recorded(config={"lr": 0.1}) as tracker:
        for step in range(100):
            tracker({"step": step, "loss": step / 2})
    assert tracker.rows == [(step, {"loss": step / 2}) for step in range(100)]
    assert (tracker.opened, tracker.finished, tracker.lost, tracker.cause) == ([{"lr": 0.1}], [False], 0, None)
    assert len(tracker.threads) == 1
    assert threading.current_thread() not in tracker.threads


def test_reports_without_a_step_are_counted():
    with Recorded() as tracker:
        for loss in (1.0, 2.0):
            tracker({"loss": loss})
        tracker({"step": torch.tensor(7), "loss": 3.0})
    assert tracker.rows == [(0, {"loss": 1.0}), (1, {"loss": 2.0}), (7, {"loss": 3.0})]


def test_values_become_plain_numbers_and_texts(capsys):
    x = torch.tensor(2.5, requires_grad=True)
    values = {
        "tensor": x * 1,
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "one": torch.tensor([3]),
        "numpy": np.float32(1.5),
        "array": np.array(4),
        "nan": math.nan,
        "tensor_nan": torch.tensor(math.nan),
        "inf": -math.inf,
        "flag": True,
        "huge": 2**80,
        "eval": {"loss": 1, "by": {"host": 2}},
        7: 1.0,
        "missing": None,
        "note": "warm",
        "rows": torch.zeros(2, 3),
        "list": [1],
    }
    with Recorded() as tracker:
        tracker({"step": 1, **values})
    ((step, numbers),) = tracker.rows
    assert step == 1
    assert {type(v) for v in numbers.values()} == {int, float}
    nans = {name for name, v in numbers.items() if math.isnan(v)}
    assert nans == {"nan", "tensor_nan"}
    assert {name: v for name, v in numbers.items() if name not in nans} == {
        "tensor": 2.5, "half": 0.5, "one": 3, "numpy": 1.5, "array": 4, "inf": -math.inf, "flag": 1, "huge": 2.0**80,
        "eval/loss": 1, "eval/by/host": 2, "7": 1.0,
    }  # fmt: skip
    assert tracker.texts == [(1, "note", "warm")]
    assert tracker.lost == 2
    assert tracker.cause == "metric rows is no number: a tensor of shape (2, 3)"
    assert capsys.readouterr().err.count("is no number") == 2  # at its first value, and at the end


def test_a_tensor_that_changes_behind_the_report_has_the_value_of_the_report():
    gate, loss = threading.Event(), torch.tensor(1.0)
    with Recorded(gate) as tracker:
        tracker({"loss": loss})
        loss.fill_(9.0)
        gate.set()
    assert tracker.rows == [(0, {"loss": 1.0})]


READERS = []


class OnDevice(torch.Tensor):
    """A tensor that counts as one on a device, whose value comes late."""

    device = SimpleNamespace(type="cuda", index=3)

    def item(self):
        raise AssertionError("the step waits for the device")

    def to(self, device):
        assert device == "cpu"
        READERS.append(threading.current_thread())
        return self.as_subclass(torch.Tensor)


class Event:
    """An event of the device that a gate holds up."""

    def __init__(self, gate):
        self.synchronize = lambda: gate.wait(LIMIT_S)


def test_a_number_on_a_device_is_copied_at_the_report_and_read_by_the_trackers_thread(monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: SimpleNamespace(record_event=lambda: Event(gate)))
    guards = mock.MagicMock()
    monkeypatch.setattr(torch.accelerator, "device_index", guards)
    loss = torch.tensor(1.0).as_subclass(OnDevice)
    with Recorded() as tracker:
        tracker({"step": 1, "loss": loss})
        loss.add_(8)
        gate.set()
    assert tracker.rows == [(1, {"loss": 1.0})]
    assert list(tracker.threads) == READERS
    guards.assert_called_once_with(3)
    guards(3).__enter__.assert_called_once()  # in the tracker's thread device 0 is the current one


def test_a_full_queue_drops_its_oldest_entries_and_counts_them(capsys):
    gate = threading.Event()
    with Recorded(gate, queue_size=3) as tracker:
        tracker({"step": 0, "loss": 0})
        assert tracker.entered.wait(LIMIT_S)
        for step in range(1, 11):  # no call waits: the tracker stands still until the gate opens
            tracker({"step": step, "loss": step})
        assert tracker.lost == 7
        gate.set()
    assert [step for step, _ in tracker.rows] == [0, 8, 9, 10]
    assert tracker.cause == "its queue of 3 entries is full"
    said = capsys.readouterr().err
    assert said.count("The training goes on") == 1
    assert "tracker Recorded has lost 7 entries. The first cause: its queue of 3 entries is full" in said


class Failing(Recorded):
    def log(self, step, numbers):
        if step % 2:
            raise ConnectionError(f"no server at step {step}")
        super().log(step, numbers)


def test_a_tracker_that_raises_loses_these_entries_and_is_reported_once(capsys):
    with Failing() as tracker:
        for step in range(10):
            tracker({"step": step, "loss": 1.0})
    assert [step for step, _ in tracker.rows] == [0, 2, 4, 6, 8]
    assert (tracker.lost, tracker.cause) == (5, "ConnectionError: no server at step 1")
    assert capsys.readouterr().err.count("The training goes on") == 1
    assert tracker.finished == [False]


class Unopened(Recorded):
    def open(self, config):
        raise SystemExit("no key")


def test_a_tracker_that_cannot_begin_loses_all_entries():
    with Unopened() as tracker:
        for step in range(5):
            tracker({"step": step, "loss": 1.0})
    assert (tracker.rows, tracker.lost, tracker.cause, tracker.finished) == ([], 5, "SystemExit: no key", [])


def test_a_hanging_tracker_is_reported_while_steps_go_on(capsys):
    gate = threading.Event()
    tracker = Recorded(gate, queue_size=100, slow_after=0.0)
    tracker({"step": 0, "loss": 0.0})
    assert tracker.entered.wait(LIMIT_S)
    for step in range(1, 20):
        tracker({"step": step, "loss": 0.0})
    assert (tracker.lost, tracker.cause) == (0, "one entry has run for more than 0 s")
    assert tracker.close(timeout=0.01) is False
    assert tracker.lost == 20
    said = capsys.readouterr().err
    assert said.count("one entry has run") == 2  # once while it hangs, and as the first cause at the end
    assert "it has not ended within 0.01 s" in said
    gate.set()
    tracker.close()
    assert tracker.lost == 20


def test_the_end_of_a_process_sends_what_waits_and_waits_no_longer_than_close():
    program = """
import threading
from shoal.trackers import Tracker

class Printing(Tracker):
    def log(self, step, numbers):
        print(step, numbers, flush=True)
        if "hang" in numbers:
            hangs.set()
            threading.Event().wait()

    def finish(self, failed):
        print("finished", flush=True)

hangs = threading.Event()
tracker = Printing()
tracker({"loss": 1.5})
"""
    end = 'tracker({"hang": 1})\nhangs.wait()\ntracker.close(timeout=0.1)\n'
    for text, printed in ((program, "0 {'loss': 1.5}\nfinished\n"), (program + end, "0 {'loss': 1.5}\n1 {'hang': 1}\n")):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT_S)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_the_config_joins_the_trainers_and_is_logged_once():
    tracker = Recorded(config={"lr": 0.1, "model": {"layers": 2, "dtype": torch.bfloat16}})
    tracker.on_begin({"epochs": 3, "lr": 0.5})
    tracker({"loss": 1.0})
    tracker.on_begin({"epochs": 4})
    tracker.close()
    assert tracker.opened == [{"epochs": 3, "lr": 0.1, "model/layers": 2, "model/dtype": "torch.bfloat16"}]


def test_changes_and_the_end_are_events():
    tracker = Recorded()
    tracker({"step": 4, "loss": 1.0})
    tracker.on_change(Change(2, 4, 3, seconds=0.25, moved_bytes=10, died=(1,), step=4))
    tracker.on_change(Change(3, 3, 2, cut_off=True))
    tracker.on_end(ValueError("the loss is NaN"))
    assert tracker.close() is True
    assert tracker.rows[1:] == [
        (4, {"shoal/workers": 3, "shoal/pause_seconds": 0.25, "shoal/moved_bytes": 10}),
        (0, {"shoal/workers": 2}),
    ]
    assert [(step, name) for step, name, _ in tracker.texts] == [(4, "shoal/change"), (0, "shoal/change"), (4, "shoal/end")]
    assert "4 -> 3 workers (worker 1 died), pause 0.250 s" in tracker.texts[0][2]
    assert tracker.texts[2][2] == "the training has failed: ValueError: the loss is NaN"
    assert tracker.finished == [True]


def test_only_rank_0_of_a_script_is_active(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with Recorded() as tracker, WandB() as without_package:
        tracker({"loss": 1.0})
        without_package({"loss": 1.0})
    assert (tracker.active, tracker.rows, tracker.opened, tracker.lost) == (False, [], [], 0)


def test_a_scripts_report_goes_to_the_tracker():
    program = """
import os
from shoal.trackers import Tracker
from shoal.train import report

class Printing(Tracker):
    def log(self, step, numbers):
        print(os.environ["RANK"], step, numbers, flush=True)

tracker = Printing()
tracker.receive_reports()
report({"step": 3, "loss": 1.5})
"""
    for rank, printed in (("0", "0 3 {'loss': 1.5}\n"), ("1", "")):
        env = os.environ | {"RANK": rank, "WORLD_SIZE": "2"}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_mistakes_are_refused():
    with Recorded() as tracker:
        with pytest.raises(TypeError, match="takes a dict of metrics, not float"):
            tracker(1.0)
        with pytest.raises(TypeError, match="belongs to the process that made it"):
            tracker.__reduce__()
    with pytest.raises(InvalidArgument, match="queue_size is at least 1"):
        Recorded(queue_size=0)
    tracker({"loss": 1.0})
    assert tracker.lost == 1
    report({"loss": 1.0})  # without a tracker, and without a training, it does nothing


@pytest.mark.parametrize(("tracker", "package"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_missing_package_is_named(tracker, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotFound, match=f"needs the package {package}") as error:
        tracker()
    assert f"pip install {package}" in str(error.value)
