"""Writes a checkpoint atomically: the folder holds the previous one until the new one is complete on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from shoal._objects.tensors import is_wrapper
from shoal.checkpoint import _manifest
from shoal.checkpoint._manifest import Group, Manifest, Piece, Tensor
from shoal.checkpoint._ranks import Ranks, checksum, elsewhere, local, named_tensors, parameter_names, writing
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, ResourceExhausted, Unimplemented

_SAVING = ".saving"


def save(
    path: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, state: dict[str, Any] | None = None
) -> None:
    """Writes the model's parameters and buffers, the optimizer's state and ``state`` to the folder ``path``. Replaces a checkpoint there.

    The model is plain or sharded by ``shoal.fsdp.fully_shard``. Every rank of a sharded model must call it with the same arguments, and
    see the same folder; each writes its rows. ``state``: further values for resuming, of JSON's types; rank 0's are saved.
    After a crash or a power cut the previous checkpoint remains. Only one job at a time may save to a path.
    Raises InvalidArgument if ``path`` cannot be written or holds other data, ResourceExhausted for a full disk, Unimplemented for
    unsupported tensors and optimizer states. An error on one rank is raised on all.
    """
    path = Path(path)
    tensors, tied = named_tensors(model)
    ranks = Ranks(tensors.values())
    temporary = path / _SAVING
    ranks.agree(lambda: _begin(path, temporary, state) if ranks.rank == 0 else None)
    shards = _Shards(ranks, temporary)

    def write() -> dict[str, Any]:
        described = _describe(shards, tensors, optimizer)
        shards.write()
        return described

    described = ranks.agree(write)
    pieces = ranks.gather(shards.pieces)

    def commit() -> None:
        if ranks.rank == 0:
            manifest = Manifest(ranks.size, _folder(pieces), tied=tied, state=state or {}, **_placed(described, pieces))
            _commit(path, temporary, manifest)

    ranks.agree(commit)


def _begin(path: Path, temporary: Path, state: dict | None) -> None:
    if state is not None and not isinstance(state, dict):
        raise InvalidArgument(f"state is a dict, not a {type(state).__name__}")
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"state cannot be stored as JSON: {error}", hint="numbers, strings, lists and dicts with string keys"
        ) from None
    if _has_tuple_or_odd_key(state):
        raise InvalidArgument(
            "state would be loaded with other types: it has tuples, or keys that are not strings", hint="use lists and string keys"
        )
    with writing(path):
        if path.exists() and not path.is_dir():
            raise InvalidArgument(f"{path} is a file; a checkpoint is a folder", reason="CheckpointUnwritable")
        try:
            _manifest.read_manifest(path)  # raises InvalidArgument if the folder holds other data
        except (NotFound, DataLoss):
            pass
        path.mkdir(parents=True, exist_ok=True)
        if temporary.exists():  # left by a save that did not finish
            shutil.rmtree(temporary)
        temporary.mkdir()


def _has_tuple_or_odd_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not isinstance(k, str) for k in value) or any(map(_has_tuple_or_odd_key, value.values()))
    return isinstance(value, tuple) or (isinstance(value, list) and any(map(_has_tuple_or_odd_key, value)))


class _Shards:
    """The tensors that this rank writes: its rows of sharded tensors, and on rank 0 also replicated tensors."""

    def __init__(self, ranks: Ranks, folder: Path):
        self._ranks, self._folder = ranks, folder
        self._contents: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
        self.pieces: dict[tuple[str, str], Piece] = {}  # by (kind of file, tensor name)

    def add(self, kind: str, name: str, t: torch.Tensor) -> Tensor:
        """Adds a tensor to be written. Returns its description, without pieces yet."""
        mine, sharded = local(t, name)
        shape = tuple(t.shape)
        if mine.device.type != "cpu":
            raise Unimplemented(
                f"{name} is on {mine.device}: checkpoints hold tensors of the CPU in this release",
                hint=elsewhere(mine.device, "model.cpu()"),
            )
        whole = shape[0] if shape else 1
        begin, end = self._ranks.rows(whole) if sharded else (0, whole)
        if is_wrapper(mine):
            raise Unimplemented(
                f"{name} is a {type(mine).__name__}, whose elements lie in other tensors: checkpoints hold plain ones",
                hint="use torch.distributed.checkpoint",
            )
        if math.prod(shape) and begin < end and (sharded or self._ranks.rank == 0):
            mine = mine.contiguous()
            self._contents[kind][name] = mine
            self.pieces[kind, name] = Piece(self._file(kind), begin, end, checksum(mine))
        return Tensor(shape, str(t.dtype).removeprefix("torch."), "Shard(0)" if sharded else "Replicate()", ())

    def _file(self, kind: str) -> str:
        return f"{kind}-rank-{self._ranks.rank}-of-{self._ranks.size}.safetensors"

    def write(self) -> None:
        with writing(self._folder.parent):
            for kind, contents in self._contents.items():
                if contents:
                    file = self._folder / self._file(kind)
                    try:
                        save_file(_apart(contents), file, {"format": "pt"})
                    except SafetensorError as error:
                        full = shutil.disk_usage(self._folder).free < sum(t.nbytes for t in contents.values())
                        raise (ResourceExhausted if full else InvalidArgument)(
                            f"the checkpoint cannot be written to {self._folder.parent}: {error}"
                        ) from None
                    file.chmod(self._folder.stat().st_mode & 0o666)  # the mode that umask gives: safetensors makes files for the owner only
                    _fsync(file)


def _apart(contents: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies tensors that share memory with an earlier one, because safetensors refuses them."""
    seen: set[int] = set()
    apart = {}
    for name, t in contents.items():
        at = t.untyped_storage().data_ptr()
        apart[name] = t.clone() if at in seen else t
        seen.add(at)
    return apart


