"""How a unit's slices and gradients lie in one buffer for a collective, one padded piece per rank, and how slices come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.parameter import ShardedParameter


def slice_bytes(p: ShardedParameter) -> int:
    return p.padded_shape.numel() * p.compute_dtype.itemsize


def own_piece(p: ShardedParameter, whole: torch.Tensor) -> torch.Tensor:
    """This rank's slice to send, sharded on dim 0: the parameter's own memory, if that is on the device and has the compute dtype; else its
    place in ``whole``, to which it is copied."""
    if p.own.device == whole.device and p.own.dtype == whole.dtype and p.own.is_contiguous():
        return p.own
    piece = p.slice(whole)
    piece.copy_(owns_on(whole.device, [p])[0])
    return piece


def counts(p: ShardedParameter, data: DataMesh) -> list[int]:
    """Bytes of each rank's slice."""
    row = p.shape[1:].numel() * p.compute_dtype.itemsize
    piece = p.padded_shape[0]
    bounds = [min(r * piece, p.shape[0]) for r in range(data.shards + 1)]
    return [(end - begin) * row for begin, end in pairwise(bounds)]


def owns_on(device: torch.device, parameters: Sequence[ShardedParameter]) -> list[torch.Tensor]:
    """This rank's slices on the device. Those of an offloaded unit are copied as they are: a cast on the host would go through memory that
    is not pinned."""
    return [p.own if p.own.device == device else p.own.to(device, non_blocking=True) for p in parameters]


def pack(parameters: Sequence[ShardedParameter], out: torch.Tensor) -> None:
    """Writes this rank's slices to ``out``, one after the other, in its dtype, each padded to the size of the first rank's."""
    sizes = [p.padded_shape.numel() for p in parameters]
    if any(p.own_shape != p.padded_shape for p in parameters):
        out.zero_()  # the padding
    slices = [part.view(p.padded_shape).narrow(p.dim, 0, p.own_shape[p.dim]) for p, part in zip(parameters, out.split(sizes), strict=True)]
    torch._foreach_copy_(slices, owns_on(out.device, parameters))


def unpack(gathered: torch.Tensor, parameters: Sequence[ShardedParameter], wholes: Sequence[torch.Tensor], data: DataMesh) -> None:
    """Copies gathered slices, one row per rank as ``pack`` made them, into the whole parameters."""
    sizes = [p.padded_shape.numel() for p in parameters]
    if all(p.dim == 0 and p.shape[0] % data.shards == 0 for p in parameters):
        torch.split_with_sizes_copy(gathered, sizes, dim=1, out=[whole.view(data.shards, -1) for whole in wholes])
        return
    for p, whole, part in zip(parameters, wholes, gathered.split(sizes, dim=1), strict=True):
        whole.copy_(joined(part, p.padded_shape, p.dim, p.compute_dtype).narrow(p.dim, 0, p.shape[p.dim]))


def pack_gradients(
    parameters: Sequence[ShardedParameter], grads: list[torch.Tensor], sizes: Sequence[int], data: DataMesh, flat: torch.Tensor
) -> torch.Tensor:
    """Writes gradients to ``flat`` in its dtype, one piece per rank after the other; each piece has ``sizes`` elements per parameter."""
    if data.shards == 1:
        torch._foreach_copy_([part.view(g.shape) for part, g in zip(flat.split(list(sizes)), grads, strict=True)], grads)
    elif all(p.dim == 0 for p in parameters):
        grads = [g for g in grads if g.numel()]  # _chunk_cat refuses empty tensors
        if len({g.dtype for g in grads}) > 1:
            grads = [g.to(flat.dtype) for g in grads]
        if grads:
            torch._chunk_cat(grads, dim=0, num_chunks=data.shards, out=flat.view(data.shards, -1))
    else:
        flat.zero_()  # the padding
        at = 0
        for p, grad, size in zip(parameters, grads, sizes, strict=True):
            row = flat.view(data.shards, -1).narrow(1, at, size)
            at += size
            for piece, chunk in zip(row, grad.split(p.padded_shape[p.dim], dim=p.dim), strict=False):
                piece.view(p.padded_shape).narrow(p.dim, 0, chunk.shape[p.dim]).copy_(chunk)
    return flat


def joined(gathered: torch.Tensor, size: torch.Size, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Concatenates the pieces of all ranks, which have ``size`` each, along ``dim``."""
    pieces = gathered.contiguous().view(dtype)
    if dim == 0:
        return pieces.view(times(size, len(pieces)))
    return torch.cat([piece.view(size) for piece in pieces], dim=dim)


def times(size: torch.Size, shards: int) -> tuple[int, ...]:
    """The size of the concatenation on dim 0 of ``shards`` tensors of this size. Scalars are concatenated to a 1-D tensor."""
    return (size[0] * shards, *size[1:]) if size else (shards,)
