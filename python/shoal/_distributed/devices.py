"""Collectives on memory of CUDA devices by Shoal's own communicator, and the choice between it and torch's process group."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import torch

from shoal import _native
from shoal._distributed.communicator import Exchange, make_communicator
from shoal._distributed.ranks import attach, gang_name
from shoal.exceptions import InvalidArgument, Unavailable

# The transport between devices: "nccl", "cuda_ipc" (copies between processes of one host) or "process_group" (torch's). Empty: meshes have
# the process group, and shoal.collective the first of OWN that every rank can use.
TRANSPORT = "SHOAL_DEVICE_TRANSPORT"  # read when a group is opened, because a Trainer may set it for a worker
PROCESS_GROUP = "process_group"
OWN = ("nccl", "cuda_ipc")
_MOST_BY_COPIES = 16  # ranks (IpcSegment::kMaxRanks)


@dataclass(frozen=True)
class Offer:
    """One rank's device, and its means to use it."""

    host: int  # ranks of one number share memory
    device: str  # the device's identity, the same in every process; empty if it cannot be used
    no_cuda: str = ""  # why CUDA cannot be used; empty: it can
    no_nccl: str = ""
    no_kernels: str = ""  # why this build cannot compute on it
    visible: Sequence[str] = ()  # the identities of all devices that the rank's process sees
    requested: str = ""  # the rank's SHOAL_DEVICE_TRANSPORT


@dataclass(frozen=True)
class Choice:
    transport: str
    why: str = ""  # for the process group: what stands against Shoal's own communicator


def _obstacle(transport: str, offers: Sequence[Offer]) -> str:
    """Returns why these ranks cannot use a transport; empty: they can."""
    by_copies = transport == "cuda_ipc"
    for rank, offer in enumerate(offers):
        if why := offer.no_cuda or (offer.no_kernels if by_copies else offer.no_nccl):
            return f"rank {rank}: {why}"
    if by_copies:
        if len({offer.host for offer in offers}) > 1:
            return "copies between processes need all ranks on one host"
        for rank, offer in enumerate(offers):
            hidden = next((other for other, o in enumerate(offers) if o.device not in (*offer.visible, offer.device)), None)
            if hidden is not None:
                return f"rank {rank} does not see the device of rank {hidden}, from which it would copy"
        return "" if len(offers) <= _MOST_BY_COPIES else f"copies between processes connect at most {_MOST_BY_COPIES} ranks"
    first: dict[str, int] = {}
    for rank, offer in enumerate(offers):
        if offer.device in first:
            return f"ranks {first[offer.device]} and {rank} have one device, which NCCL refuses"
        first[offer.device] = rank
    return ""


def choose(offers: Sequence[Offer], default: str = "") -> Choice:
    """Returns the transport between the devices of ranks with these offers: the same on every rank, because all have the same offers.

    ``default``: the transport where ``SHOAL_DEVICE_TRANSPORT`` names none; empty: the first of OWN that every rank can use. Raises
    InvalidArgument for an unknown transport and for ranks that ask for different ones, Unavailable for one that cannot be used.
    """
    for rank, offer in enumerate(offers):
        if offer.requested != offers[0].requested:
            raise InvalidArgument(
                f"rank 0 has SHOAL_DEVICE_TRANSPORT={offers[0].requested or '(none)'}, and rank {rank} {offer.requested or '(none)'}",
                hint="set it to the same value on all ranks",
            )
    requested = offers[0].requested or default
    if requested == PROCESS_GROUP:
        return Choice(PROCESS_GROUP, "SHOAL_DEVICE_TRANSPORT names no other transport")
    if requested and requested not in OWN:
        raise InvalidArgument(
            f"SHOAL_DEVICE_TRANSPORT={requested} is no transport between devices", hint=f"{', '.join(OWN)} or {PROCESS_GROUP}"
        )
    obstacles = []
    for transport in (requested,) if requested else OWN:
        why = _obstacle(transport, offers)
        if not why:
            return Choice(transport)
        obstacles.append(why)
    if requested:
        raise Unavailable(
            f"SHOAL_DEVICE_TRANSPORT={requested} cannot be used: {obstacles[0]}", hint="leave it out: torch's process group takes its place"
        )
    return Choice(PROCESS_GROUP, "; ".join(dict.fromkeys(obstacles)))


