"""Checkpoints of sharded training: each rank writes its part, and any number of ranks can read them back.

    shoal.checkpoint.save("out/checkpoint", model, optimizer, state={"step": step})
    shoal.checkpoint.save_async("out/checkpoint", model, optimizer, state={"step": step})  # training goes on while a thread writes
    state = shoal.checkpoint.load("out/checkpoint", model, optimizer)

A checkpoint is a folder: safetensors files (``model-...`` holds the parameters under their own names) and ``manifest.json``, their index.
No pickle is executed. README.md beside this file describes the format.
"""

from shoal.checkpoint._keeping import Checkpoints
from shoal.checkpoint._load import load
from shoal.checkpoint._manifest import Manifest
from shoal.checkpoint._saving import PendingSave, save, save_async, wait
from shoal.checkpoint._store import read_manifest

__all__ = ["Checkpoints", "Manifest", "PendingSave", "load", "read_manifest", "save", "save_async", "wait"]
