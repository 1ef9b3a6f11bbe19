"""FSDP2's all_gather and reduce_scatter in memory that the ranks of a host share.

Ranks gather into one buffer: each copies its shard into it, and all read the whole there. For a reduction each rank's input lies in shared
memory, and every rank reads its part of all inputs. So a collective moves no further bytes, and needs one small all_reduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_api

from shoal import _native
from shoal._distributed.single import all_gather_single, reduce_scatter_single
from shoal.torch._allocator import Reused
from shoal.torch._process_group import ProcessGroup
from shoal.torch._tensors import memory, op_of, reduced_dtype
from shoal.torch._work import ENDED

_Gather = getattr(_fsdp_api, "AllGather", object)
_Scatter = getattr(_fsdp_api, "ReduceScatter", object)

_MOST_BYTES = 4 << 30  # size limit of a group's shared buffers together
_MOST_BUFFERS = 62  # each has a bit in the mask on which the ranks agree
_LEAST_BYTES = 4 << 10  # smaller tensors go through the group's ordinary collectives


@dataclass
class _Buffer:
    """Memory that the ranks of a host share: one tensor for all of them (``whole``, for gathers), or a part for each (for reductions)."""

    nbytes: int
    whole: bool
    parts: list[torch.Tensor]  # by rank; for a whole buffer, one
    own: Reused  # the part that this rank's allocations are in


class _Buffers:
    """The shared buffers of a process group.

    Every rank makes the same calls in the same order, as with collectives. A buffer is given out again once the ranks have agreed that none
    of them has a tensor in it. They agree in each collective, so all ranks take the same buffers.
    """

    def __init__(self, group: ProcessGroup):
        self._group, self.native = group, group._native
        self._buffers: list[_Buffer] = []
        self._bytes = 0
        self._held = 0  # bits of the buffers that a rank held at the last agreement, or that were given out since

    def take(self, nbytes: int, whole: bool) -> torch.Tensor | None:
        """Returns this rank's memory in a buffer, or None if there are too many."""
        for i, buffer in enumerate(self._buffers):
            if buffer.nbytes == nbytes and buffer.whole == whole and not self._held >> i & 1:
                self._held |= 1 << i
                return buffer.own.memory[:nbytes]
        if len(self._buffers) == _MOST_BUFFERS or self._bytes + nbytes > _MOST_BYTES:
            return None
        self._held |= 1 << len(self._buffers)
        self._buffers.append(self._open(nbytes, whole))
        self._bytes += nbytes
        return self._buffers[-1].own.memory[:nbytes]

    def _open(self, nbytes: int, whole: bool) -> _Buffer:
        rank = self._group.rank()
        own = nbytes if not whole or rank == 0 else 0
        window = self.native.window(own, ("buffer of FSDP2", 0, 0.0, False))
        parts = [window.mapped(r) for r in range(1 if whole else self._group.size())]
        return _Buffer(nbytes, whole, parts, Reused(parts[0 if whole else rank]))

    def find(self, t: torch.Tensor, whole: bool) -> _Buffer | None:
        """Returns the buffer that a tensor fills."""
        for buffer in self._buffers:
            if buffer.whole == whole and buffer.own.memory.data_ptr() == t.data_ptr() and buffer.nbytes == t.nbytes:
                return buffer
        return None

    def agree(self) -> None:
        """Waits for all ranks, which have written their buffers then, and agrees with them on those that are held."""
        held = torch.tensor([sum(1 << i for i, buffer in enumerate(self._buffers) if buffer.own.is_held())])
        dist.all_reduce(held, dist.ReduceOp.BOR, group=self._group)
        self._held = int(held)


class _Shared:
    """Allocates in the shared buffers of a group, where its ranks share memory; else in the group's own memory."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group

    @property
    def _buffers(self) -> _Buffers | None:
        """The buffers of the group's present members, or None if those share no memory."""
        group = self._group
        if not isinstance(group, ProcessGroup) or group.transport != "shm":
            return None
        buffers = getattr(group, "_fsdp_buffers", None)
        if buffers is None or buffers.native is not group._native:
            buffers = group._fsdp_buffers = _Buffers(group)
        return buffers

    def _allocate(self, size: Sequence[int], dtype: torch.dtype, device: torch.device, whole: bool) -> torch.Tensor:
        nbytes, buffers = math.prod(size) * dtype.itemsize, self._buffers
        if buffers is not None and nbytes >= _LEAST_BYTES and torch.device(device).type == "cpu":
            shared = buffers.take(nbytes, whole)
            if shared is not None:
                return shared.view(dtype).view(*size)
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Shared, _Gather):
    """``module.set_custom_all_gather(AllGather(group))`` of torch's ``fully_shard``, on every rank.

    ``group``: the process group that the module is sharded over. Results are those of ``all_gather_single``, which takes over
    where the ranks share no memory. One object may serve all modules of a group.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for the gathered tensor, not initialised: the same memory on all ranks."""
        return self._allocate(size, dtype, device, whole=True)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """``input_tensor`` is this rank's part of ``output_tensor``. Ends before it returns if the output is in shared memory."""
        own, buffers = output_tensor.data_ptr() + group.rank() * input_tensor.nbytes, self._buffers
        if buffers is None or input_tensor.data_ptr() != own or buffers.find(output_tensor, whole=True) is None:
            return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        buffers.agree()
        return ENDED if async_op else None


class ReduceScatter(_Shared, _Scatter):
    """``module.set_custom_reduce_scatter(ReduceScatter(group))`` of torch's ``fully_shard``, on every rank.

    As :class:`AllGather`, for gradients: sums go in the order of ranks, half precision in float32.
    """

    def __init__(self, group: dist.ProcessGroup):
        super().__init__(group)
        self._input_numel = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory, not initialised, by turns for an input and for its output, as FSDP2 asks. Inputs are in shared memory."""
        numel, before = math.prod(size), self._input_numel
        is_output = numel * self._group.size() == before
        self._input_numel = 0 if is_output else numel
        if is_output:
            return torch.empty(*size, dtype=dtype, device=device)
        return self._allocate(size, dtype, device, whole=False)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: object, async_op: bool = False
    ) -> dist.Work | None:
        """Ends before it returns if the input is in shared memory."""
        buffers = self._buffers
        buffer = None if buffers is None else buffers.find(input_tensor, whole=False)
        if buffer is None or not output_tensor.is_contiguous():
            return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        name, (out, nbytes) = op_of(op), memory(output_tensor)
        buffers.agree()
        at = group.rank() * nbytes
        sources = [(part.data_ptr() + at, nbytes) for part in buffer.parts]
        _native.reduce(sources, (out, nbytes), reduced_dtype(output_tensor, name), name)
        return ENDED if async_op else None