def _describe(shards: _Shards, tensors: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Returns the manifest's entries of the tensors and the optimizer, and adds every tensor to ``shards``."""
    described: dict[str, Any] = {"tensors": {name: shards.add("model", name, t) for name, t in tensors.items()}}
    if optimizer is None:
        return described
    groups, states = [], {}
    for names, group in zip(parameter_names(optimizer, tensors), optimizer.param_groups, strict=True):
        groups.append(Group({k: _plain(v, k) for k, v in group.items() if k != "params"}, tuple(names)))
        for name, p in zip(names, group["params"], strict=True):
            states[name] = {
                key: shards.add("optimizer", f"{name}/{key}", v) if isinstance(v, torch.Tensor) else _plain(v, key)
                for key, v in optimizer.state.get(p, {}).items()
            }
    kind = type(optimizer)
    return {**described, "optimizer": f"{kind.__module__}.{kind.__qualname__}", "groups": tuple(groups), "optimizer_state": states}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(v, name) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unimplemented(
        f"the optimizer's {name} is a {type(value).__name__}", hint="checkpoints hold tensors, numbers, strings and lists of an optimizer"
    )


def _placed(described: dict[str, Any], pieces: list[dict[tuple[str, str], Piece]]) -> dict[str, Any]:
    """Adds the pieces that all ranks have written to the descriptions of their tensors, in order of rows."""

    def place(kind: str, name: str, t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        of = sorted((p[kind, name] for p in pieces if (kind, name) in p), key=lambda p: p.begin)
        return replace(t, pieces=tuple(of))

    tensors = {name: place("model", name, t) for name, t in described["tensors"].items()}
    states = {
        name: {key: place("optimizer", f"{name}/{key}", v) for key, v in of.items()}
        for name, of in described.get("optimizer_state", {}).items()
    }
    return {**described, "tensors": tensors, "optimizer_state": states}


def _folder(pieces: list[dict[tuple[str, str], Piece]]) -> str:
    contents = sorted((*where, p.file, p.begin, p.sha256) for of in pieces for where, p in of.items())
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]


def _commit(path: Path, temporary: Path, manifest: Manifest) -> None:
    """Moves the shards to their folder, then atomically replaces the manifest, then deletes unused files."""
    with writing(path):
        folder = path / manifest.folder
        folder.mkdir(exist_ok=True)
        # Moves file by file: a folder of this name may exist, with the same bytes, and the present manifest may refer to it.
        for file in sorted(temporary.iterdir()):
            os.replace(file, folder / file.name)
        _fsync(folder)
        text = temporary / _manifest.FILE
        text.write_text(manifest.to_json())
        _fsync(text)
        _fsync(path)
        os.replace(text, path / _manifest.FILE)
        _fsync(path)
        # Deletes the folders of previous checkpoints, and the temporary one.
        for old in path.iterdir():
            if old.name == _SAVING or (_manifest.FOLDER.fullmatch(old.name) and old.name != manifest.folder):
                shutil.rmtree(old)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
