"""Safetensors files as one rank writes them: their layout, their bytes in order, and the hashes of what was written."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from shoal._native import ChunkChecksums
from shoal.checkpoint._manifest import CHUNK, DTYPES, File, Piece
from shoal.checkpoint._memory import Buffer, copy_in

_BLOCK = 8 << 20  # bytes of one write
_BLOCKS = 4  # blocks in memory: one is filled while others are hashed and written
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
    counted: torch.Tensor | None = None  # a tensor over the same memory, whose version counts torch's writes
    in_window: bool = False  # written only by an optimizer's step or in a write window
    number: int = -1  # the tensor's number in its plan

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
    parts = sorted(parts, key=lambda p: -DTYPES[p.dtype][1])  # larger elements first, so that each is aligned
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


class Hashes:
    """Hashes the chunks of a file's parts in a thread, while its bytes pass from the begin to the end."""

    def __init__(self, layout: Layout):
        self._layout, self._sums = layout, ChunkChecksums()
        self._ends = [
            at + min(n + CHUNK, p.num_bytes) for p, at in zip(layout.parts, layout.at, strict=True) for n in range(0, p.num_bytes, CHUNK)
        ]
        self._hashes: list[str] = []
        self._passed = 0  # chunks that have passed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-checkpoint-hash")

    def feed(self, data: memoryview, at: int) -> Future:
        """Hashes the bytes from position ``at``. Returns what to wait for before ``data`` changes."""
        begin, first = max(at, len(self._layout.header)), self._passed
        while self._passed < len(self._ends) and self._ends[self._passed] <= at + len(data):
            self._passed += 1
        ends = [end - begin for end in self._ends[first : self._passed]]
        return self._thread.submit(lambda: self._hashes.extend(self._sums.add(data[begin - at :], ends)))

    def close(self) -> None:
        self._thread.shutdown()

    def pieces(self) -> dict[tuple[str, str], list[Piece]]:
        """Returns the pieces of each tensor, after all bytes were hashed."""
        found: dict[tuple[str, str], list[Piece]] = {}
        hashes = iter(self._hashes)
        for p, at in zip(self._layout.parts, self._layout.at, strict=True):
            of = tuple(next(hashes) for _ in range(0, p.num_bytes, CHUNK))
            found.setdefault((p.kind, p.name), []).append(Piece(self._layout.name, at, p.offset, p.shape, of))
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
    """The bytes of a file that lies whole in memory, at once: its writes and hashes hold the GIL a few times only."""
    yield image.view[: layout.num_bytes], 0


def write_file(new_file: Any, layout: Layout, blocks: Blocks) -> tuple[File, dict[tuple[str, str], list[Piece]]]:
    """Writes and syncs a file. A thread writes a block and another hashes it, while this one fills the next. Returns its description."""
    hashes = Hashes(layout)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="shoal-checkpoint-write") as writer:
            under_way: deque[list[Future]] = deque()
            for data, at in blocks:
                under_way.append([writer.submit(new_file.append, data), hashes.feed(data, at)])
                if len(under_way) == _BLOCKS - 1:
                    _wait(under_way.popleft())
            for block in under_way:
                _wait(block)
        new_file.close()
    except BaseException:
        new_file.abandon()
        raise
    finally:
        hashes.close()
    return File(layout.num_bytes, len(layout.header), hashlib.sha256(layout.header).hexdigest()), hashes.pieces()


def _wait(block: list[Future]) -> None:
    for part in block:
        part.result()
