"""Moves rows between processes: the transfers of a plan as a stream of checked messages of bounded size."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from shoal import _native
from shoal.exceptions import DataLoss
from shoal.fsdp._reshard.union import Union, memory_of

# Bytes of rows in one message. A process holds four messages at most: two to send, and two to receive. Only a single row of a parameter
# that is sharded on another dim than 0 may be larger.
MESSAGE_BYTES = 1 << 20
_CHECKSUM = struct.Struct("<I")  # behind a message's rows


@dataclass
class OldShard:
    """Rows ``[begin, end)`` of tensors on the old mesh: this process's own shard, or that of a dead rank which it has adopted."""

    begin: int
    end: int
    tensors: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Entry:
    """Tensors that are sharded alike. ``old`` and ``new``: this process's slices on each mesh, empty where it is not on the mesh."""

    name: str
    rows: int  # size of the sharded dim
    dim: int
    row_bytes: int = 0  # sum over all tensors
    contiguous: bool = True  # a range of rows is one range of bytes
    old: list[OldShard] = field(default_factory=list)
    new: list[torch.Tensor] = field(default_factory=list)
    new_begin: int = 0  # the first row of this process's slices

    def parts(self, begin: int, end: int, new: bool) -> list[torch.Tensor]:
        """Rows of each tensor, which all lie in one shard: views."""
        tensors, first = self.new, self.new_begin
        if not new:
            shard = next(s for s in self.old if s.begin <= begin < s.end)
            tensors, first = shard.tensors, shard.begin
        return [t.narrow(self.dim, begin - first, end - begin) for t in tensors]


@dataclass
class Moved:
    """The bytes that this process has sent, received and kept."""

    sent: int = 0
    received: int = 0
    kept: int = 0
    messages: int = 0


def keep(plan: _native.ReshardPlan, entries: list[Entry], rank: int) -> int:
    """Copies the rows that stay on this process to their new memory. Returns their bytes."""
    kept = 0
    for t in plan.kept:
        if t.source != rank:
            continue
        e = entries[t.parameter]
        kept += (t.end - t.begin) * e.row_bytes
        for source, target in zip(e.parts(t.begin, t.end, False), e.parts(t.begin, t.end, True), strict=True):
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)
    return kept


def move(plan: _native.ReshardPlan, entries: list[Entry], union: Union) -> Moved:
    """Sends and receives this process's transfers. Every participant calls it. Raises DataLoss for a message whose checksum is wrong."""
    moved, rank = Moved(), union.rank
    size = union.ranks[-1] + 1
    mine = [t for t in plan.transfers if rank in (t.source, t.destination)]
    for _, turn in itertools.groupby(mine, key=lambda t: (t.relayed, (t.destination - t.source) % size)):
        transfers = list(turn)
        _turn(
            [t for t in transfers if t.source == rank],
            [t for t in transfers if t.destination == rank],
            entries,
            union,
            moved,
        )
    return moved


def copy_whole(tensors: list[torch.Tensor], source: int, newcomers: list[int], union: Union) -> int:
    """Sends whole tensors from one process to each newcomer. Returns the bytes that this process sent or received."""
    total = 0
    for newcomer in newcomers:
        pieces = (_Piece(t, True) for t in tensors)
        if union.rank == source:
            stream = _Outgoing(pieces, union, newcomer)
            while stream.advance():
                pass
        elif union.rank == newcomer:
            stream = _Incoming(pieces, union, source)
            stream.post()
            while stream.advance():
                stream.post()
        else:
            continue
        total += stream.bytes
    return total


def _turn(sends: list[_native.Transfer], receives: list[_native.Transfer], entries: list[Entry], union: Union, moved: Moved) -> None:
    """Sends to one process and receives from one, at the same time."""
    outgoing = _Outgoing(_pieces(sends, entries, False), union, sends[0].destination) if sends else None
    incoming = _Incoming(_pieces(receives, entries, True), union, receives[0].source) if receives else None
    while outgoing is not None or incoming is not None:
        if incoming is not None:
            incoming.post()
        if outgoing is not None and not outgoing.advance():
            moved.sent += outgoing.bytes
            moved.messages += outgoing.number
            outgoing = None
        if incoming is not None and not incoming.advance():
            moved.received += incoming.bytes
            incoming = None


# ---- pieces: what a message consists of, which both sides compute alike ----


@dataclass
class _Piece:
    """Rows of one tensor. ``rows`` is a view of this process's memory; if it is not contiguous, the piece is small."""

    rows: torch.Tensor
    contiguous: bool

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()


