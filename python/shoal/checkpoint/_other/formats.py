"""Opens checkpoints of any format that this package reads, as a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.checkpoint._manifest import FILE, Manifest, damaged
from shoal.checkpoint._other import dcp, huggingface
from shoal.checkpoint._store import missing, open_store, read_manifest

_MAX_NAME, _MAX_PARTS = 4096, 256  # characters and dotted parts of a name, since arrange.py looks at many combinations of the parts


def open_checkpoint(path: str | Path) -> tuple[Any, Manifest]:
    """Returns (the store, the manifest) of a checkpoint of Shoal, of DCP or of Hugging Face. Raises the errors of ``read_manifest``."""
    store = open_store(path)
    names = store.list()
    if FILE in names:
        return store, read_manifest(store)
    if dcp.FILE in names:
        manifest = dcp.read(store)
    elif found := huggingface.find(names):
        manifest = huggingface.read(store, found)
    else:
        raise missing(store)
    for name in (*manifest.tensors, *manifest.values):
        if len(name) > _MAX_NAME or name.count(".") >= _MAX_PARTS:
            raise damaged(str(store), f"the name {name[:40]}... has more than {_MAX_NAME} characters or {_MAX_PARTS} parts")
    return store, manifest
