"""The manifest: a checkpoint's tensors, their sharding, and the files of their pieces. Plain values, without torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.exceptions import DataLoss, InvalidArgument, NotFound, Unimplemented

FORMAT, VERSION = "shoal.checkpoint", 1
FILE = "manifest.json"
MAX_BYTES = 256 << 20  # limit for a manifest: a million tensors on eight ranks
# The shards' folder is named by a hash of their checksums: equal contents have equal names.
FOLDER = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[A-Za-z0-9-]+\.safetensors")


@dataclass(frozen=True)
class Piece:
    """Rows ``begin`` to ``end`` (of dim 0) of a tensor, in ``file``. ``sha256``: the checksum of their bytes."""

    file: str
    begin: int
    end: int
    sha256: str


@dataclass(frozen=True)
class Tensor:
    """A saved tensor. ``sharding``: ``Shard(0)`` or ``Replicate()`` over the ranks that saved it. A tensor without dimensions has one
    row."""

    shape: tuple[int, ...]
    dtype: str
    sharding: str
    pieces: tuple[Piece, ...]

    @property
    def num_rows(self) -> int:
        return self.shape[0] if self.shape else 1


@dataclass(frozen=True)
class Group:
    """One of the optimizer's parameter groups: options (``lr`` and so on) and parameter names."""

    options: dict[str, Any]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``. ``tensors``: by name; ``tied``: further name -> name; ``optimizer_state``: by parameter and key, a
    Tensor or a plain value."""

    world_size: int
    folder: str
    tensors: dict[str, Tensor]
    tied: dict[str, str] = field(default_factory=dict)
    optimizer: str = ""  # the optimizer's class, as module.name
    groups: tuple[Group, ...] = ()
    optimizer_state: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for name, of in self.optimizer_state.items():
            body["optimizer_state"][name] = {k: {"tensor": asdict(v)} if isinstance(v, Tensor) else {"value": v} for k, v in of.items()}
        return json.dumps({**body, "sha256": _checksum(body)}, indent=1, sort_keys=True) + "\n"


def _checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_manifest(path: str | Path) -> Manifest:
    """Reads the manifest of the checkpoint in the folder ``path``, without its tensors.

    Raises NotFound for a missing checkpoint, InvalidArgument for a folder with other data, Unimplemented for another format version,
    DataLoss for damage.
    """
    file = Path(path) / FILE
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _foreign(path, f"its {FILE} has more than {MAX_BYTES >> 20} MiB")
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"there is no checkpoint in {path}",
            reason="CheckpointMissing",
            hint=f"a checkpoint is a folder with a {FILE}; look at the path",
        ) from None
    except OSError as error:
        raise InvalidArgument(f"the checkpoint in {path} cannot be read: {error.strerror}", reason="CheckpointUnreadable") from None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        if FORMAT.encode() in text:
            raise damaged(path, f"its {FILE} is no longer valid JSON") from None
        raise _foreign(path, f"its {FILE} is not JSON") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _foreign(path, f"its {FILE} does not state format: {FORMAT}")
    if body.get("version") != VERSION:
        raise Unimplemented(
            f"the checkpoint in {path} has format version {body.get('version')!r}; this release reads version {VERSION}",
            hint="load it with the release that wrote it, or a later one",
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


def _foreign(path: str | Path, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} holds no checkpoint of Shoal: {what}",
        reason="NotACheckpoint",
        hint="pass a folder that shoal.checkpoint.save wrote",
    )


def _parse(body: dict) -> Manifest:
    fields = {k: v for k, v in body.items() if k not in ("format", "version")}
    fields["tensors"] = {name: _tensor(t) for name, t in fields["tensors"].items()}
    fields["optimizer_state"] = {
        name: {key: _tensor(v["tensor"]) if "tensor" in v else v["value"] for key, v in of.items()}
        for name, of in fields["optimizer_state"].items()
    }
    fields["groups"] = tuple(Group(dict(g["options"]), tuple(g["parameters"])) for g in fields["groups"])
    _expect(FOLDER.fullmatch(fields["folder"]), "folder")
    return Manifest(**fields)


def _tensor(t: dict) -> Tensor:
    pieces = tuple(Piece(**p) for p in t["pieces"])
    tensor = Tensor(tuple(t["shape"]), t["dtype"], t["sharding"], pieces)
    _expect(all(type(n) is int and n >= 0 for n in tensor.shape), "shape")
    _expect(all(_SHARD.fullmatch(p.file) for p in pieces), "file")
    at = 0
    for p in pieces:
        _expect(p.begin == at and p.end > p.begin, "rows")
        at = p.end
    _expect(at == (tensor.num_rows if math.prod(tensor.shape) else 0), "rows")
    return tensor


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)
