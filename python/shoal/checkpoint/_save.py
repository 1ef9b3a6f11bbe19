"""A save's collective steps: begin, write the files of all ranks, commit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal._core.telemetry import save_event
from shoal.checkpoint._manifest import File, Manifest, Piece, Tensor
from shoal.checkpoint._plan import Plan
from shoal.checkpoint._ranks import Ranks, expect_alike, is_one_of_many
from shoal.checkpoint._shards import Blocks, Layout, write_file
from shoal.checkpoint._store import open_store, read_manifest, writing
from shoal.exceptions import DataLoss, NotFound

Pieces = dict[tuple[str, str], list[Piece]]  # by kind of file and name of tensor


def write(
    path: str | Path,
    plan: Plan,
    ranks: Ranks,
    blocks_of: Callable[[int, Layout], Blocks],
    committed: Callable[[], None] = lambda: None,
) -> None:
    """Writes the files of all ranks and commits. Collective. Ranks of a model that is not sharded take turns. After an error on which all
    ranks agree, nothing is left of this save: a full disk would stay full otherwise. ``committed``: is called on rank 0 once the checkpoint
    is complete, whatever the other ranks learn."""
    began, waited_s = time.perf_counter(), ranks.waited_s
    store = None
    own = folder = ""  # on rank 0: the names of its files' folder, before and after their contents are known

    def begin() -> str:
        nonlocal own, store
        store = open_store(path)  # inside of ``agree``, because one rank alone may lack the package for it
        if ranks.rank != 0:
            return ""
        with writing(path):
            if is_one_of_many(ranks):
                turn.enter_context(store.turn())
            try:
                read_manifest(store)  # raises InvalidArgument if the folder holds other data
            except (NotFound, DataLoss):
                pass
            own = secrets.token_hex(8)
            store.begin(own)
            return own

    def write_files() -> tuple[dict[str, File], Pieces]:
        files, pieces = {}, {}
        with writing(path):
            for index, layout in enumerate(plan.layouts):
                files[layout.name], of = write_file(store.create(token, layout.name), layout, blocks_of(index, layout))
                pieces |= of
        return files, pieces

    def commit() -> None:
        nonlocal folder
        if ranks.rank == 0:
            files = {name: f for of, _ in written for name, f in sorted(of.items())}
            manifest = replace(place(plan.manifest, [p for _, p in written]), files=files)
            folder = _folder(manifest) if store.names_by_contents else token
            with writing(path):
                store.commit(token, folder, sorted(files), replace(manifest, folder=folder).to_json().encode())
            committed()

    with contextlib.ExitStack() as turn:
        try:
            begun = ranks.gather((ranks.agree(begin), _digest(plan.facts)))
            token = begun[0][0]
            expect_alike(ranks, [digest for _, digest in begun], plan.facts)
            written = ranks.gather(ranks.agree(write_files))
            ranks.agree(commit)
        except Exception:
            if own and not ranks.failed:  # else others may still write: the next save deletes the rest
                with contextlib.suppress(Exception):  # the first error counts
                    store.abandon(own, folder)
            raise
    own_s = time.perf_counter() - began - (ranks.waited_s - waited_s)
    save_event("save", str(path), began, sum(f.num_bytes for f in written[ranks.rank][0].values()), own_s)


def _digest(facts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def place(manifest: Manifest, pieces: list[Pieces]) -> Manifest:
    """Adds the pieces that all ranks have written to the descriptions of their tensors, in order of offsets."""

    def placed(kind: str, name: str, t: Tensor) -> Tensor:
        of = sorted((p for by_name in pieces for p in by_name.get((kind, name), ())), key=lambda p: p.offset)
        once = [p for i, p in enumerate(of) if i == 0 or p.offset != of[i - 1].offset]  # submeshes may have the same part
        return replace(t, pieces=tuple(once))

    return manifest.with_pieces(placed)


def _folder(manifest: Manifest) -> str:
    """The name of the folder with these contents: equal contents have equal names."""
    contents = sorted((name, p.file, p.at, p.offset, p.hashes) for name, t in manifest.all_tensors() for p in t.pieces)
    headers = sorted((name, f.sha256) for name, f in manifest.files.items())
    return hashlib.sha256(json.dumps([contents, headers]).encode()).hexdigest()[:16]
