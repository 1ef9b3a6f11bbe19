"""One parameter of a unit: its two faces, and its gradient's way between them.

``sharded`` is a ``DTensor`` with ``Shard(0)`` over this rank's rows; ``unsharded`` a plain tensor over the whole parameter. Both lie in the
unit's arena, each an import of its own: slices of one big tensor would share a version counter, save all of it, and look tied.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from shoal import _native
from shoal.exceptions import InvalidArgument, Unimplemented


class ShardedParameter:
    def __init__(self, name: str, original: nn.Parameter, owners: list[tuple[nn.Module, str]]):
        self.name = name
        self.shape, self.dtype = original.shape, original.dtype
        self.owners = owners  # (module, attribute): several when it is tied
        self._number = _native.dtype_number(str(original.dtype).removeprefix("torch."))
        self._stride = torch.empty(original.shape, device="meta").stride()
        self.sharded: nn.Parameter | None = None
        self.unsharded: nn.Parameter | None = None
        self._buffer: torch.Tensor | None = None  # of gradients; used again when nobody else holds it
        self._buffer_uses = 0
        self._pending: deque[list] = deque()  # of each reduction under way: the gradient that it writes, the whole one that it reads

    def bind(self, unit: _native.ShardedUnit, index: int, mesh, original: nn.Parameter) -> None:
        """Puts this rank's rows of ``original`` into the arena and makes both faces."""
        rank, world = mesh.get_local_rank(), mesh.size()
        self._mesh, self.empty = mesh, False
        rows = original.shape[0]
        piece = -(-rows // world)
        self._begin, self._end = min(rank * piece, rows), min((rank + 1) * piece, rows)
        self.empty = self._begin == self._end or original[:1].numel() == 0
        if self.empty:
            self.own = torch.empty((self._end - self._begin, *original.shape[1:]), dtype=original.dtype)
        else:
            self.own = _native.own(unit, index)
        # A parameter on the meta device has no values yet: they come with to_empty and an initialisation (adopt).
        if original.device.type != "meta":
            self.own.copy_(original.detach()[self._begin : self._end])
        local = self.own if original.device.type != "meta" else torch.empty_like(self.own, device="meta")
        self.sharded = nn.Parameter(self._dtensor(local), requires_grad=original.requires_grad)
        whole = _native.whole(unit, index) if original.numel() else torch.empty_like(original, device="cpu")
        self.unsharded = nn.Parameter(whole, requires_grad=original.requires_grad)

    def _dtensor(self, local: torch.Tensor) -> DTensor:
        return DTensor.from_local(local, self._mesh, [Shard(0)], run_check=False, shape=self.shape, stride=self._stride)

    def register(self, face: nn.Parameter) -> None:
        """Registers one of the two faces with the modules that have the parameter."""
        for module, attribute in self.owners:
            module._parameters[attribute] = face

    def show(self, face: nn.Parameter) -> bool:
        """As ``register``, but leaves what the user put in the parameter's place. True when there was nothing such."""
        ours = True
        for module, attribute in self.owners:
            current = module._parameters.get(attribute)
            if current is face:
                continue
            if current is self.sharded or current is self.unsharded:
                module._parameters[attribute] = face
            else:
                ours = False
        return ours

    def adopt(self) -> None:
        """Takes over what the user put in the parameter's place: its values go into the arena, the optimizer's reference stays. Raises when
        it cannot be taken."""
        found = False
        for module, attribute in self.owners:  # of several that differ, the last one counts, as when they are loaded one by one
            current = module._parameters.get(attribute)
            if current is self.unsharded or (current is self.sharded and current._local_tensor.data_ptr() == self.own.data_ptr()):
                continue
            self._take(current)
            found = True
        if found:
            self.register(self.sharded)

    def _take(self, current: nn.Parameter | None) -> None:
        if current is not self.sharded and getattr(current, "_shoal_state", None) is not None:
            raise Unimplemented(f"parameter {self.name} was tied to another one after fully_shard", hint="tie them before fully_shard")
        local = current._local_tensor if isinstance(current, DTensor) else None
        if local is None or current.shape != self.shape:
            by = "nothing" if current is None else f"a {type(current.data).__name__} of shape {tuple(current.shape)}"
            raise Unimplemented(
                f"parameter {self.name} was replaced by {by}",
                hint="replace it by a DTensor of the same shape and placement, or copy into it",
            )
        if local.device.type == "meta":
            raise InvalidArgument(
                f"parameter {self.name} is on the meta device", hint="call model.to_empty(device='cpu') and initialise it"
            )
        if local.dtype != self.dtype:
            raise Unimplemented(
                f"parameter {self.name} changed its dtype from {self.dtype} to {local.dtype} after fully_shard",
                hint="convert the model before fully_shard",
            )
        with torch.no_grad():
            self.own.copy_(local)
        self.sharded._local_tensor = self.own
        self.sharded.requires_grad_(current.requires_grad)

    # ---- gradients ----

    def gradient_work(self) -> tuple[int, int, int, bool, int, bool]:
        """(address of the whole gradient or 0, its dtype, address of the own rows or 0, accumulate, no partial sum) for the reduction: the whole one stays alive until
        ``published``, the rows until ``gradient_done``. None may be under way: the next one adds to what it leaves."""
        if not self.unsharded.requires_grad:
            self._pending.append([None, None])
            return 0, self._number, 0, False, 0, False
        grad = self.unsharded.grad
        if grad is not None:
            if grad.layout != torch.strided:
                grad = grad.to_dense()
            grad = grad.contiguous()
            if grad.dtype != self.dtype:
                grad = grad.to(self.dtype)
            self.unsharded.grad = None
        target = self.sharded.grad
        accumulate = target is not None
        if not accumulate:
            target = self._fresh_grad()
        self._pending.append([target, grad])
        address = grad.data_ptr() if grad is not None else 0
        return address, self._number, 0 if self.empty else target._local_tensor.data_ptr(), accumulate, 0, False

    @property
    def reducing(self) -> bool:
        return bool(self._pending)

    def published(self) -> None:
        """The whole gradient may go: what is needed of it was copied."""
        if self._pending:
            self._pending[-1][1] = None

    def gradient_done(self, present: bool) -> None:
        """The reduction is done; ``present``: some rank had a gradient."""
        target = self._pending.popleft()[0]
        if present and self.sharded.grad is None:
            self.sharded.grad = target

    def forget(self) -> None:
        """The engine has forgotten the reductions under way."""
        self._pending.clear()

    def _fresh_grad(self) -> DTensor:
        """A gradient to write to, over the memory of the step before if nobody holds that any more (no allocation in the steady state)."""
        if self._buffer is None or _uses(self._buffer) != self._buffer_uses:
            self._buffer = torch.empty((self._end - self._begin, *self.shape[1:]), dtype=self.dtype)
            self._buffer_uses = _uses(self._buffer)
        return self._dtensor(self._buffer)


def _uses(t: torch.Tensor) -> int:
    """How many hold its memory: tensors, views and whatever else, in Python or beneath."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)
