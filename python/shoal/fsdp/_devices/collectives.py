"""Collectives among the ranks of a mesh's shards or replicas, by torch's process group, Shoal's own group, or the program's own object.

Each is put on the present stream, or runs in its backend's threads. It returns a mark, which is reached once the result is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from shoal._distributed.devices import DeviceGroup, Pending
from shoal._distributed.single import all_gather_single, reduce_scatter_single
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._devices.streams import Mark, Streams, WorkMark
from shoal.fsdp._parameters.mesh import DataMesh

# Dtypes that every backend gathers; all others are sent as bytes, because gloo supports few.
_GATHERED_AS_THEY_ARE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _OwnMark:
    def __init__(self, pending: Pending):
        self._pending = pending
        self._then: Callable[[], None] | None = None

    def wait(self) -> None:
        self._pending.finish()
        then, self._then = self._then, None
        if then is not None:
            then()

    def then(self, call: Callable[[], None]) -> None:
        """Makes ``wait`` run this call, because Shoal's groups do not report when an operation has ended."""
        self._then = call


class _AllMarks:
    def __init__(self, marks: Sequence[Mark]):
        self._marks = marks

    def wait(self) -> None:
        for mark in self._marks:
            mark.wait()

    def then(self, call: Callable[[], None]) -> None:
        self._marks[-1].then(call)  # the last mark, because a group's collectives end in order


