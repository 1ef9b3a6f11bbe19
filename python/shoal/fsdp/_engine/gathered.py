"""Parameters that collectives gather to private memory, because they cannot be read in the arena.

These are parameters on devices, wrapper subclasses, tensors with all-gather extensions, and units with custom communication. Parameters
that their module writes in forward (an embedding with ``max_norm``) belong to them, too. On devices, or with a custom reduce_scatter,
gradients are reduced here as well. The layout is FSDP2's: all parameters of a unit flat, one padded piece per rank. The mesh's process
group moves the bytes, or on CUDA meshes Shoal's own communicator, if ``SHOAL_DEVICE_TRANSPORT`` names it (``_devices/groups.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._prims_common import make_contiguous_strides_for

from shoal._distributed.devices import DeviceGroup
from shoal._distributed.single import all_gather_single, reduce_scatter_single
from shoal._objects.tensors import lasting
from shoal.exceptions import Unimplemented
from shoal.fsdp._devices.groups import groups
from shoal.fsdp._devices.in_place import InPlaceGather, joined, pack, times, unpack
from shoal.fsdp._parameters.parameter import Kind, ShardedParameter

if TYPE_CHECKING:
    from shoal.fsdp._engine.seams import UnitSeam


# Dtypes that every backend gathers; all others are sent as bytes.
_GATHERED_AS_THEY_ARE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _Whole:
    """The memory of one gathered parameter. The tensors stay the same objects for the unit's lifetime, because autograd and extensions keep
    views of them; resharding frees their storage."""

    def __init__(self, outputs: list[torch.Tensor] | tuple = ()):
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


class Gathered:
    def __init__(self, unit: UnitSeam):
        self._unit = unit
        self.all_gather: Any = None  # set_custom_all_gather sets this torch.distributed.fsdp AllGather
        self._reduce_scatter: Any = None
        self.private = False  # the unit's modules write to whole parameters in forward
        self._whole: dict[ShardedParameter, _Whole] = {}
        self._shown = False
        self._begun: InPlaceGather | None = None  # a gather under way

    @property
    def reduce_scatter(self) -> Any:
        return self._reduce_scatter

    @reduce_scatter.setter
    def reduce_scatter(self, comm: Any) -> None:
        self._reduce_scatter = comm
        self._unit.describe()

    @property
    def reduces(self) -> bool:
        """True if this class reduces the unit's gradients, not the engine."""
        return self.reduce_scatter is not None or not self._unit.data.in_arena

    @property
    def whole_bytes(self) -> int:
        """Bytes of the gathered parameters, while they are unsharded."""
        brought = (p for p in self._unit.parameters if self.brings(p) and not self._is_own(p))
        return sum(p.shape.numel() * p.compute_dtype.itemsize for p in brought)

    def forget(self) -> None:
        """Drops the whole parameters, because the unit is rebuilt with other memory."""
        self.drop_begun()
        for p in self._whole:
            p.views.unsharded = None
        self._whole.clear()
        self._shown = False

    def unshard(self) -> None:
        if not self._shown:
            with lasting():
                self._unshard()
            self._shown = True
            if self._unit.state.root is not None:
                self._unit.state.root.ahead.used(self)

    # ---- a gather that begins ahead ----

    def begin(self) -> bool:
        """Begins the gather of the next unshard. Returns False where that is impossible or done."""
        brought = [p for p in self._unit.parameters if self.brings(p) and not self._is_own(p)]
        if self._shown or self._begun is not None or not self._in_place(brought) or any(p not in self._whole for p in brought):
            return False
        with lasting():
            self._begun = self._begin(brought)
        return True

    def drop_begun(self) -> None:
        """Drops the result of a gather under way."""
        if self._begun is not None:
            self._begun.finish()
            self._begun = None
            self._free()

    def _in_place(self, brought: list[ShardedParameter]) -> bool:
        """True if Shoal's own group gathers these parameters straight into their memory."""
        plain = all(p.kind is Kind.MEMORY and p.dim == 0 for p in brought) and len({p.compute_dtype for p in brought}) == 1
        return plain and self._own_group() is not None

    def _begin(self, brought: list[ShardedParameter]) -> InPlaceGather:
        wholes = [self._allocated(p) for p in brought]
        with torch.autograd._unsafe_preserve_version_counter(tuple(wholes)):
            return InPlaceGather(self._own_group(), self._unit.data, brought, wholes, self._unit.state.name)

    def _unshard(self) -> None:
        brought: list[ShardedParameter] = []
        for p in self._unit.parameters:
            if p.extended:
                brought.append(p)
            elif self._is_own(p):
                if p not in self._whole:
                    self._whole[p] = _Whole()
                    p.views.set_whole(p.own.data)  # .data has a version counter of its own
            elif self.brings(p):
                brought.append(p)
        if not brought:
            return
        if self._in_place(brought):
            begun, self._begun = self._begun or self._begin(brought), None
            with torch.autograd._unsafe_preserve_version_counter(tuple(self._allocated(p) for p in brought)):
                begun.finish()
        elif any(p.kind is not Kind.MEMORY for p in brought) or len({p.compute_dtype for p in brought}) > 1:
            self._unshard_apart(brought)
        else:
            self._unshard_together(brought)

    def _unshard_together(self, brought: list[ShardedParameter]) -> None:
        """Unshards plain parameters of one compute dtype. One kernel casts and packs the slices, another one unpacks the wholes."""
        data, dtype = self._unit.data, brought[0].compute_dtype
        wholes = [self._allocated(p) for p in brought]
        with torch.autograd._unsafe_preserve_version_counter(tuple(wholes)):
            if data.shards == 1 and self.all_gather is None:
                torch._foreach_copy_(wholes, [p.own for p in brought])
                return
            flat = pack(brought, data)
            as_sent = flat if dtype in _GATHERED_AS_THEY_ARE else flat.view(torch.uint8)  # as bytes, because gloo supports few dtypes
            unpack(self._all_gathered(as_sent).view(dtype).view(data.shards, -1), brought, wholes, data)

    def _unshard_apart(self, brought: list[ShardedParameter]) -> None:
        """Unshards wrapper subclasses, parameters with extensions, or several dtypes. FSDP2, too, sends mixed dtypes as bytes."""
        metadata: dict[ShardedParameter, Any] = {}
        inputs: list[list[torch.Tensor]] = []
        for p in brought:
            if p.extended:
                of_one, metadata[p] = self._extension_inputs(p)
                inputs.append(of_one)
            else:
                inputs.append([self._padded(p)])
        parts = iter(self._gather([t for of_one in inputs for t in of_one]))
        for p, of_one in zip(brought, inputs, strict=True):
            gathered = [next(parts) for _ in of_one]
            if p in metadata:
                self._set_extended(p, of_one, gathered, metadata[p])
                continue
            whole, pieces = self._allocated(p), joined(gathered[0], of_one[0].shape, p.dim, p.compute_dtype)
            with torch.autograd._unsafe_preserve_version_counter(whole):
                whole.copy_(pieces.narrow(p.dim, 0, p.shape[p.dim]))

    def _allocated(self, p: ShardedParameter) -> torch.Tensor:
        """Returns the whole parameter's memory, allocated."""
        if p not in self._whole:
            whole = torch.empty(p.shape, dtype=p.compute_dtype, device=self._unit.data.device)
            p.views.set_whole(whole)
            self._whole[p] = _Whole([whole])
        self._whole[p].allocate()
        return self._whole[p].outputs[0]

    def reshard(self) -> None:
        if not self._shown:
            return
        self._shown = False
        self._free()

    def _free(self) -> None:
        if not self._unit.keeps_storage:
            for whole in self._whole.values():
                whole.free()

    def brings(self, p: ShardedParameter) -> bool:
        return p.external or self.private or self.all_gather is not None

    def _is_own(self, p: ShardedParameter) -> bool:
        """True if no gather is needed: this rank's slices are the whole parameter, on the compute device and in the compute dtype."""
        data = self._unit.data
        return p.external and data.shards == 1 and p.compute_dtype == p.dtype and p.home == data.device

    def _gather(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Gathers all inputs in one collective. Returns per input a matrix with one row per rank, of elements or of bytes."""
        data = self._unit.data
        common = inputs[0].dtype if len({t.dtype for t in inputs}) == 1 else None
        flat = [t.reshape(-1) for t in inputs]
        if common not in _GATHERED_AS_THEY_ARE:  # sent as bytes: gloo supports few dtypes, and FSDP2 does so with mixed ones
            flat = [t.view(torch.uint8) for t in flat]
        out = self._all_gathered(torch.cat(flat)).view(data.shards, -1)
        return list(out.split([t.numel() for t in flat], dim=1))

    def _own_group(self) -> DeviceGroup | None:
        """Shoal's own group of the shards' ranks, or None where torch's process group or the user's all_gather moves the bytes."""
        return None if self.all_gather is not None else groups.shards(self._unit.data)

    def _all_gathered(self, piece: torch.Tensor) -> torch.Tensor:
        data = self._unit.data
        if data.shards == 1:
            return piece
        size = (piece.numel() * data.shards,)
        if self.all_gather is None:
            out = torch.empty(size, dtype=piece.dtype, device=piece.device)
            group = self._own_group()
            if group is None:
                all_gather_single(out, piece, group=data.shard_group)
            else:
                group.all_gather_each([(piece, out, [piece.numel() * piece.itemsize] * data.shards)], self._unit.state.name).finish()
            return out
        out = self.all_gather.allocate(size, dtype=piece.dtype, device=piece.device)
        own = out.narrow(0, piece.numel() * data.shard, piece.numel())
        own.copy_(piece)
        self.all_gather(output_tensor=out, input_tensor=own, group=data.shard_group, async_op=False)
        return out

    def _padded(self, p: ShardedParameter) -> torch.Tensor:
        """This rank's slices in the compute dtype, padded to the size of the first rank's."""
        padded = torch.zeros(p.padded_shape, dtype=p.compute_dtype, device=self._unit.data.device)
        if not p.empty:
            padded.narrow(p.dim, 0, p.own_shape[p.dim]).copy_(p.own)
        return padded

    # ---- all-gather extensions ----

    def _extension_inputs(self, p: ShardedParameter) -> tuple[list[torch.Tensor], Any]:
        """Calls fsdp_pre_all_gather on this rank's slices. Returns its tensors and its metadata."""
        data, local = self._unit.data, p.own
        asked = len(inspect.signature(local.fsdp_pre_all_gather).parameters)
        if asked == 1:
            inputs, metadata = local.fsdp_pre_all_gather(data.shard_mesh)
        elif asked == 5:
            stride = make_contiguous_strides_for(p.shape)
            inputs, metadata = local.fsdp_pre_all_gather(data.shard_mesh, p.shape, stride, p.owners[0][0], p.policy)
        else:
            raise AssertionError(
                f"Invalid fsdp_pre_all_gather: {inspect.signature(local.fsdp_pre_all_gather)}\n"
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

    def _set_extended(self, p: ShardedParameter, inputs: list[torch.Tensor], gathered: list[torch.Tensor], metadata: Any) -> None:
        """Calls fsdp_post_all_gather, as FSDP2 does. The first call makes the whole parameter, perhaps as views of its input tensors.

        Each later gather fills the same tensors; ``out=`` is the whole parameter, for values that do not lie in them.
        """
        data, known = self._unit.data, self._whole.get(p)
        if known is None:
            whole = _Whole([torch.empty(t.numel() * data.shards, dtype=t.dtype, device=data.device) for t in inputs])
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
        made, inner = local.fsdp_post_all_gather(outputs, metadata, dtype)
        whole.keep(inner)
        self._whole[p] = whole
        p.views.set_whole(torch.as_strided(made, p.shape, make_contiguous_strides_for(p.shape), storage_offset=0))

    # ---- gradients ----

    def reduce(self, everywhere: bool) -> None:
        """Reduces the unit's gradients to their owners. Over Shoal's own group the last reductions of a pass end with the pass."""
        u = self._unit
        if u.state.root.samples is not None or not everywhere:
            raise Unimplemented(
                f"unit {u.state.name or '(root)'} has its parameters on devices or a custom reduce_scatter: its gradients can be neither "
                "weighted by samples nor reduced within replicas only",
                hint="leave out join(weight='samples') and set_requires_all_reduce(False)",
            )
        by_dtype: dict[torch.dtype, list[tuple[ShardedParameter, torch.Tensor]]] = {}
        for p in u.parameters:
            grad = p.gradient.take()
            if grad is None and u.state.settings.reduce_unused and p.views.unsharded is not None and p.views.unsharded.requires_grad:
                grad = p.gradient.zeros()
            if grad is not None:
                by_dtype.setdefault(p.reduce_dtype, []).append((p, grad))
        for dtype, work in by_dtype.items():
            self._reduce(dtype, work)

    def _reduce(self, dtype: torch.dtype, work: list[tuple[ShardedParameter, torch.Tensor]]) -> None:
        u, data = self._unit, self._unit.data
        # fp16 sums overflow, so a part of the division comes before the sum.
        before = u.scale**0.5 if dtype == torch.float16 else 1.0
        sizes = [p.padded_shape.numel() for p, _ in work]
        packed = self._packed([(p, grad if before == 1 else grad * before) for p, grad in work], dtype, sizes)
        group = None if self.reduce_scatter is not None else groups.shards(data)
        if group is None:
            self._reduced(self._scattered(packed), [p for p, _ in work], before)
            return
        out = torch.empty((packed.numel() // data.shards,), dtype=dtype, device=data.device)
        pending = group.reduce_scatter(packed, out, u.state.name)

        u.state.root.ahead.reduces(pending, partial(self._reduced, out, [p for p, _ in work], before))
        if u.state.root.step.gives_up(u.state.index):
            u.state.root.ahead.finish_reductions()  # the optimizer takes the gradients at once

    def _reduced(self, out: torch.Tensor, parameters: list[ShardedParameter], before: float) -> None:
        """Accumulates this rank's sums over the shards. ``before``: the part of the division that came before the sum."""
        u, data = self._unit, self._unit.data
        if data.replicas > 1:
            group = groups.replicas(data)
            if group is None:
                dist.all_reduce(out, group=data.mesh.get_group(data.replicate_dim))
            else:
                group.all_reduce(out, u.state.name).finish()
        if self.reduce_scatter is not None:
            out = out * (u.scale / before)  # a copy: the custom reduce_scatter may use its output's memory again
        elif u.scale != before:
            out *= u.scale / before
        if u.all_reduce_hook is not None:
            u.all_reduce_hook(out)
        for p, part in zip(parameters, out.split([p.padded_shape.numel() for p in parameters]), strict=True):
            own = part.view(p.padded_shape).narrow(p.dim, 0, p.own_shape[p.dim])
            p.gradient.add(p.dtensor(own.to(device=p.home, dtype=p.dtype).contiguous()))
            u.state.root.reductions.accumulated(p)

    def _packed(self, work: list[tuple[ShardedParameter, torch.Tensor]], dtype: torch.dtype, sizes: list[int]) -> torch.Tensor:
        """The gradients in the reduce dtype, one piece per rank after the other; each piece has ``sizes`` elements per parameter."""
        data, grads = self._unit.data, [grad for _, grad in work]
        first_dim = all(p.dim == 0 for p, _ in work)
        make = torch.empty if data.shards == 1 or first_dim else torch.zeros  # zeros define the padding
        flat = make(sum(sizes) * data.shards, dtype=dtype, device=data.device)
        if data.shards == 1:
            torch._foreach_copy_([part.view(g.shape) for part, g in zip(flat.split(sizes), grads, strict=True)], grads)
        elif first_dim:
            grads = [g for g in grads if g.numel()]  # _chunk_cat refuses empty tensors
            if len({g.dtype for g in grads}) > 1:
                grads = [g.to(dtype) for g in grads]
            if grads:
                torch._chunk_cat(grads, dim=0, num_chunks=data.shards, out=flat.view(data.shards, -1))
        else:
            at = 0
            for (p, grad), size in zip(work, sizes, strict=True):
                row = flat.view(data.shards, -1).narrow(1, at, size)
                at += size
                for piece, chunk in zip(row, grad.split(p.padded_shape[p.dim], dim=p.dim), strict=False):
                    piece.view(p.padded_shape).narrow(p.dim, 0, chunk.shape[p.dim]).copy_(chunk)
        return flat

    def _scattered(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns this rank's piece of the sum over shards."""
        data = self._unit.data
        if data.shards == 1:
            return flat
        size = (flat.numel() // data.shards,)
        if self.reduce_scatter is None:
            out = torch.empty(size, dtype=flat.dtype, device=flat.device)
            reduce_scatter_single(out, flat, group=data.shard_group)
            return out
        source = self.reduce_scatter.allocate((flat.numel(),), dtype=flat.dtype, device=flat.device)
        source.copy_(flat)
        out = self.reduce_scatter.allocate(size, dtype=flat.dtype, device=flat.device)
        self.reduce_scatter(output_tensor=out, input_tensor=source, group=data.shard_group, op=dist.ReduceOp.SUM, async_op=False)
        return out
