"""Writes a checkpoint in another format, or for one rank, with one tensor or piece in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from shoal.checkpoint import _disk
from shoal.checkpoint._manifest import FORMAT, HASH, Manifest, Tensor
from shoal.checkpoint._other.arrange import arrange_alone, has_optimizer
from shoal.checkpoint._other.formats import open_checkpoint
from shoal.checkpoint._ranks import Ranks
from shoal.checkpoint._read import Reader
from shoal.checkpoint._save import write
from shoal.checkpoint._shards import Layout, Part, lay_out, live_blocks, write_file
from shoal.checkpoint._store import writing
from shoal.exceptions import InvalidArgument

MAX_SHARD_BYTES = 5 << 30


def export(
    source: str | Path,
    target: str | Path,
    format: Literal["hf", "dcp", "shoal"] = "hf",
    *,
    prefix: str = "",
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Converts a checkpoint of any format that ``load`` reads. Holds one tensor at a time, whatever the checkpoint's size. Returns what
    ``load`` of the target lacks: "the optimizer", or "the state" with the names in it.

    ``format``: "hf" (Hugging Face's safetensors, the model only, with an index beyond ``max_shard_bytes``), "dcp"
    (torch.distributed.checkpoint) or "shoal" (as one rank saves it). Names in DCP are ``model.NAME`` and ``optim.state.NAME.KEY``, as of
    ``get_state_dict`` with flattened optimizer states; the state of ``save`` is ``state``, for torch's own ``load``.
    ``prefix``: only tensors of the model with it, without it in their names.
    ``target``: a folder that does not exist yet, or for "shoal" any path of ``save``; a crash leaves none. Raises InvalidArgument for an
    existing target or an unknown format, and the errors of ``load``.
    """
    if format not in ("hf", "dcp", "shoal"):
        raise InvalidArgument(f"{format!r} is no format to export", hint="hf, dcp or shoal")
    store, manifest = open_checkpoint(source)
    had_optimizer = has_optimizer(manifest)
    if manifest.format != FORMAT:
        manifest = arrange_alone(manifest, prefix)
    elif prefix:
        manifest = replace(manifest, tensors=_without(manifest.tensors, prefix), tied={}, optimizer="", groups=(), optimizer_state={})
    left_out = ["the optimizer"] if (had_optimizer or manifest.optimizer) and (format == "hf" or not manifest.optimizer) else []
    if manifest.state and format != "shoal":
        found = "; torch.distributed.checkpoint.load has it, as 'state'" if format == "dcp" else ""
        left_out.append(f"the state ({', '.join(manifest.state)}{found})")
    if not manifest.tensors:
        raise InvalidArgument(f"{source} has no tensors whose names begin with {prefix!r}", hint="shoal checkpoint ls lists the names")
    with Reader(store, manifest) as reader:
        if format == "shoal":
            write(target, _Copy(manifest, reader), Ranks(()), lambda _, layout: live_blocks(layout))
            return left_out
        folder = Path(target)
        if folder.exists():
            raise InvalidArgument(f"{target} exists", hint="export to a new folder, or remove it")
        with writing(target):
            fresh = folder.with_name(f".{folder.name}.exporting")
            if fresh.exists():
                _disk._remove_tree(fresh)
            _disk._make_folders(fresh)
            (_to_hugging_face if format == "hf" else _to_dcp)(fresh, manifest, reader, max_shard_bytes)
            _disk.disk.sync_folder(os.fspath(fresh))
            _disk.disk.move(os.fspath(fresh), os.fspath(folder))
            _disk.disk.sync_folder(os.fspath(folder.parent))
    return left_out


