"""The manifest: a checkpoint's tensors, their sharding, and the places of their pieces in files. Plain values, without torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal._native import Checksum
from shoal.checkpoint import _boxes
from shoal.exceptions import DataLoss, InvalidArgument, Unimplemented

FORMAT, VERSION = "shoal.checkpoint", 3
HASHES = {"gmac": Checksum, "sha256": hashlib.sha256}  # by name: the hash of tensors' bytes, SHA-256 in version 2
HASH = "gmac"  # the one of every save (ChunkChecksums)
FILE = "manifest.json"
MAX_BYTES = 256 << 20  # limit for a manifest: a million tensors on eight ranks
CHUNK = 16 << 20  # bytes of a piece under one hash: what a reader holds to verify it
PLAIN = "plain"  # the sharding of a plain tensor that was saved beside DTensors
FOLDER = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[A-Za-z0-9-]+\.safetensors")
# By torch's name: the code of safetensors, and the bytes of an element.
DTYPES = {
    "float64": ("F64", 8),
    "complex64": ("C64", 8),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "float32": ("F32", 4),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}


@dataclass(frozen=True)
class Piece:
    """The part of a tensor from ``offset``, of ``shape``, whose elements lie in ``file`` from byte ``at``, in row-major order.
    ``hashes``: the hash of each ``CHUNK`` bytes of it; empty in formats without hashes."""

    file: str
    at: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    hashes: tuple[str, ...] = ()

    @property
    def box(self) -> _boxes.Box:
        return self.offset, self.shape


@dataclass(frozen=True)
class File:
    """A file of the checkpoint: its size, and size and hash of the header in front of the tensors."""

    num_bytes: int
    header_bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Tensor:
    """A saved tensor. ``sharding``: its placements on the mesh that saved it, such as ``Shard(0)`` or ``Replicate()``. ``PLAIN``: it was
    on no mesh, while other tensors were."""

    shape: tuple[int, ...]
    dtype: str
    sharding: str
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class Group:
    """One of the optimizer's parameter groups: options (``lr`` and so on) and parameter names."""

    options: dict[str, Any]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``. ``tensors``: by name; ``tied``: further name -> name; ``optimizer_state``: by parameter and key, a
    Tensor or a plain value. ``hash``: one of ``HASHES``. ``format`` and ``values`` (which are no tensors) differ from their defaults in
    checkpoints of other programs."""

    world_size: int
    folder: str
    tensors: dict[str, Tensor]
    tied: dict[str, str] = field(default_factory=dict)
    optimizer: str = ""  # the optimizer's class, as module.name
    groups: tuple[Group, ...] = ()
    optimizer_state: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)  # step and metrics, of Checkpoints
    files: dict[str, File] = field(default_factory=dict)
    hash: str = HASH
    format: str = FORMAT
    values: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)  # by name, modules' extra state (_contents.py)

    def to_json(self) -> str:
        body = {
            "version": VERSION,
            **vars(self),
            "tensors": {name: _plain(t) for name, t in self.tensors.items()},
            "optimizer_state": {
                name: {k: {"tensor": _plain(v)} if isinstance(v, Tensor) else {"value": v} for k, v in of.items()}
                for name, of in self.optimizer_state.items()
            },
            "groups": [vars(g) for g in self.groups],
            "files": {name: vars(f) for name, f in self.files.items()},
        }
        del body["values"]
        if not self.extra:  # readers that do not know this field accept a manifest without it
            del body["extra"]
        text = json.dumps(body, sort_keys=True)  # without indentation, which Python's slow encoder writes while training waits for the GIL
        return f'{text[:-1]}, "sha256": "{_checksum_of(text)}"}}\n'

    def all_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, those of the optimizer as PARAMETER/KEY."""
        yield from self.tensors.items()
        for name, of in self.optimizer_state.items():
            yield from ((f"{name}/{key}", t) for key, t in of.items() if isinstance(t, Tensor))

    def with_pieces(self, place) -> Manifest:
        """Returns the manifest with ``place(kind, name, tensor)`` instead of each tensor."""
        return replace(
            self,
            tensors={n: place("model", n, t) for n, t in self.tensors.items()},
            optimizer_state={
                n: {k: place("optimizer", f"{n}/{k}", t) if isinstance(t, Tensor) else t for k, t in of.items()}
                for n, of in self.optimizer_state.items()
            },
        )


def _plain(t: Tensor) -> dict[str, Any]:
    return {**vars(t), "pieces": [vars(p) for p in t.pieces]}


def _checksum(body: dict) -> str:
    return _checksum_of(json.dumps(body, sort_keys=True))


