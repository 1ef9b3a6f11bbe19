"""Reads boxes of saved tensors from the pieces that have them, chunk by chunk, and verifies each chunk."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shoal.checkpoint import _boxes
from shoal.checkpoint._disk import ALIGNMENT
from shoal.checkpoint._manifest import CHUNK, DTYPES, FORMAT, HASHES, Manifest, Piece, Tensor, damaged
from shoal.checkpoint._memory import Buffer, tensor_in

_THREADS = 3  # one reads while others hash and copy
_PLACED_BYTES = 1 << 20  # smaller tensors are copied out of a thread's buffer
MEMORY_BYTES = _THREADS * (CHUNK + 2 * ALIGNMENT)


@dataclass(frozen=True)
class _Wish:
    """Elements to read: ``box`` of the tensor into ``out``. ``buffer``: the memory of ``out``, if the box is one whole piece: that is
    read in pages without a copy, because its bytes have the same positions in the buffer's pages as in the file's."""

    name: str
    saved: Tensor
    box: _boxes.Box
    out: torch.Tensor
    buffer: Buffer | None = None


class Reader:
    """Collects wishes and fulfils them in threads. Holds ``MEMORY_BYTES`` beside the tensors that it fills."""

    def __init__(self, store, manifest: Manifest):
        self._store, self._manifest = store, manifest
        self._wishes: list[_Wish] = []
        self._files: dict = {}
        self._lock = threading.Lock()  # guards the fields below
        self._error: BaseException | None = None
        self._jobs: Iterator = iter(())

    def want(self, name: str, saved: Tensor, box: _boxes.Box, out: torch.Tensor) -> None:
        """Asks for a box of a saved tensor. ``out`` has its shape."""
        if out.numel():
            self._wishes.append(_Wish(name, saved, box, out))

    def want_new(self, name: str, saved: Tensor, box: _boxes.Box) -> torch.Tensor:
        """Asks for a box of a saved tensor. Returns the new tensor that will have it. A box that is a piece is read without a copy."""
        dtype, item = getattr(torch, saved.dtype), DTYPES[saved.dtype][1]
        piece = next((p for p in saved.pieces if p.box == box), None)
        if piece is None or piece.at % item or math.prod(box[1]) * item < _PLACED_BYTES:
            out = torch.empty(box[1], dtype=dtype)
            self.want(name, saved, box, out)
            return out
        skip, numel = piece.at % ALIGNMENT, math.prod(box[1])
        buffer = Buffer(skip + numel * item)
        out = tensor_in(buffer, skip, numel, dtype).view(box[1])
        self._wishes.append(_Wish(name, saved, box, out, buffer))
        return out

    def fetch(self, name: str, saved: Tensor, box: _boxes.Box | None = None) -> torch.Tensor:
        """Reads a box of a saved tensor, or all of it."""
        out = self.want_new(name, saved, box or ((0,) * len(saved.shape), saved.shape))
        self.run()
        return out

    def run(self) -> None:
        """Fulfils all wishes. Raises DataLoss for damage."""
        wishes, self._wishes = self._wishes, []
        self._jobs = self._divide(wishes)
        few = sum(w.out.nbytes for w in wishes) <= CHUNK
        threads = [threading.Thread(target=self._work, name="shoal-checkpoint-read") for _ in range(0 if few else _THREADS - 1)]
        if not few and (new := [w.buffer for w in wishes if w.buffer is not None]):
            threads.append(threading.Thread(target=self._populate, args=(new,), name="shoal-checkpoint-memory"))
        for t in threads:
            t.start()
        self._work()
        for t in threads:
            t.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def verify_piece(self, name: str, saved: Tensor, piece: Piece) -> None:
        """Reads a piece without keeping it. Raises DataLoss for damage."""
        buffer = Buffer(CHUNK + 2 * ALIGNMENT)
        for begin in range(0, math.prod(piece.shape) * DTYPES[saved.dtype][1], CHUNK):
            self._chunk(buffer.view, name, saved, piece, begin)

    def close(self) -> None:
        for f in self._files.values():
            f.close()
        self._files.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # ---- chunks ----

    def _divide(self, wishes: list[_Wish]) -> Iterator[tuple[_Wish, Piece, int]]:
        for w in wishes:
            item = DTYPES[w.saved.dtype][1]
            for piece in w.saved.pieces:
                common = _boxes.intersect(w.box, piece.box)
                if common is None:
                    continue
                first, last = _extent(common, piece, item)
                for begin in range(first // CHUNK * CHUNK, last, CHUNK):
                    yield w, piece, begin

    def _work(self) -> None:
        buffer = None
        try:
            with torch.inference_mode(False), torch.no_grad():
                while True:
                    with self._lock:
                        job = None if self._error is not None else next(self._jobs, None)
                    if job is None:
                        return
                    wish, piece, begin = job
                    if wish.buffer is not None:
                        self._chunk(wish.buffer.view[begin:], wish.name, wish.saved, piece, begin)
                        continue
                    buffer = buffer or Buffer(CHUNK + 2 * ALIGNMENT)
                    self._fulfil(buffer, wish, piece, begin)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error

    def _populate(self, buffers: list[Buffer]) -> None:
        """Gets new memory ahead of the reads, which would wait for each of its pages."""
        for buffer in buffers:
            for begin in range(0, len(buffer), CHUNK):
                if self._error is not None:
                    return
                buffer.populate(begin, begin + CHUNK)

    def _fulfil(self, buffer: Buffer, wish: _Wish, piece: Piece, begin: int) -> None:
        dtype, item = wish.out.dtype, DTYPES[wish.saved.dtype][1]
        at, num_bytes = self._chunk(buffer.view, wish.name, wish.saved, piece, begin)
        elements = tensor_in(buffer, at, num_bytes // item, dtype)
        taken = 0
        for offset, shape in _boxes.spans(piece.shape, begin // item, (begin + num_bytes) // item):
            count = math.prod(shape)
            part = (tuple(o + p for o, p in zip(offset, piece.offset, strict=True)), shape)
            common = _boxes.intersect(part, wish.box)
            if common is not None:
                source = elements[taken : taken + count].view(shape)[_boxes.slices(common, part[0])]
                wish.out[_boxes.slices(common, wish.box[0])].copy_(source)
            taken += count

    def _chunk(self, into: memoryview, name: str, saved: Tensor, piece: Piece, begin: int) -> tuple[int, int]:
        """Reads and verifies the chunk of a piece that begins at byte ``begin``, in whole pages. Returns its position in ``into`` and its
        size. Another thread may read a page that both chunks have into the same memory: it writes the same bytes."""
        size = min(CHUNK, math.prod(piece.shape) * DTYPES[saved.dtype][1] - begin)
        low = (piece.at + begin) // ALIGNMENT * ALIGNMENT
        skip = piece.at + begin - low
        wanted = -(-(skip + size) // ALIGNMENT) * ALIGNMENT
        file = self.open(piece.file)
        try:
            count = file.read_into(into[:wanted], low)
        except OSError as error:
            raise self._damaged(f"{piece.file} cannot be read ({error})") from None
        data = into[skip : skip + size]
        if count < skip + size or (piece.hashes and self._hash(data) != piece.hashes[begin // CHUNK]):
            raise self._damaged(f"the bytes of {name} in {self._path(piece.file)} are not those that were saved")
        return skip, size

    def _hash(self, data: memoryview) -> str:
        hash_ = HASHES[self._manifest.hash]()
        hash_.update(data)
        return hash_.hexdigest()

    def open(self, name: str):
        """Opens a file once. Raises DataLoss if it is missing, or has another size or header than the manifest states."""
        with self._lock:
            if name in self._files:
                return self._files[name]
            try:
                linked = self._manifest.format != FORMAT  # other programs keep files elsewhere; save writes no links
                file = self._files[name] = self._store.open(self._path(name), linked=linked)
                stated = self._manifest.files[name]
                if file.num_bytes != stated.num_bytes:
                    raise self._damaged(f"{self._path(name)} has {file.num_bytes} bytes, not {stated.num_bytes}")
                if stated.sha256:
                    header = Buffer(stated.header_bytes)
                    count = file.read_into(header.view, 0)
                    if count < stated.header_bytes or hashlib.sha256(header.view[: stated.header_bytes]).hexdigest() != stated.sha256:
                        raise self._damaged(f"the header of {self._path(name)} is not the one that was saved")
            except FileNotFoundError:
                raise self._damaged(f"{self._path(name)} is missing") from None
            except OSError as error:
                raise self._damaged(f"{self._path(name)} cannot be read ({error})") from None
            return file

    def _path(self, name: str) -> str:
        return f"{self._manifest.folder}/{name}" if self._manifest.folder else name

    def _damaged(self, what: str):
        return damaged(str(self._store), what)


def _extent(common: _boxes.Box, piece: Piece, item: int) -> tuple[int, int]:
    """The bytes of a piece from the first to the last element of a box."""
    first = last = 0
    for begin, count, offset, size in zip(*common, *piece.box, strict=True):
        first, last = first * size + begin - offset, last * size + begin - offset + count - 1
    return first * item, (last + 1) * item
