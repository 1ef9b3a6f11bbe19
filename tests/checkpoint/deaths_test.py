"""A save leaves no rubbish when a rank dies, or when a first rank lives on that the others have given up."""

import threading

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from internals.checkpoint import About, LocalStore, RemoteStore, _disk, _save, _saving, save_with
from one_of_ranks import OneOfRanks
from torch import nn

from shoal import checkpoint
from shoal.exceptions import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable

OLD, NEW, FILE = "a" * 16, "b" * 16, "model-rank-0-of-1.safetensors"


def build(value=0.0):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def expect_saved(path, value):
    model = build()
    checkpoint.load(path, model)
    assert model.weight[0, 0] == value


def put(store, token):
    file = store.create(token, FILE)
    file.append(memoryview(token.encode()))
    file.close()


@pytest.mark.parametrize("where", ["a disk", "an object store"])
def test_a_lost_first_rank_commits_nothing_over_the_next_save(tmp_path, where):
    path = str(tmp_path / "c") if where == "a disk" else "memory://lost-first-rank"
    kind = LocalStore if where == "a disk" else RemoteStore
    checkpoint.save(path, build(1))
    lost, present = (kind(tmp_path / "c" if where == "a disk" else path) for _ in range(2))
    lost.begin(OLD)
    put(lost, OLD)
    present.begin(NEW)
    put(present, NEW)  # under the same name, and not complete
    with pytest.raises(FileNotFoundError):
        lost.commit(OLD, OLD, [FILE], b"of the lost rank")
    expect_saved(path, 1)
    present.commit(NEW, NEW, [FILE], b"of the present one")
    assert present.read("manifest.json", 99) == b"of the present one"


def test_a_lost_first_rank_writes_nothing_while_the_next_save_deletes_its_folder(tmp_path, monkeypatch):
    lost, tries = LocalStore(tmp_path / "c"), []
    lost.begin(OLD)
    put(lost, OLD)

    class Between(_disk.Disk):
        def remove_folder(self, path):
            with pytest.raises(FileNotFoundError):
                lost.create(OLD, "manifest.json")
            tries.append(path)
            super().remove_folder(path)

    with monkeypatch.context() as m:
        m.setattr(_disk, "disk", Between())
        LocalStore(tmp_path / "c").begin(NEW)
    assert len(tries) == 1
    assert leftovers(tmp_path / "c") == [f".saving-{NEW}"]


def test_a_lost_first_rank_deletes_nothing_of_the_next_save(tmp_path, monkeypatch):
    path = tmp_path / "c"
    checkpoint.save(path, build(1))
    lost = LocalStore(path)
    lost.begin(OLD)
    put(lost, OLD)

    class Late(_disk.Disk):
        """Behind the rename of the lost rank's manifest, another save begins and ends."""

        def move(self, source, to):
            super().move(source, to)
            if to.endswith("manifest.json"):
                monkeypatch.undo()
                (path / "manifest.json").unlink()  # it is none that a save can read
                checkpoint.save(path, build(2))

    monkeypatch.setattr(_disk, "disk", Late())
    lost.commit(OLD, OLD, [FILE], b"{}")
    expect_saved(path, 2)


@pytest.mark.parametrize("kind", [LocalStore, RemoteStore])
@pytest.mark.parametrize("stage", ["writes", "commits"])
def test_a_lost_single_rank_that_fails_deletes_nothing_of_the_next_save(tmp_path, kind, stage):
    """It has no group whose failure would stop it. The next save has written the same contents, under the same name on a disk."""
    path = str(tmp_path / "c") if kind is LocalStore else f"memory://lost-single-rank-{stage}"
    lost, present = (kind(tmp_path / "c" if kind is LocalStore else path) for _ in range(2))
    lost.begin(OLD)
    put(lost, OLD)
    present.begin(NEW)
    put(present, NEW)
    folder = NEW
    if kind is LocalStore:
        folder = "c" * 16  # by contents
        (tmp_path / "c" / folder).mkdir()
        present.create(NEW, "optimizer").close()
        (tmp_path / "c" / f".saving-{NEW}" / "optimizer").rename(tmp_path / "c" / folder / "optimizer")
    lost.abandon(OLD, "" if stage == "writes" else folder if kind is LocalStore else OLD)
    names = [FILE, "optimizer"][: 1 + (kind is LocalStore)]
    if kind is LocalStore:
        assert (tmp_path / "c" / folder / "optimizer").exists()
    present.commit(NEW, folder, names[:1], b"of the present one")
    assert present.read("manifest.json", 99) == b"of the present one"
    assert present.open(f"{folder}/{FILE}").num_bytes == len(NEW)


def test_a_manifest_whose_write_failed_on_the_way_back_has_its_files(monkeypatch):
    """The object store has it, and the answer is lost."""
    path = "memory://answer-lost"
    checkpoint.save(path, build(1))
    pipe_file = MemoryFileSystem.pipe_file

    def lose(self, *arguments, **more):
        pipe_file(self, *arguments, **more)
        raise ConnectionResetError("the answer is lost")

    with monkeypatch.context() as m:
        m.setattr(MemoryFileSystem, "pipe_file", lose)
        with pytest.raises(InvalidArgument, match="the answer is lost"):
            checkpoint.save(path, build(2))
    expect_saved(path, 2)
    checkpoint.save(path, build(3))
    assert len(RemoteStore(path).list()) == 2  # the manifest, and the folder that it names