def _pieces(transfers: list[_native.Transfer], entries: list[Entry], new: bool) -> Iterator[_Piece]:
    for t in transfers:
        e = entries[t.parameter]
        for part in e.parts(t.begin, t.end, new or t.relayed):
            if e.contiguous:
                yield _Piece(part, True)
                continue
            count = t.end - t.begin
            step = max(1, MESSAGE_BYTES * count // max(1, part.numel() * part.element_size()))
            for begin in range(0, count, step):
                yield _Piece(part.narrow(e.dim, begin, min(step, count - begin)), False)


def _messages(pieces: Iterator[_Piece]) -> Iterator[list[tuple[_Piece, int, int]]]:
    """Cuts pieces into messages: lists of (piece, begin, end), in bytes. Only pieces of contiguous rows are cut."""
    message: list[tuple[_Piece, int, int]] = []
    room = MESSAGE_BYTES
    for piece in pieces:
        begin, nbytes = 0, piece.nbytes
        while begin < nbytes:
            if room == 0 or (not piece.contiguous and message and nbytes > room):
                yield message
                message, room = [], MESSAGE_BYTES
            end = min(nbytes, begin + room) if piece.contiguous else nbytes
            message.append((piece, begin, end))
            room = max(0, room - (end - begin))
            begin = end
    if message:
        yield message


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: a view if the tensor is contiguous."""
    return t.contiguous().reshape(-1).view(torch.uint8)


class _Buffer:
    """The memory of one message: rows, then their checksum."""

    def __init__(self):
        self._memory = torch.empty(MESSAGE_BYTES + _CHECKSUM.size, dtype=torch.uint8)

    def first(self, nbytes: int) -> torch.Tensor:
        if self._memory.numel() < nbytes + _CHECKSUM.size:
            self._memory = torch.empty(nbytes + _CHECKSUM.size, dtype=torch.uint8)
        return self._memory[: nbytes + _CHECKSUM.size]


def _checksum(rows: torch.Tensor, number: int) -> int:
    """CRC-32 of a message's number and rows, so that a message in the place of another is found."""
    return zlib.crc32(rows.numpy(), number)


class _Outgoing:
    """Messages to one process. While one is under way, the next is packed."""

    def __init__(self, pieces: Iterator[_Piece], union: Union, to: int):
        self._messages = _messages(pieces)
        self._communicator, self._to, self._target = union.communicator, to, union.ranks.index(to)
        self._buffers = itertools.cycle((_Buffer(), _Buffer()))
        self._work: _native.Work | None = None
        self.bytes = self.number = 0

    def advance(self) -> bool:
        """Sends the next message. Returns False once all have been sent."""
        message = next(self._messages, None)
        if message is None:
            if self._work is not None:
                self._work.wait()
            return False
        nbytes = sum(end - begin for _, begin, end in message)
        memory, at = next(self._buffers).first(nbytes), 0
        for piece, begin, end in message:
            part = memory[at : at + end - begin]
            part.copy_(bytes_of(piece.rows)[begin:end])
            at += end - begin
        _CHECKSUM.pack_into(memory.numpy(), nbytes, _checksum(memory[:nbytes], self.number))
        if self._work is not None:
            self._work.wait()
        call = (f"reshard: rows for rank {self._to}", self.number, 0.0, False)
        self._work = self._communicator.send(memory_of(memory), self._target, "uint8", 0, call)
        self.number += 1
        self.bytes += nbytes
        return True


class _Incoming:
    """Messages from one process. While one is unpacked, the next is under way."""

    def __init__(self, pieces: Iterator[_Piece], union: Union, source: int):
        self._messages = _messages(pieces)
        self._communicator, self._from, self._source = union.communicator, source, union.ranks.index(source)
        self._buffers = itertools.cycle((_Buffer(), _Buffer()))
        self._posted: list[tuple[_native.Work, list, torch.Tensor]] = []
        self._posts = self._number = 0
        self.bytes = 0

    def post(self) -> None:
        while len(self._posted) < 2 and (message := next(self._messages, None)) is not None:
            memory = next(self._buffers).first(sum(end - begin for _, begin, end in message))
            call = (f"reshard: rows of rank {self._from}", self._posts, 0.0, False)
            work = self._communicator.receive(memory_of(memory), self._source, "uint8", 0, call)
            self._posted.append((work, message, memory))
            self._posts += 1

    def advance(self) -> bool:
        """Takes the next message. Returns False once all have arrived."""
        if not self._posted:
            return False
        work, message, memory = self._posted.pop(0)
        work.wait()
        nbytes = memory.numel() - _CHECKSUM.size
        if _CHECKSUM.unpack_from(memory.numpy(), nbytes) != (_checksum(memory[:nbytes], self._number),):
            raise DataLoss(
                f"message {self._number} with rows from rank {self._from} has a wrong checksum",
                hint="the model stays on its mesh; look at the memory and the network of both hosts",
            )
        at = 0
        for piece, begin, end in message:
            part = memory[at : at + end - begin]
            if piece.contiguous:
                bytes_of(piece.rows)[begin:end].copy_(part)
            else:
                rows = torch.empty(piece.rows.shape, dtype=piece.rows.dtype)
                bytes_of(rows).copy_(part)
                piece.rows.copy_(rows)
            at += end - begin
        self._number += 1
        self.bytes += nbytes
        return True
