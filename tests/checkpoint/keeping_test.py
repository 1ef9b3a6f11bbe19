"""Checkpoints of a run: which are kept, what is loaded, and the signs that a process will end."""

import errno
import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from internals.checkpoint import Plan, Ranks, _disk, _keeping, _preemption, _save, _saving, _store, contents_of, live_blocks
from one_of_ranks import OneOfRanks
from torch import nn

from shoal import checkpoint
from shoal.checkpoint import Checkpoints
from shoal.exceptions import InvalidArgument, NotFound, Unavailable


def build(value=0.0):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def save(of, step, **options):
    of.save(step, build(step), state={"at": step}, **options).wait()


def names(path):
    return sorted(p.name for p in path.iterdir())


def test_the_newest_checkpoints_are_kept(tmp_path):
    of = Checkpoints(tmp_path / "run", keep=2)
    assert of.load(build()) is None
    assert (of.steps(), of.latest()) == ([], None)
    for step in range(5):
        save(of, step)
    assert of.steps() == [3, 4]
    assert names(tmp_path / "run") == ["step-00000003", "step-00000004"]
    model = build()
    assert of.load(model) == (4, {"at": 4})
    assert model.weight[0, 0] == 4
    assert Checkpoints(tmp_path / "run").load(model, step=3) == (3, {"at": 3})
    with pytest.raises(NotFound):
        of.load(model, step=1)


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 0)])
def test_the_best_checkpoints_are_kept_beside_the_newest(tmp_path, mode, best):
    of = Checkpoints(tmp_path / "run", keep=1, best="loss", mode=mode)
    for step, loss in enumerate([9, 5, 1, float("nan"), 6, 7]):
        save(of, step, metrics={"loss": loss, "other": 1})
    assert of.steps() == [best, 5]
    assert of.best() == best
    assert of.load(build(), step="best") == (best, {"at": best})
    with pytest.raises(InvalidArgument, match="metrics has no loss"):
        save(of, 9, metrics={"accuracy": 1})
    with pytest.raises(InvalidArgument, match="without a metric"):
        Checkpoints(tmp_path / "run").best()


def test_several_best_and_all_newest_may_be_kept(tmp_path):
    of = Checkpoints(tmp_path / "best", keep=1, best="loss", keep_best=2)
    for step, loss in enumerate([3, 1, 2, 4, 5]):
        save(of, step, metrics={"loss": loss})
    assert of.steps() == [1, 2, 4]
    of = Checkpoints(tmp_path / "all", keep=0)
    for step in range(4):
        save(of, step)
    assert of.steps() == [0, 1, 2, 3]


def test_a_step_that_is_saved_again_after_a_resume_is_not_deleted(tmp_path):
    of = Checkpoints(tmp_path / "run", keep=1)
    save(of, 8)
    save(of, 5)
    assert of.steps() == [5, 8]
    save(of, 9)
    assert of.steps() == [9]


def test_after_a_rollback_the_abandoned_steps_do_not_count(tmp_path):
    run = tmp_path / "run"
    of = Checkpoints(run, keep=3, best="loss")
    for step in range(1, 7):
        save(of, step, metrics={"loss": abs(step - 4)})
    assert of.steps() == [4, 5, 6]
    assert of.load(build(), step=4) == (4, {"at": 4})
    save(of, 5, metrics={"loss": 0.5})
    assert of.steps() == [4, 5]
    save(of, 6, metrics={"loss": 3})
    save(of, 7, metrics={"loss": 3})
    assert of.steps() == [4, 5, 6, 7]


def test_a_rank_that_becomes_the_first_one_after_a_rollback_keeps_the_steps_that_follow(tmp_path, monkeypatch):
    of, other = (Checkpoints(tmp_path / "run", keep=9) for _ in range(2))
    for step in range(1, 7):
        save(of, step)
    for one in (of, other):
        one.load(build(), step=2)

    class Second(OneOfRanks):
        rank = 1

    with monkeypatch.context() as m:  # the second rank's part in a save, of which the first rank writes the files
        m.setattr(_saving, "Ranks", Second)
        m.setattr(_saving, "write", lambda *_: None)
        save(other, 3)
    save(of, 3)
    save(other, 4)  # the first rank has died
    assert of.steps() == [1, 2, 3, 4]


def test_a_load_without_a_rollback_deletes_nothing(tmp_path):
    of = Checkpoints(tmp_path / "run", keep=3, best="loss")
    for step in range(1, 4):
        save(of, step, metrics={"loss": step})
    for loaded in ("best", 2):  # an evaluation, after which training goes on
        of.load(build(), step=loaded)
    save(of, 4, metrics={"loss": 4})
    assert of.steps() == [1, 2, 3, 4]
    of = Checkpoints(tmp_path / "run", keep=0)
    of.load(build(), step=1)
    save(of, 2)
    assert of.steps() == [1, 2, 3, 4]


