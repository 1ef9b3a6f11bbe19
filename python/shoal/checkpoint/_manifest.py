"""The manifest: a checkpoint's tensors, their sharding, and the places of their pieces in files. Plain values, without torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.checkpoint import _boxes
from shoal.exceptions import DataLoss, InvalidArgument, Unimplemented

FORMAT, VERSION = "shoal.checkpoint", 2
FILE = "manifest.json"
MAX_BYTES = 256 << 20  # limit for a manifest: a million tensors on eight ranks
CHUNK = 16 << 20  # bytes of a piece under one hash: what a reader holds to verify it
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
    ``sha256``: the hash of each ``CHUNK`` bytes of it; empty in formats without hashes."""

    file: str
    at: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    sha256: tuple[str, ...] = ()

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
    """A saved tensor. ``sharding``: its placements on the mesh that saved it, such as ``Shard(0)`` or ``Replicate()``."""

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
    Tensor or a plain value. ``format`` and ``values`` (which are no tensors) differ from
    their defaults in checkpoints of other programs."""

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
    format: str = FORMAT
    values: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        body = {"version": VERSION, **asdict(self)}
        del body["values"]
        for name, of in self.optimizer_state.items():
            body["optimizer_state"][name] = {k: {"tensor": asdict(v)} if isinstance(v, Tensor) else {"value": v} for k, v in of.items()}
        return json.dumps({**body, "sha256": _checksum(body)}, indent=1, sort_keys=True) + "\n"

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


def _checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


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
    if body.get("version") != VERSION:
        raise Unimplemented(
            f"the checkpoint in {path} has format version {body.get('version')!r}; this release reads version {VERSION}",
            hint="load it with the release that wrote it, and save it with this one",
        )
    stated = body.pop("sha256", None)
    if stated != _checksum(body):
        raise damaged(path, f"its {FILE} does not have the checksum it states")
    try:
        return _parse(body)
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


def _parse(body: dict) -> Manifest:
    fields = {k: v for k, v in body.items() if k != "version"}
    fields["files"] = files = {name: File(**f) for name, f in fields["files"].items()}
    fields["tensors"] = {name: _tensor(t, files) for name, t in fields["tensors"].items()}
    fields["optimizer_state"] = {
        name: {key: _tensor(v["tensor"], files) if "tensor" in v else v["value"] for key, v in of.items()}
        for name, of in fields["optimizer_state"].items()
    }
    fields["groups"] = tuple(Group(dict(g["options"]), tuple(g["parameters"])) for g in fields["groups"])
    _expect(FOLDER.fullmatch(fields["folder"]), "folder")
    for name, f in files.items():
        _expect(_SHARD.fullmatch(name), "file")
        _expect(0 < f.header_bytes <= f.num_bytes, "header")
    _expect(all(name in fields["tensors"] for name in fields["tied"].values()), "tied")
    return Manifest(**fields)


def _tensor(t: dict, files: dict[str, File]) -> Tensor:
    pieces = tuple(Piece(p["file"], p["at"], tuple(p["offset"]), tuple(p["shape"]), tuple(p["sha256"])) for p in t["pieces"])
    tensor = Tensor(tuple(t["shape"]), t["dtype"], t["sharding"], pieces)
    _expect(tensor.dtype in DTYPES, "dtype")
    check_pieces(tensor, files)
    item = DTYPES[tensor.dtype][1]
    _expect(all(len(p.sha256) == -(-math.prod(p.shape) * item // CHUNK) for p in pieces), "hashes")
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


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)
