"""Safetensors as Hugging Face's libraries write them: ``model.safetensors``, or several files and an index."""

from __future__ import annotations

import json
import re
from typing import Any

from shoal.checkpoint._manifest import DTYPES, MAX_BYTES, File, Manifest, Piece, Tensor, check_overlaps, check_pieces, damaged
from shoal.checkpoint._memory import Buffer
from shoal.exceptions import InvalidArgument

FORMAT = "safetensors"
INDEX = ".safetensors.index.json"
_SUFFIX = ".safetensors"
_MAIN = ("model", "diffusion_pytorch_model", "adapter_model")  # where transformers, diffusers and PEFT look for a folder's own model
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
_NAMES = {code: name for name, (code, _) in DTYPES.items()}
_MAX_HEADER = 100 << 20  # as in the safetensors library


def find(names: list[str]) -> list[str]:
    """Returns the candidates of a folder: a library's own index or file, or else all other indices, or else all safetensors files. Other
    files beside the model's own, such as ``model.fp16.safetensors`` or ``model_ema.safetensors``, do not count."""
    for main in _MAIN:
        if own := [n for n in (main + INDEX, main + _SUFFIX) if n in names]:
            return own
    return [n for n in names if n.endswith(INDEX)] or [n for n in names if n.endswith(_SUFFIX)]


def read(store, found: list[str]) -> Manifest:
    """Returns a manifest with one piece per tensor. ``found``: from ``find``. Raises DataLoss for damage, and InvalidArgument for several
    models."""
    wanted: dict[str, set[str]] | None = None
    if found[0].endswith(INDEX):
        wanted = _read_index(store, found[0])
        if others := set(found[1:]) - set(wanted):
            raise _several(store, found[0], min(others))
        found = sorted(wanted)
    else:
        _expect_all_shards(store, found)
    tensors: dict[str, Tensor] = {}
    files: dict[str, File] = {}
    places: dict[str, str] = {}  # tensor -> file
    for name in found:
        header, files[name] = _read_header(store, name)
        header.pop("__metadata__", None)
        if wanted is None and (twice := next((t for t in header if t in places), "")):
            raise _several(store, places[twice], name)
        places |= dict.fromkeys(header, name)
        try:
            for tensor, entry in header.items():
                if wanted is None or tensor in wanted[name]:
                    tensors[tensor] = _tensor(name, entry, files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _inconsistent(store, name, error) from None
        lost = (wanted or {}).get(name, set()) - set(header)
        if lost:
            raise damaged(str(store), f"{name} lacks {min(lost)}, which {INDEX.removeprefix('.')} places there")
    manifest = Manifest(1, "", tensors, files=files, format=FORMAT)
    try:
        check_overlaps(manifest)
    except ValueError as error:
        raise _inconsistent(store, found[0], error) from None
    return manifest


def _several(store, one: str, other: str) -> InvalidArgument:
    return InvalidArgument(
        f"{store} holds several models: {one} and {other}",
        reason="SeveralModels",
        hint=f"move all but one to other folders, or name the model's own file {_MAIN[0]}{_SUFFIX}",
    )


def _inconsistent(store, name: str, error: Exception):
    return damaged(str(store), f"the header of {name} is inconsistent: {error!r}")


def _expect_all_shards(store, names: list[str]) -> None:
    """Raises DataLoss if one of the shards that the files' names count is missing."""
    present: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, names)):
        present.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (of, count), numbers in present.items():
        if len(numbers) < count:
            raise damaged(str(store), f"it has {len(numbers)} of the {count} shards of {of}")


def _read_index(store, name: str) -> dict[str, set[str]]:
    """Returns the tensors of each file."""
    try:
        places = _parse(store.read(name, MAX_BYTES))["weight_map"]
        by_file: dict[str, set[str]] = {}
        for tensor, file in places.items():
            if "/" in file or "\0" in file or not file.endswith(_SUFFIX):
                raise ValueError(file)
            by_file.setdefault(file, set()).add(tensor)
        if not by_file:
            raise ValueError("it names no tensor")
    except (OSError, OverflowError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(str(store), f"{name} is no index of safetensors files: {error!r}") from None
    return by_file


def _parse(text: bytes) -> Any:
    """Returns the JSON value. Raises ValueError for a name that an object has twice, of which JSON readers take either."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("an object has a name twice")
        return found

    return json.loads(text, object_pairs_hook=unique)


def _read_header(store, name: str) -> tuple[dict, File]:
    try:
        file = store.open(name, linked=True)
    except FileNotFoundError:
        raise damaged(str(store), f"{name} is missing") from None
    except OSError as error:
        raise damaged(str(store), f"{name} cannot be read ({error.strerror or error})") from None
    try:
        head = Buffer(4096)
        count = file.read_into(head.view, 0)
        size = int.from_bytes(head.view[:8], "little") if count >= 8 else -1
        if not 2 <= size <= min(_MAX_HEADER, file.num_bytes - 8):
            raise damaged(str(store), f"{name} is no safetensors file")
        head = Buffer(8 + size)
        file.read_into(head.view, 0)
        header = _parse(bytes(head.view[8 : 8 + size]))
        if not isinstance(header, dict):
            raise ValueError("it is no object")
        return header, File(file.num_bytes, 8 + size)
    except (ValueError, RecursionError) as error:
        raise damaged(str(store), f"the header of {name} is no JSON of safetensors: {error}") from None
    finally:
        file.close()


def _tensor(file: str, entry: dict, files: dict[str, File]) -> Tensor:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if type(begin) is not int or type(end) is not int or begin < 0:
        raise ValueError("data_offsets")
    if entry["dtype"] not in _NAMES:
        raise ValueError(f"dtype {entry['dtype']}")
    at = files[file].header_bytes + begin
    pieces = (Piece(file, at, (0,) * len(shape), shape),) if all(shape) else ()
    t = Tensor(shape, _NAMES[entry["dtype"]], "Replicate()", pieces)
    if t.num_bytes != end - begin:
        raise ValueError("data_offsets")
    check_pieces(t, files)
    return t
