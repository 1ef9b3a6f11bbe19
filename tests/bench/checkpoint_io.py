"""Saves and loads 1 GB in one process, and writes and reads as much on the same disk, in turn. One JSON line.

python checkpoint_io.py FOLDER [--rounds N]
"""

import argparse
import json
import mmap
import os
import shutil
import time
from pathlib import Path

import torch
from torch import nn

from shoal import checkpoint

BLOCK, BLOCKS = 8 << 20, 128  # 1 GiB

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()
figures: dict[str, list[float]] = {}


def timed(name, num_bytes, action):
    begin = time.perf_counter()
    action()
    figures.setdefault(name, []).append(num_bytes / 1e6 / (time.perf_counter() - begin))


def write_file(path):
    """Writes as dd does with oflag=direct conv=fsync."""
    block = mmap.mmap(-1, BLOCK)
    block.write(os.urandom(BLOCK))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    for i in range(BLOCKS):
        os.pwrite(fd, block, i * BLOCK)
    os.fsync(fd)
    os.close(fd)


def read_file(path):
    block = mmap.mmap(-1, BLOCK)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for i in range(BLOCKS):
        os.preadv(fd, [block], i * BLOCK)
    os.close(fd)


torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(64)))
size = sum(p.nbytes for p in model.parameters())
options.folder.mkdir(parents=True, exist_ok=True)
path, plain = options.folder / "checkpoint", options.folder / "plain"
try:
    for _ in range(options.rounds):
        timed("disk write", BLOCK * BLOCKS, lambda: write_file(plain))
        timed("save", size, lambda: checkpoint.save(path, model))
        timed("disk read", BLOCK * BLOCKS, lambda: read_file(plain))
        timed("load", size, lambda: checkpoint.load(path, model))
        timed("load, streaming", size, lambda: checkpoint.load(path, model, streaming=True))
        plain.unlink()
finally:
    shutil.rmtree(options.folder)
print(json.dumps({"bytes": size, "figures": figures}))
