"""Units whose whole parameters are not read in the arena: those of devices, tensors with all-gather extensions, communication that the
user brings, and modules that write to whole parameters in forward (an embedding with ``max_norm``).

Collectives over the process group bring the shards to memory of this rank's own, and on devices, or if a custom reduce_scatter says so,
gradients to their owners, in FSDP2's layout: all parameters of a unit flat, one padded piece per rank.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from shoal.exceptions import Unimplemented
from shoal.fsdp._parameters import ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._unit import Unit


class Gathered:
    def __init__(self, unit: Unit):
        self._unit = unit
        self.all_gather: Any = None  # torch.distributed.fsdp AllGather
        self.reduce_scatter: Any = None
        self.private = False  # its modules write to whole parameters in forward
        self._whole: dict[ShardedParameter, list[tuple[torch.Tensor, int]]] = {}  # what holds a whole one, and its bytes
        self._shown = False

    @property
    def reduces(self) -> bool:
        """Gradients go to their owners here, not through the engine."""
        return self.reduce_scatter is not None or not self._unit.data.in_arena

    @property
    def whole_bytes(self) -> int:
        """Of whole parameters that it brings, while they are here."""
        brought = (p for p in self._unit.parameters if self._brings(p) and not self._is_own(p))
        return sum(p.shape.numel() * p.compute_dtype.itemsize for p in brought)

    def forget(self) -> None:
        """The unit was built anew: its parameters have other memory, and no whole ones."""
        for p in self._whole:
            p.unsharded = None
        self._whole.clear()
        self._shown = False

    def unshard(self) -> None:
        if not self._shown:
            with torch.inference_mode(False), torch.no_grad():  # what is made here outlives an evaluation
                self._unshard()
            self._shown = True

    def _unshard(self) -> None:
        plain = []
        for p in self._unit.parameters:
            if p.extended:
                self._unshard_extended(p)
            elif self._is_own(p):
                if p not in self._whole:
                    self._whole[p] = []
                    p.set_whole(p.own.data)  # a version counter of its own
            elif self._brings(p):
                plain.append(p)
        if plain:
            self._unshard_plain(plain)

    def reshard(self) -> None:
        if not self._shown:
            return
        self._shown = False
        for p in self._unit.parameters:
            if p in self._whole:
                for t, _ in self._whole[p]:
                    t.untyped_storage().resize_(0)

    def _brings(self, p: ShardedParameter) -> bool:
        return p.external or self.private or self.all_gather is not None

    def _is_own(self, p: ShardedParameter) -> bool:
        """There is nothing to bring: this rank's slices are all of it, where it computes."""
        data = self._unit.data
        return p.external and data.shards == 1 and p.compute_dtype == p.dtype and p.home == data.device

    def _gather(self, piece: torch.Tensor) -> torch.Tensor:
        data = self._unit.data
        if data.shards == 1:
            return piece.clone()
        size = (piece.numel() * data.shards,)
        if self.all_gather is None:
            out = torch.empty(size, dtype=piece.dtype, device=piece.device)
            dist.all_gather_into_tensor(out, piece, group=data.shard_group)
            return out
        out = self.all_gather.allocate(size, dtype=piece.dtype, device=piece.device)
        own = out.narrow(0, piece.numel() * data.shard, piece.numel())
        own.copy_(piece)
        self.all_gather(output_tensor=out, input_tensor=own, group=data.shard_group, async_op=False)
        return out

    def _unshard_plain(self, parameters: list[ShardedParameter]) -> None:
        data = self._unit.data
        dtypes = {p.compute_dtype for p in parameters}
        pieces = []
        for p in parameters:
            size = list(p.shape)
            size[p.dim] = -(-p.shape[p.dim] // data.shards)
            padded = torch.zeros(size, dtype=p.compute_dtype, device=data.device)
            if not p.empty:
                padded.narrow(p.dim, 0, p.own_shape[p.dim]).copy_(p.own)
            pieces.append(padded)
        flat = [t.view(-1) if len(dtypes) == 1 else t.view(-1).view(torch.uint8) for t in pieces]
        out = self._gather(torch.cat(flat)).view(data.shards, -1)
        at = 0
        for p, piece, bytes_ in zip(parameters, pieces, flat, strict=True):
            if p not in self._whole:
                whole = torch.empty(p.shape, dtype=p.compute_dtype, device=data.device)
                p.set_whole(whole)
                self._whole[p] = [(whole, whole.untyped_storage().size())]
            whole = self._allocate(p)[0]
            part = out[:, at : at + bytes_.numel()]
            at += bytes_.numel()
            part = part.clone(memory_format=torch.contiguous_format).view(p.compute_dtype).view(data.shards, *piece.shape)
            joined = torch.cat(list(part), dim=p.dim).narrow(p.dim, 0, p.shape[p.dim])
            with torch.autograd._unsafe_preserve_version_counter(whole):
                whole.copy_(joined)

    def _unshard_extended(self, p: ShardedParameter) -> None:
        data, local = self._unit.data, p.own
        whole_size = torch.Size(p.shape)
        asked = len(inspect.signature(local.fsdp_pre_all_gather).parameters)
        if asked == 1:
            inputs, metadata = local.fsdp_pre_all_gather(data.shard_mesh)
        elif asked == 5:
            stride = torch.empty(whole_size, device="meta").stride()
            inputs, metadata = local.fsdp_pre_all_gather(data.shard_mesh, whole_size, stride, p.owners[0][0], self._unit.state.mp_policy)
        else:
            raise AssertionError(
                f"invalid fsdp_pre_all_gather of parameter {p.name}: expects (mesh, outer_size, outer_stride, module, mp_policy)"
            )
        padded = p.padded.size()
        if local.size() != padded and any(t.size() != padded for t in inputs):
            raise AssertionError(
                f"parameter {p.name} is unevenly sharded: fsdp_pre_all_gather must return inputs of the padded size {padded}, "
                f"not {[tuple(t.size()) for t in inputs]}"
            )
        outputs = tuple(self._gather(t.to(data.device).reshape(-1)).view(-1, *t.shape[1:]) for t in inputs)
        dtype = p.compute_dtype
        if p in self._whole:
            self._allocate(p)
            local.fsdp_post_all_gather(outputs, metadata, dtype, out=p.unsharded)
            return
        whole, inner = local.fsdp_post_all_gather(outputs, metadata, dtype)
        self._whole[p] = [(t, t.untyped_storage().size()) for t in inner]
        p.set_whole(torch.as_strided(whole, whole_size, torch.empty(whole_size, device="meta").stride()))

    def _allocate(self, p: ShardedParameter) -> list[torch.Tensor]:
        for t, size in self._whole[p]:
            t.untyped_storage().resize_(size)
        return [t for t, _ in self._whole[p]]

    # ---- gradients ----

    def reduce(self) -> None:
        """The unit's gradients to their owners, at once."""
        u = self._unit
        if u.state.root.samples is not None or not u.everywhere:
            raise Unimplemented(
                f"unit {u.state.name or '(root)'}: neither on devices nor with a reduce_scatter of the user's gradients are weighted by "
                "samples, or reduced within replicas only",
                hint="leave out join(weight='samples') and set_requires_all_reduce(False)",
            )
        by_dtype: dict[torch.dtype, list[tuple[ShardedParameter, torch.Tensor]]] = {}
        for p in u.parameters:
            grad = p.take_gradient()
            if grad is None and u.state.reduce_unused and p.unsharded is not None and p.unsharded.requires_grad:
                grad = p.zero_gradient()
            if grad is not None:
                by_dtype.setdefault(p.reduce_dtype, []).append((p, grad))
        for dtype, work in by_dtype.items():
            self._reduce(dtype, work)

    def _reduce(self, dtype: torch.dtype, work: list[tuple[ShardedParameter, torch.Tensor]]) -> None:
        u, data = self._unit, self._unit.data
        # Sums of fp16 overflow: a part of the division comes before them.
        before = u.scale**0.5 if dtype == torch.float16 else 1.0
        pieces = []
        for p, grad in work:
            size = list(p.shape)
            size[p.dim] = -(-p.shape[p.dim] // data.shards) * data.shards
            padded = torch.zeros(size, dtype=dtype, device=data.device)
            padded.narrow(p.dim, 0, p.shape[p.dim]).copy_(grad if before == 1 else grad * before)
            pieces.append(torch.stack([c.reshape(-1) for c in padded.chunk(data.shards, dim=p.dim)]))
        out = self._scattered(torch.cat(pieces, dim=1).view(-1))
        if data.replicas > 1:
            dist.all_reduce(out, group=data.mesh.get_group(data.replicate_dim))
        out = out * (u.scale / before)
        if u.all_reduce_hook is not None:
            u.all_reduce_hook(out)
        at = 0
        for (p, _), piece in zip(work, pieces, strict=True):
            part = out[at : at + piece.shape[1]]
            at += piece.shape[1]
            size = list(p.shape)
            size[p.dim] = -(-p.shape[p.dim] // data.shards)
            own = part.view(size).narrow(p.dim, 0, p.own_shape[p.dim])
            p.set_gradient(p.dtensor(own.to(device=p.home, dtype=p.dtype, copy=True).contiguous()))
            if p.sharded._post_accumulate_grad_hooks:
                u.state.root.accumulated[p] = None

    def _scattered(self, flat: torch.Tensor) -> torch.Tensor:
        """The sum over shards of this rank's piece."""
        data = self._unit.data
        if data.shards == 1:
            return flat
        size = (flat.numel() // data.shards,)
        if self.reduce_scatter is None:
            out = torch.empty(size, dtype=flat.dtype, device=flat.device)
            dist.reduce_scatter_tensor(out, flat, group=data.shard_group)
            return out
        source = self.reduce_scatter.allocate((flat.numel(),), dtype=flat.dtype, device=flat.device)
        source.copy_(flat)
        out = self.reduce_scatter.allocate(size, dtype=flat.dtype, device=flat.device)
        self.reduce_scatter(output_tensor=out, input_tensor=source, group=data.shard_group, op=dist.ReduceOp.SUM, async_op=False)
        return out
