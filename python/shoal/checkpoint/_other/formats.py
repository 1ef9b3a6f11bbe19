"""Opens checkpoints of any format that this package reads, as a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.checkpoint._manifest import FILE, Manifest
from shoal.checkpoint._other import dcp, huggingface
from shoal.checkpoint._store import missing, open_store, read_manifest


def open_checkpoint(path: str | Path) -> tuple[Any, Manifest]:
    """Returns (the store, the manifest) of a checkpoint of Shoal, of DCP or of Hugging Face. Raises the errors of ``read_manifest``."""
    store = open_store(path)
    names = store.list()
    if FILE in names:
        return store, read_manifest(store)
    if dcp.FILE in names:
        return store, dcp.read(store)
    if found := huggingface.find(names):
        return store, huggingface.read(store, found)
    raise missing(store)