def leftovers(path):
    return [e.name for e in path.iterdir() if e.name.startswith(".saving")]


@pytest.fixture
def ranks(monkeypatch):
    class Chosen(OneOfRanks):
        size = 1

    monkeypatch.setattr(_saving, "Ranks", Chosen)
    return Chosen


def fail(*_):
    raise MemoryError("no memory for this part")


def test_an_error_of_any_kind_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(_save, "write_file", fail)
    with pytest.raises(MemoryError):
        checkpoint.save(tmp_path / "c", build())
    assert leftovers(tmp_path / "c") == []


@pytest.mark.parametrize("error", [DeadlineExceeded("rank 1 did not come"), Unavailable("rank 1 has died"), RuntimeError("gloo")])
def test_files_stay_while_another_rank_may_still_write(tmp_path, ranks, error):
    ranks.death, ranks.error = 4, error  # after the plan, begin and the token: the files are written
    with pytest.raises(type(error)):
        checkpoint.save(tmp_path / "c", build())
    assert len(leftovers(tmp_path / "c")) == 1


def test_nothing_is_deleted_before_all_ranks_have_ended_their_earlier_saves(tmp_path, ranks):
    ranks.events = events = []
    save_with(tmp_path / "c", build(), None, state=None, about=About(before=lambda: events.append("sweep"))).wait()
    checkpoint.wait()
    assert events[:2] == ["gather", "sweep"]


def test_a_death_does_not_hide_an_earlier_error_of_the_save(tmp_path, monkeypatch, capfd):
    class Full(_disk.Disk):
        def write(self, fd, data, at):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(_disk, "disk", Full())
        checkpoint.save_async(tmp_path / "c", build())
        _saving.settle()
    _saving.abandon()
    with pytest.raises(ResourceExhausted):
        checkpoint.wait()
    assert capfd.readouterr().err == ""


def test_the_error_of_a_death_is_printed_and_not_raised(tmp_path, ranks, capfd):
    ranks.death, ranks.error = 4, Unavailable("rank 1 has died")
    checkpoint.save_async(tmp_path / "c", build())
    _saving.settle()
    _saving.abandon()
    _saving.print_error(True)
    checkpoint.wait()
    assert "c was not saved, and the training goes on: rank 1 has died" in capfd.readouterr().err


def test_the_first_of_the_survivors_prints_the_error_when_the_first_rank_has_died(tmp_path, ranks, capfd):
    ranks.death, ranks.error = 4, Unavailable("rank 0 has died")
    for number, (first, ends_late) in enumerate([(True, False), (True, True), (False, False)]):
        path, go = tmp_path / f"c{number}", threading.Event()
        pending = save_with(path, build(), None, state=None, about=About(before=go.wait))
        pending._ranks.rank = 1  # rank 0 has written no word of it
        if ends_late:
            _saving.abandon()
            _saving.print_error(first)
        go.set()
        _saving.settle()
        if not ends_late:
            _saving.abandon()
            assert capfd.readouterr().err == ""
            _saving.print_error(first)
        checkpoint.wait()
        expected = f"shoal: the checkpoint {path} was not saved, and the training goes on: rank 0 has died\n"
        assert capfd.readouterr().err == (expected if first else "")


def test_the_cause_is_the_death_and_not_the_end_of_its_groups(tmp_path, ranks, capfd, monkeypatch):
    ranks.death, ranks.error = 4, ValueError("Group <x> is not registered: not initialized in the world group map")
    write_file, go = _save.write_file, threading.Event()

    def late(*arguments):
        assert go.wait(60)
        _saving.abandon()  # the training's thread has seen the death first, and has ended the groups
        return write_file(*arguments)

    monkeypatch.setattr(_save, "write_file", late)
    checkpoint.save_async(tmp_path / "c", build())
    go.set()
    checkpoint.wait()
    _saving.print_error(True)
    assert capfd.readouterr().err.endswith("was not saved, and the training goes on: a rank has died\n")


def test_a_complete_checkpoint_is_not_called_unsaved(tmp_path, ranks, capfd):
    """A death of another rank after the commit, and an error after it."""
    ranks.death, ranks.error = 6, Unavailable("rank 1 has died")
    checkpoint.save_async(tmp_path / "c", build(3))
    _saving.settle()
    _saving.abandon()
    _saving.print_error(True)
    checkpoint.wait()
    expect_saved(tmp_path / "c", 3)

    def after(rank):
        raise InvalidArgument("a later step cannot be deleted")

    ranks.death = 0
    save_with(tmp_path / "d", build(4), None, state=None, about=About(after=after, warns=True))
    checkpoint.wait()
    expect_saved(tmp_path / "d", 4)
    said = capfd.readouterr().err
    assert "was not saved" not in said
    assert said.count("was saved, but not all that follows a save was done") == 2