def test_remains_of_killed_saves_and_damaged_manifests_do_not_matter(tmp_path):
    of = Checkpoints(tmp_path / "run", keep=1, best="loss")
    save(of, 1, metrics={"loss": 1})
    remains = tmp_path / "run" / "step-00000002" / ".saving-1"
    remains.mkdir(parents=True)
    (remains / "model-rank-0-of-1.safetensors").touch()
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "step-00000001" / "manifest.json").write_text('{"format": "shoal.checkpoint"')
    assert of.steps() == [1]
    save(of, 3, metrics={"loss": 2})
    assert names(tmp_path / "run") == ["notes", "step-00000003"]


class SmallDisk(_disk.Disk):
    """A disk with ``room`` for the files in ``folder``."""

    def __init__(self, folder):
        self.folder, self.room = folder, 1 << 30

    def used(self):
        return sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())

    def write(self, fd, data, at):
        if self.used() + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data, at)


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_full_disk_training_goes_on_and_later_saves_have_its_space(tmp_path, monkeypatch, capfd, killed):
    """``killed``: a save of which files are left takes the space first."""
    small = SmallDisk(tmp_path / "run")
    monkeypatch.setattr(_disk, "disk", small)
    of = Checkpoints(small.folder, keep=2, on_error="warn")
    save(of, 0)
    one = small.used()
    small.room = 3 * one + one // 2
    for step in (1, 2):
        save(of, step)
    small.room = 2 * one + one // 2
    of.save(3, build(3))
    of.save(4, build(4))  # neither it nor wait() raises
    checkpoint.wait()
    said = capfd.readouterr().err
    for step in (3, 4):
        assert f"step-0000000{step} was not saved, and the training goes on: there is no space for the checkpoint" in said
    assert of.steps() == [1, 2]
    assert small.used() == 2 * one
    small.room = 3 * one + one // 2
    if killed:
        (small.folder / "step-00000003" / ".saving-1").mkdir(parents=True, exist_ok=True)
        (small.folder / "step-00000003" / ".saving-1" / "model-rank-0-of-1.safetensors").write_bytes(bytes(one))
    save(of, 5)
    assert names(small.folder) == ["step-00000002", "step-00000005"]
    assert of.load(build()) == (5, {"at": 5})


def test_the_first_rank_chooses_the_step_for_all(tmp_path, monkeypatch):
    """The folder's list may change between the looks of two ranks."""
    of = Checkpoints(tmp_path / "run")
    for step in (3, 4):
        save(of, step)

    class Second(OneOfRanks):
        rank = 1

        def gather(self, value):
            return [(3, set()) if value else value, value]

    monkeypatch.setattr(_keeping, "Ranks", Second)
    assert of.load(build()) == (3, {"at": 3})


@pytest.mark.filterwarnings("ignore:.*could not be deleted")
def test_entries_of_other_programs_fail_no_save(tmp_path):
    run = tmp_path / "run"
    of = Checkpoints(run, keep=1, best="loss")
    save(of, 1, metrics={"loss": 3})
    (run / "step-00000001" / ".nfs0001").touch()  # NFS names an open file so when it is deleted
    (run / "step-00000002").touch()
    (run / "step-00000003").mkdir()
    (run / "step-00000003" / "manifest.json").write_text("not of Shoal")
    for step in (4, 5):
        save(of, step, metrics={"loss": 1 / step})
    assert names(run / "step-00000001") == [".nfs0001"]
    assert of.load(build()) == (5, {"at": 5})


@pytest.mark.parametrize("wrong", [{"keep": -1}, {"keep_best": 0}, {"every": 0}, {"mode": "median"}, {"on_error": "ignore"}])
def test_wrong_settings_are_refused(tmp_path, wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Checkpoints(tmp_path, **wrong)


def test_a_preemption_signal_asks_for_one_more_save(tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("the program's own"))
    try:
        of = Checkpoints(tmp_path / "run", every=10, on_preemption=True)
        assert [of.should_save(step) for step in (0, 1, 9, 10)] == [True, False, False, True]
        assert not of.preempted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == ["the program's own"]
        assert of.preempted()
        assert of.should_save(11)
        save(of, 11)
        assert not of.should_save(11)
        assert not Checkpoints(tmp_path / "run").preempted()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("grace", "warns"), [("4", True), ("3600", False), ("", False), ("soon", False)])
def test_a_save_that_does_not_fit_the_grace_is_reported_once(tmp_path, monkeypatch, capfd, grace, warns):
    monkeypatch.setenv("SHOAL_GRACE", grace)
    before = signal.getsignal(signal.SIGTERM)
    try:
        of = Checkpoints(tmp_path / "run", on_preemption=True)
        for step in (1, 2):
            save(of, step)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capfd.readouterr().err.count("pass --grace 12 or more to shoal run") == warns  # 5 s until the save, 1 s for it, 6 s after it


