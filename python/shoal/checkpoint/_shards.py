"""Safetensors files as one rank writes them: their layout, their bytes in order, and the hashes of what was written."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.checkpoint._manifest import CHUNK, DTYPES, File, Piece
from shoal.checkpoint._memory import Buffer, copy_in

_BLOCK = 8 << 20  # bytes of one write
_BLOCKS = 4  # blocks in memory: one is filled and hashed while others are written
MEMORY_BYTES = _BLOCK * _BLOCKS


@dataclass
class Part:
    """A part of a tensor that this rank writes. ``fetch`` returns it as a contiguous CPU tensor."""

    kind: str  # "model" or "optimizer"
    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    fetch: Callable[[], torch.Tensor]
    source: torch.Tensor | None = None  # the tensor in the model's memory
    in_window: bool = False  # written only by an optimizer's step or in a write window

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


@dataclass
class Layout:
    """A file's content: the header, then parts without gaps. ``at``: the position of each part."""

    name: str
    header: bytes
    parts: list[Part]
    at: list[int]
    num_bytes: int


def lay_out(name: str, parts: list[Part]) -> Layout:
    parts = sorted(parts, key=lambda p: -DTYPES[p.dtype][1])  # stable; so that each element is aligned
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins, at = [], 0
    for p in parts:
        key, number = p.name, 1
        while key in entries:  # a rank may have several parts of a tensor
            number += 1
            key = f"{p.name}#{number}"
        entries[key] = {"dtype": DTYPES[p.dtype][0], "shape": list(p.shape), "data_offsets": [at, at + p.num_bytes]}
        begins.append(at)
        at += p.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    header = len(text).to_bytes(8, "little") + text
    return Layout(name, header, parts, [len(header) + b for b in begins], len(header) + at)


@dataclass
class Hashes:
    """Hashes a file's parts while its bytes pass, from the begin to the end."""

    layout: Layout
    digests: list[list[str]] = field(default_factory=list)
    _index: int = 0
    _done: int = 0  # bytes of the present part

    def __post_init__(self):
        self.digests = [[] for _ in self.layout.parts]
        self._hash = hashlib.sha256()

    def feed(self, data: memoryview, at: int) -> None:
        end = at + len(data)
        while self._index < len(self.layout.parts):
            size, begin = self.layout.parts[self._index].num_bytes, self.layout.at[self._index]
            low = begin + self._done
            high = min(end, begin + size, begin + (self._done // CHUNK + 1) * CHUNK)
            if low >= high:
                return
            self._hash.update(data[low - at : high - at])
            self._done = high - begin
            if self._done == size or self._done % CHUNK == 0:
                self.digests[self._index].append(self._hash.hexdigest())
                self._hash = hashlib.sha256()
            if self._done == size:
                self._index, self._done = self._index + 1, 0

    def pieces(self) -> dict[tuple[str, str], list[Piece]]:
        found: dict[tuple[str, str], list[Piece]] = {}
        for p, at, digests in zip(self.layout.parts, self.layout.at, self.digests, strict=True):
            found.setdefault((p.kind, p.name), []).append(Piece(self.layout.name, at, p.offset, p.shape, tuple(digests)))
        return found


Blocks = Iterator[tuple[memoryview, int]]  # successive bytes of a file, and their position; valid for _BLOCKS - 1 further blocks


def live_blocks(layout: Layout) -> Blocks:
    """Copies a file's bytes from the tensors, a block at a time. Holds ``MEMORY_BYTES``, and one part that is not contiguous on the CPU."""
    buffers = [Buffer(min(_BLOCK, layout.num_bytes)) for _ in range(min(_BLOCKS, -(-layout.num_bytes // _BLOCK)))]
    index, current = 0, None
    for number, at in enumerate(range(0, layout.num_bytes, _BLOCK)):
        buffer, end = buffers[number % len(buffers)], min(at + _BLOCK, layout.num_bytes)
        if at < len(layout.header):
            head = layout.header[at:end]
            buffer.view[: len(head)] = head
        while index < len(layout.parts):
            begin, size = layout.at[index], layout.parts[index].num_bytes
            if begin >= end:
                break
            if current is None:
                current = layout.parts[index].fetch()
            low, high = max(begin, at), min(begin + size, end)
            copy_in(buffer, low - at, current, low - begin, high - begin)
            if begin + size > end:
                break
            index, current = index + 1, None
        yield buffer.view[: end - at], at


def image_blocks(image: Buffer, layout: Layout) -> Blocks:
    """The bytes of a file that lies whole in memory."""
    for at in range(0, layout.num_bytes, _BLOCK):
        yield image.view[at : min(at + _BLOCK, layout.num_bytes)], at


def write_file(new_file: Any, layout: Layout, blocks: Blocks) -> tuple[File, dict[tuple[str, str], list[Piece]]]:
    """Writes and syncs a file: a thread writes one block while this one fills and hashes the next. Returns its description."""
    hashes = Hashes(layout)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="shoal-checkpoint-write") as writer:
            under_way: deque = deque()
            for data, at in blocks:
                hashes.feed(data, at)
                under_way.append(writer.submit(new_file.append, data))
                if len(under_way) == _BLOCKS - 1:
                    under_way.popleft().result()
            for write in under_way:
                write.result()
        new_file.close()
    except BaseException:
        new_file.abandon()
        raise
    return File(layout.num_bytes, len(layout.header), hashlib.sha256(layout.header).hexdigest()), hashes.pieces()
