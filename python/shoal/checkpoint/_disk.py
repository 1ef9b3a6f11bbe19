"""Checkpoints on a local or shared file system: every change goes through ``Disk``, and the order of changes makes a save atomic."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

from shoal.checkpoint import _manifest
from shoal.exceptions import ShoalError

SAVING = ".saving"
_OF_A_SAVE = re.compile(r"\.saving(-[0-9a-f]{1,16})?")  # releases before this one have no token in the name
_DIRECT_BYTES = 1 << 20  # shorter writes go through the page cache
ALIGNMENT = 4096  # addresses, sizes and positions of direct reads and writes are multiples


class Disk:
    """The changes that a save makes: one method per system call, so that a test can stop before any of them."""

    def make_folder(self, path: str) -> None:
        os.mkdir(path)

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview, at: int) -> int:
        return os.pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def move(self, source: str, to: str) -> None:
        os.replace(source, to)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)


disk = Disk()


def _set_direct(fd: int, on: bool) -> bool:
    """Turns direct I/O on or off. Returns False where the file system has none."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


class NewFile:
    """A file that is written from its begin to its end, and synced by ``close``."""

    def __init__(self, path: Path):
        self._fd = disk.create(os.fspath(path))
        self._at, self._direct = 0, False

    def append(self, data: memoryview) -> None:
        """Writes whole pages past the page cache, because a copy would cost time, and the rest through it."""
        pages = len(data) // ALIGNMENT * ALIGNMENT
        if pages >= _DIRECT_BYTES and self._at % ALIGNMENT == 0:
            self._write(data[:pages], direct=True)
            data = data[pages:]
        self._write(data, direct=False)

    def _write(self, data: memoryview, direct: bool) -> None:
        while len(data):
            if direct != self._direct:
                self._direct = _set_direct(self._fd, direct) and direct
            written = disk.write(self._fd, data, self._at)
            self._at += written
            data = data[written:]
            direct = direct and written % ALIGNMENT == 0 and self._direct

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # closed once: another thread may get the same number
        try:
            disk.sync(fd)
        finally:
            os.close(fd)

    def abandon(self) -> None:
        """Closes the file, unless ``close`` has."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _open_regular(path: Path) -> int:
    """Opens a file for reads. Raises OSError for what is no regular file: a FIFO may have no writer, and a device has no end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, f"{path.name} is no regular file")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class OpenFile:
    """A file for reads at any position, past the page cache where that is possible and worth it."""

    def __init__(self, path: Path):
        self._fd = _open_regular(path)
        self.num_bytes = os.fstat(self._fd).st_size
        if self.num_bytes >= _DIRECT_BYTES:
            _set_direct(self._fd, True)

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Reads into the buffer. ``at`` and the buffer are aligned. Returns the number of bytes, less at the end of the file."""
        num_read = 0
        while num_read < len(buffer):
            count = os.preadv(self._fd, [buffer[num_read:]], at + num_read)
            num_read += count
            if count == 0 or count % ALIGNMENT:
                break
        return num_read

    def close(self) -> None:
        os.close(self._fd)


class LocalStore:
    """The folder of a checkpoint. A save writes its files to ``.saving-TOKEN``, moves them to a folder of their own, and commits by the
    rename of the manifest. Until then, the previous manifest names files that are still there. The token is that of one save: a rank 0 that
    the others have given up can no longer commit once another save has begun."""

    names_by_contents = True  # files move after their contents are known

    def __init__(self, path: Path):
        self.path = path

    def _saving(self, token: str) -> Path:
        return self.path / f"{SAVING}-{token}"

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str, most: int) -> bytes:
        """Reads a small file. Raises FileNotFoundError, and OverflowError beyond ``most`` bytes."""
        with self.open_binary(name) as f:
            if os.fstat(f.fileno()).st_size > most:
                raise OverflowError
            return f.read()

    def list(self) -> list[str]:
        try:
            return sorted(e.name for e in os.scandir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, name: str, *, linked: bool = False) -> OpenFile:
        """Opens a file. ``linked``: it may be a symbolic link out of the folder. Otherwise only Hugging Face's cache may have such links,
        and OSError is raised for others."""
        path = self.path / name
        if not linked and not _lies_below(path, self.path):
            raise OSError(errno.EINVAL, "it is a symbolic link out of the checkpoint's folder")
        return OpenFile(path)

    def open_binary(self, name: str):
        return open(_open_regular(self.path / name), "rb")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until no other process is inside of this context for this path. Does nothing where folders cannot be locked, as on NFS."""
        self._expect_folder()
        fd = None
        while fd is None:  # again if a deletion came first
            _make_folders(self.path)
            with contextlib.suppress(FileNotFoundError):
                fd = _lock(self.path, fcntl.LOCK_EX)
        try:
            yield
        finally:
            _unlock(fd)

    def _expect_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, and a checkpoint is a folder")
        if self.path.is_symlink() and not self.path.exists():
            raise FileNotFoundError(errno.ENOENT, f"it is a symbolic link to {os.readlink(self.path)}, which is missing")

    def begin(self, token: str) -> None:
        self._expect_folder()
        if not _make_folders(self.path):  # the folder exists, but perhaps only in the cache: its maker may not have synced it
            with contextlib.suppress(PermissionError):  # a folder in which this process may only look up names
                disk.sync_folder(os.fspath(self.path.parent))
        for left in sorted(self.path.iterdir()):  # by a save that did not finish
            if _is_of_a_save(left):
                aside = self._saving(secrets.token_hex(8))
                with contextlib.suppress(FileNotFoundError):  # a rank 0 that the others have given up has deleted it meanwhile
                    disk.move(os.fspath(left), os.fspath(aside))  # from here on, that rank 0 cannot commit
                    _remove_tree(aside)
        disk.make_folder(os.fspath(self._saving(token)))

    def create(self, token: str, name: str) -> NewFile:
        return NewFile(self._saving(token) / name)

    def commit(self, token: str, folder: str, files: list[str], text: bytes) -> None:
        """Moves the files to their folder, then replaces the manifest, then deletes unused files. Raises FileNotFoundError if another save
        has begun."""
        target, saving = self.path / folder, self._saving(token)
        # The folders of now: one that comes later is another save's.
        unused = [e for e in sorted(self.path.iterdir()) if _manifest.FOLDER.fullmatch(e.name) and e.name != folder]
        # Moves file by file: a folder of this name may exist, with the same bytes, and the present manifest may refer to it.
        if not target.is_dir():
            _remove_tree(target)
            disk.make_folder(os.fspath(target))
        for name in files:
            if (target / name).is_dir():  # damage, which no rename replaces
                _remove_tree(target / name)
            disk.move(os.fspath(saving / name), os.fspath(target / name))
        disk.sync_folder(os.fspath(target))
        manifest = NewFile(saving / _manifest.FILE)
        manifest.append(memoryview(text))
        manifest.close()
        disk.sync_folder(os.fspath(self.path))
        disk.move(os.fspath(saving / _manifest.FILE), os.fspath(self.path / _manifest.FILE))
        disk.sync_folder(os.fspath(self.path))
        for old in [saving, *unused]:
            _remove_tree(old)

    def abandon(self, token: str, folder: str) -> None:
        """Deletes what a save has written that was not committed. ``folder``: its name for its files, or "" if it had none yet. Does
        nothing once another save has begun, which may use that name for the same contents."""
        if not (saving := self._saving(token)).is_dir():
            return
        _remove_tree(saving)
        named = (self.path / _manifest.FILE).exists()
        if _manifest.FOLDER.fullmatch(folder) and (self.path / folder).is_dir() and not (named and self._names(folder)):
            _remove_tree(self.path / folder)

    def _names(self, folder: str) -> bool:
        """True if the present manifest names this folder, or cannot be read."""
        try:
            return _manifest.parse_manifest(self.read(_manifest.FILE, _manifest.MAX_BYTES), str(self)).folder == folder
        except (ShoalError, OSError, OverflowError):
            return True

    def remove(self) -> None:
        """Deletes the checkpoint, its manifest first, so that no moment leaves a part of one. Entries of other programs stay. So do the
        files behind a symbolic link, whose disk may be away: the link to a folder goes, and one that leads nowhere stays."""
        if not self.path.is_dir():
            return
        if self.path.is_symlink():
            disk.remove(os.fspath(self.path))
            return
        try:
            fd = _lock(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):  # another rank saves to it, or has deleted it
            return
        try:
            self._remove()
        finally:
            _unlock(fd)

    def _remove(self) -> None:
        if (self.path / _manifest.FILE).exists():
            disk.remove(os.fspath(self.path / _manifest.FILE))
            disk.sync_folder(os.fspath(self.path))
        for entry in sorted(self.path.iterdir()):
            if _is_of_a_save(entry) or _manifest.FOLDER.fullmatch(entry.name):
                _remove_tree(entry)
        with _may_remain(self.path):
            disk.remove_folder(os.fspath(self.path))


