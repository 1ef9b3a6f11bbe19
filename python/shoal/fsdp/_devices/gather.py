"""Gathers of a unit's parameters. Each begins when it is made, on streams beside the program's, and ends with ``finish``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.device_mesh import DeviceMesh

from shoal.fsdp._devices.collectives import Collectives, gather_by_process_group
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._devices.packing import counts, joined, own_piece, owns_on, pack, slice_bytes, times, unpack
from shoal.fsdp._devices.streams import REACHED, Mark, Transfers
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.parameter import ShardedParameter

# Slices of fewer bytes travel together in one buffer. One kernel packs them and another one unpacks them, which takes less time than an
# all_gather for each.
PACKED_BELOW = 256 << 10


class Whole(Protocol):
    """The memory of a whole parameter, which lives as long as the parameter is unsharded."""

    outputs: tuple[torch.Tensor, ...]

    def allocate(self) -> None: ...
    def keep(self, tensors: Sequence[torch.Tensor]) -> None: ...


class Wholes(Protocol):
    """The whole parameters of a unit."""

    def allocated(self, p: ShardedParameter) -> torch.Tensor: ...
    def known(self, p: ShardedParameter) -> Whole | None: ...
    def make(self, p: ShardedParameter, outputs: Sequence[torch.Tensor]) -> Whole: ...


class Gather(Protocol):
    """A gather under way."""

    def finish(self) -> None:
        """Makes later work of the present stream wait for the whole parameters."""

    def drop(self) -> None:
        """Gives the result up."""


class PackedGather:
    """Plain parameters of one compute dtype. One kernel casts and packs this rank's slices, another one unpacks the wholes."""

    def __init__(
        self, transfers: Transfers, collectives: Collectives, data: DataMesh, parameters: Sequence[ShardedParameter], wholes: Wholes
    ):
        self._transfers, self._data, self._parameters, self._wholes = transfers, data, parameters, wholes
        self._buffer: torch.Tensor | None = None
        self._mark: Mark = REACHED
        if data.shards == 1 and collectives.all_gather is None:
            return  # nothing to gather: ``finish`` copies the slices
        streams, dtype = transfers.streams, parameters[0].compute_dtype
        piece = sum(p.padded_shape.numel() for p in parameters)
        with streams.pack:
            transfers.rows.wait()
            self._buffer = collectives.gathered_memory(piece * data.shards, dtype, data.device)
            own = self._buffer.narrow(0, piece * data.shard, piece)
            pack(parameters, own)
            packed = streams.mark()
        transfers.packed = packed
        with streams.gather:
            packed.wait()
            self._mark = collectives.gather(data, streams, self._buffer, own)

    def finish(self) -> None:
        wholes = [self._wholes.allocated(p) for p in self._parameters]
        with torch.autograd._unsafe_preserve_version_counter(tuple(wholes)):
            if self._buffer is None:
                torch._foreach_copy_(wholes, owns_on(self._data.device, self._parameters))
                self._transfers.packed = self._transfers.streams.mark()
                return
            self._mark.wait()
            unpack(self._buffer.view(self._data.shards, -1), self._parameters, wholes, self._data)
        self._transfers.unpacked(self._buffer)
        self._buffer = None

    def drop(self) -> None:
        if self._buffer is not None:
            self._mark.wait()
            self._transfers.unpacked(self._buffer)
            self._buffer = None


