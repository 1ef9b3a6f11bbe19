"""Saves beside the training: a checkpoint has the values of its call, errors reach the program, and one save runs at a time."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from internals.checkpoint import Reader, _disk, _load, _plan, _saving, _snapshot, open_store
from internals.fsdp import HostStreams, transfers
from one_of_ranks import OneOfRanks
from torch import nn

from shoal import checkpoint
from shoal.exceptions import InvalidArgument, ShoalError, Unavailable, Unimplemented
from shoal.optim import AdamW


def hold_saves(monkeypatch):
    """Returns the event until which the threads of saves do not begin."""
    go, run = threading.Event(), threading.Thread.run

    def held_run(self):
        assert self.name != "shoal-checkpoint" or go.wait(60)
        run(self)

    monkeypatch.setattr(threading.Thread, "run", held_run)
    return go


@pytest.fixture
def held(monkeypatch):
    """Holds the saving thread back until the event is set."""
    go = hold_saves(monkeypatch)
    yield go
    go.set()
    checkpoint.wait()


class OneStream(HostStreams):
    """A device on which all streams are one."""

    asynchronous = False


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Values lie in the host's memory, or on a device whose streams copy them."""
    transfers.forget()
    if request.param == "device":
        monkeypatch.setattr(transfers, "opens", lambda _: OneStream())
    yield request.param
    checkpoint.wait()
    transfers.forget()


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def step(model, optimizer):
    model(torch.randn(8, 7, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(kind=AdamW):
    model = build()
    optimizer = kind(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def values(model, optimizer):
    found = {n: t.clone() for n, t in model.state_dict().items()}
    for n, p in model.named_parameters():
        found |= {f"{n}/{k}": torch.as_tensor(v).clone() for k, v in optimizer.state[p].items()}
    return found


def expect_saved(path, expected):
    model = build(1)
    optimizer = AdamW(model.parameters())
    checkpoint.load(path, model, optimizer)
    found = values(model, optimizer)
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("kind", [AdamW, torch.optim.AdamW])
def test_a_checkpoint_has_the_values_of_its_call(tmp_path, place, held, kind):
    model, optimizer = trained(kind)
    expected = values(model, optimizer)
    pending = checkpoint.save_async(tmp_path / "c", model, optimizer, state={"step": 1})
    assert not pending.done()
    with torch.no_grad():
        model[0].weight.fill_(9)  # a parameter of a plain model may be written at any time
    model(torch.randn(8, 7))  # writes buffers
    step(model, optimizer)  # waits for the copy of the optimizer's state
    assert not pending.done()
    held.set()
    pending.wait()
    assert pending.done()
    expect_saved(tmp_path / "c", expected)
    assert pending.stall_s > 0
    assert pending.snapshot_bytes >= sum(t.nbytes for t in expected.values())


def test_a_save_that_a_death_ends_needs_no_present_value_any_more(tmp_path, held):
    model, optimizer = trained()
    checkpoint.save_async(tmp_path / "c", model, optimizer)
    assert len(_snapshot._active) == 1
    _saving.abandon()  # the values move to other ranks behind it
    assert not _snapshot._active


def test_an_optimizer_without_hooks_is_copied_before_the_call_returns(tmp_path, place, held):
    class Plain:
        """Only looks like an optimizer."""

        def __init__(self, of):
            self.param_groups, self.state = of.param_groups, of.state

    model, optimizer = trained()
    expected = values(model, optimizer)
    checkpoint.save_async(tmp_path / "c", model, Plain(optimizer))
    optimizer.state[model[0].weight]["exp_avg"].zero_()
    held.set()
    checkpoint.wait()
    expect_saved(tmp_path / "c", expected)


def test_a_write_outside_of_a_step_is_an_error_of_the_save(tmp_path, place, held):
    model, optimizer = trained()
    checkpoint.save(tmp_path / "c", model, optimizer)
    expected = values(model, optimizer)
    pending = checkpoint.save_async(tmp_path / "c", model, optimizer)
    optimizer.state[model[0].weight]["exp_avg"].zero_()
    held.set()
    with pytest.raises(InvalidArgument, match=r"0.weight/exp_avg was written while it was saved") as e:
        pending.wait()
    assert e.value.reason == "WrittenWhileSaved"
    expect_saved(tmp_path / "c", expected)  # the previous checkpoint


@pytest.mark.parametrize("surface", ["wait", "save_async", "pending"])
def test_an_error_surfaces_once_at_the_next_save_or_wait(tmp_path, surface):
    (tmp_path / "file").touch()
    model, optimizer = trained()
    pending = checkpoint.save_async(tmp_path / "file", model, optimizer)
    calls = {
        "wait": checkpoint.wait,
        "save_async": lambda: checkpoint.save_async(tmp_path / "c", model, optimizer),
        "pending": pending.wait,
    }
    with pytest.raises(InvalidArgument) as e:
        calls[surface]()
    assert e.value.reason == "CheckpointUnwritable"
    checkpoint.save_async(tmp_path / "c", model, optimizer)
    checkpoint.wait()
    expect_saved(tmp_path / "c", values(model, optimizer))


def test_a_model_that_cannot_be_saved_is_an_error_of_the_call(tmp_path):
    model, optimizer = trained()
    optimizer.param_groups[0]["odd"] = object()
    with pytest.raises(Unimplemented, match="odd"):
        checkpoint.save_async(tmp_path / "c", model, optimizer)
    with pytest.raises(InvalidArgument, match="state"):
        checkpoint.save_async(tmp_path / "c", model, state={"x": (1,)})


def test_a_snapshot_that_fails_reaches_the_other_ranks(tmp_path, monkeypatch):
    def fail(layouts):
        raise MemoryError("no memory for a snapshot")

    monkeypatch.setattr(_saving, "Ranks", OneOfRanks)
    monkeypatch.setattr(_saving, "Snapshot", fail)
    pending = checkpoint.save_async(tmp_path / "c", build())  # the thread's collectives spread the error
    with pytest.raises(MemoryError):
        pending.wait()


def test_a_load_waits_for_the_save_under_way(tmp_path, held):
    checkpoint.save(tmp_path / "c", build(), state={"step": 1})
    pending = checkpoint.save_async(tmp_path / "c", build(), state={"step": 2})
    join = pending._thread.join

    def joined(*limit):
        held.set()  # the save goes on only when a thread waits for it
        join(*limit)

    pending._thread.join = joined
    assert checkpoint.load(tmp_path / "c", build()) == {"step": 2}


def test_ranks_that_have_read_different_checkpoints_get_an_error(tmp_path, monkeypatch):
    class Other(OneOfRanks):
        def gather(self, value):
            return [value, value.replace('"step": 1', '"step": 2')] if isinstance(value, str) else [value, value]

    checkpoint.save(tmp_path / "c", build(1), state={"step": 1})
    model, expected = build(), build().state_dict()
    monkeypatch.setattr(_load, "Ranks", Other)
    with pytest.raises(Unavailable, match="ranks 0 and 1 have read different checkpoints"):
        checkpoint.load(tmp_path / "c", model)
    assert all(torch.equal(t, expected[n]) for n, t in model.state_dict().items())


def test_one_save_runs_at_a_time(tmp_path, monkeypatch):
    running, most, write = [0], [0], _saving.write

    def counted(*args):
        running[0] += 1
        most[0] = max(most[0], running[0])
        write(*args)
        running[0] -= 1

    monkeypatch.setattr(_saving, "write", counted)
    model, optimizer = trained()
    expected = []
    for i in range(4):
        expected.append(values(model, optimizer))
        checkpoint.save_async(tmp_path / str(i), model, optimizer)
        step(model, optimizer)
    checkpoint.wait()
    assert most == [1]
    for i in range(4):
        expect_saved(tmp_path / str(i), expected[i])


@pytest.mark.parametrize("change", ["values", "a new state", "other memory", "another shape", "another optimizer", "another model"])
def test_a_later_save_describes_what_the_model_is_then(tmp_path, change):
    """A plan is kept for the next save, as long as nothing but values has changed."""
    model, optimizer = trained()
    checkpoint.save_async(tmp_path / "c", model, optimizer)
    checkpoint.wait()
    kept = _plan._kept
    if change == "values":
        optimizer.param_groups[0]["lr"] = 0.7
        step(model, optimizer)
    elif change == "a new state":
        optimizer.state[model[0].weight]["more"] = torch.ones(3)
    elif change == "other memory":
        optimizer.state[model[0].weight]["exp_avg"] = torch.full((5, 7), 3.0)
        model[2].weight.data = torch.full((3, 5), 4.0)
    elif change == "another shape":
        model[1].running_mean.data = torch.zeros(4)
        optimizer.state[model[0].weight]["exp_avg"].data = torch.zeros(2, 2)
    elif change == "another optimizer":
        optimizer = AdamW(model.parameters())
        step(model, optimizer)
    else:
        model, optimizer = trained()
        step(model, optimizer)
    checkpoint.save_async(tmp_path / "c", model, optimizer)
    checkpoint.wait()
    assert (_plan._kept is kept) == (change == "values")
    manifest = checkpoint.read_manifest(tmp_path / "c")
    expected = values(model, optimizer)
    assert {n: t.shape for n, t in manifest.all_tensors()}.items() <= {n: tuple(t.shape) for n, t in expected.items()}.items()
    assert manifest.groups[0].options["lr"] == optimizer.param_groups[0]["lr"]
    with Reader(open_store(tmp_path / "c"), manifest) as reader:
        for name, t in manifest.all_tensors():
            assert torch.equal(reader.fetch(name, t), expected[name]), name


def test_a_kept_plan_keeps_no_tensor(tmp_path):
    model, optimizer = trained()
    checkpoint.save_async(tmp_path / "c", model, optimizer).wait()
    checkpoint.wait()
    tensors = [weakref.ref(t) for t in (model[0].weight, model[1].running_mean, optimizer.state[model[0].weight]["exp_avg"])]
    del model, optimizer
    gc.collect()
    assert [t() for t in tensors] == [None] * 3


def test_later_snapshots_use_the_memory_of_earlier_ones(tmp_path):
    model, optimizer = trained()
    used = set()
    for _ in range(3):
        pending = checkpoint.save_async(tmp_path / "c", model, optimizer)
        images = {id(b) for b in pending._snapshot.images}
        used |= images
        pending.wait()
    assert used == images
    assert len(used) == 2


def test_a_full_disk_is_an_error_of_the_save_and_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    class Full(_disk.Disk):
        def write(self, fd, data, at):
            raise OSError(28, "No space left on device")

    model, optimizer = trained()
    checkpoint.save(tmp_path / "c", model, optimizer)
    expected = values(model, optimizer)
    step(model, optimizer)
    with monkeypatch.context() as m:
        m.setattr(_disk, "disk", Full())
        with pytest.raises(ShoalError) as e:
            checkpoint.save_async(tmp_path / "c", model, optimizer).wait()
    assert e.value.code == "ResourceExhausted"
    expect_saved(tmp_path / "c", expected)
    assert not _snapshot._active


def test_the_error_of_a_save_is_not_lost_by_an_interrupted_wait(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    checkpoint.save_async(tmp_path / "file", build())

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.wait()
    _saving._at_exit()
    assert "the checkpoint was not saved: " in capfd.readouterr().err


def test_a_process_that_ends_waits_for_its_save(tmp_path):
    program = f"""
import torch
from shoal import checkpoint
model = torch.nn.Linear(3, 2)
checkpoint.save_async({str(tmp_path / "c")!r}, model, state={{"step": 5}})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert checkpoint.load(tmp_path / "c", nn.Linear(3, 2)) == {"step": 5}
    (tmp_path / "file").touch()
    failed = subprocess.run([sys.executable, "-c", program.replace("/c'", "/file'")], capture_output=True, text=True, check=True)
    assert "the checkpoint was not saved: " in failed.stderr
    assert "it is a file" in failed.stderr


def test_a_synchronous_save_follows_one_that_is_under_way(tmp_path):
    model, optimizer = trained()
    checkpoint.save_async(tmp_path / "c", model, optimizer, state={"step": 1})
    checkpoint.save(tmp_path / "c", model, optimizer, state={"step": 2})
    assert checkpoint.load(tmp_path / "c", build()) == {"step": 2}


def test_a_range_whose_copy_was_interrupted_is_copied_by_the_saving_thread(tmp_path, monkeypatch):
    """Ctrl-C in a step's wait for the copy raises KeyboardInterrupt in the training's thread."""
    model, optimizer = trained()
    expected = values(model, optimizer)
    go, copy = hold_saves(monkeypatch), _snapshot.copy_in

    def interrupted(*taken):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        copy(*taken)

    pending = checkpoint.save_async(tmp_path / "c", model, optimizer)
    monkeypatch.setattr(_snapshot, "copy_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    go.set()
    pending._thread.join(60)
    assert pending.done(), "the saving thread waits for a range that no thread copies"
    pending.wait()
    expect_saved(tmp_path / "c", expected)
    assert not _snapshot._active


def test_a_file_whose_sync_failed_is_closed_once(tmp_path, monkeypatch):
    class Failing(_disk.Disk):
        def sync(self, fd):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(_disk, "disk", Failing())
    new = _disk.NewFile(tmp_path / "new")
    with pytest.raises(OSError, match="Input/output"):
        new.close()
    with open(tmp_path / "other", "wb") as other:  # gets the number of the closed one
        new.abandon()
        os.fstat(other.fileno())
