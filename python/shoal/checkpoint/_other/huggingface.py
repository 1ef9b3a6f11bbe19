"""Safetensors as Hugging Face's libraries write them: ``model.safetensors``, or several files and an index."""

from __future__ import annotations

import json

from shoal.checkpoint._manifest import DTYPES, MAX_BYTES, File, Manifest, Piece, Tensor, check_pieces, damaged
from shoal.checkpoint._memory import Buffer

FORMAT = "safetensors"
INDEX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_NAMES = {code: name for name, (code, _) in DTYPES.items()}
_MAX_HEADER = 100 << 20  # as in the safetensors library


def find(names: list[str]) -> list[str]:
    """Returns the files to read: the index, or else all safetensors files of the folder."""
    index = [n for n in names if n.endswith(INDEX)]
    return index[:1] or [n for n in names if n.endswith(_SUFFIX)]


def read(store, found: list[str]) -> Manifest:
    """Returns a manifest with one piece per tensor. Raises DataLoss for damage."""
    wanted: dict[str, set[str]] | None = None
    if found[0].endswith(INDEX):
        wanted = _read_index(store, found[0])
        found = sorted(wanted)
    tensors: dict[str, Tensor] = {}
    files: dict[str, File] = {}
    for name in found:
        header, files[name] = _read_header(store, name)
        try:
            for tensor, entry in header.items():
                if tensor != "__metadata__" and (wanted is None or tensor in wanted[name]):
                    tensors[tensor] = _tensor(name, entry, files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(str(store), f"the header of {name} is inconsistent: {error!r}") from None
        lost = (wanted or {}).get(name, set()) - set(header)
        if lost:
            raise damaged(str(store), f"{name} lacks {min(lost)}, which {INDEX.removeprefix('.')} places there")
    return Manifest(1, "", tensors, files=files, format=FORMAT)


def _read_index(store, name: str) -> dict[str, set[str]]:
    """Returns the tensors of each file."""
    try:
        places = json.loads(store.read(name, MAX_BYTES))["weight_map"]
        by_file: dict[str, set[str]] = {}
        for tensor, file in places.items():
            if "/" in file or not file.endswith(_SUFFIX):
                raise ValueError(file)
            by_file.setdefault(file, set()).add(tensor)
    except (OverflowError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(str(store), f"{name} is no index of safetensors files: {error!r}") from None
    return by_file


def _read_header(store, name: str) -> tuple[dict, File]:
    try:
        file = store.open(name)
    except FileNotFoundError:
        raise damaged(str(store), f"{name} is missing") from None
    try:
        head = Buffer(4096)
        count = file.read_into(head.view, 0)
        size = int.from_bytes(head.view[:8], "little") if count >= 8 else -1
        if not 2 <= size <= min(_MAX_HEADER, file.num_bytes - 8):
            raise damaged(str(store), f"{name} is no safetensors file")
        head = Buffer(8 + size)
        file.read_into(head.view, 0)
        header = json.loads(bytes(head.view[8 : 8 + size]))
        if not isinstance(header, dict):
            raise ValueError
        return header, File(file.num_bytes, 8 + size)
    except (ValueError, RecursionError):
        raise damaged(str(store), f"the header of {name} is no JSON") from None
    finally:
        file.close()


def _tensor(file: str, entry: dict, files: dict[str, File]) -> Tensor:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if entry["dtype"] not in _NAMES:
        raise ValueError(f"dtype {entry['dtype']}")
    at = files[file].header_bytes + begin
    pieces = (Piece(file, at, (0,) * len(shape), shape),) if all(shape) else ()
    t = Tensor(shape, _NAMES[entry["dtype"]], "Replicate()", pieces)
    if t.num_bytes != end - begin:
        raise ValueError("data_offsets")
    check_pieces(t, files)
    return t
