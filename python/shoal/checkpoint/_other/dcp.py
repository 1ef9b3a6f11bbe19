"""Folders of torch.distributed.checkpoint: their metadata as a manifest, without executing a pickle."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from typing import Any

from shoal.checkpoint._manifest import DTYPES, File, Manifest, Piece, Tensor, check_overlaps, check_pieces, damaged
from shoal.checkpoint._other.records import Record, parse

FORMAT = "dcp"
FILE = ".metadata"
_MAX_METADATA = 1 << 30
_MAX_VALUE = 16 << 20  # bytes of a saved value that is no tensor
# RuntimeError and NotImplementedError are of zipfile: an encrypted member, or a later version of the format.
_OF_BROKEN_FILES = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError, struct.error)
_OF_BROKEN_FILES += (zipfile.BadZipFile, zlib.error)
_METADATA = "torch.distributed.checkpoint.metadata."


def read(store) -> Manifest:
    """Returns the manifest: a piece per saved chunk. Raises DataLoss for damage and for streams that are no metadata of DCP."""
    try:
        top = parse(store.read(FILE, _MAX_METADATA))
        return _Folder(store, top).manifest()
    except _OF_BROKEN_FILES as error:
        raise damaged(
            str(store), f"its {FILE}, or a file that it names, is not as torch.distributed.checkpoint writes it: {error!r}"
        ) from None


class _Folder:
    def __init__(self, store, top: Any):
        if not isinstance(top, Record) or top.name != f"{_METADATA}Metadata":
            raise ValueError("no Metadata")
        self._store, self._top = store, top
        self._files: dict[str, Any] = {}
        self._sizes: dict[str, File] = {}
        self._places: dict[tuple[str, tuple[int, ...] | None], Record] = {}
        for index, info in top.get("storage_data").items():
            offset = index.state.get("offset")
            self._places[index.get("fqn"), None if offset is None else _numbers(offset)] = info

    def manifest(self) -> Manifest:
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        try:
            for name, saved in self._top.get("state_dict_metadata").items():
                if saved.name == f"{_METADATA}TensorStorageMetadata":
                    tensors[name] = self._tensor(name, saved)
                elif (value := self._value(name)) is not _NOT_PLAIN:
                    values[name] = value
            found = Manifest(max(1, len(self._files)), "", tensors, files=dict(self._sizes), format=FORMAT, values=values)
            check_overlaps(found)
            return found
        finally:
            for f in self._files.values():
                f.close()

    def _open(self, name: str) -> Any:
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"a file {name!r}")
        if name not in self._files:
            self._files[name] = f = self._store.open_binary(name)
            self._sizes[name] = File(f.seek(0, 2))
        return self._files[name]

    def _archive(self, name: str, offset: tuple[int, ...] | None) -> tuple[str, int, zipfile.ZipFile, _Range]:
        """Returns (file, position in it, archive, its bytes) of a saved chunk or value."""
        info = self._places[(name, offset)] if (name, offset) in self._places else self._places[(name, None)]
        if info.state.get("transform_descriptors"):
            raise ValueError(f"{name} was transformed (compressed) when it was saved")
        file, at, length = info.get("relative_path"), info.get("offset"), info.get("length")
        part = _Range(self._open(file), at, length)
        return file, at, zipfile.ZipFile(part), part

    def _tensor(self, name: str, saved: Record) -> Tensor:
        dtype = saved.get("properties").state[0].name.removeprefix("torch.")
        if dtype not in DTYPES:
            raise ValueError(f"{name} has dtype {dtype}")
        shape = _numbers(saved.get("size"))
        chunks = [(_numbers(c.get("offsets")), _numbers(c.get("sizes"))) for c in saved.get("chunks")]
        pieces = [self._piece(name, dtype, offset, size) for offset, size in chunks if math.prod(size)]
        sharding = "Replicate()" if len(chunks) == 1 else "Shard(0)"
        t = Tensor(shape, dtype, sharding, tuple(sorted(pieces, key=lambda p: p.offset)))
        check_pieces(t, self._sizes)
        return t

    def _piece(self, name: str, dtype: str, offset: tuple[int, ...], size: tuple[int, ...]) -> Piece:
        file, at, archive, part = self._archive(name, offset)
        described = parse(_member(archive, "data.pkl"))
        if described.name == "torch._utils._rebuild_parameter":
            described = described.args[0]
        storage, first, shape, stride = described.args[:4]
        if described.name != "torch._utils._rebuild_tensor_v2" or tuple(shape) != size or first != 0 or not _is_contiguous(size, stride):
            raise ValueError(f"{name} is stored with strides, or is no plain tensor")
        member = _find(archive, f"data/{storage.args[2]}")
        num_bytes = math.prod(size) * DTYPES[dtype][1]
        if member.compress_type != zipfile.ZIP_STORED or member.file_size < num_bytes:
            raise ValueError(f"the bytes of {name} are compressed or too few")
        part.seek(member.header_offset)
        local = part.read(30)  # the local header: its last four bytes are the sizes of the name and of the extra field
        begin = member.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        return Piece(file, at + begin, offset, size)

    def _value(self, name: str) -> Any:
        _, _, archive, _ = self._archive(name, None)
        value = parse(_member(archive, "data.pkl"))
        return value if _is_plain(value) else _NOT_PLAIN


_NOT_PLAIN = object()


class _Range:
    """A part of a file, as a file."""

    def __init__(self, file: Any, begin: int, length: int):
        if type(begin) is not int or type(length) is not int or begin < 0 or length < 0:
            raise ValueError("a place in a file")
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = 0) -> int:
        self._at = to + (0, self._at, self._length)[whence]
        return self._at

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        self._file.seek(self._begin + self._at)
        data = self._file.read(left if count < 0 else min(count, left))
        self._at += len(data)
        return data


def _find(archive: zipfile.ZipFile, suffix: str) -> zipfile.ZipInfo:
    for member in archive.infolist():
        if member.filename.partition("/")[2] == suffix:
            return member
    raise ValueError(f"no {suffix}")


def _member(archive: zipfile.ZipFile, suffix: str) -> bytes:
    member = _find(archive, suffix)
    if member.file_size > _MAX_VALUE:
        raise ValueError(f"{suffix} has {member.file_size} bytes")
    return archive.read(member)


def _numbers(size: Record) -> tuple[int, ...]:
    """The numbers of a torch.Size."""
    (numbers,) = size.args
    if size.name != "torch.Size" or any(type(n) is not int for n in numbers):
        raise ValueError("no torch.Size")
    return tuple(numbers)


def _is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for n, s in zip(reversed(size), reversed(tuple(stride)), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
