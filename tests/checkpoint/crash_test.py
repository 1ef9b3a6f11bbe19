"""Saves that stop before any of their system calls: the folder holds the previous checkpoint or the new one, whatever the disk lost.

A model of a file system replays the recorded calls of a save. After a crash, names that were not synced with their folder may be there or
not, and so may bytes that were not synced with their file. The test enumerates which.
"""

import builtins
import errno
import itertools
import os
import signal
import sys

import pytest
import torch
from internals.checkpoint import _disk
from torch import nn

from shoal import checkpoint
from shoal.exceptions import NotFound, ShoalError
from shoal.optim import AdamW

_MOST_FREE = 7  # so many lost or kept names are enumerated with all subsets


def trained(times):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = AdamW(model.parameters(), lr=0.1)
    for _ in range(times):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def loaded(path):
    """Returns which checkpoint lies there, after all of its values were compared; None if there is none."""
    model, optimizer = trained(0)
    try:
        which = checkpoint.load(path, model, optimizer)["times"]
    except NotFound:
        return None
    expected, its = trained(which)
    for a, b, p, q in zip(
        model.state_dict().values(), expected.state_dict().values(), model.parameters(), expected.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert all(
            torch.equal(v, its.state[q][k]) if isinstance(v, torch.Tensor) else v == its.state[q][k] for k, v in optimizer.state[p].items()
        )
    return which


class Recorder(_disk.Disk):
    """Performs the calls and records them."""

    def __init__(self):
        self.calls, self.paths = [], {}

    def make_folder(self, path):
        super().make_folder(path)
        self.calls.append(("make_folder", path))

    def create(self, path):
        fd = super().create(path)
        self.paths[fd] = path
        self.calls.append(("create", path))
        return fd

    def write(self, fd, data, at):
        count = super().write(fd, data, at)
        self.calls.append(("write", self.paths[fd], at, bytes(data[:count])))
        return count

    def sync(self, fd):
        super().sync(fd)
        self.calls.append(("sync", self.paths[fd]))

    def sync_folder(self, path):
        super().sync_folder(path)
        self.calls.append(("sync_folder", path))

    def move(self, source, to):
        super().move(source, to)
        self.calls.append(("move", source, to))

    def remove(self, path):
        super().remove(path)
        self.calls.append(("remove", path))

    def remove_folder(self, path):
        super().remove_folder(path)
        self.calls.append(("remove_folder", path))


class Node:
    """A file or a folder: what is certainly on disk, and the changes that may be."""

    def __init__(self, is_folder):
        self.is_folder = is_folder
        self.now = {} if is_folder else b""
        self.disk = {} if is_folder else b""
        self.pending = []  # changes of a folder: (name, node or None)

    def set(self, name, node):
        self.pending.append((name, node))
        if node is None:
            del self.now[name]
        else:
            self.now[name] = node

    def sync(self):
        self.disk = dict(self.now) if self.is_folder else self.now
        self.pending = []


class ModelDisk:
    def __init__(self, root):
        self.root_path, self.root = str(root), self._read(str(root))

    def _read(self, path):
        node = Node(os.path.isdir(path))
        if node.is_folder:
            node.now = {name: self._read(os.path.join(path, name)) for name in os.listdir(path)}
        else:
            with open(path, "rb") as f:
                node.now = f.read()
        node.sync()
        return node

    def _find(self, path):
        node = self.root
        for name in os.path.relpath(path, self.root_path).split(os.sep):
            node = node if name == "." else node.now[name]
        return node

    def _parent(self, path):
        return self._find(os.path.dirname(path)), os.path.basename(path)

    def apply(self, call, path, *rest):
        if call in ("sync", "sync_folder"):
            self._find(path).sync()
            return
        folder, name = self._parent(path)
        if call in ("make_folder", "create"):
            folder.set(name, Node(call == "make_folder"))
        elif call == "write":
            at, data = rest
            node = folder.now[name]
            node.now = node.now[:at].ljust(at, b"\0") + data + node.now[at + len(data) :]
        elif call == "move":
            node = folder.now[name]
            into, as_ = self._parent(rest[0])
            into.set(as_, node)
            folder.set(name, None)
        else:
            folder.set(name, None)

    def _folders(self, node):
        if node.is_folder:
            yield node
            every = [*node.disk.values(), *node.now.values(), *(n for _, n in node.pending if n)]
            for child in {id(n): n for n in every}.values():
                yield from self._folders(child)

    def after_crash(self):
        """Yields every state that the disk may have, as {path: bytes}, for a folder None."""
        folders = list({id(f): f for f in self._folders(self.root)}.values())
        free = [(f, i) for f in folders for i in range(len(f.pending))]
        if len(free) <= _MOST_FREE:
            kept = [set(c) for n in range(len(free) + 1) for c in itertools.combinations(range(len(free)), n)]
        else:
            every = range(len(free))
            kept = [set(), set(every), *({i} for i in every), *(set(every) - {i} for i in every), *(set(range(i)) for i in every)]
        for chosen in kept:
            names = {id(f): dict(f.disk) for f in folders}
            for number in sorted(chosen):
                f, i = free[number]
                name, node = f.pending[i]
                if node is None:
                    names[id(f)].pop(name, None)
                else:
                    names[id(f)][name] = node
            for content in ("lost", "torn", "there"):
                yield dict(self._state(self.root, "", names, content))

    def _state(self, node, path, names, content):
        if not node.is_folder:
            torn = node.now[: len(node.now) // 2].ljust(len(node.now), b"\0")
            yield path, node.disk if content == "lost" or node.disk == node.now else torn if content == "torn" else node.now
            return
        yield path, None
        for name, child in names[id(node)].items():
            yield from self._state(child, f"{path}/{name}", names, content)


def materialize(state, root):
    for path, data in sorted(state.items()):
        if data is None:
            os.makedirs(root + path, exist_ok=True)
        else:
            with open(root + path, "wb") as f:
                f.write(data)


def first(path):
    pass


def over_an_old_one(path):
    checkpoint.save(path, *trained(1), state={"times": 1})


def over_the_same(path):
    checkpoint.save(path, *trained(2), state={"times": 2})


def over_leftovers(path):
    over_an_old_one(path)
    (path / ".saving-1").mkdir()
    (path / ".saving-1" / "model-rank-0-of-1.safetensors").write_bytes(b"half a file")


def over_leftovers_of_an_earlier_release(path):
    over_an_old_one(path)
    (path / ".saving").mkdir()
    (path / ".saving" / "model-rank-0-of-1.safetensors").write_bytes(b"half a file")


def over_a_new_folder(path):
    path.mkdir()


def over_a_first_one_that_was_killed(path):
    path.mkdir()
    (path / ".saving-1").mkdir()


BEFORE = {
    f.__name__: f
    for f in (
        first,
        over_an_old_one,
        over_the_same,
        over_leftovers,
        over_leftovers_of_an_earlier_release,
        over_a_new_folder,
        over_a_first_one_that_was_killed,
    )
}
OLD = {
    "over_an_old_one": 1,
    "over_the_same": 2,
    "over_leftovers": 1,
    "over_leftovers_of_an_earlier_release": 1,
}  # which checkpoint lies there before the save
NOT_SYNCED = ("over_a_new_folder", "over_a_first_one_that_was_killed")  # the name of the checkpoint's folder may be lost


@pytest.mark.parametrize("before", BEFORE)
def test_a_crash_before_any_call_leaves_a_loadable_checkpoint(tmp_path, monkeypatch, before):
    root, old = tmp_path / "root", OLD.get(before)
    root.mkdir()
    path = root / "c"
    BEFORE[before](path)
    model_disk, recorder = ModelDisk(root), Recorder()
    if before in NOT_SYNCED:
        model_disk.root.pending.append(("c", model_disk.root.disk.pop("c")))
    monkeypatch.setattr(_disk, "disk", recorder)
    checkpoint.save(path, *trained(2), state={"times": 2})
    monkeypatch.undo()
    seen, states = set(), {}
    for at in range(len(recorder.calls) + 1):
        complete = at == len(recorder.calls)
        for state in model_disk.after_crash():
            key = (frozenset(state.items()), complete)
            if key not in states:
                states[key] = where = str(tmp_path / f"state-{len(states)}")
                materialize(state, where)
                which = loaded(where + "/c")
                assert which == 2 if complete else which in (old, 2), (at, recorder.calls[:at][-1:])
                seen.add(which)
        if not complete:
            model_disk.apply(*recorder.calls[at])
    assert seen == {old, 2}
    assert len(recorder.calls) >= 15
    assert len(states) >= 30
    # A later save cleans up after any of the crashes.
    for where in list(states.values())[:: max(1, len(states) // 40)]:
        over_the_same(type(tmp_path)(where) / "c")
        assert loaded(where + "/c") == 2
        assert len(list((type(tmp_path)(where) / "c").iterdir())) == 2


class Failing(Recorder):
    """Raises at one call, or runs ``instead``."""

    def __init__(self, at, instead):
        super().__init__()
        self.left, self.instead = at, instead

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name in vars(_disk.Disk):
            self.left -= 1
            if self.left == 0:
                self.instead()
        return value


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_any_call_is_raised_and_leaves_a_loadable_checkpoint(tmp_path, monkeypatch, number):
    def fail():
        raise OSError(number, os.strerror(number))

    seen = set()
    for at in itertools.count(1):
        path = tmp_path / str(at)
        over_an_old_one(path)
        failing = Failing(at, fail)
        with monkeypatch.context() as m:
            m.setattr(_disk, "disk", failing)
            if failed := _fails(lambda path=path: over_the_same(path)):
                assert failed.code == ("ResourceExhausted" if number == errno.ENOSPC else "InvalidArgument")
        seen.add(which := loaded(path))
        if which == 1:  # nothing of the failed save is left to fill the disk
            assert len([e for e in path.iterdir() if e.is_dir()]) == 1, (at, failing.calls[-1:])
        over_the_same(path)
        assert loaded(path) == 2
        assert len(list(path.iterdir())) == 2
        if not failed:
            break
    assert seen == {1, 2}
    assert at >= 15


def _fails(action):
    try:
        action()
    except ShoalError as error:
        return error
    return None


def test_a_save_killed_before_any_call_leaves_a_loadable_checkpoint(tmp_path):
    seen = set()
    for at in itertools.count(1):
        path = tmp_path / str(at)
        over_an_old_one(path)
        child = os.fork()
        if child == 0:
            _disk.disk = Failing(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            over_the_same(path)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        seen.add(loaded(path))
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert seen == {1, 2}
    assert at >= 15


def test_a_save_changes_nothing_outside_of_the_seam(tmp_path, monkeypatch):
    """The enumeration covers every call only if no call goes another way."""
    elsewhere = []

    def guard(module, name):
        call = getattr(module, name)

        def guarded(*args, **kwargs):
            if not isinstance(sys._getframe(1).f_locals.get("self"), _disk.Disk):
                elsewhere.append(name)
            return call(*args, **kwargs)

        monkeypatch.setattr(module, name, guarded)

    def guarded_open(file, mode="r", *args, **kwargs):
        if set(mode) & set("wax+"):
            elsewhere.append("open")
        return real_open(file, mode, *args, **kwargs)

    real_open = builtins.open
    over_leftovers(tmp_path / "c")
    monkeypatch.setattr(builtins, "open", guarded_open)
    changing = [
        "write",
        "writev",
        "pwrite",
        "pwritev",
        "fsync",
        "fdatasync",
        "sync",
        "rename",
        "renames",
        "replace",
        "mkdir",
        "makedirs",
        "unlink",
    ]
    changing += ["remove", "rmdir", "truncate", "ftruncate", "link", "symlink", "chmod", "copy_file_range", "sendfile", "posix_fallocate"]
    for name in changing:
        guard(os, name)
    over_the_same(tmp_path / "c")
    monkeypatch.undo()
    assert not elsewhere
    assert loaded(tmp_path / "c") == 2