class Streams(Protocol):
    """The streams of a device, by the handles that CUDA has for them."""

    def current(self) -> int:
        """Returns the stream of the calling thread's next kernels."""


class CudaStreams:
    def __init__(self, device: torch.device):
        self._device = device

    def current(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream


class Pending:
    """An operation under way. It keeps its tensors until the current stream waits for it."""

    def __init__(self, group: DeviceGroup, work: _native.Work, tensors: tuple[torch.Tensor, ...]):
        self._group, self._work, self._tensors = group, work, tensors

    def finish(self) -> None:
        """Orders later kernels of the current stream behind the operation. The host waits only if the ranks' tensors are on the CPU."""
        self._group.native.order_after(self._work, self._group.streams.current())
        # From here on the stream's own order protects the tensors' memory, which is also allocated in that order.
        self._tensors = ()


class DeviceGroup:
    """Ranks with a device each. Operations run in the order of the calls, after the work that the current stream has at the call."""

    def __init__(self, native: _native.Communicator, streams: Streams):
        self.native, self.streams = native, streams

    @property
    def transport(self) -> str:
        return self.native.transport

    def all_gather_each(self, gathers: Sequence[tuple[torch.Tensor, torch.Tensor, Sequence[int]]], label: str) -> Pending:
        """Gathers each input (contiguous) into its output: (input, output, bytes of each rank's input)."""
        native = [_native.Gather(input=_memory(source), output=_memory(whole), counts=list(counts)) for source, whole, counts in gathers]
        self._ready()
        work = self.native.all_gather_each(native, "uint8", (label, 0, 0.0, True))
        return Pending(self, work, tuple(t for source, whole, _ in gathers for t in (source, whole)))

    def reduce_scatter(self, source: torch.Tensor, out: torch.Tensor, label: str) -> Pending:
        """Adds the sources of all ranks. Each rank gets its piece, all of one size."""
        counts = [_memory(out)[1]] * self.native.world_size
        self._ready()
        work = self.native.reduce_scatter(_memory(source), _memory(out), counts, _dtype(source), "sum", (label, 0, 0.0, True))
        return Pending(self, work, (source, out))

    def all_to_all(self, source: torch.Tensor, out: torch.Tensor, label: str) -> Pending:
        """Each rank gets its piece of every rank's source. All pieces have one size."""
        counts = [_memory(out)[1] // self.native.world_size] * self.native.world_size
        self._ready()
        work = self.native.all_to_all(_memory(source), _memory(out), counts, counts, _dtype(source), (label, 0, 0.0, True))
        return Pending(self, work, (source, out))

    def all_reduce(self, t: torch.Tensor, label: str) -> Pending:
        """Adds the tensors of all ranks, in place."""
        self._ready()
        work = self.native.all_reduce(_memory(t), _memory(t), _dtype(t), "sum", (label, 0, 0.0, True))
        return Pending(self, work, (t,))

    def _ready(self) -> None:
        self.native.ready_on(self.streams.current())

    def close(self) -> None:
        self.native.leave()


def _memory(t: torch.Tensor) -> tuple[int, int]:
    return t.data_ptr(), t.numel() * t.element_size()


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def offer_of(number: int, host: int) -> Offer:
    """Returns this process's offer for its CUDA device ``number``."""
    found = _native.device_offer(number)
    return Offer(host, found.identity, found.no_cuda, found.no_nccl, found.no_kernels, found.visible, os.environ.get(TRANSPORT, ""))


def open_group(ranks: tuple[int, ...], rank: int, device: torch.device, default: str = "") -> tuple[DeviceGroup | None, Choice]:
    """Returns the group of these ranks, of which this process is ``ranks[rank]``, or None where torch's process group is used. All of
    them call it. ``default``: as in ``choose``."""
    host = attach(ranks)
    name = gang_name("devices", ranks, rank)
    own = offer_of(device.index or 0, host.host_of_rank[rank])
    offers = [Offer(**json.loads(text)) for text in Exchange(name, len(ranks), rank)("offer", json.dumps(asdict(own)).encode())]
    choice = choose(offers, default)
    if choice.transport == PROCESS_GROUP:
        return None, choice
    native = make_communicator(name, ranks, rank, host.shared, device=_native.Device(transport=choice.transport, number=device.index or 0))
    return DeviceGroup(native, CudaStreams(device)), choice