def test_a_drain_of_the_node_is_a_preemption(monkeypatch):
    answers = [Unavailable("the head is away"), [("a", "DRAINING"), ("b", "ALIVE")], [("a", "ALIVE"), ("b", "DRAINING")]]

    class Session:
        node = "b"

        def list(self, what):
            assert what == "nodes"
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return [{"id": node, "state": "ALIVE", "draining": state == "DRAINING"} for node, state in answer]

    before = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setattr(_preemption, "_CHECK_S", 0.001)
        monkeypatch.setattr(_preemption.state, "session", Session())
        preemption = _preemption.Preemption()
        assert preemption._event.wait(30)
        assert preemption.agreed()
        for thread in threading.enumerate():
            if thread.name == "shoal-checkpoint-drain":
                thread.join(30)
                assert not thread.is_alive()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", [".saving", ".saving-0123456789abcdef", "0123456789abcdef"])
def test_what_a_symbolic_link_in_a_run_names_is_deleted_by_no_save(tmp_path, name):
    """Another user may write to the folder, and give a link a name that saves use."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("mine")
    of = Checkpoints(tmp_path / "run", keep=1)
    save(of, 1)
    for times in range(2):  # a save over the checkpoint, then one that deletes it
        for folder in (of.path(1), of.path(2)):
            Path(folder).mkdir(exist_ok=True)
            (Path(folder) / name).symlink_to(home)
        save(of, 1 + times)
        assert (home / "thesis").read_text() == "mine"
    assert of.steps() == [2]
    assert not Path(of.path(1)).exists()


def test_steps_that_are_links_are_read_and_what_lies_behind_them_stays(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    of = Checkpoints(run, keep=2)
    for step in (1, 2):
        save(of, step)
    Path(of.path(1)).rename(elsewhere)
    Path(of.path(1)).symlink_to(elsewhere)
    Path(of.path(3)).symlink_to(tmp_path / "nowhere")  # its disk is away
    (run / "LATEST").symlink_to("step-00000002")
    assert of.load(build(), step=1) == (1, {"at": 1})
    of = Checkpoints(run, keep=2)
    for step in (4, 5):
        save(of, step)
    assert of.steps() == [4, 5]
    assert names(run) == ["LATEST", "step-00000003", "step-00000004", "step-00000005"]
    assert checkpoint.load(elsewhere, build()) == {"at": 1}
    with pytest.raises(InvalidArgument, match=r"a symbolic link to .*nowhere, which is missing"):
        save(of, 3)


class Turns:
    """Two ranks of a model that is not sharded, as threads: each knows of the other, and not which of them save."""

    def __init__(self, monkeypatch):
        self.waits, self.writes, self.goes_on = threading.Event(), threading.Event(), threading.Event()
        self._flock, self.errors = fcntl.flock, []
        monkeypatch.setattr(fcntl, "flock", self.flock)
        monkeypatch.setattr(_save, "is_one_of_many", lambda _: True)

    def flock(self, fd, how):
        try:
            self._flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.waits.set()
            if how & fcntl.LOCK_NB:
                raise
            self._flock(fd, how)

    def save(self, path, value, hold=False):
        contents = contents_of(build(value))
        ranks = Ranks(())

        def blocks(_, layout):
            if hold:
                self.writes.set()
                assert self.goes_on.wait(60)
            return live_blocks(layout)

        def run():
            try:
                _save.write(path, Plan(contents, None, {"at": value}, ranks), ranks, blocks)
            except Exception as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        if hold:
            assert self.writes.wait(60)
        return thread


def test_ranks_that_save_the_same_model_to_one_path_take_turns(tmp_path, monkeypatch):
    turns = Turns(monkeypatch)
    of = Checkpoints(tmp_path / "run", keep=1)
    first = turns.save(of.path(1), 1, hold=True)
    second = turns.save(of.path(1), 2)
    assert turns.waits.wait(60)
    save(of, 2)  # it deletes neither the rest of a killed save, as which the one under way looks, nor an old step
    assert len(list(Path(of.path(1)).glob(".saving-*"))) == 1
    turns.goes_on.set()
    first.join()
    second.join()
    assert not turns.errors
    model = build()
    assert checkpoint.load(of.path(1), model) == {"at": 2}
    assert model.weight[0, 0] == 2
    save(of, 3)
    assert names(tmp_path / "run") == ["step-00000003"]


def test_a_run_lies_at_an_address_of_fsspec():
    of = Checkpoints("memory://run", keep=2)
    for step in range(4):
        save(of, step)
    assert of.steps() == [2, 3]
    model = build()
    assert of.load(model, streaming=True) == (3, {"at": 3})
    assert model.weight[0, 0] == 3
    assert checkpoint.read_manifest("memory://run/step-00000003").info == {"step": 3, "metrics": {}}


def test_a_read_that_fails_deletes_no_folder_of_an_object_store(monkeypatch):
    checkpoint.save("memory://kept", build(1), state={"at": 1})
    with monkeypatch.context() as m:
        read, times = _store.RemoteStore.read, []

        def second_fails(self, name, most):
            times.append(name)
            if len(times) == 2:
                raise ConnectionResetError("the object store went away")
            return read(self, name, most)

        m.setattr(_store.RemoteStore, "read", second_fails)
        with pytest.raises(InvalidArgument, match="went away"):
            checkpoint.save("memory://kept", build(2))
    model = build()
    assert checkpoint.load("memory://kept", model) == {"at": 1}
    assert model.weight[0, 0] == 1
