"""Parameters that collectives gather to private memory, because they cannot be read in the arena.

These are parameters on devices, wrapper subclasses, tensors with all-gather extensions, and units with custom communication. Parameters
that their module writes in forward (an embedding with ``max_norm``) belong to them, too. On devices, or with a custom reduce_scatter,
gradients are reduced here as well. The layout is FSDP2's: all parameters of a unit flat, one padded piece per rank. The step machine
decides when gathers and reductions begin and end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from shoal._objects.tensors import lasting
from shoal.fsdp._devices.collectives import Collectives
from shoal.fsdp._devices.gather import Gather, InPlaceGather, MixedGather, PackedGather, SmallerMeshGather, goes_in_place
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._devices.reduction import Reduction
from shoal.fsdp._devices.streams import Mark, Transfers, transfers
from shoal.fsdp._parameters.parameter import Kind, ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import UnitSeam


class _Whole:
    """The memory of one gathered parameter. The tensors stay the same objects for the unit's lifetime, because autograd and extensions keep
    views of them; resharding frees their storage."""

    def __init__(self, outputs: Sequence[torch.Tensor] = ()):
        self.outputs = tuple(outputs)  # the destination of a gather
        self._bytes: list[tuple[torch.UntypedStorage, int]] = []
        self.keep(self.outputs)

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        self._bytes += [(t.untyped_storage(), t.untyped_storage().size()) for t in tensors]

    def allocate(self) -> None:
        for storage, size in self._bytes:
            if storage.size() != size:
                storage.resize_(size)

    def free(self) -> None:
        for storage, _ in self._bytes:
            if storage.size() != 0:
                storage.resize_(0)


class _Reductions:
    """A reduction of the unit: one of each dtype."""

    def __init__(self, each: list[Reduction]):
        self.each = each
        self.among_replicas = False


class Gathered:
    def __init__(self, unit: UnitSeam):
        self._unit = unit
        self.collectives = Collectives(unit.state.name)
        if unit.state.root is not None:
            self.collectives.model = unit.state.root.number
        self._private = False
        self._whole: dict[ShardedParameter, _Whole] = {}
        self._shown = False
        self._gather: Gather | None = None  # under way
        self._smaller: dict[ShardedParameter, torch.Tensor] = {}  # rows on the smaller mesh
        self._kept: Mark | None = None  # the mark after which ``_smaller`` is complete; set between forward and backward only
        self._reductions: deque[_Reductions] = deque()  # under way, in the order in which they began

    # ---- the program's requests ----

    @property
    def private(self) -> bool:
        """The unit's modules write to whole parameters in forward."""
        return self._private

    @private.setter
    def private(self, private: bool) -> None:
        self._private = private
        self._unit.describe()

    @property
    def all_gather(self) -> Any:
        """The object of set_custom_all_gather, torch's ``AllGather``; None: no such object."""
        return self.collectives.all_gather

    @all_gather.setter
    def all_gather(self, comm: Any) -> None:
        self.collectives.all_gather = comm
        self._unit.describe()

    @property
    def reduce_scatter(self) -> Any:
        return self.collectives.reduce_scatter

    @reduce_scatter.setter
    def reduce_scatter(self, comm: Any) -> None:
        self.collectives.reduce_scatter = comm
        self._unit.describe()

    @property
    def reduces(self) -> bool:
        """True if collectives reduce the unit's gradients, not the engine."""
        return self.reduce_scatter is not None or not self._unit.data.in_arena

    @property
    def gathers(self) -> bool:
        """True if collectives bring some of the unit's parameters."""
        return bool(self._brought())

    @property
    def whole_bytes(self) -> int:
        """Bytes of the gathered parameters, while they are unsharded."""
        brought = (p for p in self._unit.parameters if self.brings(p) and not self._is_own(p))
        return sum(p.shape.numel() * p.compute_dtype.itemsize for p in brought)

    def brings(self, p: ShardedParameter) -> bool:
        return p.external or self.private or self.all_gather is not None

    def _is_own(self, p: ShardedParameter) -> bool:
        """True if no gather is needed: this rank's slices are the whole parameter, on the compute device and in the compute dtype."""
        data = self._unit.data
        return p.external and data.shards == 1 and p.compute_dtype == p.dtype and p.home == data.device

    def _brought(self) -> list[ShardedParameter]:
        return [p for p in self._unit.parameters if p.extended or (self.brings(p) and not self._is_own(p))]

    @property
    def _transfers(self) -> Transfers:
        return transfers.of(self._unit.data.device)

    # ---- whole parameters ----

    def begin(self, ahead: bool = False) -> None:
        """Begins the gather of the next ``unshard``. ``ahead``: before the forward or backward that it serves begins."""
        if not self._shown and self._gather is None:
            with lasting():
                self._gather = self._begun(ahead)

    def unshard(self) -> None:
        """Later work of the present stream sees whole parameters."""
        if self._shown:
            return
        self.begin()
        with lasting():
            if self._unit.data.shards == 1:
                self._transfers.rows.wait()  # no gather has waited for an optimizer that runs on another stream
            for p in self._unit.parameters:
                if self._is_own(p) and not p.extended and p not in self._whole:
                    self._whole[p] = _Whole()
                    p.views.set_whole(p.own.data)  # .data has a version counter of its own
            if self._gather is not None:
                self._gather.finish()
            self._gather = None  # only now: after an exception in ``finish`` the gather is still under way
        self._drop_smaller()
        self._shown = True

    def reshard(self) -> None:
        if self._kept is not None:
            self.drop_begun()  # its packing may still read the rows
        self._drop_smaller()
        if self._shown:
            self._shown = False
            self._free()

    def reshard_to(self, mesh: DeviceMesh) -> None:
        """Keeps this rank's rows on the smaller mesh, and frees the whole parameters. Those that are not plain stay whole."""
        if not self._shown or not self._plain(brought := self._brought()):
            return
        with lasting():
            for p in brought:
                piece = -(-p.shape[0] // mesh.size(1))
                begin = min(mesh.get_local_rank(1) * piece, p.shape[0])
                rows = self._whole[p].outputs[0][begin : min(begin + piece, p.shape[0])]
                kept = self._smaller.get(p)
                if kept is None:
                    kept = self._smaller[p] = torch.empty_like(rows)
                kept.untyped_storage().resize_(rows.numel() * rows.itemsize)
                kept.copy_(rows)
        self._kept = self._transfers.streams.mark()
        self._shown = False
        self._free()

    def rows_on(self, p: ShardedParameter) -> torch.Tensor | None:
        """This rank's rows on the smaller mesh, if they have memory of their own."""
        return None if self._kept is None else self._smaller.get(p)

    def _drop_smaller(self) -> None:
        if self._kept is not None:
            self._kept = None
            for rows in self._smaller.values():
                rows.untyped_storage().resize_(0)

    def drop_begun(self) -> None:
        """Gives up a gather under way."""
        if self._gather is not None:
            gather, self._gather = self._gather, None
            with suppress(Exception):  # a collective that has failed writes no more
                gather.drop()
            self._free()

    def forget(self) -> None:
        """Drops the whole parameters, because the unit is rebuilt with other memory."""
        self.drop_begun()
        for p in self._whole:
            p.views.unsharded = None
        self._whole.clear()
        self._smaller.clear()
        self._kept = None
        self._shown = False

    def _begun(self, ahead: bool) -> Gather | None:
        brought = self._brought()
        if not brought:
            return None
        data = self._unit.data
        if self._kept is not None:
            return SmallerMeshGather(self._transfers, self._unit.post_forward_mesh, self._smaller, self._kept, self)
        kind: type[PackedGather | MixedGather | InPlaceGather] = PackedGather
        if not self._plain(brought):
            kind = MixedGather
        elif self._in_place(brought, ahead):
            kind = InPlaceGather
        return kind(self._transfers, self.collectives, data, brought, self)

    @staticmethod
    def _plain(parameters: list[ShardedParameter]) -> bool:
        """True for tensors without subclass or extension, of one compute dtype."""
        return bool(parameters) and all(p.kind is Kind.MEMORY for p in parameters) and len({p.compute_dtype for p in parameters}) == 1

    def _in_place(self, brought: list[ShardedParameter], ahead: bool) -> bool:
        """True if large slices go straight into their parameters.

        Their memory is free only after the present stream's work so far. In place, a gather that is not ahead would therefore wait for the
        computation of the unit before; a packed gather runs beside that computation.
        """
        data = self._unit.data
        if self.all_gather is not None or data.shards == 1 or any(p.dim != 0 for p in brought):
            return False
        return groups.shards(data) is not None or (ahead and any(goes_in_place(p, data) for p in brought))

    def _free(self) -> None:
        if not self._unit.keeps_storage:
            for whole in self._whole.values():
                whole.free()

    def allocated(self, p: ShardedParameter) -> torch.Tensor:
        """Returns the whole parameter's memory, allocated."""
        if p not in self._whole:
            whole = torch.empty(p.shape, dtype=p.compute_dtype, device=self._unit.data.device)
            p.views.set_whole(whole)
            self._whole[p] = _Whole([whole])
        self._whole[p].allocate()
        return self._whole[p].outputs[0]

    def known(self, p: ShardedParameter) -> _Whole | None:
        return self._whole.get(p)

    def make(self, p: ShardedParameter, outputs: Sequence[torch.Tensor]) -> _Whole:
        self._whole[p] = _Whole(outputs)
        return self._whole[p]

    # ---- gradients ----

    def begin_reduce(self, everywhere: bool) -> None:
        """Begins the reduction of the unit's gradients. ``everywhere``: over all replicas."""
        u = self._unit
        by_dtype: dict[torch.dtype, list[tuple[ShardedParameter, torch.Tensor]]] = {}
        for p in u.parameters:
            grad = p.gradient.take()
            if grad is None and (self._wants_zeros(p) or p.gradient.has_partial):
                grad = p.gradient.zeros()
                if u.leaves is not None:
                    grad.neg_()  # -0.0: a sum with it has the bits of one that leaves this rank out
            if grad is not None:
                by_dtype.setdefault(p.reduce_dtype, []).append((p, grad))
                del grad
        with lasting():  # with create_graph=True autograd records the gradients, but must not record their reduction
            each = [Reduction(self._transfers, self.collectives, u, by_dtype.pop(dtype), dtype, everywhere) for dtype in list(by_dtype)]
        self._reductions.append(_Reductions(each))

    def _wants_zeros(self, p: ShardedParameter) -> bool:
        whole = p.views.unsharded
        return self._unit.state.settings.reduce_unused and whole is not None and whole.requires_grad

    def reduce_replicas(self) -> None:
        """Begins the sum over replicas of the oldest reduction that has only summed over shards."""
        reductions = next(r for r in self._reductions if not r.among_replicas)
        reductions.among_replicas = True
        with lasting():
            for reduction in reductions.each:
                reduction.reduce_replicas()

    def finish_reduce(self) -> None:
        """Accumulates the results of the oldest reduction."""
        with lasting():
            for reduction in self._reductions.popleft().each:
                reduction.finish()

    def drop_reductions(self) -> None:
        """Gives up the reductions under way, after an exception."""
        reductions, self._reductions = self._reductions, deque()
        for reduction in (one for group in reductions for one in group.each):
            with suppress(Exception):  # the exception that ended the pass may be this reduction's
                reduction.drop()