def _without(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _part(kind: str, name: str, t: Tensor, reader: Reader) -> Part:
    return Part(kind, name, (0,) * len(t.shape), t.shape, t.dtype, lambda: reader.fetch(name, t))


# ---- Shoal's own format


class _Copy:
    """A ``Plan`` of tensors that lie in another checkpoint, for a single rank."""

    def __init__(self, manifest: Manifest, reader: Reader):
        bare = manifest.with_pieces(lambda kind, name, t: replace(t, pieces=(), sharding="Replicate()"))
        self.manifest = replace(bare, world_size=1, folder="", files={}, hash=HASH, format=FORMAT, values={})
        optimizer = [(f"{n}/{k}", t) for n, of in manifest.optimizer_state.items() for k, t in of.items() if isinstance(t, Tensor)]
        parts = {"model": list(manifest.tensors.items()), "optimizer": optimizer}
        self.layouts: list[Layout] = []
        self.facts: dict[str, str] = {}
        for kind, tensors in parts.items():
            of = [_part(kind, n, t, reader) for n, t in tensors if t.num_bytes]
            if of:
                self.layouts.append(lay_out(f"{kind}-rank-0-of-1.safetensors", of))


# ---- Hugging Face


def _to_hugging_face(folder: Path, manifest: Manifest, reader: Reader, max_shard_bytes: int) -> None:
    shards: list[list[tuple[str, Tensor]]] = [[]]
    filled = 0
    for name, t in manifest.tensors.items():
        if shards[-1] and filled + t.num_bytes > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append((name, t))
        filled += t.num_bytes
    places: dict[str, str] = {}
    for number, of in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        layout = lay_out(file, [_part("model", n, t, reader) for n, t in of])
        write_file(_disk.NewFile(folder / file), layout, live_blocks(layout))
        places |= {n: file for n, _ in of}
    if len(shards) > 1:
        total = sum(t.num_bytes for t in manifest.tensors.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2, sort_keys=True)
        index = _disk.NewFile(folder / "model.safetensors.index.json")
        index.append(memoryview(text.encode()))
        index.close()


# ---- torch.distributed.checkpoint


def _to_dcp(folder: Path, manifest: Manifest, reader: Reader, max_shard_bytes: int) -> None:
    del max_shard_bytes  # DCP writes one file per rank
    values: dict[str, Any] = {}
    for group in manifest.groups:
        for name in group.parameters:
            values |= {f"param_groups.{name}.{k}": v for k, v in group.options.items()}
    for name, of in manifest.optimizer_state.items():
        values |= {f"state.{name}.{k}": v for k, v in of.items() if not isinstance(v, Tensor)}
    others = {"optim": values} if values else {}
    if manifest.state:
        others["state"] = manifest.state
    planner = _Planner(manifest, reader)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*single process", UserWarning)  # a save by a single process is intended
            dcp.save(others, storage_writer=dcp.FileSystemWriter(folder, thread_count=1), planner=planner, no_dist=True)
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise first from None


class _Planner(DefaultSavePlanner):
    """Adds the checkpoint's pieces to DCP's plan, and reads each when it is written."""

    def __init__(self, manifest: Manifest, reader: Reader):
        super().__init__()
        self._reader = reader
        self._tensors: dict[str, tuple[str, Tensor]] = {f"model.{n}": (n, t) for n, t in manifest.tensors.items()}
        self._paths = {f"model.{n}": ("model", n) for n in manifest.tensors}
        for n, of in manifest.optimizer_state.items():
            for k, t in of.items():
                if isinstance(t, Tensor):
                    self._tensors[f"optim.state.{n}.{k}"] = (f"{n}/{k}", t)
                    self._paths[f"optim.state.{n}.{k}"] = ("optim", f"state.{n}.{k}")

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = list(plan.items)
        for name, (_, t) in self._tensors.items():
            properties, size = TensorProperties(dtype=getattr(torch, t.dtype)), torch.Size(t.shape)
            for offset, shape in [p.box for p in t.pieces] or [((0,) * len(t.shape), t.shape)]:
                chunk = ChunkStorageMetadata(torch.Size(offset), torch.Size(shape))
                data = TensorWriteData(chunk=chunk, properties=properties, size=size)
                items.append(WriteItem(index=MetadataIndex(name, torch.Size(offset)), type=WriteItemType.SHARD, tensor_data=data))
        self.plan = dataclasses.replace(plan, items=items, planner_data={**(plan.planner_data or {}), **self._paths})
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn not in self._tensors:
            return super().lookup_object(index)
        name, t = self._tensors[index.fqn]
        box = next((p.box for p in t.pieces if p.offset == tuple(index.offset)), ((0,) * len(t.shape), t.shape))
        return self._reader.fetch(name, t, box)
