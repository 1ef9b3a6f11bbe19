"""The reduction of a unit's gradients by collectives: over its shards' ranks, then over its replicas', then into ``grad``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from shoal.fsdp._devices.collectives import Collectives
from shoal.fsdp._devices.packing import pack_gradients
from shoal.fsdp._devices.streams import Transfers
from shoal.fsdp._parameters.logical import PartialSums
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp._parameters.parameter import ShardedParameter


class Target(Protocol):
    """A unit, as its reductions see it."""

    data: DataMesh
    scale: float
    leaves: list[int] | None  # by shard: the place of its rank in the tree of additions; None: any order
    all_reduce_hook: Callable[[torch.Tensor], None] | None
    all_reduce_hook_stream: Any

    def accumulated(self, p: ShardedParameter) -> None:
        """Called when the parameter's ``grad`` has the result."""


class Reduction:
    """The reduction of gradients of one reduce dtype. The constructor begins it: the present stream packs the gradients, as in FSDP2,
    which frees them at once. Another stream adds them up.

    ``everywhere``: over all replicas; else the sums stay with the parameters until a later reduction includes them.
    Where the target prescribes the order of additions (``leaves``), the ranks exchange their gradients, and each adds up its rows itself:
    the order in a backend depends on the number of ranks.
    """

    def __init__(
        self,
        transfers: Transfers,
        collectives: Collectives,
        target: Target,
        work: Sequence[tuple[ShardedParameter, torch.Tensor]],
        dtype: torch.dtype,
        everywhere: bool,
    ):
        self._transfers, self._collectives, self._target = transfers, collectives, target
        self.parameters = [p for p, _ in work]
        self._everywhere = everywhere
        data, streams = target.data, transfers.streams
        self._scale = target.scale
        # fp16 sums overflow, so a part of the division comes before the sum.
        self._before = self._scale**0.5 if dtype == torch.float16 else 1.0
        self._leaves = None if data.shards == 1 else target.leaves
        # As in FSDP2, NCCL divides while it adds up. A kernel that divides would delay the next reduction on its stream.
        mean = everywhere and self._before == 1 and self._scale == 1 / len(data.ranks) and self._leaves is None
        self._averages = mean and collectives.averages(data, streams)
        self._sizes = [p.padded_shape.numel() for p in self.parameters]
        grads = [grad if self._before == 1 else grad * self._before for _, grad in work]
        flat = self._memory(sum(self._sizes) * data.shards, dtype)
        self._packed: torch.Tensor | None = pack_gradients(self.parameters, grads, self._sizes, data, flat)
        del grads
        mark = streams.mark()
        if data.shards == 1:
            self._out, self._mark = self._packed, mark
            return
        with streams.reduce:
            mark.wait()
            if self._leaves is None:
                self._out = self._memory(sum(self._sizes), dtype)
                self._mark = collectives.reduce(data, streams, self._out, self._packed, self._averages)
            else:
                self._out = self._memory(sum(self._sizes) * data.shards, dtype)
                self._mark = collectives.exchange(data, streams, self._out, self._packed)

    def _memory(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        data = self._target.data
        if data.shards == 1:
            return torch.empty((numel,), dtype=dtype, device=data.device)
        return self._collectives.reduce_memory(numel, dtype, data.device)

    @property
    def over_replicas(self) -> bool:
        return self._everywhere and self._target.data.replicas > 1

    def reduce_replicas(self) -> None:
        """Begins the sum over replicas, which follows the sum over shards."""
        streams = self._transfers.streams
        self._free_packed()
        self._add_exchanged()
        with self._summed_on():
            self._mark.wait()
            self._add_partial()
            summed = streams.mark()
        with streams.replicas:
            summed.wait()
            self._mark = self._collectives.reduce_replicas(self._target.data, streams, self._out, self._averages)

    def finish(self) -> None:
        """Accumulates this rank's rows of the sums into the parameters' ``grad``."""
        streams, target = self._transfers.streams, self._target
        self._free_packed()
        self._add_exchanged()
        if not self._everywhere:
            with self._summed_on():
                self._mark.wait()
                self._keep_partial()
            return
        if self.over_replicas:
            stream = streams.replicas
        elif target.all_reduce_hook is not None and target.all_reduce_hook_stream is not None:
            stream = streams.on(target.all_reduce_hook_stream)
        else:
            stream = self._summed_on()
        self._transfers.free_copied()
        with stream:
            self._mark.wait()
            self._accumulate(stream)
            self._transfers.accumulated()
            reduced = streams.mark()
        with self._summed_on():
            reduced.wait()  # before the memory of the sums returns to this stream's pool
        del self._out

    def _summed_on(self) -> AbstractContextManager:
        """The stream that allocated the memory of the sums over shards."""
        return nullcontext() if self._target.data.shards == 1 else self._transfers.streams.reduce

    def drop(self) -> None:
        """Gives the result up, after an exception."""
        self._mark.wait()
        self._packed = self._out = None

    def _free_packed(self) -> None:
        """Returns the input's memory to the present stream, which allocated it."""
        if self._packed is not None:
            self._mark.wait()
            self._packed = None

    def _add_exchanged(self) -> None:
        """Adds up the pieces of all ranks along the tree."""
        if self._leaves is None:
            return
        with self._summed_on():
            self._mark.wait()
            sums = PartialSums()
            for leaf, piece in zip(self._leaves, self._out.view(len(self._leaves), -1), strict=True):
                sums.add(leaf, piece)
            self._out = sums.take().clone()  # a copy, so that gradients do not keep the pieces of all ranks
            self._mark = self._transfers.streams.mark()
        self._leaves = None

    def _rows(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows per parameter, without padding."""
        parts = zip(self.parameters, flat.split(self._sizes), strict=True)
        return [part.view(p.padded_shape).narrow(p.dim, 0, p.own_shape[p.dim]) for p, part in parts]

    def _keep_partial(self) -> None:
        for p, rows in zip(self.parameters, self._rows(self._out), strict=True):
            p.gradient.add_partial(rows)

    def _add_partial(self) -> None:
        for p, rows in zip(self.parameters, self._rows(self._out), strict=True):
            partial = p.gradient.take_partial()
            if partial is not None:
                # If NCCL averages, ``rows`` is a mean over the shards, but ``partial`` still a sum.
                rows.add_(partial, alpha=1 / self._target.data.shards if self._averages else 1)

    def _accumulate(self, stream: AbstractContextManager) -> None:
        target, out = self._target, self._out
        factor = 1 if self._averages else self._scale / self._before
        if self._collectives.reduce_scatter is not None and target.data.shards > 1:
            out = out * factor  # a copy, because the program's object may use its output's memory again
        elif factor != 1:
            out *= factor
        if target.all_reduce_hook is not None:
            target.all_reduce_hook(out)
        for p, rows in zip(self.parameters, self._rows(out), strict=True):
            local = rows.to(p.dtype)
            if p.home != local.device:
                pinned = p.pinned and p.views.sharded.grad is None and not p.views.sharded._backward_hooks
                local = self._transfers.to_host(local, pinned, (stream, self._summed_on()), model=self._collectives.model)
            p.gradient.add(p.dtensor(local.contiguous()))
            target.accumulated(p)
