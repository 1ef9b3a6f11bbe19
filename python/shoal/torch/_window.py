"""Windows of a process group: memory of each rank that the others write to, with signals. ``torch.distributed._new_window`` makes them."""

from __future__ import annotations

import math
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal import _native
from shoal.exceptions import InvalidArgument, ShoalError, Unimplemented
from shoal.torch._allocator import use_count
from shoal.torch._errors import as_torch
from shoal.torch._generations import Generations
from shoal.torch._tensors import DTYPES, dense, dtype_of, is_simple, memory
from shoal.torch._work import ENDED

_NUMBERS = tuple(DTYPES)  # a dtype by its number, the same on all ranks
_MOST_DIMS = 64


class Window:
    """Memory of every rank, into which the others put tensors: torch's ``Window`` for CPU tensors of ranks that share memory.

    A registered tensor moves to shared memory, with its elements. Each ``put`` ends with a signal to its target. ``wait_signal`` takes one
    signal; by then the elements of the puts before it have arrived. Registrations are collective, other calls are not.
    """

    def __init__(self, group: Windows, tensor: torch.Tensor | None):
        if not group.supports_window:
            _refuse(Unimplemented("windows need ranks that share memory", hint="make a process group of the ranks of one host"))
        self._group, self._members = group, group._native
        self._name = f"window-{group.next_window()}"
        self._native: _native.Window | None = None
        self._tensor: torch.Tensor | None = None
        self._facts: list[tuple[torch.dtype, torch.Size]] = []  # by rank
        self._channels: dict[tuple[int, int], _native.Communicator] = {}  # channels of signals, by source and target
        self._opening = threading.Lock()  # one thread at a time opens channels
        self._own_signals = 0
        if tensor is not None:
            self.tensor_register(tensor)

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Moves the tensor to memory that the other ranks have as well. Shapes and dtypes may differ between ranks.

        No other tensor may have the same memory, because it would stay behind. ``owning``: the window keeps the tensor.
        """
        if self._native is not None:
            _refuse(InvalidArgument("double registration: the window has a tensor", hint="call tensor_deregister() first"))
        if not is_simple(tensor) or tensor.dim() > _MOST_DIMS:
            _refuse(InvalidArgument("a window has one contiguous tensor on the CPU", hint="register a contiguous copy"))
        alone = torch.empty(1)
        if use_count(tensor.untyped_storage()) > use_count(alone.untyped_storage()):
            _refuse(
                InvalidArgument("other tensors have the memory of this one, as a view's base has, and it moves", hint="register a clone")
            )
        self._facts = self._exchange(tensor)
        native = self._members.window(tensor.nbytes, ("window", 0, 0.0, False))
        own = native.own.view(tensor.dtype) if tensor.numel() else tensor.detach().clone().view(-1)
        own = own.view(tensor.shape)
        own.copy_(tensor.detach())
        tensor.data = own
        self._native, self._tensor = native, tensor if owning else None
        self._group.barrier().wait()  # no rank puts before all elements have moved

    def _exchange(self, tensor: torch.Tensor) -> list[tuple[torch.dtype, torch.Size]]:
        dtype_of(tensor)  # raises for one without a number
        own = torch.zeros(2 + _MOST_DIMS, dtype=torch.int64)
        own[: 2 + tensor.dim()] = torch.tensor([_NUMBERS.index(tensor.dtype), tensor.dim(), *tensor.shape])
        rows = torch.empty(self._group.size(), own.numel(), dtype=torch.int64)
        self._group.all_gather_single(rows.view(-1), own).wait()
        return [(_NUMBERS[row[0]], torch.Size(row[2 : 2 + row[1]])) for row in rows.tolist()]

    def tensor_deregister(self) -> None:
        """Ends the registration. The tensor keeps its elements and its memory."""
        self._check()
        self._group.barrier().wait()  # no rank is about to put or to wait
        for way in self._channels.values():
            way.leave()
        self._channels.clear()
        self._native, self._tensor, self._facts, self._own_signals = None, None, [], 0

    def put(self, tensor: torch.Tensor, dst_rank: int, target_offset_nelems: int, async_op: bool, opts: object = None) -> dist.Work:
        """Writes the tensor's elements into a rank's memory from this element on, and signals that rank. Ends before it returns."""
        self._check(dst_rank)
        dtype, shape = self._facts[dst_rank]
        if target_offset_nelems < 0:
            _refuse(InvalidArgument(f"the offset {target_offset_nelems} is not nonnegative"))
        if tensor.dtype != dtype:
            _refuse(InvalidArgument(f"the tensor's {tensor.dtype} does not match the {dtype} of rank {dst_rank}'s window"))
        if target_offset_nelems + tensor.numel() > math.prod(shape):
            _refuse(
                InvalidArgument(
                    f"a put of {tensor.numel()} elements at {target_offset_nelems} exceeds the window size of rank {dst_rank}, "
                    f"which has {math.prod(shape)}"
                )
            )
        source = dense(tensor).view(-1)
        if source.numel():
            self._mapped(dst_rank).view(-1)[target_offset_nelems : target_offset_nelems + source.numel()].copy_(source.detach())
        return self.signal(dst_rank, async_op)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Returns a rank's registered tensor, without a copy."""
        self._check(rank)
        return self._mapped(rank)

    def _mapped(self, rank: int) -> torch.Tensor:
        dtype, shape = self._facts[rank]
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        return self._native.mapped(rank).view(dtype).view(shape)

    def signal(self, peer_rank: int, async_op: bool, opts: object = None) -> dist.Work:
        """Sends a signal, which the peer's ``wait_signal`` takes. Does not wait for the peer."""
        self._check(peer_rank)
        if peer_rank == self._group.rank():
            self._own_signals += 1
            return ENDED
        byte = torch.zeros(1, dtype=torch.uint8)
        way = self._way(self._group.rank(), peer_rank)
        self._group.started([way.send(memory(byte), 1, "uint8", 0, self._group._later)], byte, [])
        return ENDED

    def wait_signal(self, peer_rank: int, async_op: bool, opts: object = None) -> dist.Work:
        """Waits for the peer's next signal. Raises ``DeadlineExceeded`` after the options' timeout, by default the group's."""
        self._check(peer_rank)
        if peer_rank == self._group.rank():
            if not self._own_signals:
                _refuse(InvalidArgument("this rank waits for a signal that it did not send to itself"))
            self._own_signals -= 1
            return ENDED
        limit = getattr(opts, "timeout", None) or timedelta(0)
        byte, way = torch.empty(1, dtype=torch.uint8), self._way(peer_rank, self._group.rank())
        call = ("", 0, max(0.0, limit.total_seconds()), True)
        native = way.receive(memory(byte), 0, "uint8", 0, call)
        guard = lambda: self._group._meet(peer_rank, native, way)  # noqa: E731
        work = self._group.started([native], byte, [], guard=guard, source=peer_rank, lane=("signal", self._name, peer_rank))
        if not async_op:
            work.wait()
        return work

    def get_attr(self, peer_rank: int) -> object:
        """Returns torch's ``WindowAttr``: one coherent memory (UNIFIED)."""
        self._check(peer_rank)
        attributes = getattr(c10d, "WindowAttr", None)  # since torch 2.14
        if attributes is None:
            _refuse(Unimplemented(f"torch {torch.__version__} has no WindowAttr", hint="install torch 2.14 or later"))
        return attributes()

    def _way(self, source: int, to: int) -> _native.Communicator:
        with self._opening:
            way = self._channels.get((source, to))
            if way is None:
                way = self._channels[source, to] = self._group.open_way(source, to, self._name)
        return way

    def _check(self, rank: int = 0) -> None:
        if self._group._native is not self._members:
            _refuse(InvalidArgument("the window's process group has other members by now", hint="make a new window"))
        if self._native is None:
            _refuse(InvalidArgument("a tensor is not registered", hint="call tensor_register() on every rank"))
        if not 0 <= rank < self._group.size():
            _refuse(InvalidArgument(f"there is no rank {rank} in a group of {self._group.size()}"))


class Windows(Generations):
    """A group of ranks that make windows."""

    @property
    def supports_window(self) -> bool:
        return self.transport == "shm"

    def next_window(self) -> int:
        """Returns the number of a new window, the same on all ranks."""
        return next(self._windows)

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Returns a window, with the tensor registered if there is one. Collective. See :class:`shoal.torch.Window`."""
        return Window(self, tensor)


def _refuse(error: ShoalError) -> None:
    raise as_torch(error)