class Collectives:
    """The collectives of one unit. The program may set ``all_gather`` and ``reduce_scatter``, objects of torch's ``AllGather`` and
    ``ReduceScatter``."""

    def __init__(self, label: str):
        self.label = label
        self.model: int | None = None  # the number of the unit's Root
        self.all_gather: Any = None
        self.reduce_scatter: Any = None
        self.reduce_group: Any = None  # a process group of reductions only, beside that of gathers

    def _timed(self, streams: Streams, lane: str, op: str, begin: Callable[[], Mark]) -> Mark:
        return streams.timeline.timed(lane, op, self.label, begin, self.model)

    # ---- parameters ----

    def gathered_memory(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for the slices of all ranks."""
        if self.all_gather is None:
            return torch.empty((numel,), dtype=dtype, device=device)
        return self.all_gather.allocate((numel,), dtype=dtype, device=device)

    def gather(self, data: DataMesh, streams: Streams, out: torch.Tensor, piece: torch.Tensor) -> Mark:
        """Gathers ``piece`` of each rank to ``out``. ``piece`` is this rank's part of ``out``, or lies elsewhere."""
        return self._timed(streams, "gather", "all_gather", lambda: self._gather(data, streams, out, piece))

    def _gather(self, data: DataMesh, streams: Streams, out: torch.Tensor, piece: torch.Tensor) -> Mark:
        if self.all_gather is not None:
            self.all_gather(output_tensor=out, input_tensor=piece, group=data.shard_group, async_op=False)
            return streams.mark()
        group = groups.shards(data)
        if group is not None:
            return _OwnMark(group.all_gather_each([(piece, out, [piece.numel() * piece.itemsize] * data.shards)], self.label))
        return gather_by_process_group(streams, data.shard_group, out, piece)

    def gather_each(self, data: DataMesh, streams: Streams, gathers: Sequence[tuple[torch.Tensor, torch.Tensor, Sequence[int]]]) -> Mark:
        """Gathers several tensors at once, each from its input to its output: (input, output, bytes of each rank's input). A process
        group takes inputs of one size only."""
        return self._timed(streams, "gather", "all_gather", lambda: self._gather_each(data, streams, gathers))

    def _gather_each(self, data: DataMesh, streams: Streams, gathers: Sequence[tuple[torch.Tensor, torch.Tensor, Sequence[int]]]) -> Mark:
        group = groups.shards(data)
        if group is not None:
            return _OwnMark(group.all_gather_each(gathers, self.label))
        if streams.asynchronous:
            each = [gather_by_process_group(streams, data.shard_group, whole.view(-1), piece.view(-1)) for piece, whole, _ in gathers]
            return _AllMarks(each)
        flat = [(whole.view(-1), piece.view(-1)) for piece, whole, _ in gathers]
        one_launch = dist._coalescing_manager(data.shard_group) if _is_nccl(data.shard_group, data) else nullcontext()
        try:
            with one_launch:
                for whole, piece in flat:
                    gather_by_process_group(streams, data.shard_group, whole, piece)
        except BaseException:  # torch would put the group's later collectives into the list of this launch, which never begins
            dist.distributed_c10d._world.pg_coalesce_state.pop(data.shard_group, None)
            raise
        return streams.mark()

    # ---- gradients ----

    def reduce_memory(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self.reduce_scatter is None:
            return torch.empty((numel,), dtype=dtype, device=device)
        return self.reduce_scatter.allocate((numel,), dtype=dtype, device=device)

    def averages(self, data: DataMesh, streams: Streams) -> bool:
        """True if ``reduce`` and ``reduce_replicas`` can divide by the number of ranks while they add up."""
        if streams.asynchronous or self.reduce_scatter is not None:
            return False  # gloo cannot divide, and the program's object is called for a sum
        if data.shards > 1 and not (self._own_shards(data) is None and _is_nccl(self._reduce_group(data), data)):
            return False
        if data.replicas == 1:
            return True
        return groups.replicas(data) is None and _is_nccl(data.mesh.get_group(data.replicate_dim), data)

    def _own_shards(self, data: DataMesh) -> DeviceGroup | None:
        """Shoal's own group that reduces over shards; None: the process group does."""
        return groups.shards(data) if self.reduce_group is None else None

    def _reduce_group(self, data: DataMesh) -> Any:
        return data.shard_group if self.reduce_group is None else self.reduce_group

    def reduce(self, data: DataMesh, streams: Streams, out: torch.Tensor, packed: torch.Tensor, average: bool = False) -> Mark:
        """Adds up ``packed`` over the shards' ranks; ``out`` gets this rank's piece."""
        return self._timed(streams, "reduce", "reduce_scatter", lambda: self._reduce(data, streams, out, packed, average))

    def _reduce(self, data: DataMesh, streams: Streams, out: torch.Tensor, packed: torch.Tensor, average: bool) -> Mark:
        if self.reduce_scatter is not None:
            op = dist.ReduceOp.SUM
            self.reduce_scatter(output_tensor=out, input_tensor=packed, group=self._reduce_group(data), op=op, async_op=False)
            return streams.mark()
        group = self._own_shards(data)
        if group is not None:
            return _OwnMark(group.reduce_scatter(packed, out, self.label))
        op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        return _mark(streams, reduce_scatter_single(out, packed, op=op, group=self._reduce_group(data), async_op=streams.asynchronous))

    def exchange(self, data: DataMesh, streams: Streams, out: torch.Tensor, packed: torch.Tensor) -> Mark:
        """Sends each of the shards' ranks its piece of ``packed``. ``out`` gets the pieces of all ranks for this one, in their order."""
        return self._timed(streams, "reduce", "all_to_all", lambda: self._exchange(data, streams, out, packed))

    def _exchange(self, data: DataMesh, streams: Streams, out: torch.Tensor, packed: torch.Tensor) -> Mark:
        group = self._own_shards(data)
        if group is not None:
            return _OwnMark(group.all_to_all(packed, out, self.label))
        work = dist.all_to_all_single(out, packed, group=self._reduce_group(data), async_op=streams.asynchronous)
        return _mark(streams, work)

    def reduce_replicas(self, data: DataMesh, streams: Streams, t: torch.Tensor, average: bool = False) -> Mark:
        """Adds up ``t`` over the replicas' ranks, in place."""
        return self._timed(streams, "reduce", "all_reduce", lambda: self._reduce_replicas(data, streams, t, average))

    def _reduce_replicas(self, data: DataMesh, streams: Streams, t: torch.Tensor, average: bool) -> Mark:
        group = groups.replicas(data)
        if group is not None:
            return _OwnMark(group.all_reduce(t, self.label))
        op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        return _mark(streams, dist.all_reduce(t, op=op, group=data.mesh.get_group(data.replicate_dim), async_op=streams.asynchronous))


def gather_by_process_group(streams: Streams, group: Any, out: torch.Tensor, piece: torch.Tensor) -> Mark:
    if out.dtype not in _GATHERED_AS_THEY_ARE:
        out, piece = out.view(torch.uint8), piece.view(torch.uint8)
    return _mark(streams, all_gather_single(out, piece, group=group, async_op=streams.asynchronous))


def _is_nccl(group: Any, data: DataMesh) -> bool:
    return group._get_backend(data.device).name() == "nccl"


def _mark(streams: Streams, work: Any) -> Mark:
    return WorkMark(work) if streams.asynchronous else streams.mark()
