"""The content of a save, and its collective steps: begin, write the files of all ranks, commit."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal._objects.tensors import is_wrapper
from shoal.checkpoint._manifest import DTYPES, File, Group, Manifest, Piece, Tensor
from shoal.checkpoint._memory import plain
from shoal.checkpoint._ranks import (
    Ranks,
    elsewhere,
    is_first_replica,
    is_sharded,
    parameter_names,
    parts_of,
    sharding_of,
)
from shoal.checkpoint._shards import Blocks, Layout, Part, lay_out, write_file
from shoal.checkpoint._store import open_store, read_manifest, writing
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, Unimplemented

Pieces = dict[tuple[str, str], list[Piece]]  # by kind of file and name of tensor


class Plan:
    """A save's manifest, without the places of tensors yet, and the layouts of the files that this rank writes."""

    def __init__(
        self,
        tensors: dict,
        tied: dict[str, str],
        optimizer: torch.optim.Optimizer | None,
        state: dict | None,
        ranks: Ranks,
        info: dict | None = None,
    ):
        check_state(state)
        self._ranks, self._parts, self._count = ranks, [], 0
        hooked = isinstance(optimizer, torch.optim.Optimizer)  # its steps announce themselves
        described: dict[str, Any] = {"tensors": {n: self._add("model", n, t, hasattr(t, "_shoal_state")) for n, t in tensors.items()}}
        if optimizer is not None:
            described |= self._describe_optimizer(optimizer, tensors, hooked)
        self.manifest = Manifest(ranks.size, "", tied=tied, state=state or {}, info=info or {}, **described)
        self.layouts: list[Layout] = []
        for kind in ("model", "optimizer"):
            of = [p for p in self._parts if p.kind == kind]
            if of:
                self.layouts.append(lay_out(f"{kind}-rank-{ranks.rank}-of-{ranks.size}.safetensors", of))

    def _describe_optimizer(self, optimizer: torch.optim.Optimizer, tensors: dict, hooked: bool) -> dict[str, Any]:
        groups, states = [], {}
        for names, group in zip(parameter_names(optimizer, tensors), optimizer.param_groups, strict=True):
            groups.append(Group({k: _plain(v, k) for k, v in group.items() if k != "params"}, tuple(names)))
            for name, p in zip(names, group["params"], strict=True):
                states[name] = {
                    key: self._add("optimizer", f"{name}/{key}", v, hooked) if isinstance(v, torch.Tensor) else _plain(v, key)
                    for key, v in optimizer.state.get(p, {}).items()
                }
        kind = type(optimizer)
        return {"optimizer": f"{kind.__module__}.{kind.__qualname__}", "groups": tuple(groups), "optimizer_state": states}

    def _add(self, kind: str, name: str, t: torch.Tensor, in_window: bool) -> Tensor:
        """Adds this rank's part of a tensor. Returns the tensor's description, without pieces."""
        shape, dtype = tuple(t.size()), str(t.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise Unimplemented(f"{name} has dtype {dtype}: checkpoints hold {', '.join(DTYPES)}")
        sharded, self._count = is_sharded(t), self._count + 1
        for local, offset in parts_of(t, name):
            if local.device.type not in ("cpu", "cuda"):
                raise Unimplemented(f"{name} is on {local.device}", hint=elsewhere(local.device, "model.to_empty(device='cpu')"))
            if is_wrapper(local) or local.layout != torch.strided:
                raise Unimplemented(
                    f"{name} is a {type(local).__name__}, whose elements lie in other tensors: checkpoints hold plain ones",
                    hint="use torch.distributed.checkpoint",
                )
            if is_first_replica(t, self._count) if sharded else self._ranks.rank == 0:
                source = plain(local)
                fetch = lambda of=source: of.cpu().contiguous()  # noqa: E731
                self._parts.append(Part(kind, name, offset, tuple(local.shape), dtype, fetch, source, local, in_window))
        return Tensor(shape, dtype, sharding_of(t), ())


def write(path: str | Path, plan: Plan, ranks: Ranks, blocks_of: Callable[[int, Layout], Blocks]) -> None:
    """Writes the files of all ranks and commits. Collective."""
    store = open_store(path)

    def begin() -> str:
        if ranks.rank != 0:
            return ""
        with writing(path):
            try:
                read_manifest(store)  # raises InvalidArgument if the folder holds other data
            except (NotFound, DataLoss):
                pass
            token = secrets.token_hex(8)
            store.begin(token)
            return token

    token = ranks.gather(ranks.agree(begin))[0]

    def write_files() -> tuple[dict[str, File], Pieces]:
        files, pieces = {}, {}
        with writing(path):
            for index, layout in enumerate(plan.layouts):
                files[layout.name], of = write_file(store.create(token, layout.name), layout, blocks_of(index, layout))
                pieces |= of
        return files, pieces

    written = ranks.gather(ranks.agree(write_files))

    def commit() -> None:
        if ranks.rank == 0:
            files = {name: f for of, _ in written for name, f in sorted(of.items())}
            manifest = replace(place(plan.manifest, [p for _, p in written]), files=files)
            folder = _folder(manifest) if store.names_by_contents else token
            with writing(path):
                store.commit(token, folder, sorted(files), replace(manifest, folder=folder).to_json().encode())

    ranks.agree(commit)


def check_state(state: Any) -> None:
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


def _has_tuple_or_odd_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not isinstance(k, str) for k in value) or any(map(_has_tuple_or_odd_key, value.values()))
    return isinstance(value, tuple) or (isinstance(value, list) and any(map(_has_tuple_or_odd_key, value)))


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


def place(manifest: Manifest, pieces: list[Pieces]) -> Manifest:
    """Adds the pieces that all ranks have written to the descriptions of their tensors, in order of offsets."""

    def placed(kind: str, name: str, t: Tensor) -> Tensor:
        of = sorted((p for by_name in pieces for p in by_name.get((kind, name), ())), key=lambda p: p.offset)
        once = [p for i, p in enumerate(of) if i == 0 or p.offset != of[i - 1].offset]  # submeshes may have the same part
        return replace(t, pieces=tuple(once))

    return manifest.with_pieces(placed)


def _folder(manifest: Manifest) -> str:
    """The name of the folder with these contents: equal contents have equal names."""
    contents = sorted((name, p.file, p.at, p.offset, p.sha256) for name, t in manifest.all_tensors() for p in t.pieces)
    headers = sorted((name, f.sha256) for name, f in manifest.files.items())
    return hashlib.sha256(json.dumps([contents, headers]).encode()).hexdigest()[:16]