def _checksum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parse_manifest(text: bytes, path: str | Path) -> Manifest:
    """Returns the manifest of the checkpoint in the folder ``path``, which errors name.

    Raises InvalidArgument for other data, Unimplemented for another format version, DataLoss for damage.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        if FORMAT.encode() in text:
            raise damaged(path, f"its {FILE} is no longer valid JSON") from None
        raise foreign(path, f"its {FILE} is not JSON") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise foreign(path, f"its {FILE} does not state format: {FORMAT}")
    if body.get("version") == 2:
        body_of = _of_version_2
    elif body.get("version") == VERSION:
        body_of = dict
    else:
        raise Unimplemented(
            f"the checkpoint in {path} has format version {body.get('version')!r}; this release reads versions 2 and {VERSION}",
            hint="load it with the release that wrote it, and save it with this one",
        )
    stated = body.pop("sha256", None)
    if stated != _checksum(body):
        raise damaged(path, f"its {FILE} does not have the checksum it states")
    try:
        return _parse(body_of(body))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"its {FILE} is inconsistent: {error!r}") from None


def damaged(path: str | Path, what: str) -> DataLoss:
    return DataLoss(
        f"the checkpoint in {path} is damaged: {what}",
        reason="CheckpointDamaged",
        hint="restore the folder from a copy, or load another one",
    )


def foreign(path: str | Path, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} holds no checkpoint of Shoal: {what}",
        reason="NotACheckpoint",
        hint="pass a folder that shoal.checkpoint.save wrote",
    )


def _of_version_2(body: dict) -> dict:
    """Returns the body as version 3 has it."""
    tensors = [*body["tensors"].values(), *(v["tensor"] for of in body["optimizer_state"].values() for v in of.values() if "tensor" in v)]
    for piece in (p for t in tensors for p in t["pieces"]):
        piece["hashes"] = piece.pop("sha256")
    return {**body, "hash": "sha256"}


def _parse(body: dict) -> Manifest:
    fields = {k: v for k, v in body.items() if k != "version"}
    fields["files"] = files = {name: File(**f) for name, f in fields["files"].items()}
    fields["tensors"] = {name: _tensor(t, files) for name, t in fields["tensors"].items()}
    fields["optimizer_state"] = {
        name: {key: _tensor(v["tensor"], files) if "tensor" in v else v["value"] for key, v in of.items()}
        for name, of in fields["optimizer_state"].items()
    }
    fields["groups"] = tuple(Group(dict(g["options"]), tuple(g["parameters"])) for g in fields["groups"])
    _expect(all(type(name) is str for g in fields["groups"] for name in g.parameters), "parameters")
    _expect(all("params" not in g.options for g in fields["groups"]), "options")  # torch's name for the parameters of a group
    _expect(type(fields.get("extra", {})) is dict, "extra")
    _expect(FOLDER.fullmatch(fields["folder"]), "folder")
    _expect(fields["hash"] in HASHES, "hash")
    for name, f in files.items():
        _expect(_SHARD.fullmatch(name), "file")
        _expect(type(f.header_bytes) is int and type(f.num_bytes) is int and 0 < f.header_bytes <= f.num_bytes, "header")
    _expect(all(name in fields["tensors"] for name in fields["tied"].values()), "tied")
    manifest = Manifest(**fields)
    check_overlaps(manifest)
    return manifest


def _tensor(t: dict, files: dict[str, File]) -> Tensor:
    pieces = tuple(Piece(p["file"], p["at"], tuple(p["offset"]), tuple(p["shape"]), tuple(p["hashes"])) for p in t["pieces"])
    tensor = Tensor(tuple(t["shape"]), t["dtype"], t["sharding"], pieces)
    _expect(tensor.dtype in DTYPES, "dtype")
    check_pieces(tensor, files)
    item = DTYPES[tensor.dtype][1]
    _expect(all(len(p.hashes) == -(-math.prod(p.shape) * item // CHUNK) for p in pieces), "hashes")
    return tensor


def check_pieces(t: Tensor, files: dict[str, File]) -> None:
    """Raises ValueError unless the pieces cover the tensor, each element once, and lie inside of their files."""
    _expect(all(type(n) is int and n >= 0 for n in t.shape), "shape")
    _expect(all(type(n) is int for p in t.pieces for n in (p.at, *p.offset, *p.shape)), "piece")
    _expect(_boxes.tile(t.shape, [p.box for p in t.pieces]), "rows")
    item = DTYPES[t.dtype][1]
    for p in t.pieces:
        f = files[p.file]
        _expect(f.header_bytes <= p.at and p.at + math.prod(p.shape) * item <= f.num_bytes, "bytes")


def check_overlaps(manifest: Manifest) -> None:
    """Raises ValueError if two pieces have a byte of a file in common."""
    by_file: dict[str, list[tuple[int, int, str]]] = {}
    for name, t in manifest.all_tensors():
        item = DTYPES[t.dtype][1]
        for p in t.pieces:
            by_file.setdefault(p.file, []).append((p.at, p.at + math.prod(p.shape) * item, name))
    for file, pieces in by_file.items():
        for (_, end, name), (begin, _, other) in pairwise(sorted(pieces)):
            _expect(end <= begin, f"{name} and {other} have bytes of {file} in common")


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)
