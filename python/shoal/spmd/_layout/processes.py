"""The devices of each process, and the transport of parts of tensors between processes.

``OneProcess`` has all devices. In ``Processes`` each process has equally many, in the order of ranks. All of them run the same program and
communicate at the same operators in the same order.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shoal import _native, collective
from shoal._core.telemetry import Activity, waiting
from shoal._core.variables import switch, variable
from shoal.exceptions import InvalidArgument
from shoal.spmd._layout import process_group
from shoal.spmd._layout.errors import DivergedError
from shoal.spmd._layout.sharding import Sharding, parts_of

Ranges = tuple[slice, ...]


@dataclass(frozen=True)
class Piece:
    """A range of elements to copy: from ``source_range`` in part ``source`` to the range ``to`` in part ``target``. Ranges count from the
    start of each part."""

    source: int
    source_range: Ranges
    target: int
    to: Ranges
    shape: tuple[int, ...]


@dataclass
class Transfer:
    """One process's share of a reshard. ``sends`` and ``receives``: by other process, in the same order on both sides."""

    own: list[Piece] = field(default_factory=list)
    sends: list[list[Piece]] = field(default_factory=list)
    receives: list[list[Piece]] = field(default_factory=list)
    remote: bool = False  # True if any process sends data


class World:
    """The devices of the program and their processes. ``devices``: those of this process among the ``num_devices``."""

    def __init__(self, num_devices: int, rank: int, num_processes: int):
        self.num_devices, self.rank, self.num_processes = num_devices, rank, num_processes
        self.per_process = num_devices // num_processes
        self.devices = range(rank * self.per_process, (rank + 1) * self.per_process)
        self.held = functools.lru_cache(maxsize=None)(self._held)
        self.transfer = functools.lru_cache(maxsize=4096)(self._transfer)

    def process_of(self, device: int) -> int:
        return device // self.per_process

    def _held(self, sharding: Sharding) -> tuple[int, ...]:
        """Returns the positions of the parts that this process's devices hold."""
        return tuple(sorted({sharding.position(d) for d in self.devices}))

    def _transfer(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Transfer:
        plan = Transfer(sends=[[] for _ in range(self.num_processes)], receives=[[] for _ in range(self.num_processes)])
        sources, targets = parts_of(shape, source), parts_of(shape, target)
        holders = [sorted({self.process_of(d) for d in source.holders(s)}) for s in range(len(sources))]
        for t, to in enumerate(targets):
            for s, of in enumerate(sources):
                cut = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(to, of, strict=True)]
                if any(begin >= end for begin, end in cut):
                    continue
                piece = Piece(s, _relative(cut, of), t, _relative(cut, to), tuple(end - begin for begin, end in cut))
                for receiver in sorted({self.process_of(d) for d in target.holders(t)}):
                    sender = receiver if receiver in holders[s] else holders[s][receiver % len(holders[s])]
                    plan.remote |= sender != receiver
                    if sender == receiver == self.rank:
                        plan.own.append(piece)
                    elif receiver == self.rank:
                        plan.receives[sender].append(piece)
                    elif sender == self.rank:
                        plan.sends[receiver].append(piece)
        return plan

    # Operations in which all processes take part; a single process has nothing to do in most.

    def travel(self, sent: list[list[torch.Tensor]], expected: list[list[tuple[int, ...]]], dtype: torch.dtype, label: str) -> list[list]:
        """Sends the tensors ``sent[i]`` to process i. Returns the tensors from process i, of the shapes ``expected[i]``, as entry i."""
        raise NotImplementedError

    def all_reduce(self, value: torch.Tensor, label: str) -> torch.Tensor:
        """Returns the sum of one contiguous tensor of each process, added in the order of processes. It may reuse the tensor's memory."""
        raise NotImplementedError

    @property
    def verifies(self) -> bool:
        """True if processes compare data that must be equal on all of them. SHOAL_SPMD_VERIFY=0 disables that."""
        return False

    def verify(self, what: Callable[[], str], digest: int) -> None:
        """Raises DivergedError, which names ``what()``, if processes have different digests."""

    def verify_tensor(self, t: torch.Tensor) -> None:
        """Verifies a host tensor that the program uses as one global tensor."""

    def verify_stream(self, label: str, generator: torch.Generator | None = None) -> None:
        """Verifies the random stream, or a generator, before an operator draws from it."""

    def passed(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in the order of ranks."""
        return [value]


class OneProcess(World):
    def __init__(self, num_devices: int):
        super().__init__(num_devices, 0, 1)


class Processes(World):
    """A world whose ``num_devices`` devices belong to the processes of a launcher (RANK and WORLD_SIZE in the environment)."""

    def __init__(self, num_devices: int, rank: int, num_processes: int):
        if num_devices % num_processes:
            raise InvalidArgument(
                f"SHOAL_SPMD_DEVICES is {num_devices}, which {num_processes} processes cannot share equally",
                hint="leave it unset for one device per process, or give a multiple of the number of processes",
            )
        super().__init__(num_devices, rank, num_processes)

    def begin(self) -> None:
        """Forms the group of all processes. They adopt rank 0's random states, because the program has one random stream."""
        states = json.dumps([torch.get_rng_state().tolist(), _plain(np.random.get_state()), random.getstate()]).encode()
        length = collective.broadcast(torch.tensor([len(states)]), group=self._group, label="use_spmd").item()
        sent = torch.frombuffer(bytearray(states if self.rank == 0 else length), dtype=torch.uint8)
        ours, numpys, pythons = json.loads(collective.broadcast(sent, group=self._group, label="use_spmd").numpy().tobytes())
        torch.set_rng_state(torch.tensor(ours, dtype=torch.uint8))
        np.random.set_state((numpys[0], np.array(numpys[1], dtype=np.uint32), *numpys[2:]))
        random.setstate((pythons[0], tuple(pythons[1]), pythons[2]))

    @functools.cached_property
    def _group(self) -> collective.Group:
        process_group.ensure()
        return collective.group()

    def abort(self, cause: str) -> None:
        """Makes all present and future waits of every process fail, with ``cause`` in the error."""
        self._group.abort(cause)

    def travel(self, sent, expected, dtype, label):
        sizes = [sum(map(_count, shapes)) for shapes in expected]
        flat = [t.reshape(-1) for ts in sent for t in ts]
        buffer = flat[0] if len(flat) == 1 else torch.cat(flat) if flat else torch.empty(0, dtype=dtype)
        with waiting(Activity.GATHER):
            got = collective.all_to_all(
                buffer, send_sizes=[sum(t.numel() for t in ts) for ts in sent], receive_sizes=sizes, group=self._group, label=label
            )
        found: list[list[torch.Tensor]] = []
        at = 0
        for shapes in expected:
            found.append([])
            for shape in shapes:
                found[-1].append(got[at : at + _count(shape)].view(shape))
                at += _count(shape)
        return found

    def all_reduce(self, value, label):
        with waiting(Activity.REDUCE):
            return collective.all_reduce(value, group=self._group, label=label)

    @property
    def verifies(self):
        return switch("SHOAL_SPMD_VERIFY", default=True)

    def verify(self, what, digest):
        mine = torch.tensor([digest], dtype=torch.int64)
        with waiting():
            found = collective.all_gather(mine, group=self._group, label="verification").tolist()
        if found.count(digest) == len(found):
            return
        usual = max(found, key=lambda d: (found.count(d), -found.index(d)))
        others = [rank for rank, d in enumerate(found) if d != usual]
        if others:
            raise DivergedError(
                f"{what()} differs on {'ranks' if len(others) > 1 else 'rank'} {', '.join(map(str, others))} from the other ranks",
                hint="every process runs the same program: seed alike, and load the same values (or use a loader with minibatch=True)",
            )

    def verify_tensor(self, t):
        if self.verifies:
            dtype = str(t.dtype).removeprefix("torch.")
            self.verify(lambda: f"a {dtype} tensor of shape {tuple(t.shape)} that is sent to the device", digest(t))

    def verify_stream(self, label, generator=None):
        if self.verifies:
            state = torch.get_rng_state() if generator is None else generator.get_state()
            self.verify(lambda: f"the state of torch's random generator before {label}", digest(state))

    def passed(self, value):
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        with waiting():
            lengths = collective.all_gather(torch.tensor([len(mine)]), group=self._group, label="passed").tolist()
            sent = collective.all_gather(mine, sizes=lengths, group=self._group, label="passed")
        return [pickle.loads(part.numpy().tobytes()) for part in sent.split(lengths)]


def digest(t: torch.Tensor) -> int:
    """A 32-bit checksum: two different tensors share it by chance once in four billion times."""
    text = f"{t.dtype}{tuple(t.shape)}".encode()
    dense = t.detach().resolve_conj().resolve_neg().contiguous().as_strided((t.numel(),), (1,))
    return zlib.crc32(dense.view(torch.uint8).numpy() if dense.numel() else b"", zlib.crc32(text))


def _plain(state: tuple) -> list:
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def _relative(cut: Sequence[tuple[int, int]], part: Ranges) -> Ranges:
    return tuple(slice(begin - p.start, end - p.start) for (begin, end), p in zip(cut, part, strict=True))


def _count(shape: Sequence[int]) -> int:
    n = 1
    for s in shape:
        n *= s
    return n


# A loader's thread holds this lock while it loads a batch, which may draw random numbers.
loading = threading.Lock()
_world: World | None = None
controller: Any = None  # the Controller, in a program that drives the devices' processes


def world() -> World:
    """Returns the world of this process, which the first call determines."""
    global _world
    if _world is None:
        processes = int(variable("WORLD_SIZE", "1"))
        text = os.environ.get("SHOAL_SPMD_DEVICES", "")
        if text and (not text.isdecimal() or int(text) == 0):
            raise InvalidArgument(f"SHOAL_SPMD_DEVICES is {text!r}", hint="give the number of devices of the program")
        if processes > 1:
            _world = Processes(int(text or processes), int(os.environ["RANK"]), processes)
        else:
            _world = OneProcess(int(text or _native.usable_cpus()))
    return _world


__all__ = ["OneProcess", "Piece", "Processes", "Transfer", "World", "digest", "world"]
