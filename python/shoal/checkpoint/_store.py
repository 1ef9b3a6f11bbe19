"""Where checkpoints lie: a local folder, or an address of fsspec such as ``s3://bucket/run``."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.checkpoint import _manifest
from shoal.checkpoint._disk import LocalStore
from shoal.checkpoint._manifest import FILE, Manifest, foreign, parse_manifest
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, ResourceExhausted

_UPLOAD = 32 << 20  # bytes of one part of an upload


def open_store(path: str | Path) -> LocalStore | RemoteStore:
    text = str(path)
    if text.startswith("file://"):
        return LocalStore(Path(text.removeprefix("file://")))
    return RemoteStore(text) if "://" in text else LocalStore(Path(path))


def join(path: str | Path, name: str) -> str:
    return f"{str(path).rstrip('/')}/{name}"


class RemoteStore:
    """A checkpoint in an object store. Files go to a folder with a new name, because objects cannot be renamed. The commit is one write of
    the manifest, which object stores make atomic."""

    names_by_contents = False

    def __init__(self, url: str):
        try:
            import fsspec  # late: an optional dependency
        except ImportError:
            raise InvalidArgument(f"{url} needs fsspec", hint="pip install fsspec, and s3fs for s3://") from None
        self._url = url.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise InvalidArgument(f"{url} cannot be opened: {error}", hint="install fsspec's package for it: s3fs for s3://") from None
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def read(self, name: str, most: int) -> bytes:
        if self._fs.size(self._at(name)) > most:
            raise OverflowError
        return self._fs.cat_file(self._at(name))

    def list(self) -> list[str]:
        return self._names(self._root)

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def open(self, name: str, *, linked: bool = False) -> _RemoteFile:
        del linked  # an object store has no links
        return _RemoteFile(self._fs, self._at(name))

    def open_binary(self, name: str):
        return self._fs.open(self._at(name), "rb")

    def turn(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # an object store has no locks

    def begin(self, token: str) -> None:
        used = ""
        with contextlib.suppress(NotFound, DataLoss):  # then no folder is in use; other errors are raised, because a folder may be
            used = read_manifest(self).folder
        self._drop(used, self.list())
        self._fs.makedirs(self._root, exist_ok=True)

    def create(self, token: str, name: str) -> _NewObject:
        return _NewObject(self._fs, f"{self._at(token)}/{name}")

    def commit(self, token: str, folder: str, files: list[str], text: bytes) -> None:
        """Replaces the manifest, then deletes unused folders. Raises FileNotFoundError if another save has begun."""
        present = self.list()  # a folder that comes later is another save's
        if set(files) - set(self._names(self._at(token))):
            raise FileNotFoundError(errno.ENOENT, "another save has begun there, and has deleted the files of this one")
        self._fs.pipe_file(self._at(FILE), text)
        self._drop(token, present)

    def abandon(self, token: str, folder: str) -> None:
        """Deletes what a save has written that was not committed, and nothing of another save. ``folder``: "" before the commit, whose
        error leaves open which manifest the store has: the next save deletes the files that it does not name."""
        if not folder:
            self._drop("", [token])

    def _drop(self, used: str, names: list[str]) -> None:
        """Deletes those of the folders that no manifest names."""
        for name in names:
            if _manifest.FOLDER.fullmatch(name) and name != used:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm(self._at(name), recursive=True)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(FILE))
        self._drop("", self.list())
        with contextlib.suppress(OSError):  # object stores have no empty folders
            self._fs.rmdir(self._root)


class _NewObject:
    def __init__(self, fs: Any, name: str):
        fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        self._file = fs.open(name, "wb", block_size=_UPLOAD)

    def append(self, data: memoryview) -> None:
        for at in range(0, len(data), _UPLOAD):
            self._file.write(data[at : at + _UPLOAD])

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._file.discard() if hasattr(self._file, "discard") else self._file.close()
            self._file.closed = True  # its destructor would upload the rest


class _RemoteFile:
    def __init__(self, fs: Any, name: str):
        self._fs, self._name = fs, name
        self.num_bytes = fs.size(name)

    def read_into(self, buffer: memoryview, at: int) -> int:
        data = self._fs.cat_file(self._name, start=at, end=min(at + len(buffer), self.num_bytes))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


def read_manifest(path: str | Path | LocalStore | RemoteStore) -> Manifest:
    """Reads the manifest of the checkpoint in the folder ``path``, without its tensors.

    Raises NotFound for a missing checkpoint, InvalidArgument for a folder with other data, Unimplemented for another format version,
    DataLoss for damage.
    """
    store = open_store(path) if isinstance(path, (str, Path)) else path
    try:
        text = store.read(FILE, _manifest.MAX_BYTES)
    except OverflowError:
        raise foreign(str(store), f"its {FILE} has more than {_manifest.MAX_BYTES >> 20} MiB") from None
    except (FileNotFoundError, NotADirectoryError):
        raise missing(store) from None
    except OSError as error:
        raise InvalidArgument(
            f"the checkpoint in {store} cannot be read: {error.strerror or error}", reason="CheckpointUnreadable"
        ) from None
    return parse_manifest(text, str(store))


def missing(store) -> NotFound:
    return NotFound(
        f"there is no checkpoint in {store}",
        reason="CheckpointMissing",
        hint=f"a checkpoint is a folder with a {FILE}; look at the path",
    )


@contextmanager
def writing(path) -> Iterator[None]:
    """Converts OSError, while a checkpoint is written to ``path``, into ResourceExhausted or InvalidArgument."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(f"there is no space for the checkpoint in {path}", hint="free some, or save elsewhere") from None
        # Rank 0 has made the folder: a rank that does not find it is on a host that does not share it.
        elsewhere = "all ranks write into this folder: the hosts have to share it, or to save to an address such as s3://bucket/run"
        raise InvalidArgument(
            f"the checkpoint cannot be written to {path}: {error.strerror or error}",
            reason="CheckpointUnwritable",
            hint=elsewhere if error.errno == errno.ENOENT else "",
        ) from None
