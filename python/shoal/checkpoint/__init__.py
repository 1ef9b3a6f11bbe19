"""Checkpoints of sharded training: each rank writes its rows, and any number of ranks can read them back.

    shoal.checkpoint.save("out/checkpoint", model, optimizer, state={"step": step})
    state = shoal.checkpoint.load("out/checkpoint", model, optimizer)

A checkpoint is a folder: safetensors files (``model-...`` holds the parameters under their own names) and ``manifest.json``, their index.
No pickle is written or read. README.md beside this file describes the format.
"""

from shoal.checkpoint._load import load
from shoal.checkpoint._manifest import Manifest, read_manifest
from shoal.checkpoint._save import save

__all__ = ["Manifest", "load", "read_manifest", "save"]