class SmallerMeshGather:
    """Plain parameters whose rows on a smaller mesh this rank has kept since their forward (``reshard_after_forward=n``). Ranks of one row
    of ``mesh`` together have all rows. ``kept``: the mark after which these rows are complete."""

    def __init__(self, transfers: Transfers, mesh: DeviceMesh, rows: dict[ShardedParameter, torch.Tensor], kept: Mark, wholes: Wholes):
        self._transfers, self._rows, self._wholes = transfers, rows, wholes
        ranks, streams = mesh.size(1), transfers.streams
        first = next(iter(rows))
        # As torch.chunk divides them: the first rank's rows are the most.
        self._padded = [torch.Size((-(-p.shape[0] // ranks), *p.shape[1:])) for p in rows]
        self._sizes = [size.numel() for size in self._padded]
        piece = sum(self._sizes)
        with streams.pack:
            kept.wait()
            self._buffer: torch.Tensor | None = torch.empty((ranks, piece), dtype=first.compute_dtype, device=first.data.device)
            own = self._buffer[mesh.get_local_rank(1)]
            for t, part in zip(rows.values(), own.split(self._sizes), strict=True):
                part[: t.numel()].copy_(t.view(-1))
            packed = streams.mark()
        with streams.gather:
            packed.wait()
            self._mark = gather_by_process_group(streams, mesh.get_group(1), self._buffer.view(-1), own)

    def finish(self) -> None:
        wholes = [self._wholes.allocated(p) for p in self._rows]
        self._mark.wait()
        with torch.autograd._unsafe_preserve_version_counter(tuple(wholes)):
            for p, whole, size, part in zip(self._rows, wholes, self._padded, self._buffer.split(self._sizes, dim=1), strict=True):
                whole.copy_(joined(part, size, 0, p.compute_dtype).narrow(0, 0, p.shape[0]))
        self.drop()

    def drop(self) -> None:
        self._mark.wait()
        self._transfers.unpacked(self._buffer)
        self._buffer = None


def goes_in_place(p: ShardedParameter, data: DataMesh) -> bool:
    """True if a collective writes the parameter's slices straight into its memory. Process groups gather slices of one size only."""
    return slice_bytes(p) >= PACKED_BELOW and (p.shape[0] % data.shards == 0 or groups.shards(data) is not None)


class InPlaceGather:
    """Plain parameters of one compute dtype, sharded on dim 0: large slices go straight into their memory, which saves the unpacking. Small
    ones are packed together, because a kernel that packs takes less time than a collective for each."""

    def __init__(
        self, transfers: Transfers, collectives: Collectives, data: DataMesh, parameters: Sequence[ShardedParameter], wholes: Wholes
    ):
        self._transfers, self._data = transfers, data
        self._all = [wholes.allocated(p) for p in parameters]
        streams = transfers.streams
        memory = streams.mark()  # the present stream may still read what the memory held before
        each = list(zip(parameters, self._all, strict=True))
        self._small = [(p, whole) for p, whole in each if not goes_in_place(p, data)]
        large = [(p, whole) for p, whole in each if goes_in_place(p, data)]
        self._buffers: tuple[torch.Tensor, ...] = ()
        with streams.pack:
            memory.wait()
            transfers.rows.wait()
            pieces = [own_piece(p, whole.data) for p, whole in large]
            if self._small:
                small = [p for p, _ in self._small]
                own = torch.empty(sum(p.padded_shape.numel() for p in small), dtype=small[0].compute_dtype, device=data.device)
                pack(small, own)
            packed = streams.mark()
        transfers.packed = packed
        with streams.gather, torch.autograd._unsafe_preserve_version_counter(tuple(self._all)):
            packed.wait()
            # .data has a version counter of its own, which threads of a backend may raise after this context.
            gathers = [(piece, whole.data, counts(p, data)) for (p, whole), piece in zip(large, pieces, strict=True)]
            if self._small:
                everyones = torch.empty((data.shards, own.numel()), dtype=own.dtype, device=own.device)
                gathers.append((own, everyones, [own.numel() * own.itemsize] * data.shards))
                self._buffers = (everyones, own)
            self._mark = collectives.gather_each(data, streams, gathers)

    def finish(self) -> None:
        with torch.autograd._unsafe_preserve_version_counter(tuple(self._all)):
            self._mark.wait()
            if self._small:
                unpack(self._buffers[0], [p for p, _ in self._small], [whole for _, whole in self._small], self._data)
        self._end()

    def drop(self) -> None:
        self._mark.wait()
        self._end()

    def _end(self) -> None:
        if self._buffers:
            self._transfers.unpacked(self._buffers)
        self._buffers, self._small, self._all = (), [], []


class MixedGather:
    """Wrapper subclasses, parameters with all-gather extensions, or several dtypes. Different dtypes travel as bytes, as in FSDP2."""

    def __init__(
        self, transfers: Transfers, collectives: Collectives, data: DataMesh, parameters: Sequence[ShardedParameter], wholes: Wholes
    ):
        self._transfers, self._data, self._parameters, self._wholes = transfers, data, parameters, wholes
        self._metadata: dict[ShardedParameter, Any] = {}
        self._inputs: list[list[torch.Tensor]] = []
        streams = transfers.streams
        with streams.pack:
            transfers.rows.wait()
            for p in parameters:
                if p.extended:
                    inputs, self._metadata[p] = _extension_inputs(p, data)
                else:
                    inputs = [torch.empty(p.padded_shape, dtype=p.compute_dtype, device=data.device)]
                    pack([p], inputs[0].view(-1))
                self._inputs.append(inputs)
            flat = [t.reshape(-1) for inputs in self._inputs for t in inputs]
            if len({t.dtype for t in flat}) > 1:
                flat = [t.view(torch.uint8) for t in flat]
            self._sizes = [t.numel() for t in flat]
            piece = sum(self._sizes)
            self._buffer = collectives.gathered_memory(piece * data.shards, flat[0].dtype, data.device)
            own = self._buffer.narrow(0, piece * data.shard, piece)
            torch.cat(flat, out=own)
            packed = streams.mark()
        transfers.packed = packed
        self._mark = packed
        if data.shards > 1:
            with streams.gather:
                packed.wait()
                self._mark = collectives.gather(data, streams, self._buffer, own)

    def finish(self) -> None:
        self._mark.wait()
        parts = iter(self._buffer.view(self._data.shards, -1).split(self._sizes, dim=1))
        for p, inputs in zip(self._parameters, self._inputs, strict=True):
            gathered = [next(parts) for _ in inputs]
            if p in self._metadata:
                self._set_extended(p, inputs, gathered, self._metadata[p])
                continue
            whole, pieces = self._wholes.allocated(p), joined(gathered[0], p.padded_shape, p.dim, p.compute_dtype)
            with torch.autograd._unsafe_preserve_version_counter(whole):
                whole.copy_(pieces.narrow(p.dim, 0, p.shape[p.dim]))
        self.drop()

    def drop(self) -> None:
        self._mark.wait()
        self._transfers.unpacked(self._buffer)
        self._buffer, self._inputs = None, []

    def _set_extended(self, p: ShardedParameter, inputs: list[torch.Tensor], gathered: list[torch.Tensor], metadata: Any) -> None:
        """Calls fsdp_post_all_gather, as FSDP2 does. The first call makes the whole parameter, perhaps as views of its input tensors.

        Each later gather fills the same tensors; ``out=`` is the whole parameter, for values that do not lie in them.
        """
        data, known = self._data, self._wholes.known(p)
        if known is None:
            whole = self._wholes.make(p, [torch.empty(t.numel() * data.shards, dtype=t.dtype, device=data.device) for t in inputs])
        else:
            whole = known
            if [(t.dtype, t.numel() * data.shards) for t in inputs] != [(t.dtype, t.numel()) for t in whole.outputs]:
                raise AssertionError(
                    f"fsdp_pre_all_gather of parameter {p.name} returned inputs of other sizes or dtypes than the first time: "
                    f"{[(tuple(t.shape), t.dtype) for t in inputs]}"
                )
        whole.allocate()
        with torch.autograd._unsafe_preserve_version_counter(tuple(whole.outputs)):
            for t, part, out in zip(inputs, gathered, whole.outputs, strict=True):
                out.copy_(joined(part, t.shape, p.dim, t.dtype).reshape(-1))
        outputs = tuple(out.view(times(t.shape, data.shards)) for t, out in zip(inputs, whole.outputs, strict=True))
        local, dtype = p.own, p.compute_dtype
        if known is not None:
            local.fsdp_post_all_gather(outputs, metadata, dtype, out=p.views.unsharded)
            return
        gathered, inner = local.fsdp_post_all_gather(outputs, metadata, dtype)
        whole.keep(inner)
        p.views.set_whole(torch.as_strided(gathered, p.shape, make_contiguous_strides_for(p.shape), storage_offset=0))


def _extension_inputs(p: ShardedParameter, data: DataMesh) -> tuple[list[torch.Tensor], Any]:
    """Calls fsdp_pre_all_gather on this rank's slices. Returns its tensors and its metadata."""
    local: Any = p.own
    pre: Callable = local.fsdp_pre_all_gather
    arguments = len(inspect.signature(pre).parameters)
    if arguments == 1:
        inputs, metadata = pre(data.shard_mesh)
    elif arguments == 5:
        stride = make_contiguous_strides_for(p.shape)
        inputs, metadata = pre(data.shard_mesh, p.shape, stride, p.owners[0][0], p.policy)
    else:
        raise AssertionError(
            f"Invalid fsdp_pre_all_gather: {inspect.signature(pre)}\n"
            "Expects fsdp_pre_all_gather(self, mesh: DeviceMesh, outer_size: torch.Size, outer_stride: tuple[int, ...], "
            f"module: nn.Module, mp_policy: MixedPrecisionPolicy): parameter {p.name}"
        )
    padded = p.padded_shape
    if (local.size() != padded or p.dim != 0) and any(t.size() != padded for t in inputs):
        why = "unevenly sharded by FSDP" if p.dim == 0 else f"sharded by FSDP on dim {p.dim}"
        raise AssertionError(
            f"When a parameter is {why} (orig size={p.shape}, FSDP world size={data.mesh.size()}), fsdp_pre_all_gather must return "
            f"all-gather inputs with the padded sharded size {padded} but got {[t.size() for t in inputs]}: parameter {p.name}"
        )
    return [t.to(data.device) for t in inputs], metadata