def _lock(path: Path, how: int) -> int:
    """Locks a folder against other processes that do so, where the file system can. Returns the descriptor to unlock. Raises
    FileNotFoundError if the folder was deleted meanwhile, and BlockingIOError instead of a wait if ``how`` has LOCK_NB."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            raise
        except OSError:
            return fd
        if os.fstat(fd).st_ino != os.stat(path).st_ino:
            raise FileNotFoundError(errno.ENOENT, "it was deleted", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unlock(fd: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # a forked process may have the descriptor, too, which would keep the lock
    os.close(fd)


def _lies_below(path: Path, folder: Path) -> bool:
    """True for a file of the folder, behind all symbolic links, and for one of the cache of Hugging Face that has the folder: there, a
    snapshot's files are links to ``blobs``."""
    real, home = os.path.realpath(path), os.path.realpath(folder)
    cache, snapshots, _ = home.rpartition("/snapshots/")
    return real.startswith(f"{home}/") or bool(snapshots and real.startswith(f"{cache}/blobs/"))


def _is_of_a_save(entry: Path) -> bool:
    return _OF_A_SAVE.fullmatch(entry.name) is not None


def _make_folders(path: Path) -> bool:
    """Makes a folder and those above it, durably. Returns False if it exists."""
    if path.is_dir():
        return False
    _make_folders(path.parent)
    with contextlib.suppress(FileExistsError):
        disk.make_folder(os.fspath(path))
    disk.sync_folder(os.fspath(path.parent))
    return True


@contextlib.contextmanager
def _may_remain(path: Path) -> Iterator[None]:
    """Warns of what cannot be deleted because it is in use or holds other entries. NFS keeps open files under names such as .nfs0001."""
    try:
        yield
    except FileNotFoundError:  # a rank 0 that the others have given up has moved it
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise
        warnings.warn(f"{path} could not be deleted: {error.strerror}", stacklevel=2)


def _remove_tree(path: Path) -> None:
    """Deletes a file, or a folder with all that is in it. A symbolic link goes, and what it names stays: another user may have made it."""
    with _may_remain(path):
        if path.is_symlink() or not path.is_dir():
            disk.remove(os.fspath(path))
            return
        for entry in sorted(path.iterdir()):
            _remove_tree(entry)
        disk.remove_folder(os.fspath(path))
